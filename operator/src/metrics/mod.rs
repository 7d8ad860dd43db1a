//! Prometheus metrics of the operator. Labels come from closed or bounded sets; the only text from tenants is
//! the namespace.
//!
//! | file | what |
//! |---|---|
//! | [`list`] | every metric: name, type, labels, help |
//! | [`state`] | gauges of a view that the leader makes at each scrape |
//! | [`totals`] | energy and cost by namespace and GPU type |
//! | `jobs` | attempts and ends of jobs, by the statuses that are written |
//! | [`learning`] | accuracy of predictions, and what the last fit refused |
//!
//! **In**: values: events where they happen, and views. **Out**: `/metrics`. **Never here**: the loops or their
//! state, and work per event that grows with the number of jobs.

mod jobs;
pub mod learning;
pub mod list;
pub mod state;
pub mod totals;

use std::sync::Arc;

use andreas_api::TrainingJobStatus;
use andreas_api::slim::SlimTrainingJob;
use andreas_api::training_profile::Observation;
use andreas_lifecycle::ProfileUpdate;
use andreas_predictor::{LogNormal, Source};
use andreas_runtime::metrics::{Labels, register_process};
use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::predict::sampled::Sampled;
use crate::predict::{Fit, Table};
use jobs::JobMetrics;
use learning::{Learning, Quantity};
use state::State;
use totals::Totals;

/// Figures of the last plan.
#[derive(Clone, Copy, Debug)]
pub struct LastPlan {
    /// When it was made.
    pub at: Timestamp,
    /// What jobs ask for at its prices over what is there, if the method has prices.
    pub asked_over_available: Option<f64>,
    /// GPUs that it leaves free although a job that waits for no better hour fits there.
    pub gpus_left_free: u64,
    /// Power in the plan, W.
    pub budgeted: f64,
    /// The power budget, W, if any.
    pub allowed: Option<f64>,
}

/// Gauges of the last plan and the last budget check.
#[derive(Clone, Copy, Debug, Default)]
struct LastValues {
    plan: Option<LastPlan>,
    /// Whether the power budget counts as met.
    budget_met: Option<bool>,
}

/// Plans and the budget.
#[derive(Clone, Debug)]
pub struct PlanMetrics {
    /// Snapshots refused by the planner.
    pub errors: Counter,
    /// Duration of planning, for each plan.
    pub seconds: Histogram,
    violations: Counter,
    saved: Counter,
    last: Arc<Mutex<LastValues>>,
}

/// The last fit of the predictor and the accuracy of predictions.
#[derive(Clone, Debug)]
struct PredictorMetrics {
    prediction_error: Family<Labels<1>, Histogram, fn() -> Histogram>,
    learning: Arc<Mutex<Learning>>,
}

/// Steps of jobs.
#[derive(Clone, Debug)]
pub struct StepMetrics {
    /// Steps of jobs.
    pub reconciles: Counter,
    /// Steps with a failed status write or action.
    pub errors: Counter,
    /// Runs that deviated from their plan's prediction.
    pub deviations: Counter,
}

/// All metrics. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Attempts and ends of jobs, by the statuses that are written.
    jobs: JobMetrics,
    /// What came of sampled forecasts.
    forecasts: Family<Labels<1>, Counter>,
    /// Plans and the budget.
    pub planning: PlanMetrics,
    /// The last fit of the predictor and the accuracy of predictions.
    predictor: PredictorMetrics,
    /// Steps of jobs.
    pub steps: StepMetrics,
    /// Answers of the query API.
    queries: Family<Labels<2>, Counter>,
    writes: Family<Labels<2>, Counter>,
    reports: Family<Labels<1>, Counter>,
    /// The leader's gauges.
    pub state: State,
    /// 1 while this replica is the leader.
    pub leader: Gauge,
}

/// Kinds of writes to the API server.
const WRITES: [&str; 15] = [
    "status", "pod", "delete", "service", "secret", "wake", "dry_run", "progress", "profile", "node",
    "power", "capacity", "policy", "adopt", "adopted",
];
/// Whether a forecast came true.
const COVERED: [&str; 2] = ["false", "true"];
/// What becomes of a write.
const WRITTEN: [&str; 6] = ["ok", "conflict", "refused", "gone", "busy", "failed"];
/// What becomes of a progress report.
const REPORTED: [&str; 4] = ["written", "later", "nothing", "refused"];
/// Questions to the query API.
const QUESTIONS: [&str; 4] = ["queue", "explain", "whatif", "can"];
/// What becomes of a question.
const ANSWERED: [&str; 5] = ["answered", "denied", "busy", "invalid", "failed"];

fn errors() -> Histogram {
    Histogram::new([0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0])
}

/// For durations of plans: buckets from a millisecond to half a minute.
fn planning_seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 16))
}

impl Metrics {
    /// Creates the metrics and adds them to `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let (last, totals) = (Arc::<Mutex<LastValues>>::default(), Arc::<Mutex<Totals>>::default());
        let learning = Arc::<Mutex<Learning>>::default();
        let state = State::new(Arc::clone(&last), Arc::clone(&totals), Arc::clone(&learning));
        let this = Self {
            jobs: JobMetrics::register(registry, totals),
            forecasts: list::FORECASTS_CHECKED.create(registry),
            planning: PlanMetrics {
                errors: list::PLAN_ERRORS.create(registry),
                seconds: list::PLAN_TIME.register(registry, planning_seconds()),
                violations: list::VIOLATIONS.create(registry),
                saved: list::SAVED.create(registry),
                last,
            },
            predictor: PredictorMetrics {
                prediction_error: list::PREDICTION_ERROR
                    .register(registry, Family::new_with_constructor(errors as fn() -> Histogram)),
                learning,
            },
            steps: StepMetrics {
                reconciles: list::RECONCILES.create(registry),
                errors: list::RECONCILE_ERRORS.create(registry),
                deviations: list::DEVIATIONS.create(registry),
            },
            queries: list::QUERIES.create(registry),
            writes: list::WRITES.create(registry),
            reports: list::REPORTS.create(registry),
            state,
            leader: list::LEADER.create(registry),
        };
        this.begin_at_zero();
        registry.register_collector(Box::new(this.state.clone()));
        register_process(registry, env!("CARGO_PKG_VERSION"));
        this
    }

    /// A counter that is first exposed at 1 shows no increase to `increase()`: those with closed sets of labels start at 0.
    fn begin_at_zero(&self) {
        for result in REPORTED {
            let _ = self.reports.get_or_create(&[("result", result)]);
        }
        for kind in WRITES {
            for result in WRITTEN {
                let _ = self.writes.get_or_create(&[("kind", kind), ("result", result)]);
            }
        }
        for question in QUESTIONS {
            for result in ANSWERED {
                let _ = self.queries.get_or_create(&[("question", question), ("result", result)]);
            }
        }
        for covered in COVERED {
            let _ = self.forecasts.get_or_create(&[("covered", covered)]);
        }
        for source in [Source::UserGiven, Source::Observed, Source::Regression, Source::Prior] {
            let _ = self.predictor.prediction_error.get_or_create(&[("source", source.as_str())]);
        }
    }

    /// Counts one write, by `WRITES` and `WRITTEN`.
    pub fn wrote(&self, kind: &'static str, result: &'static str) {
        debug_assert!(WRITES.contains(&kind) && WRITTEN.contains(&result), "{kind}: {result}");
        self.writes.get_or_create(&[("kind", kind), ("result", result)]).inc();
    }

    /// Counts a progress report, by `REPORTED`.
    pub fn reported(&self, result: &'static str) {
        debug_assert!(REPORTED.contains(&result), "{result}");
        self.reports.get_or_create(&[("result", result)]).inc();
    }

    /// Counts a question to the query API, by `QUESTIONS` and `ANSWERED`.
    pub fn answered(&self, question: &'static str, result: &'static str) {
        debug_assert!(QUESTIONS.contains(&question) && ANSWERED.contains(&result), "{question}: {result}");
        self.queries.get_or_create(&[("question", question), ("result", result)]).inc();
    }

    /// Compares a job's success with its first sampled forecast.
    pub fn forecast_came_true(&self, first: &Sampled, end: Timestamp) {
        let after = first.finish.0.is_some_and(|p10| end >= p10);
        let before = first.finish.2.is_none_or(|p90| end <= p90);
        self.forecasts.get_or_create(&[("covered", COVERED[usize::from(after && before)])]).inc();
    }

    /// Records a plan.
    pub fn planned(&self, plan: LastPlan) {
        if plan.allowed.is_some_and(|allowed| plan.budgeted > allowed * (1.0 + 1e-9)) {
            self.planning.violations.inc();
        }
        self.planning.last.lock().plan = Some(plan);
    }

    /// Machines that are off have saved this much more, J.
    pub fn saved(&self, joules: f64) {
        self.planning.saved.inc_by(joules.max(0.0).round() as u64);
    }

    /// Records whether the power budget counts as met.
    pub fn set_budget_met(&self, met: bool) {
        self.planning.last.lock().budget_met = Some(met);
    }

    /// Records a status write; `job` holds the status before it.
    pub fn wrote_status(&self, job: &SlimTrainingJob, after: &TrainingJobStatus) {
        self.jobs.wrote_status(job, after);
    }

    /// The predictor has been fitted.
    pub fn fitted(&self, fit: &Fit) {
        self.predictor.learning.lock().fitted(fit);
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
                let source = [("source", row.source.as_str())];
                self.predictor.prediction_error.get_or_create(&source).observe(error.abs());
            }
            self.predictor.learning.lock().check(Quantity::Epoch, &seen.gpu_type, &row, truth);
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
        self.predictor.learning.lock().check(Quantity::Power, &seen.gpu_type, &draw, f64::from(watts));
    }
}

/// The table's row for the observed configuration, and its epoch time on one node.
fn predicted<'a>(table: &'a Table, seen: &Observation) -> Option<(usize, &'a LogNormal)> {
    let gpus = u32::try_from(seen.gpus).ok()?;
    let at = table.row_index(&seen.gpu_type, gpus)?;
    Some((at, table.times.get(at)?))
}
