//! The result of a step. The executor writes the status first. If that write fails, it drops the actions;
//! else it runs them in order.

use std::collections::BTreeSet;

use andreas_api::slim::SlimTrainingJob;
use andreas_api::training_profile::{Barred, FinishedRun, Observation, ObservedRestart};
use andreas_api::{Outcome, Phase, Reason, TrainingJobStatus};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service};

use super::first_seen::TimedFact;

/// The result of one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The whole new status. Nothing is written if it equals the old one. Only success changes `progress`:
    /// that field belongs to the replica that receives the reports. Write the changed fields as a merge
    /// patch.
    pub status: TrainingJobStatus,
    /// Actions to run, in order, after the status is written.
    pub actions: Vec<Action>,
    /// Events for the user, one per transition.
    pub events: Vec<EventNote>,
    /// Requeue the job at this instant at the latest.
    pub next: Option<Timestamp>,
    /// Updates for the job's TrainingProfile, applied after the status is written.
    pub learned: Vec<ProfileUpdate>,
    /// What the job holds, for the planner's next snapshot.
    pub claim: Claim,
    /// The facts that hold now and that time-outs count from. The caller keeps each with the instant when it
    /// was first seen and forgets all others.
    pub facts: BTreeSet<TimedFact>,
    /// The pods wait for GPUs of the allocation that are waking.
    pub waking: bool,
}

impl Step {
    /// Generation of the allocation whose pods may be made or are there: nobody uses its GPUs, and they are awake.
    /// `placementTimeout` counts from the first such step.
    pub fn has_room_for(&self) -> Option<i64> {
        let status = &self.status;
        let starts = status.phase == Phase::Starting
            && status.reason.as_deref() == Some(Reason::PodsStarting.as_str())
            && !self.waking;
        status.allocation.as_ref().filter(|_| starts).map(|allocation| allocation.generation)
    }
}

/// One action for the executor.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Create the gang's Service. One of ours that exists already is accepted.
    CreateService(Box<Service>),
    /// Create all these pods at once. If one is refused, delete the created ones and report it in
    /// [`Creation`](super::Creation). A 409 is accepted if the pod has our UID and attempt.
    CreatePods {
        /// Generation of their allocation.
        generation: i64,
        /// In order of their index.
        pods: Vec<Pod>,
    },
    /// Delete a pod after a live read, with its UID as precondition.
    DeletePod {
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
        /// Grace period, s. Absent: the pod's own.
        grace: Option<i64>,
        /// The reason.
        why: DeleteReason,
    },
    /// Forget which workers of the namespace were admitted: what admission adds may have changed.
    ForgetDryRuns,
    /// Start the adopted workload on these nodes.
    Release {
        /// The attempt.
        attempt: i64,
        /// The nodes of its allocation.
        nodes: Vec<String>,
        /// GPUs of its allocation, on all nodes.
        gpus: i32,
    },
    /// Stop the adopted workload.
    Hold,
    /// Let an adopted workload's gated pod onto its node.
    Place {
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
        /// The node.
        node: String,
    },
    /// Raise `GpuNode.spec.wakeGeneration` of this node to at least this value.
    Wake {
        /// The node.
        node: String,
        /// The request's instant in milliseconds: it only grows and gives the request's age.
        value: i64,
    },
    /// Validate a worker by a server-side dry run and report the [`DryRunResult`](super::DryRunResult).
    DryRun {
        /// GPUs of the worker.
        gpus: i32,
        /// The pod.
        pod: Box<Pod>,
        /// GPUs of the job's smaller workers, largest first: the largest of them that is accepted counts if this one is refused.
        smaller: Vec<i32>,
    },
    /// Stop planning this namespace for a while: the API server refuses to bind its pods.
    BackOff {
        /// The API server's message.
        message: String,
    },
    /// Delete the TrainingJob: its time to live after the end is over. Never in a step that changes the status.
    DeleteJob {
        /// Its UID, as precondition.
        uid: String,
        /// The version that was read, as precondition: a newer one may have another time to live.
        version: Option<String>,
    },
}

/// Why a pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteReason {
    /// Its attempt is being stopped.
    Stop,
    /// Its training container has ended while others go on.
    Leftover,
    /// Its attempt ended and exceeds `historyLimit`.
    History,
}

/// An event for the user.
#[derive(Clone, Debug, PartialEq)]
pub struct EventNote {
    /// `Warning` instead of `Normal`.
    pub warning: bool,
    /// Machine-readable reason, from the closed set.
    pub reason: Reason,
    /// Human-readable text.
    pub message: String,
}

/// What a run showed about the job's TrainingProfile.
#[derive(Clone, Debug, PartialEq)]
pub enum ProfileUpdate {
    /// Epoch time and power of a configuration.
    Observation(Observation),
    /// A choice of the plan failed.
    Barred(Barred),
    /// A run finished.
    Finished(FinishedRun),
    /// A run was stopped by the plan and started again.
    Restart(ObservedRestart),
}

/// What a job holds. Its placement is `status.allocation`.
#[derive(Clone, Debug, PartialEq)]
pub enum Claim {
    /// Holds nothing; may be given GPUs.
    Waiting {
        /// Earliest instant, if any.
        not_before: Option<Timestamp>,
    },
    /// Holds nothing and may not be given GPUs: suspended, template refused, ended or being deleted.
    Nothing,
    /// Committed to an allocation; not running yet.
    Starting {
        /// Start of the commitment.
        since: Timestamp,
    },
    /// Training.
    Running {
        /// Start of the run.
        since: Timestamp,
    },
    /// Asked to stop. Its GPUs stay in use until its pods are gone.
    Stopping {
        /// Latest expected end; it may have passed. Absent on an unreachable node.
        gone_by: Option<Timestamp>,
        /// May be given GPUs afterwards.
        goes_on: bool,
    },
}

/// The attempt that is being stopped is the job's last one, as far as is known: its last members may still show that the cluster
/// failed.
pub fn stops_for_good(job: &SlimTrainingJob, status: &TrainingJobStatus) -> bool {
    let Some(stop) = &status.stop else { return false };
    match stop.outcome {
        Some(Outcome::Finished) => true,
        // An adopted workload is started again until it has ended by itself.
        Some(Outcome::UserFailure) if job.spec.adopts.is_none() => {
            stop.reason == Reason::MaxRunTime.as_str() || status.user_failures >= job.spec.retries
        }
        _ => false,
    }
}
