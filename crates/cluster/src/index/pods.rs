//! What pods say: whose they are, their node and their use there, whether their containers have ended; and which of a job's pods hold
//! more than it was given ([`beyond`]).

use std::collections::BTreeMap;

use andreas_api::gpu_node::namespaced_pod_name;
use andreas_api::names;
use andreas_api::pod_owner::{PodOwner, pod_owner};
use andreas_api::slim::{SlimPod, SlimTrainingJob};
use andreas_api::training_job::Allocation;
use andreas_model::ObjectKey;
use kube::api::ObjectMeta;

use super::adopted::is_adopted;
use super::amounts::{self, Amounts};

/// Name and UID of the TrainingJob that a pod works for ([`pod_owner`]); `None`: not ours. The label by which pods
/// are watched must name it too.
pub fn owner(meta: &ObjectMeta) -> Option<(ObjectKey, &str)> {
    let owner = labelled_owner(meta)?;
    let namespace = meta.namespace.clone().unwrap_or_default();
    Some((ObjectKey { namespace, name: owner.name.to_owned() }, owner.uid))
}

fn labelled_owner(meta: &ObjectMeta) -> Option<PodOwner<'_>> {
    let label = meta.labels.as_ref()?.get(names::LABEL_JOB)?;
    pod_owner(meta).filter(|owner| owner.name == label)
}

/// Whether a pod works for this very object: name and UID.
pub fn is_member(pod: &SlimPod, job: &SlimTrainingJob) -> bool {
    let (Some(uid), Some(name)) = (&job.metadata.uid, &job.metadata.name) else { return false };
    // What a pod's labels say of an adopted workload is believed of the jobs that stand for one alone.
    is_adopted(pod) == job.spec.adopts.is_some()
        && labelled_owner(&pod.metadata).is_some_and(|owner| owner.name == name && owner.uid == uid)
}

/// Whether a pod works for this very object in that attempt.
pub fn is_worker(pod: &SlimPod, job: &SlimTrainingJob, attempt: i64) -> bool {
    is_member(pod, job) && number(&pod.metadata, names::LABEL_ATTEMPT) == Some(attempt)
}

/// Pods of an attempt, and GPUs of each. Those of an adopted workload may share nodes.
pub fn pods_of(job: &SlimTrainingJob, allocation: &Allocation) -> (usize, i32) {
    match &job.spec.adopts {
        Some(adopts) => {
            let pods = adopts.pods_on(allocation.gpus);
            (usize::try_from(pods).unwrap_or(0), allocation.gpus / pods.max(1))
        }
        None => (allocation.nodes.len(), allocation.gpus_per_worker),
    }
}

/// Of a job's pods, those that say they work for this allocation and hold what it does not have: bound to another node, or to one of
/// its own beyond its GPUs there. Their names. Whoever may create pods in a namespace can label them so.
pub fn beyond<'a>(
    pods: impl IntoIterator<Item = &'a SlimPod>,
    job: &SlimTrainingJob,
    allocation: &Allocation,
) -> Vec<String> {
    let mut bound: Vec<(&SlimPod, &str, u64)> = pods
        .into_iter()
        .filter(|pod| is_worker(pod, job, allocation.attempt))
        .filter_map(|pod| takes(pod).map(|(node, amounts)| (pod, node, amounts.gpus)))
        .collect();
    // The first ones are the job's.
    bound.sort_by_key(|(pod, ..)| (pod.metadata.creation_timestamp.clone(), pod.metadata.name.clone()));
    let each = u64::try_from(allocation.gpus_per_worker).unwrap_or(0);
    let mut held: BTreeMap<&str, u64> = BTreeMap::new();
    let mut others = Vec::new();
    for (pod, node, gpus) in bound {
        let sum = held.get(node).copied().unwrap_or(0).saturating_add(gpus);
        if sum <= each && allocation.nodes.iter().any(|own| own == node) {
            held.insert(node, sum);
        } else {
            others.push(name_of(&pod.metadata));
        }
    }
    others
}

/// The number in one of our labels.
pub fn number(meta: &ObjectMeta, label: &str) -> Option<i64> {
    meta.labels.as_ref()?.get(label)?.parse().ok()
}

/// The job named in a pod's label.
pub fn job_label(meta: &ObjectMeta) -> Option<ObjectKey> {
    let name = meta.labels.as_ref()?.get(names::LABEL_JOB)?.clone();
    Some(ObjectKey { namespace: meta.namespace.clone().unwrap_or_default(), name })
}

/// A pod's name in GpuNodes.
pub fn name_of(meta: &ObjectMeta) -> String {
    namespaced_pod_name(
        meta.namespace.as_deref().unwrap_or_default(),
        meta.name.as_deref().unwrap_or_default(),
    )
}

pub(super) fn name_of_key(key: &ObjectKey) -> String {
    namespaced_pod_name(&key.namespace, &key.name)
}

/// A pod's node and its use there; `None` if it is not bound or has ended.
pub fn takes(pod: &SlimPod) -> Option<(&str, Amounts)> {
    let node = pod.spec.node_name.as_deref()?;
    (!pod.has_ended()).then(|| (node, amounts::bound_pod(&pod.spec, &pod.status)))
}

/// Every started container was seen terminated.
pub fn containers_seen_ended(pod: &SlimPod) -> bool {
    let all = || pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses);
    all().next().is_some()
        && all().all(|s| s.state.running.is_none())
        && pod.status.container_statuses.iter().any(|s| s.state.terminated.is_some())
}
