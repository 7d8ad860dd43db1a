//! What must be done about adopted jobs of other kinds, from the index.

use std::sync::Arc;

use andreas_api::names::GATE_NODE;
use andreas_api::slim::{SlimPod, SlimTrainingJob};
use andreas_cluster::index::{ClusterIndex, adopted_job, is_adopted, owner};
use andreas_runtime::watch::ObjectKey;
use andreas_workloads::adopt::{Kind, Workload};
use serde_json::{Value, json};

/// One thing to do.
#[derive(Debug)]
pub enum Todo {
    /// Make the TrainingJob of a workload.
    Make(Arc<Workload>),
    /// Stop a workload whose TrainingJob was deleted while it ran.
    Stop(Arc<Workload>),
    /// Tell a workload's owner why it is not adopted.
    Refuse(Arc<Workload>, String),
    /// Patch the TrainingJob of a workload: its annotations changed.
    Change(ObjectKey, Arc<Workload>, Value),
    /// Give the workload of a TrainingJob back.
    Remove(Arc<SlimTrainingJob>),
    /// Let the scheduler place a gated pod: no TrainingJob stands for its workload any more.
    Ungate(Arc<SlimPod>),
}

/// All that must be done.
pub fn all(index: &ClusterIndex) -> Vec<Todo> {
    let workloads = index.workloads().iter().filter(|workload| workload.wants_adoption());
    let mut all: Vec<Todo> = workloads.filter_map(|workload| of_workload(index, workload)).collect();
    let gone = |job: &&Arc<SlimTrainingJob>| {
        adopted_job(job).is_some_and(|(kind, adopts)| {
            let asks = index.workloads().get(&adopts.uid).is_some_and(|workload| workload.wants_adoption());
            index.workloads().is_listed(kind) && !asks && job.metadata.deletion_timestamp.is_none()
        })
    };
    let jobs = index.jobs().iter().map(|(_, job)| job);
    all.extend(jobs.filter(gone).map(|job| Todo::Remove(Arc::clone(job))));
    // Where no kind is adopted, the operator may not change pods.
    if Kind::ALL.into_iter().any(|kind| index.workloads().is_listed(kind)) {
        let pods = index.pods().iter().map(|(_, pod)| pod);
        all.extend(pods.filter(|pod| is_left_gated(index, pod)).map(|pod| Todo::Ungate(Arc::clone(pod))));
    }
    all
}

/// The pod waits for a node from a plan that it is no longer in: its workload was given back while it ran.
fn is_left_gated(index: &ClusterIndex, pod: &SlimPod) -> bool {
    is_adopted(pod)
        && pod.spec.scheduling_gates.iter().any(|gate| gate.name == GATE_NODE)
        && pod.metadata.deletion_timestamp.is_none()
        && owner(&pod.metadata).is_some_and(|(key, uid)| {
            index.jobs().get(&key).is_none_or(|job| job.metadata.uid.as_deref() != Some(uid))
        })
}

fn of_workload(index: &ClusterIndex, workload: &Arc<Workload>) -> Option<Todo> {
    if workload.end.is_some() || workload.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let namespace = workload.metadata.namespace.clone().unwrap_or_default();
    let key = ObjectKey { namespace, name: andreas_workloads::adopt::name(workload) };
    let Some(job) = index.jobs().get(&key) else {
        return Some(match workload.suspended {
            true => Todo::Make(Arc::clone(workload)),
            false if workload.attempt().is_some() => Todo::Stop(Arc::clone(workload)),
            false => Todo::Refuse(
                Arc::clone(workload),
                "it runs already; it is planned when it is suspended".to_owned(),
            ),
        });
    };
    let uid = workload.metadata.uid.as_deref();
    match &job.spec.adopts {
        Some(adopts) if Some(adopts.uid.as_str()) == uid => {}
        // Of an earlier workload of that name: the garbage collector removes it.
        Some(_) => return None,
        None => {
            let words = format!("a TrainingJob of the name {} exists", key.name);
            return Some(Todo::Refuse(Arc::clone(workload), words));
        }
    }
    match workload.request() {
        Err(error) => Some(Todo::Refuse(Arc::clone(workload), error.to_string())),
        Ok(request) => {
            let mut changes = andreas_workloads::adopt::mirror::changes(&request);
            let spec = serde_json::to_value(&job.spec).ok()?;
            let fields = changes.as_object_mut()?;
            if fields["weight"].is_null() {
                fields.insert("weight".to_owned(), 10.into());
            }
            if fields["preemption"].is_null() {
                fields.insert("preemption".to_owned(), "Allowed".into());
            }
            fields.retain(|name, value| spec.get(name).unwrap_or(&Value::Null) != value);
            (!fields.is_empty()).then(|| {
                let body = json!({"metadata": {"uid": job.metadata.uid}, "spec": changes});
                Todo::Change(key, Arc::clone(workload), body)
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use andreas_runtime::watch::Index;
    use andreas_workloads::adopt::workload::{Job, Watched};

    use super::*;

    fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).expect("an object")
    }

    fn pod(name: &str, mirror: &str, gate: &str) -> SlimPod {
        object(json!({
            "metadata": {
                "name": name, "namespace": "team", "uid": format!("uid-{name}"), "resourceVersion": "1",
                "labels": {"andreas.dev/job": "job-tune", "andreas.dev/adopted": mirror, "andreas.dev/adopted-attempt": "1"},
            },
            "spec": {"containers": [{"name": "t"}], "schedulingGates": [{"name": gate}]},
        }))
    }

    fn ungated(index: &ClusterIndex) -> Vec<String> {
        let names = all(index).into_iter().filter_map(|todo| match todo {
            Todo::Ungate(pod) => pod.metadata.name.clone(),
            _ => None,
        });
        names.collect()
    }

    #[test]
    fn gated_pods_of_a_workload_that_was_given_back_are_left_to_the_scheduler() {
        let mut index = ClusterIndex::new();
        index.apply(pod("former", "former", GATE_NODE));
        index.apply(pod("present", "present", GATE_NODE));
        index.apply(pod("other-gate", "former", "example.org/wait"));
        let mut leaving = pod("leaving", "former", GATE_NODE);
        leaving.metadata.deletion_timestamp = Some(object(json!("2026-01-01T00:00:00Z")));
        index.apply(leaving);
        index.apply(object::<SlimTrainingJob>(json!({
            "metadata": {"name": "job-tune", "namespace": "team", "uid": "present", "resourceVersion": "1"},
            "spec": {
                "adopts": {"apiVersion": "batch/v1", "kind": "Job", "name": "tune", "uid": "w", "pods": 2},
                "template": {"spec": {"containers": [{"name": "t"}]}},
            },
        })));
        assert_eq!(ungated(&index), Vec::<String>::new(), "no kind is adopted");
        Index::<Watched<Job>>::reset(&mut index, &Default::default());
        assert_eq!(ungated(&index), ["former"]);
        // The TrainingJob goes with the label of its workload.
        let key = ObjectKey { namespace: "team".into(), name: "job-tune".into() };
        Index::<SlimTrainingJob>::delete(&mut index, &key, None);
        assert_eq!(ungated(&index), ["former", "present"]);
    }

    #[test]
    fn a_workload_that_runs_is_stopped_if_its_training_job_was_deleted_and_else_left_alone() {
        for (attempt, stopped) in [(Some("3"), true), (None, false)] {
            let mut index = ClusterIndex::new();
            let mut job = json!({
                "metadata": {"name": "tune", "namespace": "team", "uid": "w", "resourceVersion": "1",
                    "labels": {"andreas.dev/adopt": "true"}},
                "spec": {"suspend": false},
            });
            job["metadata"]["annotations"]["andreas.dev/adopted-attempt"] = json!(attempt);
            if attempt.is_none() {
                job["metadata"]["annotations"] = json!({});
            }
            index.apply(object::<Watched<Job>>(job));
            let todo = all(&index);
            assert!(
                matches!((&todo[..], stopped), ([Todo::Stop(_)], true) | ([Todo::Refuse(..)], false)),
                "{todo:?}"
            );
        }
    }
}
