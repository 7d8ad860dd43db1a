//! Closed sets: phases of a TrainingJob, reasons of its conditions, outcomes of its attempts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

andreas_model::names! {
    /// Where a TrainingJob is in its life.
    #[derive(
        Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
    )]
    pub enum Phase {
        /// Waits, with a reason.
        #[default]
        Pending,
        /// Has an allocation; GPUs waking, pods made, not all running.
        Starting,
        /// All members of the gang run.
        Running,
        /// Asked to checkpoint; its pods have not ended.
        Stopping,
        /// Held by `spec.suspend`.
        Suspended,
        /// Done.
        Succeeded,
        /// Given up: retries used, or `maxRunTime`.
        Failed,
    }
}

impl Phase {
    /// No further attempt will be made.
    pub fn is_terminal(self) -> bool {
        matches!(self, Phase::Succeeded | Phase::Failed)
    }
}

andreas_model::names! {
    /// Why a condition holds. The set is closed: dashboards, alerts and tests may list it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
    pub enum Reason {
        /// Not planned yet.
        NotPlannedYet,
        /// No free GPUs that serve it better than waiting; the jobs in the way are named.
        WaitingForCapacity,
        /// Starts later because energy is cheaper then, or the power budget higher.
        DeferredForEnergy,
        /// A machine that it needs was off and starts.
        NodeStarting,
        /// The power budget leaves no room.
        PowerBudget,
        /// The budget is below what the cluster draws at idle.
        BudgetInfeasible,
        /// No node has a GPU type that the job allows.
        NoFeasibleGpuType,
        /// GPUs of the type exist, but no node admits a worker (CPU, memory, taints, selectors, size).
        NoFeasibleNode,
        /// The namespace's quota leaves no room.
        QuotaExceeded,
        /// So many jobs of the namespace wait that only the oldest are planned.
        QueueFull,
        /// Stopped in favour of others.
        Preempted,
        /// On time with a probability below 50 %, or ended after the deadline, or failed (on the condition `OnTime`).
        DeadlineUnreachable,
        /// The gang was not wholly bound in time, or its GPUs were never released.
        PlacementTimeout,
        /// Bound but not running in time.
        StartTimeout,
        /// No progress for `progressTimeout`.
        ProgressTimeout,
        /// Ran longer than `maxRunTime`.
        MaxRunTime,
        /// The API server refuses the pod.
        TemplateRejected,
        /// A pod of the required name belongs to another owner.
        NameInUse,
        /// Somebody else starts or stops the adopted job, or it cannot be adopted.
        NotAdopted,
        /// A node of the job, or one that it waits for, is not ready, and nothing proves it dead.
        NodeNotReady,
        /// Ended with exit 0 and less than 99 % reported.
        CompletedEarly,
        /// No progress is reported.
        ProgressUnknown,
        /// It does not run: the condition `Scheduled` or `Running` says why.
        NotRunning,
        /// Held by `spec.suspend`.
        Suspended,
        /// Being stopped: asked to save, its pods have not ended.
        Stopping,
        /// Previous pods have not released their GPUs or names.
        WaitingForRelease,
        /// GPUs are waking, or pods are made and being bound and started.
        PodsStarting,
        /// All members run.
        Running,
        /// Done.
        Completed,
        /// A member exited with an error.
        ContainerFailed,
        /// A member ran out of memory.
        OutOfMemory,
        /// The image has no code for the GPU type or for the node's processor.
        UnsupportedHardware,
        /// The cluster failed the attempt: drain, node lost, kubelet refused, GPU error.
        ClusterFailure,
        /// A member vanished without its end having been seen.
        Vanished,
        /// All retries are used.
        RetriesExhausted,
        /// An object cannot be used as it is; the message names the field.
        Invalid,
        /// The predicted end has moved by a quarter of the remaining time. Only of events.
        FinishDelayed,
        /// The risk of missing the deadline is in another class. Only of events.
        RiskChanged,
        /// A receiver of notifications did not take one. Only of events.
        NotificationFailed,
        /// All is well.
        AsExpected,
    }
}

impl Reason {
    /// The reason of that name, also by the name that an earlier release gave it.
    pub fn parse(text: &str) -> Option<Reason> {
        match text {
            "NodeSilent" => Some(Reason::NodeNotReady),
            "WaitingForRoom" => Some(Reason::WaitingForRelease),
            _ => Reason::named(text),
        }
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Outcome {
    /// All members exited 0.
    Finished,
    /// Stopped by the operator; goes on later.
    Stopped,
    /// The user's program failed: uses a retry.
    UserFailure,
    /// The cluster failed it: no retry used.
    ClusterFailure,
    /// Withdrawn before it ran (placement time-out, a refused pod): no retry used.
    Withdrawn,
}

/// Types of conditions in `TrainingJob.status.conditions`.
pub mod condition {
    /// The job has, or does not have, what it needs to run; the reason says why it waits.
    pub const SCHEDULED: &str = "Scheduled";
    /// The job runs as a whole gang.
    pub const RUNNING: &str = "Running";
    /// Its user holds it: `spec.suspend`, and no pods are left.
    pub const SUSPENDED: &str = "Suspended";
    /// Ended well or not (`True` with a reason).
    pub const FINISHED: &str = "Finished";
    /// Ended well, under the name that a Job of Kubernetes uses: `kubectl wait --for=condition=Complete`.
    pub const COMPLETE: &str = "Complete";
    /// Given up, likewise.
    pub const FAILED: &str = "Failed";
    /// The deadline is predicted to be kept.
    pub const ON_TIME: &str = "OnTime";
    /// It runs: `Unknown` where its program reports no progress (`ProgressUnknown`), `False` with `CompletedEarly` where it ended
    /// before its end.
    pub const PROGRESSING: &str = "Progressing";
    /// The template can become a pod.
    pub const TEMPLATE_ACCEPTED: &str = "TemplateAccepted";
}
