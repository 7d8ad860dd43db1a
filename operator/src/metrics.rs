//! Prometheus metrics of the operator. Labels come from closed sets: no tenant's text.

use std::sync::atomic::AtomicU64;

use andreas_api::Phase;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// A phase.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct PhaseLabel {
    /// As in JSON.
    pub phase: &'static str,
}

/// A kind of write and how it went.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct WriteLabel {
    /// What was written: `status`, `pod`, `delete`, `service`, `wake`, `dry_run`, `progress`, `profile`, `node`, `policy`.
    pub kind: &'static str,
    /// `ok`, `conflict`, `refused`, `busy`, `failed`.
    pub result: &'static str,
}

/// A reason of a closed set.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ReasonLabel {
    /// The reason.
    pub reason: &'static str,
}

/// All metrics. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Jobs by phase.
    pub jobs: Family<PhaseLabel, Gauge>,
    /// Writes to the API server.
    pub writes: Family<WriteLabel, Counter>,
    /// Steps of jobs.
    pub steps: Counter,
    /// Steps whose status or action could not be written.
    pub step_errors: Counter,
    /// Decisions handed to jobs: `run` or a reason for waiting.
    pub decisions: Family<ReasonLabel, Counter>,
    /// Plans made.
    pub plans: Counter,
    /// Snapshots that the planner refused.
    pub plan_errors: Counter,
    /// Time to make a plan.
    pub plan_seconds: Histogram,
    /// Proven gap of the last plan; NaN where the method has no bound.
    pub plan_gap: Gauge<f64, AtomicU64>,
    /// Budgeted power of the last plan, W.
    pub budgeted_power: Gauge<f64, AtomicU64>,
    /// What the budget allows now, W; 0 without budget.
    pub allowed_power: Gauge<f64, AtomicU64>,
    /// Plans whose budgeted power was above the budget: must stay 0 except after a budget was lowered.
    pub budget_violations: Counter,
    /// What runs (jobs that are asked to stop left out) draws above the budget, W.
    pub over_budget: Gauge<f64, AtomicU64>,
    /// 0 where that has lasted longer than `enforceWithin`.
    pub budget_met: Gauge,
    /// Reports of progress: `written`, `later`, `nothing`, `refused`.
    pub reports: Family<ReasonLabel, Counter>,
    /// Attempts that ended, by outcome.
    pub attempts: Family<ReasonLabel, Counter>,
    /// 1 while this replica leads.
    pub leader: Gauge,
}

impl Metrics {
    /// Makes the metrics and adds them to `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let this = Self {
            jobs: Family::default(),
            writes: Family::default(),
            steps: Counter::default(),
            step_errors: Counter::default(),
            decisions: Family::default(),
            plans: Counter::default(),
            plan_errors: Counter::default(),
            plan_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 16)),
            plan_gap: Gauge::default(),
            budgeted_power: Gauge::default(),
            allowed_power: Gauge::default(),
            budget_violations: Counter::default(),
            over_budget: Gauge::default(),
            budget_met: Gauge::default(),
            reports: Family::default(),
            attempts: Family::default(),
            leader: Gauge::default(),
        };
        registry.register("andreas_jobs", "TrainingJobs by phase", this.jobs.clone());
        registry.register(
            "andreas_api_writes",
            "Writes to the API server by kind and result",
            this.writes.clone(),
        );
        registry.register("andreas_steps", "Steps of jobs", this.steps.clone());
        registry.register(
            "andreas_step_errors",
            "Steps that could not be carried out",
            this.step_errors.clone(),
        );
        registry.register("andreas_decisions", "Decisions by what they say", this.decisions.clone());
        registry.register("andreas_plans", "Plans made", this.plans.clone());
        registry.register(
            "andreas_plan_errors",
            "Snapshots that could not be planned",
            this.plan_errors.clone(),
        );
        registry.register_with_unit(
            "andreas_plan",
            "Time to make a plan",
            Unit::Seconds,
            this.plan_seconds.clone(),
        );
        registry.register("andreas_plan_gap_ratio", "Proven gap of the last plan", this.plan_gap.clone());
        registry.register(
            "andreas_budgeted_power_watts",
            "Budgeted power of the last plan",
            this.budgeted_power.clone(),
        );
        registry.register(
            "andreas_allowed_power_watts",
            "What the power budget allows",
            this.allowed_power.clone(),
        );
        registry.register(
            "andreas_planned_budget_violations",
            "Plans above the budget",
            this.budget_violations.clone(),
        );
        registry.register(
            "andreas_over_budget_watts",
            "Draw of what runs above the power budget",
            this.over_budget.clone(),
        );
        registry.register(
            "andreas_budget_met",
            "0 when what runs is above the power budget for longer than enforceWithin",
            this.budget_met.clone(),
        );
        registry.register(
            "andreas_progress_reports",
            "Reports of progress by what became of them",
            this.reports.clone(),
        );
        registry.register("andreas_attempts_ended", "Attempts that ended, by outcome", this.attempts.clone());
        registry.register("andreas_leader", "1 while this replica leads", this.leader.clone());
        this
    }

    /// Counts one write.
    pub fn wrote(&self, kind: &'static str, result: &'static str) {
        self.writes.get_or_create(&WriteLabel { kind, result }).inc();
    }

    /// Counts one reason in a family.
    pub fn count(family: &Family<ReasonLabel, Counter>, reason: &'static str) {
        family.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// How many jobs there are in each phase.
    pub fn set_jobs(&self, count: impl Fn(Phase) -> usize) {
        for phase in Phase::ALL {
            let number = i64::try_from(count(phase)).unwrap_or(i64::MAX);
            self.jobs.get_or_create(&PhaseLabel { phase: phase.as_str() }).set(number);
        }
    }
}
