//! Whose pod a pod is: the one rule of operator and extender.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::names::{GROUP, LABEL_JOB_UID};

/// Kind of the owner of worker pods.
const OWNER_KIND: &str = "TrainingJob";

/// A TrainingJob that a pod refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodOwner<'a> {
    /// Its name, in the pod's namespace.
    pub name: &'a str,
    /// Its UID.
    pub uid: &'a str,
}

/// The TrainingJob in a pod's controller reference. Not enough for membership: see [`pod_owner`].
pub fn controlling_job(pod: &ObjectMeta) -> Option<PodOwner<'_>> {
    let owners = pod.owner_references.as_deref().unwrap_or_default();
    let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
    let group = owner.api_version.split_once('/').map(|(group, _)| group);
    let is_job = owner.kind == OWNER_KIND && group == Some(GROUP);
    is_job.then_some(PodOwner { name: &owner.name, uid: &owner.uid })
}

/// The TrainingJob that a pod works for: its controller, whose UID is also in the label [`LABEL_JOB_UID`]. A label
/// alone may be forged; a reference alone may be orphaned or relabelled. Admission policies protect both.
pub fn pod_owner(pod: &ObjectMeta) -> Option<PodOwner<'_>> {
    let label = pod.labels.as_ref()?.get(LABEL_JOB_UID)?;
    controlling_job(pod).filter(|owner| !label.is_empty() && owner.uid == label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_worker_pod_needs_the_label_and_the_controller() {
        let pod = |label: &str, version: &str, kind: &str, controller: bool| -> ObjectMeta {
            let owner = json!({"apiVersion": version, "kind": kind, "name": "bert", "uid": "u", "controller": controller});
            serde_json::from_value(json!({"labels": {LABEL_JOB_UID: label}, "ownerReferences": [owner]}))
                .expect("metadata")
        };
        let version = "andreas.dev/v1alpha1";
        let ours = pod("u", version, "TrainingJob", true);
        assert_eq!(pod_owner(&ours), Some(PodOwner { name: "bert", uid: "u" }));
        for other in [
            pod("", version, "TrainingJob", true),
            pod("other", version, "TrainingJob", true),
            pod("u", "example.com/v1", "TrainingJob", true),
            pod("u", version, "ReplicaSet", true),
            pod("u", version, "TrainingJob", false),
            ObjectMeta { owner_references: None, ..ours.clone() },
            ObjectMeta { labels: None, ..ours.clone() },
        ] {
            assert_eq!(pod_owner(&other), None, "{other:?}");
        }
    }
}
