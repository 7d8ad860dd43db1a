//! The leader's gauges, from a [`View`] made at each scrape. Without running counts they cannot drift.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use andreas_api::{Phase, Reason};
use andreas_cluster::energy::Exclusion;
use andreas_cluster::energy::bill::Bill;
use andreas_runtime::clock;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::learning::Learning;
use super::totals::{Attempt, Totals};
use super::{LastValues, list};

/// Risks of a job as in its prediction; `Unknown` before the first one.
pub const RISKS: [&str; 6] = ["None", "Low", "Medium", "High", "Late", "Unknown"];
/// States of a GPU.
pub const STATES: [&str; 6] = ["held", "foreign", "free", "resting", "unhealthy", "unavailable"];

/// Makes a view; `None` when this process leads no longer.
type Gather = dyn Fn() -> Option<View> + Send + Sync;

/// Gauges while this process is the leader; empty before.
#[derive(Clone)]
pub struct State {
    gather: Arc<Mutex<Option<Arc<Gather>>>>,
    last: Arc<Mutex<LastValues>>,
    totals: Arc<Mutex<Totals>>,
    learning: Arc<Mutex<Learning>>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").finish_non_exhaustive()
    }
}

impl State {
    pub(super) fn new(
        last: Arc<Mutex<LastValues>>,
        totals: Arc<Mutex<Totals>>,
        learning: Arc<Mutex<Learning>>,
    ) -> Self {
        Self { gather: Arc::default(), last, totals, learning }
    }

    /// This process is the leader from now on; `gather` makes the view of each scrape.
    pub fn lead(&self, gather: impl Fn() -> Option<View> + Send + Sync + 'static) {
        self.totals.lock().lead(clock::now());
        *self.gather.lock() = Some(Arc::new(gather));
    }

    /// Encodes a view and all else that only the leader shows.
    pub fn encode_view(&self, view: View, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        view.encode(encoder)?;
        encode_last_values(*self.last.lock(), encoder)?;
        self.learning.lock().encode(encoder)?;
        encode_totals(&mut self.totals.lock(), &view.namespaces, view.running, encoder)
    }
}

impl Collector for State {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let gather = self.gather.lock().clone();
        match gather.and_then(|gather| gather()) {
            Some(view) => self.encode_view(view, &mut encoder),
            None => Ok(()),
        }
    }
}

/// What the leader sees at one scrape.
#[derive(Debug, Default)]
pub struct View {
    /// Jobs by phase and reason.
    pub jobs: BTreeMap<(Phase, Reason), u64>,
    /// Jobs that have not ended, by risk.
    pub risks: BTreeMap<&'static str, u64>,
    /// How long the job that has waited longest has waited, s.
    pub oldest_waiting: f64,
    /// Jobs whose guard holds them back.
    pub held_back: u64,
    /// GPUs by type and state, in the order of [`STATES`].
    pub gpus: BTreeMap<String, [u64; STATES.len()]>,
    /// Planned nodes that take workers now.
    pub usable_nodes: u64,
    /// Planned nodes that are ready, without a report of an agent.
    pub without_agent: u64,
    /// Excluded nodes by reason.
    pub excluded: BTreeMap<&'static str, u64>,
    /// Draw of the cluster, W.
    pub draw: f64,
    /// Attempts that hold GPUs and their use: 0 until they run.
    pub running: Vec<(Attempt, Bill)>,
    /// Namespaces of jobs that have not ended.
    pub namespaces: BTreeSet<String>,
    /// The policy's currency.
    pub currency: String,
}

/// The reason of a phase without one in the status.
pub fn default_reason(phase: Phase) -> Reason {
    match phase {
        Phase::Pending => Reason::WaitingForCapacity,
        Phase::Starting => Reason::PodsStarting,
        Phase::Running => Reason::Running,
        Phase::Stopping => Reason::Stopping,
        Phase::Suspended => Reason::Suspended,
        Phase::Succeeded => Reason::Completed,
        Phase::Failed => Reason::RetriesExhausted,
    }
}

impl View {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        list::JOBS.encode(encoder, |values| {
            for phase in Phase::ALL {
                let of_phase = self.jobs.iter().filter(|((each, _), _)| *each == phase);
                let mut counts: Vec<_> = of_phase.map(|((_, reason), count)| (*reason, *count)).collect();
                if counts.is_empty() {
                    counts.push((default_reason(phase), 0));
                }
                for (reason, count) in counts {
                    values.write(&[("phase", phase.as_str()), ("reason", reason.as_str())], count as f64)?;
                }
            }
            Ok(())
        })?;
        list::UNFINISHED.encode(encoder, |values| {
            RISKS.into_iter().try_for_each(|risk| {
                values.write(&[("risk", risk)], self.risks.get(risk).copied().unwrap_or(0) as f64)
            })
        })?;
        list::GPUS.encode(encoder, |values| {
            self.gpus.iter().try_for_each(|(gpu_type, counts)| {
                STATES.into_iter().zip(counts).try_for_each(|(state, count)| {
                    values.write(&[("gpu_type", gpu_type.as_str()), ("state", state)], *count as f64)
                })
            })
        })?;
        list::POLICY.encode(encoder, |values| values.write(&[("currency", self.currency.as_str())], 1.0))?;
        list::USABLE_NODES.encode(encoder, |values| values.plain(self.usable_nodes as f64))?;
        list::WITHOUT_AGENT.encode(encoder, |values| values.plain(self.without_agent as f64))?;
        list::EXCLUDED_NODES.encode(encoder, |values| {
            Exclusion::ALL.into_iter().try_for_each(|why| {
                values.write(&[("reason", why)], self.excluded.get(why).copied().unwrap_or(0) as f64)
            })
        })?;
        list::OLDEST_WAITING.encode(encoder, |values| values.plain(self.oldest_waiting))?;
        list::HELD_BACK.encode(encoder, |values| values.plain(self.held_back as f64))?;
        list::DRAW.encode(encoder, |values| values.plain(self.draw))
    }
}

fn encode_last_values(last: LastValues, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    if let Some(met) = last.budget_met {
        list::BUDGET_MET.encode(encoder, |values| values.plain(f64::from(u8::from(met))))?;
    }
    let Some(plan) = last.plan else { return Ok(()) };
    list::BUDGETED.encode(encoder, |values| values.plain(plan.budgeted))?;
    if let Some(allowed) = plan.allowed {
        list::ALLOWED.encode(encoder, |values| values.plain(allowed))?;
    }
    if let Some(asked) = plan.asked_over_available {
        list::PLAN_ASKED.encode(encoder, |values| values.plain(asked))?;
    }
    list::PLAN_LEFT_FREE.encode(encoder, |values| values.plain(plan.gpus_left_free as f64))?;
    let at = plan.at.as_millisecond() as f64 / 1_000.0;
    list::PLAN_AT.encode(encoder, |values| values.plain(at))
}

fn encode_totals(
    totals: &mut Totals,
    unfinished: &BTreeSet<String>,
    running: Vec<(Attempt, Bill)>,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let keys: BTreeSet<(String, i64)> = running.iter().map(|(of, _)| (of.uid.clone(), of.attempt)).collect();
    for (attempt, used) in running {
        totals.running(&attempt, used);
    }
    totals.keep(&keys);
    fn labels((namespace, gpu_type): &(String, String)) -> [(&str, &str); 2] {
        [("job_namespace", namespace.as_str()), ("gpu_type", gpu_type.as_str())]
    }
    list::ENERGY.encode(encoder, |values| {
        totals.energy().try_for_each(|(key, shown)| values.write(&labels(key), shown.joules))
    })?;
    list::HOST_ENERGY.encode(encoder, |values| {
        totals.energy().try_for_each(|(key, shown)| values.write(&labels(key), shown.host_joules))
    })?;
    list::ENERGY_COST.encode(encoder, |values| {
        totals.energy().try_for_each(|(key, shown)| values.write(&labels(key), shown.cost))
    })?;
    list::LATENESS_COST.encode(encoder, |values| {
        totals
            .lateness(unfinished)
            .iter()
            .try_for_each(|(namespace, money)| values.write(&[("job_namespace", namespace.as_str())], *money))
    })
}
