//! What the operator knows of a training run.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::known;
use crate::phase::{Outcome, Phase};

fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// What the operator knows of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TrainingJobStatus {
    /// Generation of `spec` that this status has seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Where the run is in its life.
    #[serde(deserialize_with = "known::or_default")]
    pub phase: Phase,
    /// Why the run waits, in a word: the reason of the condition `Scheduled` when it is not `True`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub reason: Option<String>,
    /// `Scheduled`, `Running`, `Suspended`, `Progressing`, `Finished`, `Complete`, `Failed`, `OnTime`, `TemplateAccepted`. `Complete` or
    /// `Failed` is `True` after the end, as with a Job of Kubernetes; `Finished` is `True` in both cases.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
    /// The deadline as an instant, also where the user gave a duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// The TrainingProfile that the run is planned with, where `spec.profileRef` names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<UsedProfile>,
    /// What the run has been given. Written before anything else happens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocation: Option<Allocation>,
    /// Counter of decisions about this run; an allocation's `generation` is its value at that time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub decisions: Option<i64>,
    /// A stop that was asked for and has not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopRequest>,
    /// Attempts started so far.
    #[schemars(range(min = 0))]
    pub attempts: i64,
    /// Attempts that ended by the user's own failure.
    #[schemars(range(min = 0))]
    pub user_failures: i32,
    /// Attempts that ended by the cluster's failure.
    #[schemars(range(min = 0))]
    pub cluster_failures: i32,
    /// Attempts in a row that the cluster failed without a fault that the operator saw. From the tenth on such failures count
    /// as the user's.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0))]
    pub unexplained_failures: i32,
    /// Times that a run was stopped and went on later.
    #[schemars(range(min = 0))]
    pub restarts: i32,
    /// How far the run is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// What is expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prediction: Option<Prediction>,
    /// Joules and money so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumption: Option<Consumption>,
    /// When the first attempt ran as a whole gang.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When the run ended for good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// The last attempts, oldest first.
    #[serde(deserialize_with = "known::items", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub history: Vec<AttemptRecord>,
    /// Nodes excluded for a while because placing or starting there failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub excluded_nodes: Vec<NodeBackoff>,
    /// No new attempt before this instant (back-off).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Time>,
    /// Notifications that were sent to the receivers of its namespace. Absent where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notifications: Option<Notifications>,
    /// Texts of columns. Programs read the fields that they are made of.
    #[serde(skip_serializing_if = "Display::is_empty")]
    pub display: Display,
}

/// Notifications of a run that were sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Notifications {
    /// Each with the key of the Secret that it was sent by: `Started/slack`.
    #[schemars(length(max = 16), inner(length(max = 32)))]
    pub sent: Vec<String>,
    /// The predicted end from which a delay counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_time: Option<Time>,
    /// When that was predicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// Texts for people, as `kubectl get` shows them: its columns cannot divide, join or compare.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Display {
    /// `progress.milliPercent`: `42%`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8))]
    pub progress: Option<String>,
    /// `allocation.nodes`, the first of them where there are many: `gpu-1, gpu-2`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub nodes: Option<String>,
    /// `prediction.onTimePercent`: `97%`; after the end `Met` or `Missed`. Absent without a deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8))]
    pub on_time: Option<String>,
    /// `consumption.joules` and `hostJoules` together: `1.24 kWh`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub energy: Option<String>,
    /// `consumption.energyCostMicros` and `hostCostMicros` together, with their currency: `0.31 EUR`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 48))]
    pub energy_cost: Option<String>,
    /// `consumption.latenessCostMicros` with its currency: `0.12 EUR`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 48))]
    pub lateness_cost: Option<String>,
    /// From `startTime` to `completionTime`: `2h5m`; absent before the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub duration: Option<String>,
}

impl Display {
    /// Whether it shows nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl TrainingJobStatus {
    /// What a status of another release means here, whose phase is not known: `Pending` never has an allocation, so whatever has
    /// one is looked at as a run that is starting. Where all its members run it goes on.
    pub fn with_a_known_phase(mut self) -> Self {
        if self.phase == Phase::Pending && self.allocation.is_some() {
            self.phase = Phase::Starting;
        }
        self
    }

    /// Whether an ended run kept its deadline: it succeeded, and not later. One that failed was never done. `None` before the
    /// end and without a deadline.
    pub fn deadline_met(&self) -> Option<bool> {
        let (deadline, done) = (self.deadline.as_ref()?, self.completion_time.as_ref()?);
        if !self.phase.is_terminal() {
            return None;
        }
        Some(self.phase == Phase::Succeeded && done.0 <= deadline.0)
    }
}

/// The TrainingProfile that a run is planned with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsedProfile {
    /// Its name, in the job's namespace. It is made with the first observation.
    #[schemars(length(max = 253))]
    pub name: String,
    /// How it was found: `Spec`, `Label` (`andreas.dev/profile`), `Program` (that of runs of the same program; its annotation
    /// `andreas.dev/program` shows what was compared), `Name` (that of the job's own name).
    #[serde(default, deserialize_with = "known::or_default")]
    pub source: ProfileSource,
}

/// How the profile of a run was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ProfileSource {
    /// Named by `spec.profileRef`.
    Spec,
    /// Named by the job's label.
    Label,
    /// That of runs of the same program.
    Program,
    /// That of the job's own name.
    #[default]
    Name,
}

/// What a run has been given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Allocation {
    /// Number of the attempt, from 1.
    #[schemars(range(min = 1))]
    pub attempt: i64,
    /// Counter of decisions about this run when this one was made.
    #[schemars(range(min = 1))]
    pub generation: i64,
    /// GPU type (value of the product label).
    #[schemars(length(max = 253))]
    pub gpu_type: String,
    /// GPUs in total.
    #[schemars(range(min = 1))]
    pub gpus: i32,
    /// GPUs of each worker.
    #[schemars(range(min = 1))]
    pub gpus_per_worker: i32,
    /// Nodes in order of the members' index.
    #[schemars(length(min = 1, max = 512), inner(length(min = 1, max = 253)))]
    pub nodes: Vec<String>,
    /// Power limit of each GPU, W; the GPU's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub power_limit_watts: Option<i32>,
    /// The limit was changed while it ran: its pace is of no one limit, and teaches nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub limit_changed: bool,
    /// Its guard: the power limit of each GPU, W, until its draw is measured. None when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub guard_watts: Option<i32>,
    /// It drew as much as its guard allows: it may have been slower than it could be, and teaches nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub guard_reached: bool,
    /// When it was decided.
    pub since: Time,
    /// When all members were bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound_time: Option<Time>,
    /// When all members ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_time: Option<Time>,
    /// Predicted draw of the whole gang's GPUs, W.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub watts: i32,
    /// Its share of what its nodes draw besides their GPUs, W: of each busy node the part of the GPUs that it holds there.
    /// What is known when it is decided counts for the whole attempt. 0 in attempts of earlier releases.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub host_watts: i32,
}

/// A stop that was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StopRequest {
    /// The attempt that is to end.
    pub attempt: i64,
    /// Why: a reason of the closed set.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// Details for people, for example the job that needs the GPUs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub message: String,
    /// When it was asked.
    pub since: Time,
    /// What the attempt came to, where that was known when the stop was asked (a member failed, a time-out); judged
    /// at the end otherwise.
    #[serde(default, deserialize_with = "known::optional", skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Exit code of the member that failed first, where one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Whether the plan caused it, for another job or another placement. Default: `false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub planned: bool,
}

/// How far a run is. A claim of the training program, bounded and never taken back within an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Thousandths of a percent done, 0 to 100000.
    #[schemars(range(min = 0, max = 100_000))]
    pub milli_percent: i32,
    /// Attempt that reported it.
    pub attempt: i64,
    /// Milli-percent that this attempt started from.
    #[serde(default)]
    #[schemars(range(min = 0, max = 100_000))]
    pub attempt_start: i32,
    /// When it was reported (the operator's clock).
    pub at: Time,
    /// Milliseconds per epoch observed in this attempt, 0 when not known.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub millis_per_epoch: i64,
    /// Thousandths of an epoch that the operator's clock has timed, between the first and the last report. 0: the pace is that since
    /// all members ran, with whatever came before the first step.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub timed_milli_epochs: i64,
    /// The program has said that it is at its end: a plain 100, which says nothing of how far it came.
    #[serde(default)]
    pub ended: bool,
    /// The figure is counted, by steps or epochs. Otherwise it is a percentage of unknown origin.
    #[serde(default)]
    pub stepwise: bool,
    /// The first report of this attempt that shows a step: more than it started from.
    #[serde(default, deserialize_with = "known::optional", skip_serializing_if = "Option::is_none")]
    pub first: Option<FirstReport>,
}

impl Progress {
    /// The first report of the attempt that shows a step.
    pub fn first_step(&self, attempt: i64) -> Option<&FirstReport> {
        self.first.as_ref().filter(|_| self.attempt == attempt)
    }
}

/// The first report of an attempt that shows a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FirstReport {
    /// When it was received (the operator's clock).
    pub at: Time,
    /// Thousandths of a percent done by then.
    #[schemars(range(min = 0, max = 100_000))]
    pub milli_percent: i32,
}

/// A deadline that is met with at least this probability, percent, is predicted to be kept.
pub const KEPT_PERCENT: i32 = 50;
/// One that is met with at least this probability, percent, is at low risk, and needs no help.
pub const SAFE_PERCENT: i32 = 90;

/// What is expected of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Prediction {
    /// When it will start, or started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When it will be done (median).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_time: Option<Time>,
    /// Done by then with 10 % probability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_p10: Option<Time>,
    /// Done by then with 90 % probability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_p90: Option<Time>,
    /// Probability of being done by the deadline, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub on_time_percent: Option<i32>,
    /// `Low` (90 % or more on time), `Medium` (50 %), `High`, `Late` (the deadline has passed), `None` (no deadline).
    #[schemars(length(max = 16))]
    pub risk: String,
    /// Where the times come from: `UserGiven`, `Observed`, `Regression`, `Prior`.
    #[schemars(length(max = 32))]
    pub source: String,
    /// Milliseconds of one epoch on what it holds (median).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub epoch_millis: Option<i64>,
    /// Lower end of their interval of 90 %.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub epoch_millis_low: Option<i64>,
    /// Upper end of their interval of 90 %.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub epoch_millis_high: Option<i64>,
    /// Energy that its GPUs still use, J.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub joules: i64,
}

impl Prediction {
    /// The deadline will rather be missed than kept, or has passed.
    pub fn is_at_risk(&self) -> bool {
        matches!(self.risk.as_str(), "High" | "Late")
    }
}

/// Joules and money so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Consumption {
    /// Energy of the GPUs of ended attempts, J; the present one is added at its end.
    #[schemars(range(min = 0))]
    pub joules: i64,
    /// Share of these attempts in the energy of their nodes besides the GPUs, J: `hostWatts` of an allocation while all members
    /// ran. Never measured by counters.
    #[schemars(range(min = 0))]
    pub host_joules: i64,
    /// Where `joules` come from: `Measured` by the GPUs' counters, `Predicted` from the power model, or `Mixed`: some attempts so,
    /// some so.
    #[schemars(length(max = 16))]
    pub source: String,
    /// The currency of the three costs: a label.
    #[schemars(length(max = 16))]
    pub currency: String,
    /// Price of `joules`, millionths of the currency.
    #[schemars(range(min = 0))]
    pub energy_cost_micros: i64,
    /// Price of `hostJoules`, millionths of the currency.
    #[schemars(range(min = 0))]
    pub host_cost_micros: i64,
    /// Price of lateness and turnaround so far, millionths of the currency.
    #[schemars(range(min = 0))]
    pub lateness_cost_micros: i64,
}

/// How an attempt went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttemptRecord {
    /// Number of the attempt, from 1.
    pub attempt: i64,
    /// How it ended.
    pub outcome: Outcome,
    /// Why: a reason of the closed set.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// Exit code of the member that failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Last line of that member.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub message: String,
    /// GPU type.
    #[schemars(length(max = 253))]
    pub gpu_type: String,
    /// GPUs in total.
    pub gpus: i32,
    /// Nodes as one text.
    #[schemars(length(max = 1024))]
    pub placement: String,
    /// When all members ran; absent when they never did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Time>,
    /// When the plan asked it to stop; absent where it ended otherwise. Such attempts that ran count as restarts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned_stop: Option<Time>,
    /// When the last member ended.
    pub ended: Time,
    /// Milli-percent of the run when it ended.
    #[serde(default)]
    pub milli_percent: i32,
    /// Energy of the attempt's GPUs, J.
    #[serde(default)]
    pub joules: i64,
    /// Its share of its nodes' energy besides the GPUs, J.
    #[serde(default)]
    pub host_joules: i64,
    /// `joules` were measured by the GPUs' counters; else they are from the power model.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub measured: bool,
}

/// A node excluded for a while.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeBackoff {
    /// Name of the node.
    #[schemars(length(max = 253))]
    pub node: String,
    /// How often in a row.
    pub times: i32,
    /// Until then.
    pub until: Time,
}
