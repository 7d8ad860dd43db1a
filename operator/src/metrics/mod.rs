//! Prometheus metrics of the operator. Labels come from closed or bounded sets; the only text from tenants is
//! the namespace.
//!
//! | file | what |
//! |---|---|
//! | [`list`] | every metric: name, type, labels, help |
//! | [`state`] | gauges of a view that the leader makes at each scrape |
//! | [`totals`] | energy and cost by namespace and GPU type |
//! | [`learning`] | accuracy of predictions, and the last fit |
//!
//! **In**: values: events where they happen, and views. **Out**: `/metrics`. **Never here**: the loops or their
//! state, and work per event that grows with the number of jobs.

pub mod learning;
pub mod list;
pub mod state;
pub mod totals;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use andreas_api::slim::SlimTrainingJob;
use andreas_api::training_job::AttemptRecord;
use andreas_api::training_profile::Observation;
use andreas_api::{Outcome, Phase, Reason, TrainingJobStatus};
use andreas_predictor::LogNormal;
use andreas_runtime::clock;
use andreas_runtime::metrics::register_process;
use jiff::Timestamp;
use kube::ResourceExt;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::instants::deadline;
use crate::lifecycle::ProfileUpdate;
use crate::predict::learner::FitOutcome;
use crate::predict::sampled::Sampled;
use crate::predict::{Fit, Table};
use learning::{Learning, Quantity};
use state::State;
use totals::Totals;

/// Kind and result of a write.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct WriteLabel {
    /// The written object: `status`, `pod`, `delete`, `service`, `wake`, `dry_run`, `progress`, `profile`,
    /// `node`, `policy`.
    pub kind: &'static str,
    /// `ok`, `conflict`, `refused`, `gone`, `busy`, `failed`.
    pub result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Decision {
    decision: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct QueryLabels {
    question: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct AttemptLabels {
    outcome: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct EndedLabels {
    phase: &'static str,
    deadline: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct SourceLabel {
    source: String,
}

/// Figures of the last plan.
#[derive(Clone, Copy, Debug)]
pub struct LastPlan {
    /// When it was made.
    pub at: Timestamp,
    /// Jobs in it.
    pub jobs: usize,
    /// Its proven gap, if the method has a bound.
    pub gap: Option<f64>,
    /// The part of the possible saving that it may have missed, likewise.
    pub missed_saving: Option<f64>,
    /// Power in the plan, W.
    pub budgeted: f64,
    /// Power in the plan with power limits, W, if these are only evaluated.
    pub limited: Option<f64>,
    /// The power budget, W, if any.
    pub allowed: Option<f64>,
}

/// Gauges of the last plan and the last budget check.
#[derive(Clone, Copy, Debug, Default)]
struct LastValues {
    plan: Option<LastPlan>,
    /// W above the budget, and whether it counts as met.
    budget: Option<(f64, bool)>,
}

/// All metrics. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    writes: Family<WriteLabel, Counter>,
    decisions: Family<Decision, Counter>,
    reports: Family<ResultLabel, Counter>,
    attempts: Family<AttemptLabels, Counter>,
    ended: Family<EndedLabels, Counter>,
    restarts: Counter,
    late: Histogram,
    waited: Histogram,
    turnaround: Histogram,
    prediction_error: Family<SourceLabel, Histogram, fn() -> Histogram>,
    violations: Counter,
    fits: Family<ResultLabel, Counter>,
    fit_seconds: Histogram,
    last: Arc<Mutex<LastValues>>,
    totals: Arc<Mutex<Totals>>,
    learning: Arc<Mutex<Learning>>,
    queries: Family<QueryLabels, Counter>,
    forecasts_checked: Counter,
    forecasts_covered: Counter,
    forecasts_due: Counter,
    forecast_brier: Counter<f64, AtomicU64>,
    /// Duration of sampling all jobs' futures.
    pub forecast_seconds: Histogram,
    /// Duration of computing an answer of the query API.
    pub query_seconds: Histogram,
    /// Runs that deviated from their plan's prediction.
    pub deviations: Counter,
    /// The leader's gauges.
    pub state: State,
    /// Steps of jobs.
    pub reconciles: Counter,
    /// Steps with a failed status write or action.
    pub reconcile_errors: Counter,
    /// Jobs queued for a step.
    pub queue: Gauge,
    /// Jobs with a step in progress.
    pub in_flight: Gauge,
    /// Plans made.
    pub plans: Counter,
    /// Snapshots refused by the planner.
    pub plan_errors: Counter,
    /// Plans with a bound above their cost.
    pub plan_bound_invalid: Counter,
    /// Duration of planning.
    pub plan_seconds: Histogram,
    /// 1 while this replica is the leader.
    pub leader: Gauge,
}

/// For waiting, run time and lateness of jobs: buckets from a second to ten days.
fn duration_histogram() -> Histogram {
    Histogram::new([
        0.0, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 10_800.0, 43_200.0, 86_400.0, 259_200.0, 864_000.0,
    ])
}

fn errors() -> Histogram {
    Histogram::new([0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0])
}

impl Metrics {
    /// Creates the metrics and adds them to `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let (last, totals) = (Arc::<Mutex<LastValues>>::default(), Arc::<Mutex<Totals>>::default());
        let learning = Arc::<Mutex<Learning>>::default();
        let this = Self {
            writes: Family::default(),
            decisions: Family::default(),
            reports: Family::default(),
            attempts: Family::default(),
            ended: Family::default(),
            restarts: Counter::default(),
            late: duration_histogram(),
            waited: duration_histogram(),
            turnaround: duration_histogram(),
            prediction_error: Family::new_with_constructor(errors as fn() -> Histogram),
            violations: Counter::default(),
            fits: Family::default(),
            fit_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 16)),
            state: State::new(Arc::clone(&last), Arc::clone(&totals), Arc::clone(&learning)),
            last,
            totals,
            learning,
            queries: Family::default(),
            forecasts_checked: Counter::default(),
            forecasts_covered: Counter::default(),
            forecasts_due: Counter::default(),
            forecast_brier: Counter::default(),
            forecast_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 16)),
            query_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 16)),
            deviations: Counter::default(),
            reconciles: Counter::default(),
            reconcile_errors: Counter::default(),
            queue: Gauge::default(),
            in_flight: Gauge::default(),
            plans: Counter::default(),
            plan_errors: Counter::default(),
            plan_bound_invalid: Counter::default(),
            plan_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 16)),
            leader: Gauge::default(),
        };
        this.begin_at_zero();
        list::WRITES.register(registry, this.writes.clone());
        list::DECISIONS.register(registry, this.decisions.clone());
        list::REPORTS.register(registry, this.reports.clone());
        list::ATTEMPTS.register(registry, this.attempts.clone());
        list::ENDED.register(registry, this.ended.clone());
        list::RESTARTS.register(registry, this.restarts.clone());
        list::LATE.register(registry, this.late.clone());
        list::WAITED.register(registry, this.waited.clone());
        list::TURNAROUND.register(registry, this.turnaround.clone());
        list::PREDICTION_ERROR.register(registry, this.prediction_error.clone());
        list::VIOLATIONS.register(registry, this.violations.clone());
        list::FITS.register(registry, this.fits.clone());
        list::FIT_TIME.register(registry, this.fit_seconds.clone());
        list::QUERIES.register(registry, this.queries.clone());
        list::FORECASTS_CHECKED.register(registry, this.forecasts_checked.clone());
        list::FORECASTS_COVERED.register(registry, this.forecasts_covered.clone());
        list::FORECASTS_DUE.register(registry, this.forecasts_due.clone());
        list::FORECAST_BRIER.register(registry, this.forecast_brier.clone());
        list::FORECAST_TIME.register(registry, this.forecast_seconds.clone());
        list::QUERY_TIME.register(registry, this.query_seconds.clone());
        list::DEVIATIONS.register(registry, this.deviations.clone());
        list::RECONCILES.register(registry, this.reconciles.clone());
        list::RECONCILE_ERRORS.register(registry, this.reconcile_errors.clone());
        list::QUEUE.register(registry, this.queue.clone());
        list::IN_FLIGHT.register(registry, this.in_flight.clone());
        list::PLANS.register(registry, this.plans.clone());
        list::PLAN_ERRORS.register(registry, this.plan_errors.clone());
        list::PLAN_BOUND_INVALID.register(registry, this.plan_bound_invalid.clone());
        list::PLAN_TIME.register(registry, this.plan_seconds.clone());
        list::LEADER.register(registry, this.leader.clone());
        registry.register_collector(Box::new(this.state.clone()));
        register_process(registry, env!("CARGO_PKG_VERSION"));
        this
    }

    /// A counter first exposed at 1 shows no increase to `increase()`: common ones start at 0.
    fn begin_at_zero(&self) {
        for (outcome, reason) in [
            (Outcome::Finished, Reason::Completed),
            (Outcome::Stopped, Reason::Preempted),
            (Outcome::UserFailure, Reason::ContainerFailed),
            (Outcome::ClusterFailure, Reason::ClusterFailure),
            (Outcome::Withdrawn, Reason::PlacementTimeout),
        ] {
            let _ = self
                .attempts
                .get_or_create(&AttemptLabels { outcome: outcome_label(outcome), reason: reason.as_str() });
        }
        for phase in [Phase::Succeeded.as_str(), Phase::Failed.as_str()] {
            for deadline in ["met", "missed", "none"] {
                let _ = self.ended.get_or_create(&EndedLabels { phase, deadline });
            }
        }
        for result in ["written", "refused"] {
            let _ = self.reports.get_or_create(&ResultLabel { result });
        }
        for result in ["done", "failed", "slow"] {
            let _ = self.fits.get_or_create(&ResultLabel { result });
        }
    }

    /// Counts one write.
    pub fn wrote(&self, kind: &'static str, result: &'static str) {
        self.writes.get_or_create(&WriteLabel { kind, result }).inc();
    }

    /// Counts a changed decision: `Run`, or a reason for waiting.
    pub fn decided(&self, decision: &'static str) {
        self.decisions.get_or_create(&Decision { decision }).inc();
    }

    /// Counts a progress report: `written`, `later`, `nothing`, `refused`.
    pub fn reported(&self, result: &'static str) {
        self.reports.get_or_create(&ResultLabel { result }).inc();
    }

    /// Counts a question to the query API.
    pub fn answered(&self, question: &'static str, result: &'static str) {
        self.queries.get_or_create(&QueryLabels { question, result }).inc();
    }

    /// Compares a job's success with its first sampled forecast.
    pub fn forecast_came_true(&self, first: &Sampled, end: Timestamp, due: Option<Timestamp>) {
        self.forecasts_checked.inc();
        let after = first.finish.0.is_some_and(|p10| end >= p10);
        let before = first.finish.2.is_none_or(|p90| end <= p90);
        if after && before {
            self.forecasts_covered.inc();
        }
        if let Some(due) = due {
            self.forecasts_due.inc();
            let met = if end <= due { 1.0 } else { 0.0 };
            self.forecast_brier.inc_by((first.on_time - met).powi(2));
        }
    }

    /// Records a plan.
    pub fn planned(&self, plan: LastPlan) {
        if plan.allowed.is_some_and(|allowed| plan.budgeted > allowed * (1.0 + 1e-9)) {
            self.violations.inc();
        }
        self.last.lock().plan = Some(plan);
    }

    /// Records the draw above the budget, W, and whether the budget counts as met.
    pub fn set_budget_state(&self, over: f64, met: bool) {
        self.last.lock().budget = Some((over, met));
    }

    /// Records a status write; `job` holds the status before it.
    pub fn wrote_status(&self, job: &SlimTrainingJob, after: &TrainingJobStatus) {
        let unwritten = TrainingJobStatus::default();
        let before = job.status.as_ref().unwrap_or(&unwritten);
        let last = before.history.last().map_or(0, |record| record.attempt);
        let ended = after.history.last().filter(|record| record.attempt > last);
        if let Some(record) = ended {
            let reason = Reason::parse(&record.reason).unwrap_or(Reason::Invalid).as_str();
            self.attempts
                .get_or_create(&AttemptLabels { outcome: outcome_label(record.outcome), reason })
                .inc();
        }
        self.account(job, after, ended);
        self.restarts.inc_by(u64::try_from(after.restarts.saturating_sub(before.restarts)).unwrap_or(0));
        let created = job.metadata.creation_timestamp.as_ref().map(|time| time.0);
        if let (None, Some(start), Some(created)) = (&before.start_time, &after.start_time, created) {
            self.waited.observe(seconds(created, start.0));
        }
        if after.phase.is_terminal() && !before.phase.is_terminal() {
            self.job_ended(job, after, created);
        }
    }

    fn job_ended(&self, job: &SlimTrainingJob, after: &TrainingJobStatus, created: Option<Timestamp>) {
        let end = after.completion_time.as_ref().map_or_else(clock::now, |time| time.0);
        let due = deadline(&job.spec, job.metadata.creation_timestamp.as_ref()).map(|due| due.0);
        let well = after.phase == Phase::Succeeded;
        let deadline = match due {
            None => "none",
            Some(due) if well && end <= due => "met",
            Some(_) => "missed",
        };
        self.ended.get_or_create(&EndedLabels { phase: after.phase.as_str(), deadline }).inc();
        if let Some(due) = due.filter(|_| well) {
            self.late.observe(seconds(due, end));
        }
        if let Some(created) = created.filter(|_| well) {
            self.turnaround.observe(seconds(created, end));
        }
        if let Some(total) = &after.consumption {
            let namespace = job.namespace().unwrap_or_default();
            self.totals.lock().late(&namespace, total.lateness_micros);
        }
    }

    /// Adds energy and cost of an attempt that ended (`ended`), or of a late measurement.
    fn account(&self, job: &SlimTrainingJob, after: &TrainingJobStatus, ended: Option<&AttemptRecord>) {
        let total = |status: Option<&TrainingJobStatus>| {
            let total = status.and_then(|status| status.consumption.as_ref());
            total.map_or((0, 0), |total| (total.joules, total.energy_micros))
        };
        let (old, new) = (total(job.status.as_ref()), total(Some(after)));
        let more = (new.0.saturating_sub(old.0), new.1.saturating_sub(old.1));
        let Some(last) = after.history.last().filter(|_| more != (0, 0)) else { return };
        let namespace = job.namespace().unwrap_or_default();
        let Some(record) = ended else {
            self.totals.lock().corrected(&namespace, &last.gpu_type, more);
            return;
        };
        let attempt = totals::Attempt {
            uid: job.uid().unwrap_or_default(),
            attempt: record.attempt,
            namespace,
            gpu_type: record.gpu_type.clone(),
            started: record.started.as_ref().map(|time| time.0),
        };
        self.totals.lock().ended(&attempt, more);
    }

    /// Counts a fit of the predictor.
    pub fn fit(&self, outcome: FitOutcome<'_>) {
        let result = match outcome {
            FitOutcome::Done(_) => "done",
            FitOutcome::Slow => "slow",
            FitOutcome::Failed => "failed",
        };
        self.fits.get_or_create(&ResultLabel { result }).inc();
        if let FitOutcome::Done(fit) = outcome {
            self.fitted(fit);
        }
    }

    fn fitted(&self, fit: &Fit) {
        self.fit_seconds.observe(fit.took.as_secs_f64());
        self.learning.lock().fitted(clock::now(), fit);
    }

    /// Compares an attempt's measurements with the predictions of `table`.
    pub fn learned(&self, table: &Table, learned: &[ProfileUpdate]) {
        for update in learned {
            let ProfileUpdate::Observation(seen) = update else { continue };
            let Some((at, row)) = predicted(table, seen) else { continue };
            let nodes = usize::try_from(seen.nodes).unwrap_or(1);
            let slower =
                table.spread_factor(nodes) * table.limit_factor(&seen.gpu_type, seen.power_limit_watts);
            let row = LogNormal { median: row.median * slower, ..*row };
            self.check_draw(table, at, seen);
            if seen.claimed {
                // Self-reported values must not affect the measured accuracy.
                continue;
            }
            let truth = seen.millis_per_epoch as f64 / 1_000.0;
            let error = truth / row.median - 1.0;
            if error.is_finite() {
                let source = SourceLabel { source: row.source.as_str().to_owned() };
                self.prediction_error.get_or_create(&source).observe(error.abs());
            }
            self.learning.lock().check(Quantity::Epoch, &seen.gpu_type, &row, truth);
        }
    }

    /// Compares an attempt's late energy measurement with the prediction of `table`.
    pub fn metered(&self, table: &Table, seen: &Observation) {
        if let Some((at, _)) = predicted(table, seen) {
            self.check_draw(table, at, seen);
        }
    }

    fn check_draw(&self, table: &Table, at: usize, seen: &Observation) {
        let (Some(draw), Some(watts)) = (table.draws.get(at), seen.watts) else { return };
        let same = |l: &&andreas_planner::LimitEffect| {
            l.gpu_type.as_str() == seen.gpu_type && seen.power_limit_watts.map(f64::from) == Some(l.limit.0)
        };
        let lower = table.limits.iter().find(same).map_or(1.0, |effect| effect.power_factor);
        let draw = LogNormal { median: draw.median * lower, ..*draw };
        self.learning.lock().check(Quantity::Power, &seen.gpu_type, &draw, f64::from(watts));
    }
}

/// The table's row for the observed configuration, and its epoch time on one node.
fn predicted<'a>(table: &'a Table, seen: &Observation) -> Option<(usize, &'a LogNormal)> {
    let gpus = u32::try_from(seen.gpus).ok()?;
    let at = table.at(&seen.gpu_type, gpus)?;
    Some((at, table.times.get(at)?))
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64().max(0.0)
}

fn outcome_label(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Finished => "Finished",
        Outcome::Stopped => "Stopped",
        Outcome::UserFailure => "UserFailure",
        Outcome::ClusterFailure => "ClusterFailure",
        Outcome::Withdrawn => "Withdrawn",
    }
}
