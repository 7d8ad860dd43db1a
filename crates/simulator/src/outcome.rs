//! What came of a replay.

use std::sync::Arc;

use andreas_core::{JobId, Joules, Money, NodeName, Seconds, Time, Watts};
use andreas_planner::MethodName;
use serde::Serialize;

/// A replay and how long its decisions took.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The method.
    pub method: MethodName,
    /// What the caller calls the variant (a level of errors, of the budget); empty for none.
    pub label: String,
    /// Its seed.
    pub seed: u64,
    /// What came of it.
    #[serde(flatten)]
    pub replayed: Replayed,
    /// Wall time of decisions: the only part that differs from run to run.
    pub decision_times: DecisionTimes,
}

/// Everything that is known after a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Replayed {
    /// Totals.
    pub summary: Summary,
    /// Every job.
    pub jobs: Vec<JobOutcome>,
    /// What ran where and when.
    #[serde(skip)]
    pub segments: Vec<Segment>,
    /// Power over time: each point holds until the next.
    #[serde(skip)]
    pub power: Vec<PowerPoint>,
}

/// Totals of a replay, from the first submission to the last completion.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Jobs of the workload.
    pub jobs: usize,
    /// Jobs that never ended, because no node could ever take them.
    pub unfinished: usize,
    /// Energy of jobs and busy nodes, and lateness, in money. Idle GPUs are apart.
    pub total: Money,
    /// With idle GPUs.
    pub total_with_idle: Money,
    /// Energy of jobs and overhead of busy nodes in money (or the catalogue's price).
    pub energy_cost: Money,
    /// Energy of idle GPUs in money.
    pub idle_cost: Money,
    /// Tardiness in money.
    pub tardiness_cost: Money,
    /// Fixed price of misses.
    pub miss_cost: Money,
    /// Time in the system in money.
    pub turnaround_cost: Money,
    /// Energy of the jobs' GPUs.
    pub job_energy: Joules,
    /// Energy of busy nodes apart from GPUs.
    pub overhead_energy: Joules,
    /// Energy of GPUs that held no job.
    pub idle_energy: Joules,
    /// Jobs that ended after their deadline.
    pub late_jobs: usize,
    /// Jobs with a deadline.
    pub with_deadline: usize,
    /// Sum of tardiness.
    pub tardiness: Seconds,
    /// Mean time from submission to end.
    pub mean_turnaround: Seconds,
    /// 95th percentile of it.
    pub p95_turnaround: Seconds,
    /// Starts of jobs that had been started before.
    pub restarts: usize,
    /// Training lost with stops and failures, in seconds.
    pub lost_work: Seconds,
    /// Jobs that a failing node ended.
    pub failures: usize,
    /// Decisions whose budgeted power was above the budget.
    pub planned_violations: usize,
    /// Time above the budget.
    pub violation_time: Seconds,
    /// Energy above the budget.
    pub violation_energy: Joules,
    /// First submission to last end.
    pub makespan: Seconds,
    /// Decisions.
    pub decisions: usize,
    /// Mean proven gap of the decisions that state one.
    pub mean_gap: Option<f64>,
}

/// What came of a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobOutcome {
    /// Which.
    pub id: JobId,
    /// When it was submitted.
    pub submit: Time,
    /// When it should have ended.
    pub deadline: Option<Time>,
    /// When it first started.
    pub start: Option<Time>,
    /// When it ended.
    pub finish: Option<Time>,
    /// Energy of its GPUs.
    pub energy: Joules,
    /// Its lateness in money.
    pub lateness_cost: Money,
    /// Starts after the first.
    pub restarts: u32,
}

/// A stretch of a job on the same GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// Index of the job in the outcome.
    pub job: usize,
    /// Where.
    pub nodes: Arc<[NodeName]>,
    /// GPUs on each.
    pub gpus: u32,
    /// From.
    pub from: Time,
    /// To.
    pub to: Time,
}

/// Power from an instant on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PowerPoint {
    /// From when.
    pub at: Time,
    /// GPUs with jobs.
    pub jobs: Watts,
    /// Busy nodes apart from GPUs.
    pub overhead: Watts,
    /// GPUs without job.
    pub idle: Watts,
    /// The budget.
    pub budget: Option<Watts>,
}

/// How long decisions took, in milliseconds of wall time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DecisionTimes {
    /// Mean.
    pub mean_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Longest.
    pub max_ms: f64,
}

impl DecisionTimes {
    /// Of these times in seconds.
    pub fn of(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        let count = seconds.len().max(1) as f64;
        Self {
            mean_ms: seconds.iter().sum::<f64>() / count * 1e3,
            p99_ms: percentile(&seconds, 0.99) * 1e3,
            max_ms: percentile(&seconds, 1.0) * 1e3,
        }
    }
}

/// The smallest value that at least this share of sorted values does not exceed; 0 of none.
pub(crate) fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(0.0)
}
