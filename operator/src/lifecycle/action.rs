//! What a step wants done. The executor writes the status first and carries out nothing of a step whose status could
//! not be written; then the actions, in order.

use std::collections::BTreeSet;

use andreas_api::training_profile::{FinishedRun, Observation};
use andreas_api::{Reason, TrainingJobStatus};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service};

use super::sight::Sight;

/// What a step comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The whole new status; equal to the old one where nothing changed (then nothing is written). `progress` is
    /// touched only by success: it belongs to the replica that got the report. Write the changed fields as a merge patch.
    pub status: TrainingJobStatus,
    /// What to do once the status is written, in this order.
    pub actions: Vec<Action>,
    /// What to tell the user, one for each transition.
    pub events: Vec<EventNote>,
    /// When to look again at the latest, if nothing happens before.
    pub next: Option<Timestamp>,
    /// What was learned for the family of runs; after the status is written.
    pub learned: Vec<ProfileUpdate>,
    /// What the job holds, for the planner's next snapshot.
    pub claim: Claim,
    /// Facts that hold and that time-outs count from: to be kept with the instant of their first step, all others forgotten.
    pub sights: BTreeSet<Sight>,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make the gang's Service; one that is there and ours is well.
    CreateService(Box<Service>),
    /// Make all these pods at once. Where one is refused, delete those made and report it in
    /// [`Creation`](super::Creation); 409 with our UID and attempt is well.
    CreatePods {
        /// Generation of the allocation they carry out.
        generation: i64,
        /// In order of their index.
        pods: Vec<Pod>,
    },
    /// Delete a pod, with its UID as precondition and after a live read.
    DeletePod {
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
        /// Grace period, s; the pod's own when absent.
        grace: Option<i64>,
        /// Why.
        why: DeleteReason,
    },
    /// Raise `GpuNode.spec.wake` of that node to at least this value.
    Wake {
        /// The node.
        node: String,
        /// The value: the instant of asking in milliseconds, so that it grows and tells its age.
        value: i64,
    },
    /// Try a worker on the API server without making it, and report the [`Verdict`](super::Verdict).
    DryRun {
        /// GPUs of the worker.
        gpus: i32,
        /// The pod.
        pod: Box<Pod>,
    },
    /// Plan no job of this namespace for a while: the API server does not make its pods.
    BackOff {
        /// The API server's words.
        words: String,
    },
    /// Delete the TrainingJob: its time after the end is over.
    DeleteJob {
        /// Its UID, as precondition.
        uid: String,
    },
}

/// Why a pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteReason {
    /// Its attempt is being stopped.
    Stop,
    /// Its training container has ended, others go on.
    Leftover,
    /// It ended long ago: more attempts are kept than `historyLimit`.
    History,
}

/// An event for the user.
#[derive(Clone, Debug, PartialEq)]
pub struct EventNote {
    /// `Warning` instead of `Normal`.
    pub warning: bool,
    /// In a word, a reason of the closed set.
    pub reason: Reason,
    /// For people.
    pub message: String,
}

/// What was learned for the job's TrainingProfile.
#[derive(Clone, Debug, PartialEq)]
pub enum ProfileUpdate {
    /// Time and power of a configuration.
    Observation(Observation),
    /// Memory of GPUs of this type is too small for the family.
    OutOfMemory {
        /// The type.
        gpu_type: String,
    },
    /// A run of the family finished.
    Finished(FinishedRun),
}

/// What a job holds. The placement is that of `status.allocation`.
#[derive(Clone, Debug, PartialEq)]
pub enum Claim {
    /// Nothing, and may be given GPUs.
    Waiting {
        /// Not before this instant.
        not_before: Option<Timestamp>,
    },
    /// Nothing, and must not be given any: suspended, template refused, ended, being deleted.
    Nothing,
    /// A commitment since then.
    Starting {
        /// Since when.
        since: Timestamp,
    },
    /// It trains.
    Running {
        /// Since when.
        since: Timestamp,
    },
    /// Asked to stop; what it holds is busy until it is gone.
    Stopping {
        /// When it will have ended at the latest; unknown on a silent node.
        gone_by: Option<Timestamp>,
        /// It may be given GPUs afterwards.
        goes_on: bool,
    },
}
