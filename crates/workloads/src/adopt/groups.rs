//! The pod templates of a workload that ask for GPUs.

use andreas_api::names::GPU_RESOURCE;
use andreas_api::quantity;
use serde_json::Value;

use crate::adopt::kind::Kind;

/// Pods that one template makes at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// JSON pointer to the template.
    pub template: String,
    /// Its pods.
    pub pods: i64,
    /// GPUs of each, at least 1.
    pub gpus: i64,
}

/// The templates with GPUs in an object of `kind`, which is the one that holds templates ([`Kind::template_kind`]).
pub fn groups(kind: Kind, object: &Value) -> Vec<Group> {
    let spec = &object["spec"];
    let found: Vec<(String, i64)> = match kind {
        Kind::Job => vec![("/spec/template".into(), job_pods(spec))],
        Kind::JobSet | Kind::TrainJob => map_items(&spec["replicatedJobs"], |n, job| {
            let pods = count(&job["replicas"], 1).saturating_mul(job_pods(&job["template"]["spec"]));
            (format!("/spec/replicatedJobs/{n}/template/spec/template"), pods)
        }),
        Kind::PyTorchJob => {
            let roles = spec["pytorchReplicaSpecs"].as_object().into_iter().flatten();
            let role = |(name, role): (&String, &Value)| {
                let name = name.replace('~', "~0").replace('/', "~1");
                (format!("/spec/pytorchReplicaSpecs/{name}/template"), count(&role["replicas"], 1))
            };
            roles.map(role).collect()
        }
        Kind::RayJob => {
            let cluster = "/spec/rayClusterSpec";
            let workers = map_items(&spec["rayClusterSpec"]["workerGroupSpecs"], |n, group| {
                let replicas = count(&group["replicas"], count(&group["minReplicas"], 0));
                let pods = replicas.saturating_mul(count(&group["numOfHosts"], 1).max(1));
                (format!("{cluster}/workerGroupSpecs/{n}/template"), pods)
            });
            std::iter::once((format!("{cluster}/headGroupSpec/template"), 1)).chain(workers).collect()
        }
    };
    let with_gpus = found.into_iter().filter_map(|(template, pods)| {
        let gpus = gpus(&object.pointer(&template)?["spec"]);
        (gpus > 0 && pods > 0).then_some(Group { template, pods, gpus })
    });
    with_gpus.collect()
}

/// Applies `group` to each item of a list and its index.
fn map_items(list: &Value, group: impl Fn(usize, &Value) -> (String, i64)) -> Vec<(String, i64)> {
    list.as_array().into_iter().flatten().enumerate().map(|(n, item)| group(n, item)).collect()
}

fn count(value: &Value, default: i64) -> i64 {
    value.as_i64().unwrap_or(default).max(0)
}

/// Pods of a Job at once.
fn job_pods(spec: &Value) -> i64 {
    let parallelism = count(&spec["parallelism"], 1);
    spec["completions"].as_i64().map_or(parallelism, |completions| parallelism.min(completions.max(0)))
}

/// GPUs of a pod: what its containers ask for together.
fn gpus(pod: &Value) -> i64 {
    let of = |container: &Value| {
        let resources = &container["resources"];
        let found = quantity::count(&resources["limits"][GPU_RESOURCE]);
        found.or_else(|| quantity::count(&resources["requests"][GPU_RESOURCE])).unwrap_or(0)
    };
    pod["containers"].as_array().into_iter().flatten().map(of).sum()
}
