//! The leader's gauges, read from the index at each scrape. Without running counts they cannot drift.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Weak};

use andreas_api::gpu_node::GpuCondition;
use andreas_api::slim::{SlimNode, SlimTrainingJob};
use andreas_api::{EnergyPolicySpec, Phase, Reason, TrainingJobStatus};
use andreas_runtime::clock;
use andreas_runtime::watch::ObjectKey;
use jiff::Timestamp;
use kube::ResourceExt;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::learning::Learning;
use super::totals::{Attempt, MOST_TYPES, OTHER, Totals};
use super::{LastValues, list, seconds};
use crate::energy::bill::attempt_energy;
use crate::energy::{Exclusion, Inventory, NodeUse, budget, gpu_type};
use crate::executor::Shared;
use crate::index::{Amounts, ClusterIndex, usable};
use crate::instants::deadline;

/// Risks of a job as in its prediction; `Unknown` before the first one.
const RISKS: [&str; 6] = ["None", "Low", "Medium", "High", "Late", "Unknown"];
/// States of a GPU.
const STATES: [&str; 6] = ["held", "foreign", "free", "resting", "unhealthy", "unavailable"];

/// Gauges while this process is the leader; empty before.
#[derive(Clone)]
pub struct State {
    shared: Arc<Mutex<Weak<Shared>>>,
    last: Arc<Mutex<LastValues>>,
    spent: Arc<Mutex<Totals>>,
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
        spent: Arc<Mutex<Totals>>,
        learning: Arc<Mutex<Learning>>,
    ) -> Self {
        Self { shared: Arc::default(), last, spent, learning }
    }

    /// This process is the leader from now on.
    pub fn lead(&self, shared: &Arc<Shared>) {
        self.spent.lock().lead(clock::now());
        *self.shared.lock() = Arc::downgrade(shared);
    }

    pub(super) fn encode_view(&self, view: View, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        view.encode(encoder)?;
        encode_last_values(*self.last.lock(), encoder)?;
        self.learning.lock().encode(encoder)?;
        encode_spent(&mut self.spent.lock(), view.running, encoder)
    }
}

impl Collector for State {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(shared) = self.shared.lock().upgrade() else { return Ok(()) };
        let view = View::of(&shared.index.lock(), clock::now());
        self.encode_view(view, &mut encoder)
    }
}

/// A view of the index at one scrape.
#[derive(Debug, Default)]
pub(super) struct View {
    jobs: BTreeMap<(Phase, Reason), u64>,
    risks: BTreeMap<&'static str, u64>,
    tardiness: f64,
    oldest_waiting: f64,
    gpus: BTreeMap<String, [u64; STATES.len()]>,
    usable_nodes: u64,
    unknown_boards: u64,
    excluded: BTreeMap<Exclusion, u64>,
    draw: f64,
    /// Running attempts and their use.
    running: Vec<(Attempt, (i64, i64))>,
}

/// The usual reason of a phase.
fn usual(phase: Phase) -> Reason {
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
    pub(super) fn of(index: &ClusterIndex, now: Timestamp) -> Self {
        let inventory = Inventory::of(index);
        let policy = inventory.policy();
        let mut view = Self::default();
        let mut held: BTreeMap<&str, u64> = BTreeMap::new();
        for (key, job) in index.jobs.iter() {
            view.add_job(key, job, policy, now);
            let status = job.status.as_ref();
            if let Some(allocation) = status.and_then(|status| status.allocation.as_ref()) {
                for node in &allocation.nodes {
                    *held.entry(node).or_default() += u64::try_from(allocation.gpus_per_worker).unwrap_or(0);
                }
            }
        }
        for (key, node) in index.nodes.iter() {
            view.add_node(index, key, node, held.get(key.name.as_str()).copied().unwrap_or(0), &inventory);
        }
        view.draw = budget::draw(index, policy, now)
            .map_or_else(|| budget::counted(index, policy, now).0, |draw| draw.whole);
        view
    }

    fn add_job(&mut self, key: &ObjectKey, job: &SlimTrainingJob, policy: &EnergyPolicySpec, now: Timestamp) {
        let unwritten = TrainingJobStatus::default();
        let status = job.status.as_ref().unwrap_or(&unwritten);
        let reason = match (status.phase, status.reason.as_deref()) {
            (Phase::Pending, None) => Reason::NotPlannedYet,
            (phase, None) => usual(phase),
            (_, Some(reason)) => Reason::parse(reason).unwrap_or(Reason::Invalid),
        };
        *self.jobs.entry((status.phase, reason)).or_default() += 1;
        if status.phase.is_terminal() {
            return;
        }
        let created = job.metadata.creation_timestamp.as_ref();
        let due = deadline(&job.spec, created).map(|due| due.0);
        let late = due.map_or(0.0, |due| seconds(due, now));
        self.tardiness += late;
        let predicted = status.prediction.as_ref().map(|prediction| prediction.risk.as_str());
        let risk = if late > 0.0 { Some("Late") } else { predicted };
        let risk = risk.and_then(|risk| RISKS.into_iter().find(|known| *known == risk));
        *self.risks.entry(risk.unwrap_or("Unknown")).or_default() += 1;
        if status.phase == Phase::Pending {
            let stopped = status.history.last().map(|record| record.ended.0);
            let since = stopped.or(created.map(|created| created.0));
            self.oldest_waiting = since.map_or(0.0, |since| seconds(since, now)).max(self.oldest_waiting);
        }
        if let Some(allocation) =
            status.allocation.as_ref().filter(|allocation| allocation.running_time.is_some())
        {
            let attempt = Attempt {
                uid: job.uid().unwrap_or_default(),
                attempt: allocation.attempt,
                namespace: key.namespace.clone(),
                gpu_type: allocation.gpu_type.clone(),
                started: allocation.running_time.as_ref().map(|time| time.0),
            };
            self.running.push((attempt, attempt_energy(job, policy, now)));
        }
    }

    fn add_node(
        &mut self,
        index: &ClusterIndex,
        key: &ObjectKey,
        node: &SlimNode,
        held: u64,
        inventory: &Inventory<'_>,
    ) {
        let of_node = inventory.node_use(node);
        let open = of_node.planned().is_some() && usable(node);
        self.usable_nodes += u64::from(open);
        self.unknown_boards += u64::from(of_node.planned().is_some_and(|t| inventory.unknown().contains(t)));
        if let Some(why) = of_node.exclusion() {
            *self.excluded.entry(why).or_default() += 1;
        }
        let ours = !matches!(of_node, NodeUse::NoGpus | NodeUse::Excluded(Exclusion::NotSelected));
        let Some(product) = gpu_type(node, inventory.policy()).filter(|_| ours || held > 0) else { return };
        let known = self.gpus.contains_key(product) || self.gpus.len() < MOST_TYPES;
        let name = if known { product } else { OTHER };
        let counts = self.gpus.entry(name.to_owned()).or_default();
        let mut left = Amounts::of(&node.status.allocatable).gpus.max(held);
        let agent = index.gpu_nodes.get(key).and_then(|gpu_node| gpu_node.status.as_ref());
        let seen = |state: GpuCondition| {
            agent.map_or(0, |status| status.gpus.iter().filter(|gpu| gpu.state == state).count() as u64)
        };
        let rest = if open { "free" } else { "unavailable" };
        let resting = if open { seen(GpuCondition::Resting) } else { 0 };
        for (state, wanted) in [
            ("held", held),
            ("foreign", index.foreign_use(&key.name).gpus),
            ("unhealthy", seen(GpuCondition::Unhealthy)),
            ("resting", resting),
            (rest, u64::MAX),
        ] {
            let taken = wanted.min(left);
            left -= taken;
            if let Some(at) = STATES.iter().position(|known| *known == state) {
                counts[at] += taken;
            }
        }
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        list::JOBS.encode(encoder, |values| {
            for phase in Phase::ALL {
                let of_phase = self.jobs.iter().filter(|((each, _), _)| *each == phase);
                let mut found: Vec<_> = of_phase.map(|((_, reason), count)| (*reason, *count)).collect();
                if found.is_empty() {
                    found.push((usual(phase), 0));
                }
                for (reason, count) in found {
                    values.of(&[("phase", phase.as_str()), ("reason", reason.as_str())], count as f64)?;
                }
            }
            Ok(())
        })?;
        list::UNFINISHED.encode(encoder, |values| {
            RISKS.into_iter().try_for_each(|risk| {
                values.of(&[("risk", risk)], self.risks.get(risk).copied().unwrap_or(0) as f64)
            })
        })?;
        list::GPUS.encode(encoder, |values| {
            self.gpus.iter().try_for_each(|(gpu_type, counts)| {
                STATES.into_iter().zip(counts).try_for_each(|(state, count)| {
                    values.of(&[("gpu_type", gpu_type.as_str()), ("state", state)], *count as f64)
                })
            })
        })?;
        list::USABLE_NODES.encode(encoder, |values| values.plain(self.usable_nodes as f64))?;
        list::UNKNOWN_BOARDS.encode(encoder, |values| values.plain(self.unknown_boards as f64))?;
        list::EXCLUDED_NODES.encode(encoder, |values| {
            Exclusion::ALL.into_iter().try_for_each(|why| {
                values.of(&[("reason", why.as_str())], self.excluded.get(&why).copied().unwrap_or(0) as f64)
            })
        })?;
        list::TARDINESS.encode(encoder, |values| values.plain(self.tardiness))?;
        list::OLDEST_WAITING.encode(encoder, |values| values.plain(self.oldest_waiting))?;
        list::DRAW.encode(encoder, |values| values.plain(self.draw))
    }
}

fn encode_last_values(last: LastValues, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    if let Some((over, met)) = last.budget {
        list::OVER_BUDGET.encode(encoder, |values| values.plain(over))?;
        list::BUDGET_MET.encode(encoder, |values| values.plain(f64::from(u8::from(met))))?;
    }
    let Some(plan) = last.plan else { return Ok(()) };
    list::BUDGETED.encode(encoder, |values| values.plain(plan.budgeted))?;
    if let Some(limited) = plan.limited {
        list::LIMITED.encode(encoder, |values| values.plain(limited))?;
    }
    if let Some(allowed) = plan.allowed {
        list::ALLOWED.encode(encoder, |values| values.plain(allowed))?;
    }
    if let Some(gap) = plan.gap {
        list::PLAN_GAP.encode(encoder, |values| values.plain(gap))?;
    }
    list::PLAN_JOBS.encode(encoder, |values| values.plain(plan.jobs as f64))?;
    let at = plan.at.as_millisecond() as f64 / 1_000.0;
    list::PLAN_AT.encode(encoder, |values| values.plain(at))
}

fn encode_spent(
    spent: &mut Totals,
    running: Vec<(Attempt, (i64, i64))>,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let keys: BTreeSet<(String, i64)> = running.iter().map(|(of, _)| (of.uid.clone(), of.attempt)).collect();
    for (attempt, used) in running {
        spent.running(&attempt, used);
    }
    spent.keep(&keys);
    fn labels((namespace, gpu_type): &(String, String)) -> [(&str, &str); 2] {
        [("job_namespace", namespace.as_str()), ("gpu_type", gpu_type.as_str())]
    }
    list::ENERGY.encode(encoder, |values| {
        spent.energy().try_for_each(|(key, joules, _)| values.of(&labels(key), joules))
    })?;
    list::ENERGY_COST.encode(encoder, |values| {
        spent.energy().try_for_each(|(key, _, money)| values.of(&labels(key), money))
    })?;
    list::LATENESS_COST.encode(encoder, |values| {
        spent
            .lateness()
            .iter()
            .try_for_each(|(namespace, money)| values.of(&[("job_namespace", namespace.as_str())], *money))
    })
}
