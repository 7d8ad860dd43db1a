//! What on a node forbids to switch its machine off, and what comes with the node. Pure.

use std::collections::BTreeMap;

use andreas_api::gpu_node::GpuCondition;
use andreas_api::slim::{SlimGpuNode, SlimPodSpec, metadata};
use andreas_api::{quantity, resource_like};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

/// Annotation of a pod that a kubelet runs from a file.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// A pod: whose it is, and whether it has finished.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LivePod {
    /// Name, owners, annotations.
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// What it asks for.
    #[serde(default)]
    pub spec: SlimPodSpec,
    /// Its phase.
    #[serde(default)]
    pub status: LivePodStatus,
}

resource_like!(LivePod, Pod);

/// `status` of a pod.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LivePodStatus {
    /// `Running` and others.
    pub phase: String,
}

impl LivePod {
    /// Whether its node may go off: it has finished, or it belongs to the node.
    pub fn goes_with_node(&self) -> bool {
        self.has_finished() || self.is_of_node()
    }

    fn has_finished(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Whether the node has it again when it is back.
    fn is_of_node(&self) -> bool {
        let owners = self.metadata.owner_references.as_deref().unwrap_or_default();
        let by_daemon_set = owners.iter().any(|owner| {
            owner.controller == Some(true) && owner.kind == "DaemonSet" && owner.api_version == "apps/v1"
        });
        let mirror = self.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(MIRROR));
        by_daemon_set || mirror
    }
}

/// What the pods that the node has again when it is back ask for of it: CPU, memory and their number.
pub fn requests_of_node(pods: &[LivePod]) -> BTreeMap<String, String> {
    let of_node = || pods.iter().filter(|pod| pod.is_of_node() && !pod.has_finished());
    let sum = |name: &str| {
        let sidecars = |pod: &LivePod| {
            let all = pod.spec.init_containers.clone().into_iter();
            all.filter(|container| container.restart_policy.as_deref() == Some("Always"))
        };
        let containers =
            of_node().flat_map(|pod| pod.spec.containers.clone().into_iter().chain(sidecars(pod)));
        containers
            .filter_map(|container| container.resources.requests.get(name).map(quantity::thousandths))
            .fold(0, u64::saturating_add)
    };
    let (cpu, memory, pods) = (sum("cpu"), sum("memory").div_ceil(1_000), of_node().count());
    BTreeMap::from([
        ("cpu".to_owned(), format!("{cpu}m")),
        ("memory".to_owned(), memory.to_string()),
        ("pods".to_owned(), pods.to_string()),
    ])
}

/// The first pod that needs the node.
pub fn of_pods(pods: &[LivePod]) -> Option<String> {
    let pod = pods.iter().find(|pod| !pod.goes_with_node())?;
    let name = |part: &Option<String>| part.clone().unwrap_or_default();
    Some(format!("PodsOfOthers: {}/{}", name(&pod.metadata.namespace), name(&pod.metadata.name)))
}

/// A GPU that its agent reports as held: a process may outlive its pod.
pub fn of_gpus(node: &SlimGpuNode) -> Option<String> {
    let gpus = &node.status.as_ref()?.gpus;
    let held = gpus.iter().find(|gpu| gpu.state == GpuCondition::Held || gpu.holder.is_some())?;
    Some(format!("GpuHeld: {}", held.holder.as_deref().unwrap_or(&held.uuid)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(more: Value, phase: &str) -> LivePod {
        let mut meta = json!({"name": "p", "namespace": "team"});
        meta.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(json!({"metadata": meta, "status": {"phase": phase}})).unwrap()
    }

    #[test]
    fn only_pods_of_the_node_itself_and_finished_ones_go_with_it() {
        let owner = |kind: &str, version: &str, controller: bool| json!({"ownerReferences": [{"apiVersion": version, "kind": kind, "name": "o", "uid": "u", "controller": controller}]});
        for gone in [
            pod(owner("DaemonSet", "apps/v1", true), "Running"),
            pod(json!({"annotations": {MIRROR: "x"}}), "Running"),
            pod(json!({}), "Succeeded"),
            pod(json!({}), "Failed"),
        ] {
            assert_eq!(of_pods(&[gone]), None);
        }
        let mut daemon = pod(owner("DaemonSet", "apps/v1", true), "Running");
        daemon.spec = serde_json::from_value(json!({
            "containers": [{"resources": {"requests": {"cpu": "250m", "memory": "1Gi"}}}, {}],
            "initContainers": [{"resources": {"requests": {"cpu": "8"}}},
                {"restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}]}))
        .unwrap();
        let finished = LivePod { status: LivePodStatus { phase: "Failed".into() }, ..daemon.clone() };
        let asked = requests_of_node(&[daemon, finished, pod(json!({}), "Running")]);
        let expected = [("cpu", "1250m"), ("memory", "1073741824"), ("pods", "1")];
        assert_eq!(asked, BTreeMap::from(expected.map(|(k, v)| (k.to_owned(), v.to_owned()))));
        for stays in [
            pod(json!({}), "Running"),
            pod(json!({}), "Pending"),
            pod(json!({}), "Unknown"),
            pod(owner("DaemonSet", "example.com/v1", true), "Running"),
            pod(owner("DaemonSet", "apps/v1", false), "Running"),
            pod(owner("ReplicaSet", "apps/v1", true), "Running"),
        ] {
            assert_eq!(of_pods(&[stays]).unwrap(), "PodsOfOthers: team/p");
        }
    }
}
