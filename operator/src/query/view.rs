//! A plan with its forecast, and the order of the waiting jobs that follows.

use std::collections::HashMap;
use std::sync::Arc;

use andreas_api::query::Ahead;
use andreas_forecast::{Forecast, Settings, sample};
use andreas_model::{JobId, Time};
use andreas_planner::{Decision, Options, Plan, Snapshot, SnapshotError};
use jiff::Timestamp;

use crate::planning::last::Latest;

/// Futures of a forecast in the background.
const FUTURES: usize = 24;
/// Maximum of futures times jobs times plans of a forecast: about a second of planning.
const WORK: usize = 24_000;
/// Maximum constructions for a plan in a future.
const TRIALS: u64 = 20;
/// Jobs above which a forecast has fewer futures.
const MANY: usize = 2_000;
const FUTURES_OF_MANY: usize = 8;
/// Maximum constructions for a question's plan of more jobs than the second.
const TRIALS_OF_QUESTION: u64 = 50;
const MANY_FOR_QUESTION: usize = 500;

/// What all answers are computed from.
pub struct View {
    /// The plan and its input.
    pub latest: Arc<Latest>,
    /// The instant that answers count from: that of the plan, or a later one.
    at: Timestamp,
    /// The plan's input as it is at `at`, if that is later.
    moved: Option<Snapshot>,
    /// The futures of its jobs.
    pub forecast: Arc<Forecast>,
    /// What the forecast was made with.
    pub settings: Settings,
    /// Waiting jobs in the order of their expected starts.
    order: Vec<JobId>,
    place: HashMap<JobId, usize>,
}

/// Settings of a forecast for this many jobs.
pub fn settings(jobs: usize) -> Settings {
    Settings::within(WORK, if jobs > MANY { FUTURES_OF_MANY } else { FUTURES }, jobs)
}

/// The planner's options within a future.
pub fn options(of: &Options) -> Options {
    Options { trials: of.trials.min(TRIALS), ..of.clone() }
}

/// The planner's options for the plan of a question: of so many jobs.
pub fn options_of_question(of: &Options, jobs: usize) -> Options {
    let most = if jobs > MANY_FOR_QUESTION { TRIALS_OF_QUESTION } else { u64::MAX };
    Options { trials: of.trials.min(most), ..of.clone() }
}

/// Whether the plan leaves a job waiting.
pub fn waits(plan: &Plan, id: &JobId) -> bool {
    matches!(plan.jobs.get(id).map(|job_plan| &job_plan.decision), Some(Decision::Wait { .. }))
}

/// Waiting jobs of a plan in the order of their expected starts.
pub fn order(snapshot: &Snapshot, plan: &Plan, forecast: &Forecast) -> Vec<JobId> {
    let start = |id: &JobId| forecast.job(id).map_or(f64::INFINITY, |job| job.start.p50.0);
    let mut waiting: Vec<_> = snapshot.jobs.iter().filter(|job| waits(plan, &job.id)).collect();
    waiting.sort_by(|a, b| {
        let by_start = start(&a.id).total_cmp(&start(&b.id));
        by_start.then(a.submit.total_cmp(&b.submit)).then_with(|| a.id.cmp(&b.id))
    });
    waiting.into_iter().map(|job| job.id.clone()).collect()
}

impl View {
    /// Samples the futures of a plan.
    ///
    /// # Errors
    /// If the planner refuses the snapshot.
    pub fn new(latest: Arc<Latest>) -> Result<Self, SnapshotError> {
        Self::at_instant(latest.at, None, latest)
    }

    /// Samples the futures of the same plan from `now` on, so that no answer lies in the past.
    ///
    /// # Errors
    /// If the planner refuses the snapshot.
    pub fn later(&self, now: Timestamp) -> Result<Self, SnapshotError> {
        let latest = Arc::clone(&self.latest);
        let moved = advanced(&latest.snapshot, &latest.plan, now);
        Self::at_instant(now.max(latest.at), Some(moved), latest)
    }

    /// A snapshot of the plan's instant as it is at the view's.
    pub fn moved(&self, snapshot: Snapshot) -> Snapshot {
        if self.moved.is_some() { advanced(&snapshot, &self.latest.plan, self.at) } else { snapshot }
    }

    fn at_instant(
        at: Timestamp,
        moved: Option<Snapshot>,
        latest: Arc<Latest>,
    ) -> Result<Self, SnapshotError> {
        let snapshot = moved.as_ref().unwrap_or(&latest.snapshot);
        let settings = settings(snapshot.jobs.len());
        let mut forecast = sample(snapshot, &latest.plan, &options(&latest.options), &settings)?;
        forecast.correct(latest.ledger.calibration());
        let forecast = Arc::new(forecast);
        let order = order(snapshot, &latest.plan, &forecast);
        let place = order.iter().enumerate().map(|(n, id)| (id.clone(), n)).collect();
        Ok(Self { latest, at, moved, forecast, settings, order, place })
    }

    /// The instant that its answers count from.
    pub fn instant(&self) -> Timestamp {
        self.at
    }

    /// The cluster at that instant.
    pub fn snapshot(&self) -> &Snapshot {
        self.moved.as_ref().unwrap_or(&self.latest.snapshot)
    }

    /// Waiting jobs of the whole cluster, in the order of their expected starts.
    pub fn order(&self) -> &[JobId] {
        &self.order
    }

    /// Position of a waiting job in the queue, from 0.
    pub fn position(&self, id: &JobId) -> Option<usize> {
        self.place.get(id).copied()
    }
}

fn advanced(snapshot: &Snapshot, plan: &Plan, now: Timestamp) -> Snapshot {
    andreas_forecast::advanced_to(snapshot, plan, Time(now.as_millisecond() as f64 / 1_000.0))
}

/// Jobs as a reader of a namespace may see them: its own by name, `names` at most, others by number.
pub fn visible<'a>(jobs: impl IntoIterator<Item = &'a JobId>, namespace: &str, names: usize) -> Ahead {
    let mut ahead = Ahead::default();
    for id in jobs {
        match id.as_str().split_once('/') {
            Some((of, name)) if of == namespace => {
                ahead.own += 1;
                if ahead.names.len() < names {
                    ahead.names.push(name.to_owned());
                }
            }
            _ => ahead.others += 1,
        }
    }
    ahead
}
