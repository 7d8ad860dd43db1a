//! The jobs as plain Kubernetes runs them. Pure.
//!
//! Each is a Job that asks for the GPUs that the trace's job asked for, of the types that a user with patience would name: one
//! pod, or as many as it takes where no node has so many, which find each other by a headless Service.
//! Kubernetes' own scheduler places the pods: it tries them in the order of their arrival, and goes on to the next where one has no
//! room. Nothing is moved, and nobody knows of a budget. The container is that of the TrainingJobs: the same program, the same work,
//! the same pace. The chart is installed, and has no job to plan.
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

use crate::nodes::Nodes;
use crate::power::Reading;

/// Namespace of the Jobs.
pub const NAMESPACE: &str = "plain";
/// Where a pod of an Indexed Job finds its index.
const COMPLETION_INDEX: &str = "metadata.annotations['batch.kubernetes.io/job-completion-index']";
const SUCCEEDED: &str = "Succeeded";
const PENDING: &str = "Pending";
/// Phases of a TrainingJob that a plain Job goes through, in their order.
const PHASES: [&str; 4] = [PENDING, "Starting", "Running", SUCCEEDED];
/// The run's method in the summary.
pub const METHOD: &str = "plain";

/// The objects of a job: a Service where it has several pods, and last the Job.
pub fn objects(job: &WorkloadJob, nodes: &Nodes) -> Vec<Value> {
    let mut template = workload::manifest(job).job["spec"]["template"].take();
    let pace: BTreeMap<&str, _> = nodes
        .all()
        .iter()
        .filter_map(|node| Some((node.name.as_str(), job.seconds_per_epoch.get(node.gpu.name)?)))
        .collect();
    let workers = workers(job, nodes);
    let each = job.requested_gpus.div_ceil(workers);
    let spec = &mut template["spec"];
    spec["restartPolicy"] = json!("Never");
    spec["subdomain"] = json!(job.name);
    // Nodes with GPUs are commonly closed to other pods.
    spec["tolerations"] = json!([{"key": names::GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}]);
    let types = json!([{"key": names::LABEL_GPU_PRODUCT, "operator": "In", "values": job.gpus.types}]);
    spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
        json!({"nodeSelectorTerms": [{"matchExpressions": types}]});
    let container = &mut spec["containers"][0];
    container["resources"]["limits"] = json!({names::GPU_RESOURCE: each});
    if let Some(env) = container["env"].as_array_mut() {
        env.retain(|variable| variable["name"] != "TRAINER_SECONDS_PER_EPOCH");
        let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
        env.extend([
            // Nobody tells a plain pod the type of its GPUs: it looks up its pace by the node that it is on.
            json!({"name": "TRAINER_SECONDS_PER_EPOCH", "value": json!(pace).to_string()}),
            json!({"name": "ANDREAS_GPU_TYPE", "valueFrom": field("spec.nodeName")}),
            json!({"name": "PET_NPROC_PER_NODE", "value": each.to_string()}),
            json!({"name": "PET_NNODES", "value": workers.to_string()}),
            json!({"name": "PET_NODE_RANK", "valueFrom": field(COMPLETION_INDEX)}),
            json!({"name": "PET_MASTER_ADDR", "value": format!("{0}-0.{0}", job.name)}),
        ]);
    }
    let metadata = json!({"name": job.name, "namespace": NAMESPACE});
    // Ranks meet before they are ready.
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"clusterIP": "None", "selector": {"job-name": job.name}, "publishNotReadyAddresses": true},
    });
    let job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {"template": template, "completionMode": "Indexed", "completions": workers, "parallelism": workers},
    });
    if workers > 1 { vec![service, job] } else { vec![job] }
}

/// Pods of the job: the fewest whose GPUs a node of its types has.
fn workers(job: &WorkloadJob, nodes: &Nodes) -> u32 {
    let of_its_types = nodes.all().iter().filter(|node| job.gpus.types.iter().any(|of| of == node.gpu.name));
    let largest = of_its_types.map(|node| node.gpus as u32).max().unwrap_or(job.requested_gpus);
    job.requested_gpus.div_ceil(largest)
}

/// A Job that was submitted.
#[derive(Clone, Debug)]
pub struct Submitted {
    job: SlimTrainingJob,
    workers: usize,
}

impl Submitted {
    /// A Job that was created at this instant.
    ///
    /// # Errors
    /// When the workload's job is no TrainingJob.
    pub fn new(job: &WorkloadJob, nodes: &Nodes, created: Timestamp) -> Result<Self> {
        let workers = workers(job, nodes) as usize;
        let mut object = workload::manifest(job).job;
        object["metadata"]["namespace"] = json!(NAMESPACE);
        object["metadata"]["creationTimestamp"] = json!(created);
        let due = created + SignedDuration::try_from_secs_f64(job.deadline_after_s as f64)?;
        object["status"] = json!({"deadline": due});
        Ok(Self { job: serde_json::from_value(object).context("a job of the workload")?, workers })
    }

    /// The Job by its pods, in the form of a TrainingJob.
    pub fn view(&self, seen: &ClusterHistory, reading: &Reading, nodes: &Nodes) -> SlimTrainingJob {
        let mut job = self.job.clone();
        let pods = pods_of(seen, &job);
        let joules: f64 = pods.iter().filter_map(|pod| reading.joules_of_pods.get(&pod.pod.uid()?)).sum();
        // By index: the pod that ended well, else the last one made. A Job makes a pod again where one failed.
        let mut ranks = vec![Vec::new(); self.workers];
        for pod in pods {
            if let Some(rank) = index(pod, &job).and_then(|index| ranks.get_mut(index)) {
                rank.push(pod);
            }
        }
        let attempts = ranks.iter().map(Vec::len).max().unwrap_or_default();
        let members: Vec<&PodView> = ranks.iter().filter_map(|pods| one_of(pods)).collect();
        if members.is_empty() {
            return job;
        }
        let whole = members.len() == self.workers;
        let slowest =
            members.iter().map(|pod| phase(pod)).min_by_key(|phase| PHASES.iter().position(|p| p == phase));
        let mut status = json!({
            "phase": slowest.filter(|_| whole).unwrap_or(PENDING),
            "deadline": job.status.as_ref().and_then(|status| status.deadline.as_ref()),
            "attempts": attempts, "restarts": attempts - 1,
        });
        let bound: Vec<&str> = members.iter().filter_map(|pod| pod.pod.spec.node_name.as_deref()).collect();
        if let Some(node) = bound.first() {
            let since = members.iter().filter_map(|pod| began(pod)).max();
            let since = since.or(job.creation_timestamp().map(|created| created.0));
            status["consumption"] = json!({"joules": joules as i64});
            status["allocation"] = json!({
                "attempt": attempts, "generation": 1, "gpus": members[0].gpus() * bound.len() as i64,
                "gpusPerWorker": members[0].gpus(),
                "gpuType": nodes.of_name(node).map(|node| node.gpu.name).unwrap_or_default(),
                "nodes": bound, "since": since, "watts": 0,
            });
        }
        if whole && slowest == Some(SUCCEEDED) {
            status["completionTime"] = json!(members.iter().filter_map(|pod| ended(pod)).max());
        }
        job.status = serde_json::from_value(status).ok();
        job
    }
}

/// The index of a Job's pod, by its name: JOB-INDEX-SUFFIX.
fn index(pod: &PodView, job: &SlimTrainingJob) -> Option<usize> {
    let name = pod.pod.name_any();
    name.strip_prefix(&job.name_any())?.strip_prefix('-')?.split_once('-')?.0.parse().ok()
}

/// Of the pods of an index the one that ended well, else the last one made.
fn one_of<'a>(pods: &[&'a PodView]) -> Option<&'a PodView> {
    let done = pods.iter().find(|pod| pod.pod.status.phase == SUCCEEDED);
    done.or(pods.iter().max_by_key(|pod| pod.pod.creation_timestamp().map(|created| created.0))).copied()
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
        (SUCCEEDED, _) => SUCCEEDED,
        ("Running", _) => "Running",
        (PENDING, Some(_)) => "Starting",
        _ => PENDING,
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
    use crate::nodes::DemoNode;

    fn jobs() -> Vec<WorkloadJob> {
        workload::jobs(TimeScale::DEMO).unwrap()
    }

    #[test]
    fn every_job_asks_for_the_gpus_of_the_trace_over_as_few_nodes_as_have_them() {
        let nodes = Nodes::real();
        for job in jobs() {
            let objects = objects(&job, &nodes);
            let gang = job.requested_gpus > 8;
            assert_eq!(objects.len(), 1 + usize::from(gang), "{}", job.name);
            let manifest = objects.last().unwrap();
            let (spec, workers) = (&manifest["spec"]["template"]["spec"], 1 + u32::from(gang));
            assert_eq!(
                (&manifest["spec"]["completions"], &manifest["spec"]["parallelism"]),
                (&json!(workers), &json!(workers))
            );
            let container = &spec["containers"][0];
            assert_eq!(container["resources"]["limits"]["nvidia.com/gpu"], job.requested_gpus / workers);
            assert!(spec.get("schedulerName").is_none(), "Kubernetes' own scheduler");
            let env =
                |name: &str| container["env"].as_array().unwrap().iter().find(|e| e["name"] == name).cloned();
            assert_eq!(
                env("PET_NPROC_PER_NODE").unwrap()["value"],
                (job.requested_gpus / workers).to_string()
            );
            assert_eq!(env("PET_NNODES").unwrap()["value"], workers.to_string());
            assert_eq!(objects[0]["metadata"]["name"], spec["subdomain"], "{}", job.name);
            assert_eq!(env("TRAINER_EPOCHS").unwrap()["value"], job.epochs.to_string(), "the same work");
            let pace = env("TRAINER_SECONDS_PER_EPOCH").unwrap();
            let pace: Value = serde_json::from_str(pace["value"].as_str().unwrap()).unwrap();
            let of_type = |node: &&DemoNode| job.gpus.types.iter().any(|of| of == node.gpu.name);
            for node in nodes.all().iter().filter(of_type) {
                assert_eq!(pace[&node.name], json!(job.seconds_per_epoch[node.gpu.name]), "{}", job.name);
            }
        }
    }

    /// A pod of that Job by its index and the letter of its suffix, on node-1.
    fn pod(job: &WorkloadJob, (index, name): (usize, &str), phase: &str, state: Value) -> SlimPod {
        serde_json::from_value(json!({
            "metadata": {"name": format!("{}-{index}-{name}", job.name), "namespace": NAMESPACE, "uid": name, "creationTimestamp": at(1),
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": job.name, "uid": "u", "controller": true}]},
            "spec": {"nodeName": "node-1", "containers": [{"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": "4"}}}]},
            "status": {"phase": phase, "containerStatuses": [{"name": "trainer", "state": state}]},
        }))
        .unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second)
    }

    /// What is seen of a Job after each of these pods.
    fn seen_after(job: &WorkloadJob, pods: impl IntoIterator<Item = SlimPod>) -> Vec<SlimTrainingJob> {
        let nodes = Nodes::real();
        let submitted = Submitted::new(job, &nodes, at(0)).unwrap();
        let mut seen = ClusterHistory::default();
        let mut reading = Reading::default();
        reading.joules_of_pods.extend([("a".into(), 50.0), ("b".into(), 70.0)]);
        let none = submitted.view(&seen, &reading, &nodes);
        let after = pods.into_iter().map(|pod| {
            seen.pods.insert(pod.metadata.uid.clone().unwrap(), PodView { pod, deleted: false });
            submitted.view(&seen, &reading, &nodes)
        });
        [none].into_iter().chain(after.collect::<Vec<_>>()).collect()
    }

    #[test]
    fn a_job_is_seen_by_its_pods_and_ends_when_its_container_does() {
        let job = jobs().remove(0);
        let due = at(i64::try_from(job.deadline_after_s).unwrap());
        let pods = [
            pod(&job, (0, "a"), "Running", json!({"running": {"startedAt": at(5)}})),
            pod(&job, (0, "a"), "Failed", json!({"terminated": {"exitCode": 1, "finishedAt": at(9)}})),
            pod(&job, (0, "b"), "Succeeded", json!({"terminated": {"exitCode": 0, "finishedAt": at(20)}})),
        ];
        let seen: Vec<_> = seen_after(&job, pods).into_iter().map(|job| job.status.unwrap()).collect();
        assert!(seen.iter().all(|status| status.deadline.as_ref().unwrap().0 == due));
        let allocation = seen[1].allocation.as_ref().unwrap();
        assert_eq!((seen[1].phase, seen[1].restarts, allocation.gpus), (Phase::Running, 0, 4));
        assert_eq!((allocation.gpu_type.as_str(), allocation.since.0), (workload::A100, at(5)));
        assert_eq!((seen[2].phase, &seen[2].completion_time), (Phase::Pending, &None));
        let done = &seen[3];
        assert_eq!((done.phase, done.restarts), (Phase::Succeeded, 1));
        assert_eq!(
            (done.completion_time.as_ref().unwrap().0, done.consumption.as_ref().unwrap().joules),
            (at(20), 120)
        );
    }

    #[test]
    fn a_job_of_several_pods_runs_when_all_do_and_ends_with_the_last() {
        let job = jobs().into_iter().find(|job| job.requested_gpus > 8).unwrap();
        let ended = |second: i64| json!({"terminated": {"exitCode": 0, "finishedAt": at(second)}});
        let pods = [
            pod(&job, (0, "a"), "Running", json!({"running": {"startedAt": at(5)}})),
            pod(&job, (1, "b"), "Pending", json!({})),
            pod(&job, (1, "b"), "Running", json!({"running": {"startedAt": at(7)}})),
            pod(&job, (0, "a"), "Succeeded", ended(20)),
            pod(&job, (1, "b"), "Succeeded", ended(22)),
        ];
        let seen: Vec<_> = seen_after(&job, pods).into_iter().map(|job| job.status.unwrap()).collect();
        let phases: Vec<_> = seen.iter().map(|status| status.phase).collect();
        use Phase::{Pending, Running, Starting, Succeeded};
        assert_eq!(phases, [Pending, Pending, Starting, Running, Running, Succeeded]);
        let allocation = seen[3].allocation.as_ref().unwrap();
        assert_eq!((allocation.gpus, allocation.nodes.len(), allocation.since.0), (8, 2, at(7)));
        let ends: Vec<_> =
            seen.iter().filter_map(|status| Some(status.completion_time.as_ref()?.0)).collect();
        assert_eq!((ends, seen[5].restarts), (vec![at(22)], 0));
    }
}
