//! Whose pod is it, and where may it go? Pure: what is known comes in as arguments.

use andreas_api::names::{
    GROUP, LABEL_ALLOCATION, LABEL_ATTEMPT, LABEL_INDEX, LABEL_JOB, LABEL_JOB_UID, pod_name,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::jobs::Job;

/// Kind of the owner that makes a pod ours.
const OWNER_KIND: &str = "TrainingJob";

/// Whose pod it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Not ours: passes untouched.
    Foreign,
    /// A member of one of our gangs.
    Ours(Member),
    /// Carries our label and our owner, but its other labels are not those that the operator writes. The job's name among
    /// them: caches and admission policies tell our pods by it, so a pod without it is nobody that the operator knows.
    Malformed(Refusal),
}

/// What a pod of ours says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// UID of its TrainingJob: label and controller agree.
    pub job_uid: String,
    /// Name of its TrainingJob, by the controller reference.
    pub job_name: String,
    /// Its namespace, which is its TrainingJob's too.
    pub namespace: String,
    /// Its own name.
    pub pod_name: String,
    /// Attempt that it belongs to.
    pub attempt: i64,
    /// Its place in the gang, from 0.
    pub index: usize,
    /// Generation of the allocation that it carries out.
    pub generation: i64,
}

/// Why a pod of ours may not go there. Definite: only another decision of the operator helps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A label that the operator always writes is missing, no number, or not the owner's name.
    #[error("label {0} is missing or malformed")]
    Label(&'static str),
    /// The TrainingJob is gone, or another has its name now.
    #[error("its TrainingJob does not exist")]
    NoJob,
    /// The TrainingJob holds nothing now.
    #[error("its TrainingJob has no allocation")]
    NoAllocation,
    /// Made for an older decision.
    #[error("made for allocation {pod}, the current one is {current}")]
    Generation {
        /// The pod's.
        pod: i64,
        /// The TrainingJob's.
        current: i64,
    },
    /// Made for another attempt.
    #[error("made for attempt {pod}, the current one is {current}")]
    Attempt {
        /// The pod's.
        pod: i64,
        /// The allocation's.
        current: i64,
    },
    /// The gang has fewer members.
    #[error("member {index} of a gang of {size}")]
    Index {
        /// The pod's.
        index: usize,
        /// Members of the allocation.
        size: usize,
    },
    /// Not named as that member is.
    #[error("not named {0}")]
    Name(String),
    /// The place of this member is elsewhere.
    #[error("allocation {generation} places it on {node}")]
    Node {
        /// The allocation's generation.
        generation: i64,
        /// The node of this member.
        node: String,
    },
}

impl Refusal {
    /// The metric's label.
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

/// Reads what a pod says of itself. It is ours with label **and** controller; admission policies guard both.
#[must_use]
pub fn whose(pod: &ObjectMeta) -> Whose {
    let labels = pod.labels.as_ref();
    let label = |name: &'static str| labels.and_then(|labels| labels.get(name));
    let owners = pod.owner_references.as_deref().unwrap_or_default();
    let group = |version: &str| version.split_once('/').is_some_and(|(group, _)| group == GROUP);
    let owner = owners.iter().find(|owner| {
        owner.controller == Some(true) && owner.kind == OWNER_KIND && group(&owner.api_version)
    });
    let (Some(uid), Some(owner)) = (label(LABEL_JOB_UID), owner) else { return Whose::Foreign };
    if uid.is_empty() || owner.uid != *uid {
        return Whose::Foreign;
    }
    let number = |name| label(name).and_then(|text| text.parse::<i64>().ok()).ok_or(Refusal::Label(name));
    let read = || {
        if label(LABEL_JOB) != Some(&owner.name) {
            return Err(Refusal::Label(LABEL_JOB));
        }
        Ok(Member {
            job_uid: uid.clone(),
            job_name: owner.name.clone(),
            namespace: pod.namespace.clone().unwrap_or_default(),
            pod_name: pod.name.clone().unwrap_or_default(),
            attempt: number(LABEL_ATTEMPT)?,
            index: usize::try_from(number(LABEL_INDEX)?).map_err(|_| Refusal::Label(LABEL_INDEX))?,
            generation: number(LABEL_ALLOCATION)?,
        })
    };
    match read() {
        Ok(member) => Whose::Ours(member),
        Err(refusal) => Whose::Malformed(refusal),
    }
}

/// Whether what is known of the job may be older than the pod, so that one live look can change the answer.
#[must_use]
pub fn may_be_behind(member: &Member, known: Option<&Job>) -> bool {
    known
        .and_then(|job| job.allocation.as_ref())
        .is_none_or(|allocation| allocation.generation < member.generation)
}

/// The one node where a member may go.
///
/// # Errors
/// Why it may go nowhere.
pub fn place<'a>(member: &Member, job: Option<&'a Job>) -> Result<&'a str, Refusal> {
    let job = job
        .filter(|job| {
            job.uid == member.job_uid && job.name == member.job_name && job.namespace == member.namespace
        })
        .ok_or(Refusal::NoJob)?;
    let allocation = job.allocation.as_ref().ok_or(Refusal::NoAllocation)?;
    if allocation.generation != member.generation {
        return Err(Refusal::Generation { pod: member.generation, current: allocation.generation });
    }
    if allocation.attempt != member.attempt {
        return Err(Refusal::Attempt { pod: member.attempt, current: allocation.attempt });
    }
    let size = allocation.nodes.len();
    let node = allocation.nodes.get(member.index).ok_or(Refusal::Index { index: member.index, size })?;
    let expected = pod_name(&member.job_name, member.attempt, member.index);
    if member.pod_name != expected {
        return Err(Refusal::Name(expected));
    }
    Ok(node)
}

#[cfg(test)]
mod tests;
