//! Decides whether a pod belongs to ANDREAS and which node it may go to. Pure: all state comes in as
//! arguments.

use andreas_api::names::{LABEL_ALLOCATION, LABEL_ATTEMPT, LABEL_INDEX, LABEL_JOB, pod_name};
use andreas_api::pod_owner::pod_owner;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::jobs::Job;

/// Ownership of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// Not managed by ANDREAS; passes unchanged.
    Foreign,
    /// A worker pod of a TrainingJob's gang.
    Ours(WorkerPod),
    /// Has the label and the controller, but other labels differ from what the operator writes. A wrong job
    /// name counts too, since caches and admission policies select pods by it.
    Malformed(Refusal),
}

/// The identity of a worker pod, from its metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerPod {
    /// UID of its TrainingJob; label and controller reference agree.
    pub job_uid: String,
    /// Name of its TrainingJob, from the controller reference.
    pub job_name: String,
    /// Namespace of the pod and its TrainingJob.
    pub namespace: String,
    /// Name of the pod.
    pub pod_name: String,
    /// Its attempt.
    pub attempt: i64,
    /// Its index in the gang, from 0.
    pub index: usize,
    /// Generation of the allocation that it was created for.
    pub generation: i64,
}

/// Why a worker pod may not be placed. Final until the operator makes another decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A label that the operator always writes is missing, not a number, or not the owner's name.
    #[error("label {0} is missing or malformed")]
    Label(&'static str),
    /// The TrainingJob is gone, or another one has its name.
    #[error("its TrainingJob does not exist")]
    NoJob,
    /// The TrainingJob has no allocation.
    #[error("its TrainingJob has no allocation")]
    NoAllocation,
    /// Created for an older allocation.
    #[error("made for allocation {pod}, the current one is {current}")]
    Generation {
        /// Generation of the pod.
        pod: i64,
        /// Generation of the TrainingJob.
        current: i64,
    },
    /// Created for another attempt.
    #[error("made for attempt {pod}, the current one is {current}")]
    Attempt {
        /// Attempt of the pod.
        pod: i64,
        /// Attempt of the allocation.
        current: i64,
    },
    /// The gang has fewer members.
    #[error("member {index} of a gang of {size}")]
    Index {
        /// Index of the pod.
        index: usize,
        /// Number of members of the allocation.
        size: usize,
    },
    /// The pod's name is not that of the worker with its index.
    #[error("not named {0}")]
    Name(String),
    /// The allocation puts this worker pod on another node.
    #[error("allocation {generation} places it on {node}")]
    Node {
        /// The allocation's generation.
        generation: i64,
        /// The node of this worker pod.
        node: String,
    },
}

impl Refusal {
    /// Label value for metrics.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Label(_) => "label",
            Self::NoJob => "no_job",
            Self::NoAllocation => "no_allocation",
            Self::Generation { .. } => "generation",
            Self::Attempt { .. } => "attempt",
            Self::Index { .. } => "index",
            Self::Name(_) => "name",
            Self::Node { .. } => "node",
        }
    }
}

/// Reads a pod's ownership ([`pod_owner`]) and identity.
#[must_use]
pub fn ownership(pod: &ObjectMeta) -> Ownership {
    let labels = pod.labels.as_ref();
    let label = |name: &'static str| labels.and_then(|labels| labels.get(name));
    let Some(owner) = pod_owner(pod) else { return Ownership::Foreign };
    let number = |name| label(name).and_then(|text| text.parse::<i64>().ok()).ok_or(Refusal::Label(name));
    let read = || {
        if label(LABEL_JOB).map(String::as_str) != Some(owner.name) {
            return Err(Refusal::Label(LABEL_JOB));
        }
        Ok(WorkerPod {
            job_uid: owner.uid.to_owned(),
            job_name: owner.name.to_owned(),
            namespace: pod.namespace.clone().unwrap_or_default(),
            pod_name: pod.name.clone().unwrap_or_default(),
            attempt: number(LABEL_ATTEMPT)?,
            index: usize::try_from(number(LABEL_INDEX)?).map_err(|_| Refusal::Label(LABEL_INDEX))?,
            generation: number(LABEL_ALLOCATION)?,
        })
    };
    match read() {
        Ok(worker_pod) => Ownership::Ours(worker_pod),
        Err(refusal) => Ownership::Malformed(refusal),
    }
}

/// Whether the known job may be older than the pod, so that one live read may change the result.
#[must_use]
pub fn cache_may_be_stale(worker_pod: &WorkerPod, known: Option<&Job>) -> bool {
    known
        .and_then(|job| job.allocation.as_ref())
        .is_none_or(|allocation| allocation.generation < worker_pod.generation)
}

/// Returns the only node that a worker pod may go to.
///
/// # Errors
/// Why it may not be placed.
pub fn allocated_node<'a>(worker_pod: &WorkerPod, job: Option<&'a Job>) -> Result<&'a str, Refusal> {
    let job = job
        .filter(|job| {
            job.uid == worker_pod.job_uid
                && job.name == worker_pod.job_name
                && job.namespace == worker_pod.namespace
        })
        .ok_or(Refusal::NoJob)?;
    let allocation = job.allocation.as_ref().ok_or(Refusal::NoAllocation)?;
    if allocation.generation != worker_pod.generation {
        return Err(Refusal::Generation { pod: worker_pod.generation, current: allocation.generation });
    }
    if allocation.attempt != worker_pod.attempt {
        return Err(Refusal::Attempt { pod: worker_pod.attempt, current: allocation.attempt });
    }
    let size = allocation.nodes.len();
    let node =
        allocation.nodes.get(worker_pod.index).ok_or(Refusal::Index { index: worker_pod.index, size })?;
    let expected = pod_name(&worker_pod.job_name, worker_pod.attempt, worker_pod.index);
    if worker_pod.pod_name != expected {
        return Err(Refusal::Name(expected));
    }
    Ok(node)
}

#[cfg(test)]
mod tests;
