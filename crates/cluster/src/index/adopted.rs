//! Pods of adopted workloads, read as members of the TrainingJob that stands for the workload.
//!
//! Their controller is another one, so their labels say whose they are. The operator writes those labels into the workload's pod
//! template. Who may create pods in a namespace can write them otherwise: such a pod counts as a job's only within the GPUs that the job
//! was given on that node ([`super::beyond`]).

use andreas_api::names::{
    GROUP, LABEL_ADOPTED, LABEL_ADOPTED_ATTEMPT, LABEL_ATTEMPT, LABEL_INDEX, LABEL_JOB, LABEL_JOB_UID,
    VERSION,
};
use andreas_api::pod_owner::controlling_job;
use andreas_api::slim::{SlimPod, SlimTrainingJob};
use andreas_api::training_job::AdoptedJob;
use andreas_workloads::adopt::Kind;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

/// Gives a pod of an adopted workload the labels and the owner of a member.
pub(super) fn as_member(pod: &mut SlimPod) {
    if controlling_job(&pod.metadata).is_some() {
        return;
    }
    let Some(labels) = &mut pod.metadata.labels else { return };
    let (Some(job), Some(uid)) = (labels.get(LABEL_JOB).cloned(), labels.get(LABEL_ADOPTED).cloned()) else {
        return;
    };
    labels.insert(LABEL_JOB_UID.to_owned(), uid.clone());
    let attempt = labels.get(LABEL_ADOPTED_ATTEMPT).cloned().unwrap_or_default();
    labels.insert(LABEL_ATTEMPT.to_owned(), attempt);
    labels.remove(LABEL_INDEX);
    pod.metadata.owner_references = Some(vec![OwnerReference {
        api_version: format!("{GROUP}/{VERSION}"),
        kind: "TrainingJob".to_owned(),
        name: job,
        uid,
        controller: Some(true),
        block_owner_deletion: None,
    }]);
}

/// The workload that a TrainingJob stands for.
pub fn adopted_job(job: &SlimTrainingJob) -> Option<(Kind, &AdoptedJob)> {
    let adopts = job.spec.adopts.as_ref()?;
    Some((Kind::parse(&adopts.kind)?, adopts))
}

/// The pod is of an adopted workload. Pods that the operator made have an index.
pub fn is_adopted(pod: &SlimPod) -> bool {
    pod.metadata
        .labels
        .as_ref()
        .is_some_and(|labels| labels.contains_key(LABEL_ADOPTED) && !labels.contains_key(LABEL_INDEX))
}
