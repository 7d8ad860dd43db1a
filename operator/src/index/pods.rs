//! What one pod says: whose it is, its node and its use there, whether its containers have ended.

use andreas_api::gpu_node::namespaced_pod_name;
use andreas_api::names;
use andreas_api::slim::{SlimPod, SlimTrainingJob};
use andreas_runtime::watch::ObjectKey;
use kube::api::ObjectMeta;

use super::adopted::is_adopted;
use super::quantity::{self, Amounts};

/// Name and UID of the TrainingJob that controls a pod with our label; `None`: not ours.
pub fn owner(meta: &ObjectMeta) -> Option<(ObjectKey, &str)> {
    let label = meta.labels.as_ref()?.get(names::LABEL_JOB)?;
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
    let group = owner.api_version.split_once('/').map(|(group, _)| group);
    let ours = owner.kind == "TrainingJob" && group == Some(names::GROUP) && owner.name == *label;
    ours.then(|| {
        let namespace = meta.namespace.clone().unwrap_or_default();
        (ObjectKey { namespace, name: owner.name.clone() }, owner.uid.as_str())
    })
}

/// A pod is ours if it has our label **and** a controller reference to this object's UID. A label alone may
/// be forged; an owner alone may be orphaned or relabelled.
pub fn is_member(pod: &SlimPod, job: &SlimTrainingJob) -> bool {
    let (Some(uid), Some(name)) = (&job.metadata.uid, &job.metadata.name) else { return false };
    // What a pod's labels say of an adopted workload is believed of the jobs that stand for one alone.
    is_adopted(pod) == job.spec.adopts.is_some()
        && controller(pod).is_some_and(|(kind, owner_name, owner_uid)| {
            kind == "TrainingJob" && owner_name == name && owner_uid == uid
        })
        && pod.metadata.labels.as_ref().and_then(|labels| labels.get(names::LABEL_JOB_UID)) == Some(uid)
}

/// Kind, name and UID of a pod's controller.
pub fn controller(pod: &SlimPod) -> Option<(&str, &str, &str)> {
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    owners
        .iter()
        .find(|o| o.controller == Some(true))
        .map(|o| (o.kind.as_str(), o.name.as_str(), o.uid.as_str()))
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
    let ended = matches!(pod.status.phase.as_str(), "Succeeded" | "Failed");
    (!ended).then(|| (node, quantity::pod(&pod.spec)))
}

/// Every started container was seen terminated.
pub fn containers_seen_ended(pod: &SlimPod) -> bool {
    let all = || pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses);
    all().next().is_some()
        && all().all(|s| s.state.running.is_none())
        && pod.status.container_statuses.iter().any(|s| s.state.terminated.is_some())
}
