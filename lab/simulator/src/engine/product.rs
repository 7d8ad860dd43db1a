//! What the product's rules see of a run beside its times: what stops lose and restarts take, as they are observed, and what a run
//! counts for under a power budget.
//!
//! **In**: runs and what became of them. **Out**: figures of the planner's jobs. What the operator computes by a function of the
//! product's pure crates is computed by that function here.

use std::collections::{BTreeMap, VecDeque};

use andreas_model::{Seconds, Time, TypeDraw, Watts};
use andreas_planner::{Estimate, Job};
use serde::Serialize;

use super::live::ActiveJob;

/// Maximum restarts of a profile, the newest, as in a TrainingProfile.
const MAX_RESTARTS: usize = 16;
/// An agent has measured a run's draw so long after it began to train.
const MEASURED_AFTER: Seconds = Seconds(120.0);

/// Rules of the product's policy that bind a planner which learns. By default those of a policy that says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ProductPolicy {
    /// `prices.agingPeriod`, where the scenario has none; `None`: weights do not grow.
    pub aging: Option<Seconds>,
    /// `preemption.minRunTime`; a job's own counts if it is longer.
    pub min_run: Seconds,
    /// Whether a run counts for its guard under a power budget, and for its draw once it is measured; otherwise for what is
    /// predicted.
    pub guards: bool,
}

impl Default for ProductPolicy {
    fn default() -> Self {
        Self { aging: Some(Seconds(86_400.0)), min_run: Seconds(300.0), guards: true }
    }
}

/// What stops and restarts of runs with one profile have shown.
#[derive(Debug, Default)]
struct ProfileStops {
    /// Epochs that the last stop of each job lost, by its index.
    lost: BTreeMap<usize, f64>,
    /// Seconds of the restarts, newest last.
    restarts: VecDeque<i64>,
}

/// The same by profile. Nothing is assumed before it was seen.
#[derive(Debug, Default)]
pub(super) struct Stops {
    profiles: BTreeMap<String, ProfileStops>,
}

impl Stops {
    /// Takes note of a run that trains again: what its last stop lost and what the restart took show by its first report.
    pub fn hear(&mut self, live: &mut ActiveJob, now: Time) {
        let (Some(run), Some(evidence)) = (&mut live.run, &live.evidence) else { return };
        if now <= run.ready {
            return;
        }
        let (lost, restart) = (live.unheard_loss.take(), run.restart.take());
        if lost.is_none() && restart.is_none() {
            return;
        }
        let profile = self.profiles.entry(evidence.profile_name().to_owned()).or_default();
        if let Some(epochs) = lost {
            profile.lost.insert(live.index, epochs);
        }
        if let Some(seconds) = restart {
            profile.restarts.push_back(seconds.0.round() as i64);
            let excess = profile.restarts.len().saturating_sub(MAX_RESTARTS);
            profile.restarts.drain(..excess);
        }
    }

    /// Shows the planner what a stop of this job would lose and what its restart takes.
    pub fn show(&self, live: &ActiveJob, now: Time, shown: &mut Job) {
        let profile = live.evidence.as_ref().and_then(|evidence| self.profiles.get(evidence.profile_name()));
        shown.restart = profile
            .and_then(|profile| andreas_predictor::restart_time(profile.restarts.iter().copied()))
            .or(live.truth.restart);
        let mean = |lost: &BTreeMap<usize, f64>| lost.values().sum::<f64>() / lost.len().max(1) as f64;
        let lost = profile.map_or(0.0, |profile| {
            profile.lost.get(&live.index).copied().unwrap_or_else(|| mean(&profile.lost))
        });
        let here = live.run.as_ref().map(|run| (&run.place.gpu_type, run.place.total_gpus()));
        let held = shown.estimates.iter().find(|row| here == Some((&row.gpu_type, row.gpus)));
        let fastest = || shown.estimates.iter().min_by(|a, b| a.epoch.0.total_cmp(&b.epoch.0));
        let epoch = held.or_else(fastest).map_or(0.0, |row| row.epoch.0);
        let running_for = live.run.as_ref().map_or(0.0, |run| (now - run.ready).0.max(0.0));
        shown.lost = Seconds((lost * epoch).min(running_for));
        shown.usually_lost = Some(Seconds(lost * epoch));
    }
}

/// What a run counts for: for its guard until agents have measured it, then for its draw. Its guard is lifted only while the budget
/// has room for more, of which `left` is what the last plan left. `None`: as it is shown.
pub(super) fn measured_draw(
    live: &mut ActiveJob,
    rows: &[Estimate],
    draw: TypeDraw,
    now: Time,
    left: &mut f64,
) -> Option<Vec<Estimate>> {
    let run = live.run.as_mut().filter(|run| now >= run.ready + MEASURED_AFTER)?;
    let gpus = run.place.total_gpus();
    let mut rows = rows.to_vec();
    let row = rows.iter_mut().find(|row| row.gpu_type == run.place.gpu_type && row.gpus == gpus)?;
    let measured = draw.of_measured(run.watts / f64::from(gpus.0), gpus.0);
    let guard = row.draw.map_or(f64::INFINITY, |draw| draw.0);
    if !run.guard_lifted {
        let more = measured - guard;
        if more > left.max(0.0) {
            return None;
        }
        *left -= more.max(0.0);
        run.guard_lifted = true;
    }
    row.draw = Some(Watts(measured));
    Some(rows)
}
