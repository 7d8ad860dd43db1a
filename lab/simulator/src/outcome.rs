//! Results of a replay.

use std::sync::Arc;

use andreas_baselines::Method;
use andreas_model::{JobId, Joules, Money, NodeName, Seconds, StepFunction, Time, Watts};
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
    /// Its power budget.
    #[serde(skip)]
    pub budget: Option<StepFunction<Watts>>,
    /// Totals of all its perturbed runs, the first one's first; at least one.
    pub runs: Vec<Summary>,
    /// Mean time of each job of the first run from its submission to its first start, over the runs in which it starts.
    pub waits: Vec<Option<Seconds>>,
    /// The results of the first run.
    #[serde(flatten)]
    pub replayed: Replayed,
    /// Wall time of decisions, the only part that is not reproducible.
    pub decision_times: DecisionTimes,
}

/// A figure over several runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Standard deviation; 0 of a single run.
    pub sd: f64,
}

impl Spread {
    /// The spread of these values.
    pub fn from_values(values: impl Iterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.collect();
        let count = values.len().max(1) as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
        Self { mean, sd: (squares / (count - 1.0).max(1.0)).sqrt() }
    }
}

impl Outcome {
    /// A figure over its runs.
    pub fn spread(&self, figure: impl Fn(&Summary) -> f64) -> Spread {
        Spread::from_values(self.runs.iter().map(figure))
    }

    /// All that it costs, idle draw included, relative to another method on the same jobs; and the standard error of
    /// that by a jackknife over the jobs of the first run: how much single jobs decide it.
    pub fn relative_cost(&self, other: &Self) -> (Spread, f64) {
        let of = |a: &Summary, b: &Summary| a.total_with_idle.0 / b.total_with_idle.0.max(f64::MIN_POSITIVE);
        let ratio = Spread::from_values(self.runs.iter().zip(&other.runs).map(|(a, b)| of(a, b)));
        let (mine, theirs) = (self.replayed.job_costs(), other.replayed.job_costs());
        let (a, b) = (self.replayed.summary.total_with_idle.0, other.replayed.summary.total_with_idle.0);
        let without = mine.iter().zip(&theirs).map(|(x, y)| (a - x) / (b - y).max(f64::MIN_POSITIVE));
        let spread = Spread::from_values(without);
        let count = mine.len() as f64;
        // Delete-one estimates vary by 1/n of what the jobs do.
        (ratio, spread.sd * (count - 1.0).max(0.0) / count.max(1.0).sqrt())
    }
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

impl Replayed {
    /// Cost of each job that counts: its lateness, and its GPUs' energy with its part of the hosts', money.
    fn job_costs(&self) -> Vec<f64> {
        let sum = &self.summary;
        let price = if sum.job_energy.0 > 0.0 { sum.energy_cost.0 / sum.job_energy.0 } else { 0.0 };
        let counted = self.jobs.iter().filter(|job| job.counted);
        counted.map(|job| job.lateness_cost.0 + price * job.energy.0).collect()
    }
}

/// Totals of a replay. Idle draw is that from the first to the last submission; all else is counted to the last
/// completion. Of a looped trace, both are those of its window.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Jobs of the workload.
    pub jobs: usize,
    /// Jobs that never ended because no node could hold them.
    pub unfinished: usize,
    /// Cost of energy (jobs and hosts with a job) and lateness, without idle draw.
    pub total: Money,
    /// The same with idle GPUs and hosts.
    pub total_with_idle: Money,
    /// Cost of the energy of jobs, of hosts with a job, and of hosts that start up (or the catalogue's price).
    pub energy_cost: Money,
    /// Cost of the energy of idle GPUs and hosts.
    pub idle_cost: Money,
    /// Cost of tardiness.
    pub tardiness_cost: Money,
    /// Fixed cost of missed deadlines.
    pub miss_cost: Money,
    /// Cost of time in the system.
    pub turnaround_cost: Money,
    /// Energy of the jobs' GPUs.
    pub job_energy: Joules,
    /// Energy of nodes with a job, without their GPUs.
    pub host_energy: Joules,
    /// Energy of nodes without a job that were on, without their GPUs.
    pub empty_host_energy: Joules,
    /// Energy of nodes that started up, without their GPUs.
    pub wake_energy: Joules,
    /// Energy of GPUs that held no job, of nodes that were on.
    pub idle_energy: Joules,
    /// Times that a node went to sleep.
    pub sleeps: usize,
    /// Node-seconds asleep.
    pub asleep: Seconds,
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
    /// Mean missed saving of the decisions that state one: the gap as a part of what planning saves over letting every job
    /// wait.
    pub mean_missed_saving: Option<f64>,
}

impl Summary {
    /// All energy.
    pub fn energy(&self) -> Joules {
        self.job_energy + self.host_energy + self.empty_host_energy + self.wake_energy + self.idle_energy
    }
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
    /// Whether the totals count it; of a looped trace, only jobs submitted in its window.
    pub counted: bool,
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
    /// Nodes that are on, without their GPUs.
    pub hosts: Watts,
    /// GPUs without a job.
    pub idle: Watts,
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
    pub fn from_seconds(mut seconds: Vec<f64>) -> Self {
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
