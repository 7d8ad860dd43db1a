//! Answers.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use crate::Phase;

/// The jobs of a namespace that have not ended: those with GPUs first, then the waiting ones in the order of
/// their expected starts, then those that are suspended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Queue {
    /// The namespace.
    pub namespace: String,
    /// Instant that the forecast starts from.
    pub at: Time,
    /// Waiting jobs of the whole cluster.
    pub waiting: u32,
    /// Jobs of the namespace that have not ended, those beyond `jobs` included.
    #[serde(default)]
    pub open: u32,
    /// The first of them: as many as `limit` says, 500 without one.
    pub jobs: Vec<QueuedJob>,
}

/// A job and what is expected of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueuedJob {
    /// Its name.
    pub name: String,
    /// Its phase.
    pub phase: Phase,
    /// Place among the waiting jobs of the whole cluster by expected start, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// Waiting jobs with an earlier expected start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead: Option<Ahead>,
    /// Why it waits, in a word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why it waits, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Weight that plans count with: the job's, bounded by its namespace's.
    pub weight: i32,
    /// GPUs: those that it holds, else the possible totals, for example `1-8`.
    pub gpus: String,
    /// GPU type that it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_type: Option<String>,
    /// When it was created.
    pub created: Time,
    /// Its deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// What is expected; absent before its first plan, while it is suspended, and for a job that no node can run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<Expected>,
}

/// Jobs by name in the namespace that was asked about, others by number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ahead {
    /// Names of jobs of the namespace; at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Jobs of the namespace, those without a name here included.
    pub own: u32,
    /// Jobs of other namespaces.
    pub others: u32,
}

/// An instant with its uncertainty.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Interval {
    /// Reached by then with 10 % probability.
    pub p10: Time,
    /// Median.
    pub p50: Time,
    /// Reached by then with 90 % probability; absent where fewer than nine of ten futures reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p90: Option<Time>,
}

/// What is expected of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Expected {
    /// Its next start, or the start of its present run.
    pub start: Interval,
    /// Its end.
    pub finish: Interval,
    /// Probability of being done by the deadline, percent; absent without a deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_time_percent: Option<i32>,
    /// GPU type in most futures.
    pub gpu_type: String,
    /// GPUs in most futures.
    pub gpus: u32,
    /// Expected cost from now to its end. Energy is that of its GPUs and its share of its nodes, as it will be billed.
    pub cost: CostParts,
}

/// Cost by part, millionths of the policy's currency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CostParts {
    /// Energy at the tariff: of its GPUs, and of its nodes besides them.
    pub energy_cost_micros: i64,
    /// Expected lateness, a missed deadline included.
    pub lateness_cost_micros: i64,
    /// Time in the system.
    pub turnaround_cost_micros: i64,
}

impl CostParts {
    /// Sum of the parts, millionths of the policy's currency.
    #[must_use]
    pub fn total_micros(&self) -> i64 {
        self.energy_cost_micros
            .saturating_add(self.lateness_cost_micros)
            .saturating_add(self.turnaround_cost_micros)
    }
}

andreas_model::names! {
    /// What keeps a configuration from starting now.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub enum Obstacle {
        /// Not enough free GPUs, CPU, memory or other resources on enough nodes.
        Nodes,
        /// The quota of the namespace.
        Quota,
        /// The power budget.
        Power,
    }
}

/// A configuration that a job may be given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Candidate {
    /// GPU type.
    pub gpu_type: String,
    /// GPUs in total.
    pub gpus: u32,
    /// Nodes.
    pub nodes: u32,
    /// Power limit of each GPU, W; the board's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_watts: Option<u32>,
    /// Mean remaining time on it, seconds.
    pub seconds: i64,
    /// Mean draw of its GPUs, W.
    pub watts: u32,
    /// Expected cost if it started now. Energy is as a plan weighs it: with all that a first job adds to the draw of its nodes.
    pub cost: CostParts,
    /// Probability of being on time if it started now, percent; absent without a deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_time_percent: Option<i32>,
    /// Why it cannot start now; absent if it can, or if it is the present one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<Obstacle>,
    /// The job holds it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub current: bool,
}

/// What the last plan decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Decided {
    /// Instant of the plan.
    pub at: Time,
    /// The planning method.
    pub method: String,
    /// `Run` or `Wait`.
    pub decision: String,
    /// Reason of a wait, in a word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The jobs that hold what it needs; at most eight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_the_way: Option<Ahead>,
}

/// Kind of a change that would help a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ChangeKind {
    /// More GPU types.
    Types,
    /// A smaller minimum of GPUs.
    Minimum,
    /// A larger maximum of GPUs.
    Maximum,
    /// More nodes.
    Nodes,
    /// A larger weight.
    Weight,
    /// A later deadline.
    Deadline,
    /// A larger power budget.
    Budget,
}

/// A change that would start a job sooner or make it on time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// What kind of change.
    pub kind: ChangeKind,
    /// The change in words.
    pub text: String,
    /// Merge patch of the TrainingJob; absent where another object has to change, also for an adopted job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<serde_json::Value>,
    /// What is then expected of the job.
    pub expected: Expected,
    /// Median start, seconds earlier than without the change; negative: later.
    pub sooner_seconds: i64,
    /// Expected additional cost for all jobs of the cluster, millionths; negative: it saves.
    pub added_cost_micros: i64,
}

/// Why no change of a job was tried, or not all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotTried {
    /// It is in no plan: it has none yet, or is suspended, or has ended.
    NotPlanned,
    /// It does not wait, and has no deadline or is on time with at least 90 %.
    NotNeeded,
    /// The plan has more than 300 jobs, and each change costs a plan. With `changes=Always` they are tried.
    ManyJobs,
    /// Some changes were tried; then the time for an answer was over.
    OutOfTime,
}

/// One job: what decided about it, and what would help it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The namespace.
    pub namespace: String,
    /// The job and what is expected of it.
    pub job: QueuedJob,
    /// The last plan's decision; absent before its first plan and while it is suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided: Option<Decided>,
    /// Configurations that it may be given, cheapest first; at most 64.
    pub candidates: Vec<Candidate>,
    /// Up to three changes that would help, cheapest first.
    pub changes: Vec<Change>,
    /// Why no change but a later deadline was tried, or not all were; absent if all were tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_tried: Option<NotTried>,
    /// Currency of all amounts.
    pub currency: String,
}

/// The effect of a change that was not made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WhatIf {
    /// The namespace.
    pub namespace: String,
    /// Instant that the forecast starts from.
    pub at: Time,
    /// The posted or changed job; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<QueuedJob>,
    /// What is expected of the changed job without any change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Expected>,
    /// Jobs of the namespace whose median end moves by a minute or more; at most 32, largest first.
    pub affected: Vec<Affected>,
    /// Jobs of the namespace that are affected, those beyond `affected` included.
    pub own: u32,
    /// Jobs of other namespaces.
    pub others: OthersAffected,
    /// Expected additional cost for all jobs that exist now, millionths; negative: the change saves.
    pub added_cost_micros: i64,
    /// Currency of all amounts.
    pub currency: String,
}

/// Shift of the end of a job that has none any more, seconds: ten years.
pub const NEVER_SECONDS: i64 = 320_000_000;

/// A job whose expected end moves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Affected {
    /// Its name.
    pub name: String,
    /// Shift of its median end, seconds; negative: sooner. 320000000 ([`NEVER_SECONDS`]): it would never end;
    /// -320000000: it never would have before.
    pub later_seconds: i64,
    /// Probability of being on time before, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_time_before_percent: Option<i32>,
    /// Probability of being on time with the change, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_time_percent: Option<i32>,
}

/// Jobs of other namespaces that a change affects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OthersAffected {
    /// Number of jobs that end later, by a minute or more; without those that would never end.
    pub later: u32,
    /// Number of jobs that would never end.
    #[serde(default)]
    pub never: u32,
    /// Number of jobs that end sooner, by a minute or more.
    pub sooner: u32,
    /// Mean shift of the later ones, whole minutes as seconds.
    pub mean_later_seconds: i64,
}

/// Whether a job submitted now would be on time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Can {
    /// The namespace.
    pub namespace: String,
    /// The deadline that was asked about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// Probability of being done by then, percent; absent without a deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_time_percent: Option<i32>,
    /// The job and what is expected of it; without `expected` it never starts, and its `reason` and `message` say why.
    pub job: QueuedJob,
    /// Currency of all amounts.
    pub currency: String,
}

/// An error, in the shape of Kubernetes' Status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// Always `Status`.
    pub kind: String,
    /// Always `Failure`.
    pub status: String,
    /// HTTP code.
    pub code: u16,
    /// In a word: `Unauthorized`, `Forbidden`, `NotFound`, `Invalid`, `TooManyRequests`, `Timeout`, `NotReady`,
    /// `InternalError`.
    pub reason: String,
    /// What is wrong; names the field where there is one.
    pub message: String,
}

impl Failure {
    /// An error with this code and reason.
    #[must_use]
    pub fn new(code: u16, reason: &str, message: impl Into<String>) -> Self {
        Self {
            kind: "Status".into(),
            status: "Failure".into(),
            code,
            reason: reason.into(),
            message: message.into(),
        }
    }
}
