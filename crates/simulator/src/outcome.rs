//! Results of a replay.

use std::sync::Arc;

use andreas_baselines::Method;
use andreas_core::{JobId, Joules, Money, NodeName, Seconds, Time, Watts};
use serde::Serialize;

/// A replay and the time of its decisions.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The method.
    pub method: Method,
    /// The caller's name of the variant (a level of errors, of the budget); empty for none.
    pub label: String,
    /// Its seed.
    pub seed: u64,
    /// The results.
    #[serde(flatten)]
    pub replayed: Replayed,
    /// Wall time of decisions, the only part that is not reproducible.
    pub decision_times: DecisionTimes,
}

/// All results of a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Replayed {
    /// Totals.
    pub summary: Summary,
    /// Results per job.
    pub jobs: Vec<JobOutcome>,
    /// Runs of jobs: place and time.
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
    /// Jobs that never ended because no node could hold them.
    pub unfinished: usize,
    /// Cost of energy (jobs and busy nodes) and lateness, without idle GPUs.
    pub total: Money,
    /// The same with idle GPUs.
    pub total_with_idle: Money,
    /// Cost of the energy of jobs and overhead of busy nodes (or the catalogue's price).
    pub energy_cost: Money,
    /// Cost of the energy of idle GPUs.
    pub idle_cost: Money,
    /// Cost of tardiness.
    pub tardiness_cost: Money,
    /// Fixed cost of missed deadlines.
    pub miss_cost: Money,
    /// Cost of time in the system.
    pub turnaround_cost: Money,
    /// Energy of the jobs' GPUs.
    pub job_energy: Joules,
    /// Energy of busy nodes without their GPUs.
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
    /// 95th percentile of the turnaround time.
    pub p95_turnaround: Seconds,
    /// Starts of jobs after their first.
    pub restarts: usize,
    /// Training time lost by stops and failures, in seconds.
    pub lost_work: Seconds,
    /// Job runs ended by a failing node.
    pub failures: usize,
    /// Decisions with a budgeted power above the budget.
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

/// Results of a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobOutcome {
    /// The job.
    pub id: JobId,
    /// Submission time.
    pub submit: Time,
    /// Deadline.
    pub deadline: Option<Time>,
    /// First start.
    pub start: Option<Time>,
    /// End.
    pub finish: Option<Time>,
    /// Energy of its GPUs.
    pub energy: Joules,
    /// Cost of its lateness.
    pub lateness_cost: Money,
    /// Starts after the first.
    pub restarts: u32,
}

/// A period of a job on the same GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// Index of the job in the outcome.
    pub job: usize,
    /// Its nodes.
    pub nodes: Arc<[NodeName]>,
    /// GPUs per node.
    pub gpus: u32,
    /// Start.
    pub from: Time,
    /// End.
    pub to: Time,
}

/// Power from an instant on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PowerPoint {
    /// The instant.
    pub at: Time,
    /// GPUs with jobs.
    pub jobs: Watts,
    /// Busy nodes without their GPUs.
    pub overhead: Watts,
    /// GPUs without a job.
    pub idle: Watts,
    /// The budget.
    pub budget: Option<Watts>,
}

/// Wall time of decisions in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DecisionTimes {
    /// Mean.
    pub mean_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Maximum.
    pub max_ms: f64,
}

impl DecisionTimes {
    /// From times in seconds.
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

/// The smallest value with at least this share of sorted values at or below it; 0 if there are none.
pub(crate) fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(0.0)
}
