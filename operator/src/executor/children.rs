//! The Jobs of a JobSet. Its controller adds what a JobSet's templates say to the templates of Jobs that it made
//! before, and takes nothing away: a node selector or a scheduling gate of an earlier attempt stays. Such Jobs are
//! deleted while they are suspended; the controller makes them again from the JobSet.

use andreas_runtime::watch::ObjectKey;
use andreas_workloads::adopt::Kind;
use andreas_workloads::adopt::release::Leftover;
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use serde_json::Value;

use crate::writes::{WriteError, Writer};

/// The object with a workload's templates, as the JobSet of a TrainJob: only if the workload made it. Anybody may name a TrainJob after
/// somebody else's JobSet.
pub async fn templates(
    writer: &Writer,
    holder: Kind,
    workload: &ObjectKey,
    uid: &str,
) -> Result<Option<Value>, kube::Error> {
    let object = writer.get_object(&holder.url(&workload.namespace), &workload.name).await?;
    Ok(object.filter(|object| is_made_by(object, uid)))
}

fn is_made_by(object: &Value, uid: &str) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    let made = |owner: &Value| owner["uid"] == uid && owner["controller"] == true;
    !uid.is_empty() && owners.is_some_and(|owners| owners.iter().any(made))
}

/// Label of the Jobs of a JobSet: its name.
const JOB_SET: &str = "jobset.sigs.k8s.io/jobset-name";

/// Deletes the suspended Jobs of a JobSet with leftovers of an earlier attempt. One with pods that succeeded stays:
/// it would run them again.
pub async fn remake(
    writer: &Writer,
    job_set: &ObjectKey,
    uid: &str,
    leftover: Leftover,
) -> Result<usize, WriteError> {
    let api: Api<Job> = Api::namespaced(writer.client().clone(), &job_set.namespace);
    let with_label = ListParams::default().labels(&format!("{JOB_SET}={}", job_set.name));
    let mut deleted = 0;
    for job in api.list(&with_label).await?.items {
        let own = job.owner_references().iter().any(|owner| owner.uid == uid);
        if !own || !is_idle(&job) || !leftover.is_present_in(&template(&job)) {
            continue;
        }
        let key = ObjectKey { namespace: job_set.namespace.clone(), name: job.name_any() };
        writer.delete::<Job>(&key, &job.uid().unwrap_or_default(), job.resource_version(), None).await?;
        deleted += 1;
    }
    Ok(deleted)
}

fn template(job: &Job) -> serde_json::Value {
    job.spec.as_ref().and_then(|spec| serde_json::to_value(&spec.template).ok()).unwrap_or_default()
}

/// Suspended, not being deleted, and without a pod that did its part.
fn is_idle(job: &Job) -> bool {
    let suspended = job.spec.as_ref().is_some_and(|spec| spec.suspend == Some(true));
    let succeeded = job.status.as_ref().and_then(|status| status.succeeded).unwrap_or(0);
    suspended && succeeded == 0 && job.metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(spec: Value, status: Value) -> Job {
        serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec, "status": status}))
            .expect("a Job")
    }

    #[test]
    fn an_object_of_the_workloads_name_is_its_own_only_if_it_controls_it() {
        for (owners, own) in [
            (json!([{"uid": "u", "controller": true}]), true),
            (json!([{"uid": "u"}]), false),
            (json!([{"uid": "v", "controller": true}]), false),
            (json!(null), false),
        ] {
            let object = json!({"metadata": {"name": "train", "ownerReferences": owners}});
            assert_eq!(is_made_by(&object, "u"), own, "{object}");
            assert!(!is_made_by(&object, ""));
        }
    }

    #[test]
    fn only_suspended_jobs_without_a_result_are_made_again() {
        let template = json!({"metadata": {"labels": {"andreas.dev/adopted": "u"}},
            "spec": {"containers": [], "nodeSelector": {"kubernetes.io/hostname": "n1"}}});
        let found = job(json!({"suspend": true, "template": template}), json!({}));
        assert!(is_idle(&found));
        assert!(
            Leftover::Any.is_present_in(&super::template(&found))
                && Leftover::Node.is_present_in(&super::template(&found))
        );
        assert!(!is_idle(&job(json!({"suspend": false, "template": template}), json!({}))));
        assert!(!is_idle(&job(json!({"suspend": true, "template": template}), json!({"succeeded": 1}))));
        let own = json!({"spec": {"containers": [], "nodeSelector": {"disk": "ssd"}}});
        assert!(!Leftover::Any.is_present_in(&own) && !Leftover::Node.is_present_in(&own));
    }
}
