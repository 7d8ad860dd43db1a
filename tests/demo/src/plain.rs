//! The jobs as plain Kubernetes runs them. Pure.
//!
//! Each is a Job of one pod, which asks for the GPUs that the trace's job asked for, of the types that a user with patience
//! would name. Kubernetes' own scheduler places the pods: it tries them in the order of their arrival, and goes on to the next
//! where one has no room. Nothing is moved, and nobody knows of a budget. The container is that of the TrainingJobs: the same
//! program, the same work, the same pace. The chart is installed, and has no job to plan.
//!
//! In: [`WorkloadJob`]s, and pods as seen. Out: manifests, and each Job in the form of a TrainingJob, so that one function
//! counts both runs and one table shows them.

use std::collections::BTreeMap;

use andreas_api::names;
use andreas_api::slim::SlimTrainingJob;
use andreas_e2e::seen::{ClusterHistory, PodView};
use andreas_e2e::workload::{self, WorkloadJob};
use anyhow::{Context as _, Result};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::nodes::{DemoNode, Nodes};
use crate::power::Reading;

/// Namespace of the Jobs.
pub const NAMESPACE: &str = "plain";
/// The run's method in the summary.
pub const METHOD: &str = "plain";

/// The Job.
pub fn manifest(job: &WorkloadJob, nodes: &Nodes) -> Value {
    let mut template = workload::manifest(job).job["spec"]["template"].take();
    let pace: BTreeMap<&str, _> = nodes
        .all()
        .iter()
        .filter_map(|node| Some((node.name.as_str(), job.seconds_per_epoch.get(node.gpu.name)?)))
        .collect();
    let spec = &mut template["spec"];
    spec["restartPolicy"] = json!("Never");
    // Nodes with GPUs are commonly closed to other pods.
    spec["tolerations"] = json!([{"key": names::GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}]);
    let types = json!([{"key": names::LABEL_GPU_PRODUCT, "operator": "In", "values": job.gpus.types}]);
    spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
        json!({"nodeSelectorTerms": [{"matchExpressions": types}]});
    let container = &mut spec["containers"][0];
    container["resources"]["limits"] = json!({names::GPU_RESOURCE: job.requested_gpus});
    if let Some(env) = container["env"].as_array_mut() {
        env.retain(|variable| variable["name"] != "TRAINER_SECONDS_PER_EPOCH");
        env.extend([
            // Nobody tells a plain pod the type of its GPUs: it looks up its pace by the node that it is on.
            json!({"name": "TRAINER_SECONDS_PER_EPOCH", "value": json!(pace).to_string()}),
            json!({"name": "ANDREAS_GPU_TYPE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}),
            json!({"name": "PET_NPROC_PER_NODE", "value": job.requested_gpus.to_string()}),
        ]);
    }
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job.name, "namespace": NAMESPACE},
        "spec": {"template": template},
    })
}

/// A job whose GPUs no node of its types has: a plain Job is one pod. None where all can run.
pub fn too_large<'a>(jobs: &'a [WorkloadJob], nodes: &Nodes) -> Option<&'a WorkloadJob> {
    jobs.iter().find(|job| {
        let fits = |node: &DemoNode| {
            node.gpus >= job.requested_gpus as usize && job.gpus.types.iter().any(|of| of == node.gpu.name)
        };
        !nodes.all().iter().any(fits)
    })
}

/// A Job that was submitted.
#[derive(Clone, Debug)]
pub struct Submitted(SlimTrainingJob);

impl Submitted {
    /// A Job that was created at this instant.
    ///
    /// # Errors
    /// When the workload's job is no TrainingJob.
    pub fn new(job: &WorkloadJob, created: Timestamp) -> Result<Self> {
        let mut object = workload::manifest(job).job;
        object["metadata"]["namespace"] = json!(NAMESPACE);
        object["metadata"]["creationTimestamp"] = json!(created);
        let due = created + SignedDuration::try_from_secs_f64(job.deadline_after_s as f64)?;
        object["status"] = json!({"deadline": due});
        Ok(Self(serde_json::from_value(object).context("a job of the workload")?))
    }

    /// The Job by its pods, in the form of a TrainingJob.
    pub fn view(&self, seen: &ClusterHistory, reading: &Reading, nodes: &Nodes) -> SlimTrainingJob {
        let mut job = self.0.clone();
        let mut pods = pods_of(seen, &job);
        pods.sort_by_key(|pod| pod.pod.creation_timestamp().map(|created| created.0));
        let done = pods.iter().position(|pod| pod.pod.status.phase == "Succeeded");
        let Some(pod) = done.or(pods.len().checked_sub(1)).map(|at| pods[at]) else { return job };
        let mut status = json!({
            "phase": phase(pod),
            "deadline": job.status.as_ref().and_then(|status| status.deadline.as_ref()),
            // A Job makes a pod again where one failed.
            "attempts": pods.len(), "restarts": pods.len() - 1,
        });
        if let Some(node) = pod.pod.spec.node_name.as_deref() {
            let since = began(pod).or(job.creation_timestamp().map(|created| created.0));
            let joules: f64 = pods.iter().filter_map(|pod| reading.joules_of_pods.get(&pod.pod.uid()?)).sum();
            status["consumption"] = json!({"joules": joules as i64});
            status["allocation"] = json!({
                "attempt": pods.len(), "generation": 1, "gpus": pod.gpus(), "gpusPerWorker": pod.gpus(),
                "gpuType": nodes.of_name(node).map(|node| node.gpu.name).unwrap_or_default(),
                "nodes": [node], "since": since, "watts": 0,
            });
        }
        if done.is_some() {
            status["completionTime"] = json!(ended(pod));
        }
        job.status = serde_json::from_value(status).ok();
        job
    }
}

/// The pods that a job owns, be it a Job or a TrainingJob.
pub fn pods_of<'a>(seen: &'a ClusterHistory, job: &SlimTrainingJob) -> Vec<&'a PodView> {
    let of_job = |pod: &&PodView| {
        pod.pod.namespace() == job.namespace()
            && pod.pod.owner_references().iter().any(|owner| Some(&owner.name) == job.metadata.name.as_ref())
    };
    seen.pods.values().filter(of_job).collect()
}

fn phase(pod: &PodView) -> &'static str {
    match (pod.pod.status.phase.as_str(), &pod.pod.spec.node_name) {
        ("Succeeded", _) => "Succeeded",
        ("Running", _) => "Running",
        ("Pending", Some(_)) => "Starting",
        _ => "Pending",
    }
}

/// When its container began, as the kubelet says.
fn began(pod: &PodView) -> Option<Timestamp> {
    let state = &pod.pod.status.container_statuses.first()?.state;
    let began = match (&state.running, &state.terminated) {
        (Some(running), _) => &running.started_at,
        (None, ended) => &ended.as_ref()?.started_at,
    };
    Some(began.as_ref()?.0)
}

/// When its container ended, as the kubelet says.
fn ended(pod: &PodView) -> Option<Timestamp> {
    let state = &pod.pod.status.container_statuses.first()?.state;
    Some(state.terminated.as_ref()?.finished_at.as_ref()?.0)
}

#[cfg(test)]
mod tests {
    use andreas_api::Phase;
    use andreas_api::slim::SlimPod;
    use andreas_e2e::workload::TimeScale;

    use super::*;

    fn jobs() -> Vec<WorkloadJob> {
        workload::jobs(TimeScale::DEMO).unwrap()
    }

    #[test]
    fn every_job_asks_for_the_gpus_of_the_trace_and_fits_a_real_node() {
        let nodes = Nodes::real();
        assert!(too_large(&jobs(), &nodes).is_none());
        assert!(too_large(&jobs(), &Nodes::pretend()).is_some_and(|job| job.requested_gpus >= 8));
        for job in jobs() {
            let manifest = manifest(&job, &nodes);
            let spec = &manifest["spec"]["template"]["spec"];
            let container = &spec["containers"][0];
            assert_eq!(container["resources"]["limits"]["nvidia.com/gpu"], job.requested_gpus);
            assert!(spec.get("schedulerName").is_none(), "Kubernetes' own scheduler");
            let env =
                |name: &str| container["env"].as_array().unwrap().iter().find(|e| e["name"] == name).cloned();
            assert_eq!(env("PET_NPROC_PER_NODE").unwrap()["value"], job.requested_gpus.to_string());
            assert_eq!(env("TRAINER_EPOCHS").unwrap()["value"], job.epochs.to_string(), "the same work");
            let pace = env("TRAINER_SECONDS_PER_EPOCH").unwrap();
            let pace: Value = serde_json::from_str(pace["value"].as_str().unwrap()).unwrap();
            let of_type = |node: &&DemoNode| job.gpus.types.iter().any(|of| of == node.gpu.name);
            for node in nodes.all().iter().filter(of_type) {
                assert_eq!(pace[&node.name], json!(job.seconds_per_epoch[node.gpu.name]), "{}", job.name);
            }
        }
    }

    /// A pod of that Job, on node-1 since second 5.
    fn pod(job: &WorkloadJob, name: &str, phase: &str, state: Value) -> SlimPod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": NAMESPACE, "uid": name, "creationTimestamp": at(1),
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": job.name, "uid": "u", "controller": true}]},
            "spec": {"nodeName": "node-1", "containers": [{"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": "4"}}}]},
            "status": {"phase": phase, "containerStatuses": [{"name": "trainer", "state": state}]},
        }))
        .unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second)
    }

    #[test]
    fn a_job_is_seen_by_its_pods_and_ends_when_its_container_does() {
        let (job, nodes) = (jobs().remove(0), Nodes::real());
        let submitted = Submitted::new(&job, at(0)).unwrap();
        let mut seen = ClusterHistory::default();
        let mut reading = Reading::default();
        reading.joules_of_pods.extend([("a".into(), 50.0), ("b".into(), 70.0)]);
        let view = |seen: &ClusterHistory| submitted.view(seen, &reading, &nodes);
        let due = at(i64::try_from(job.deadline_after_s).unwrap());
        assert_eq!(view(&seen).status.unwrap().deadline.unwrap().0, due);
        let mut add = |pod: SlimPod| {
            seen.pods.insert(pod.metadata.uid.clone().unwrap(), PodView { pod, deleted: false });
            view(&seen).status.unwrap()
        };
        let running = add(pod(&job, "a", "Running", json!({"running": {"startedAt": at(5)}})));
        let allocation = running.allocation.unwrap();
        assert_eq!((running.phase, running.restarts, allocation.gpus), (Phase::Running, 0, 4));
        assert_eq!((allocation.gpu_type.as_str(), allocation.since.0), (workload::A100, at(5)));
        let failed =
            add(pod(&job, "a", "Failed", json!({"terminated": {"exitCode": 1, "finishedAt": at(9)}})));
        assert_eq!((failed.phase, failed.completion_time), (Phase::Pending, None));
        let done =
            add(pod(&job, "b", "Succeeded", json!({"terminated": {"exitCode": 0, "finishedAt": at(20)}})));
        assert_eq!((done.phase, done.restarts, done.deadline.unwrap().0), (Phase::Succeeded, 1, due));
        assert_eq!((done.completion_time.unwrap().0, done.consumption.unwrap().joules), (at(20), 120));
    }
}
