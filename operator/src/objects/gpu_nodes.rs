//! A GpuNode for each node with GPUs, and what it says of its node: the GPU type, or why it is not planned.

use std::sync::Arc;
use std::time::Duration;

use andreas_api::gpu_node::ExcludedNode;
use andreas_api::slim::{SlimGpuNode, SlimNode};
use andreas_api::{EnergyPolicySpec, GpuNode, GpuNodeSpec};
use andreas_cluster::energy::inventory::{gpu_node_of, kept_type};
use andreas_cluster::energy::{Exclusion, Inventory, NodeUse};
use andreas_cluster::index::{ClusterIndex, agent_status};
use andreas_cluster::instants;
use andreas_cluster::policy::type_label;
use andreas_runtime::clock;
use andreas_runtime::watch::ObjectKey;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::ResourceExt;
use serde::Serialize;
use serde_json::json;

use super::patches::{AT_ONCE, patch_specs};
use crate::shared::Shared;
use crate::writes::Refusal;

/// Time for which a node keeps its type without the label that says it and without an agent: longer than an upgrade of GPU
/// feature discovery takes.
const KEEPS_TYPE: Duration = Duration::from_secs(600);

/// Owned by its Node, so the garbage collector removes it with the node.
fn gpu_node(node: &SlimNode, known: KnownNode) -> GpuNode {
    let KnownNode { gpu_type, type_label, type_missing_since, excluded } = known;
    let spec = GpuNodeSpec { gpu_type, type_label, type_missing_since, excluded, ..GpuNodeSpec::default() };
    let mut object = GpuNode::new(&node.name_any(), spec);
    object.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.name_any(),
        uid: node.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    object
}

/// Creates some of the missing ones; returns how many.
pub(super) async fn make(shared: &Arc<Shared>) -> usize {
    let missing: Vec<GpuNode> = {
        let (index, now) = (shared.index.lock(), clock::now());
        let inventory = Inventory::from_index(&index);
        let without = index.nodes().iter().filter(|(key, _)| index.gpu_nodes().get(key).is_none());
        let with_gpus = without.filter_map(|(_, node)| match inventory.node_use(node) {
            // Not ours to manage.
            NodeUse::NoGpus | NodeUse::Excluded(Exclusion::NotSelected) => None,
            NodeUse::Planned(_) | NodeUse::Excluded(_) => {
                Some(gpu_node(node, KnownNode::from_node(&index, node, &inventory, now)))
            }
        });
        with_gpus.take(AT_ONCE).collect()
    };
    let made = missing.iter().map(|object| async move {
        match shared.writer.create::<GpuNode, SlimGpuNode>("node", None, object, false).await {
            Ok(answer) => {
                shared.index.lock().wrote_gpu_node(answer);
                return true;
            }
            Err(error) if error.refusal() == Refusal::Exists => {}
            Err(error) => tracing::warn!(
                node = object.name_any(),
                error = &error as &dyn std::error::Error,
                "no GpuNode made"
            ),
        }
        false
    });
    futures::future::join_all(made).await.into_iter().filter(|made| *made).count()
}

/// What a GpuNode says of its node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct KnownNode {
    gpu_type: Option<String>,
    /// The label of its type.
    type_label: Option<String>,
    /// Since when it lacks that label.
    type_missing_since: Option<Time>,
    /// Why it is not planned.
    excluded: Option<ExcludedNode>,
}

impl KnownNode {
    fn from_node(index: &ClusterIndex, node: &SlimNode, inventory: &Inventory<'_>, now: Timestamp) -> Self {
        let policy = inventory.policy();
        let (gpu_type, type_label, type_missing_since) = known_type(index, node, policy, now);
        let why = match inventory.node_use(node) {
            NodeUse::Planned(_) => None,
            NodeUse::NoGpus => Some(Exclusion::NoWholeGpus),
            NodeUse::Excluded(why) => Some(why),
        };
        Self {
            gpu_type,
            type_label,
            type_missing_since,
            excluded: why
                .map(|why| ExcludedNode { reason: why.as_str().into(), message: why.message(policy) }),
        }
    }

    fn written(spec: &GpuNodeSpec) -> Self {
        Self {
            gpu_type: spec.gpu_type.clone(),
            type_label: spec.type_label.clone(),
            type_missing_since: spec.type_missing_since.clone(),
            excluded: spec.excluded.clone(),
        }
    }
}

/// A node's type, the label that says it, and since when the node lacks that label. It keeps its type for as long as its agent
/// reports, and for [`KEEPS_TYPE`] in any case.
fn known_type(
    index: &ClusterIndex,
    node: &SlimNode,
    policy: &EnergyPolicySpec,
    now: Timestamp,
) -> (Option<String>, Option<String>, Option<Time>) {
    if let (Some(kept), Some(gpu_node)) = (kept_type(index, node, policy), gpu_node_of(index, node)) {
        let since = gpu_node.spec.type_missing_since.as_ref().map_or(now, |since| since.0);
        let key = ObjectKey { namespace: String::new(), name: node.name_any() };
        let young = instants::since(since, now).0 < KEEPS_TYPE.as_secs_f64();
        if young || agent_status(index, &key).is_some_and(|status| !status.gpus.is_empty()) {
            return (Some(kept.to_owned()), gpu_node.spec.type_label.clone(), Some(Time(since)));
        }
    }
    match type_label(node, policy) {
        Some((at, name)) => (Some(name.to_owned()), Some(policy.type_labels[at].clone()), None),
        None => (None, None, None),
    }
}

/// What each GpuNode should say of its node, where it says something else.
fn changed_nodes(index: &ClusterIndex, now: Timestamp) -> Vec<(String, KnownNode)> {
    let inventory = Inventory::from_index(index);
    let known = index.gpu_nodes().iter().filter_map(|(key, gpu_node)| {
        let known = KnownNode::from_node(index, index.nodes().get(key)?, &inventory, now);
        (KnownNode::written(&gpu_node.spec) != known).then(|| (key.name.clone(), known))
    });
    known.collect()
}

/// Writes what GpuNodes should say of their nodes.
pub(super) async fn describe(shared: &Arc<Shared>) {
    let news = changed_nodes(&shared.index.lock(), clock::now());
    let specs = news.into_iter().take(AT_ONCE).map(|(node, known)| (node, json!(known)));
    patch_specs(shared, specs.collect(), "type and exclusion not written").await;
}

#[cfg(test)]
mod tests {
    use andreas_api::slim::SlimEnergyPolicy;
    use andreas_runtime::watch::Index;

    use super::*;

    fn node(version: u64, labels: serde_json::Value) -> SlimNode {
        serde_json::from_value(json!({
            "metadata": {"name": "n1", "uid": "u1", "resourceVersion": version.to_string(), "labels": labels},
            "status": {"allocatable": {"nvidia.com/gpu": "4"}},
        }))
        .expect("a node")
    }

    fn gpu_node(version: u64, spec: &serde_json::Value, status: &serde_json::Value) -> SlimGpuNode {
        let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1"});
        let metadata =
            json!({"name": "n1", "resourceVersion": version.to_string(), "ownerReferences": [owner]});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status}))
            .expect("a gpu node")
    }

    fn seconds(at: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + at).expect("a time")
    }

    /// What is written at that second; it is applied.
    fn written(index: &mut ClusterIndex, version: u64, at: i64, status: &serde_json::Value) -> KnownNode {
        let news = changed_nodes(index, seconds(at));
        assert_eq!(news.len(), 1, "{news:?}");
        index.apply(gpu_node(version, &json!(news[0].1), status));
        assert_eq!(changed_nodes(index, seconds(at)), []);
        news[0].1.clone()
    }

    const MACHINE: &str = "node.kubernetes.io/instance-type";

    #[test]
    fn a_gpu_node_says_the_type_of_its_node_once_and_why_it_is_excluded() {
        let mut index = ClusterIndex::new();
        index.apply(node(1, json!({"nvidia.com/gpu.product": "Tesla-T4"})));
        index.apply(gpu_node(2, &json!({}), &json!(null)));
        let known = written(&mut index, 3, 0, &json!(null));
        assert_eq!((known.gpu_type.as_deref(), known.excluded), (Some("Tesla-T4"), None));
        assert_eq!(known.type_label.as_deref(), Some("nvidia.com/gpu.product"));
        // Another value of the label is another type at once.
        index.apply(node(4, json!({"nvidia.com/gpu.product": "Tesla-V100"})));
        assert_eq!(written(&mut index, 5, 1, &json!(null)).gpu_type.as_deref(), Some("Tesla-V100"));
        // The labels go for good: so does the type at last.
        index.apply(node(6, json!({})));
        let since = written(&mut index, 7, 2, &json!(null));
        assert_eq!((since.gpu_type.as_deref(), since.excluded), (Some("Tesla-V100"), None));
        assert_eq!(changed_nodes(&index, seconds(601)), []);
        let given_up = json!(changed_nodes(&index, seconds(602))[0].1);
        index.apply(gpu_node(8, &given_up, &json!(null)));
        let gone = written(&mut index, 9, 602, &json!(null));
        assert_eq!((gone.gpu_type, gone.type_missing_since), (None, None));
        assert_eq!(gone.excluded.map(|why| why.reason).as_deref(), Some("NoTypeLabel"));
    }

    #[test]
    fn a_node_keeps_its_type_while_gpu_feature_discovery_is_upgraded() {
        let labelled = json!({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", MACHINE: "p4d.24xlarge"});
        let without = json!({MACHINE: "p4d.24xlarge"});
        let type_now = |index: &ClusterIndex| {
            let node = index.nodes().iter().next().expect("a node").1;
            Inventory::from_index(index).node_use(node).planned().map(str::to_owned)
        };
        let a100 = Some("NVIDIA-A100-SXM4-80GB".to_owned());
        let mut index = ClusterIndex::new();
        index.apply(node(1, labelled.clone()));
        index.apply(gpu_node(2, &json!({}), &json!(null)));
        written(&mut index, 3, 0, &json!(null));
        // From the instant at which the label goes, before anything is written, and in an operator that begins then.
        index.apply(node(4, without.clone()));
        assert_eq!(type_now(&index), a100);
        let kept = written(&mut index, 5, 10, &json!(null));
        assert_eq!((kept.gpu_type, kept.type_missing_since), (a100.clone(), Some(Time(seconds(10)))));
        // The label is back after a minute: the type was never another one, and nothing is remembered.
        index.apply(node(6, labelled.clone()));
        assert_eq!(
            (written(&mut index, 7, 70, &json!(null)).type_missing_since, type_now(&index)),
            (None, a100.clone())
        );
        // It is given up after ten minutes; with an agent that reports the boards it is not.
        let gpus: Vec<_> = (0..4).map(|gpu| json!({"uuid": gpu.to_string(), "state": "Free"})).collect();
        let reports = json!({"agentVersion": "1", "gpus": gpus});
        for (status, gives_up) in [(json!(null), true), (reports, false)] {
            let mut index = ClusterIndex::new();
            index.apply(node(1, labelled.clone()));
            index.apply(gpu_node(2, &json!({}), &status));
            written(&mut index, 3, 0, &status);
            index.apply(node(4, without.clone()));
            written(&mut index, 5, 0, &status);
            assert_eq!(changed_nodes(&index, seconds(599)), []);
            assert_eq!(!changed_nodes(&index, seconds(600)).is_empty(), gives_up);
            // What is kept is the type of that machine, not of another one of its name.
            let mut other = node(9, without.clone());
            other.metadata.uid = Some("u2".into());
            index.apply(other);
            assert_eq!(type_now(&index).as_deref(), Some("p4d.24xlarge"));
        }
        // A label that the policy no longer asks for keeps nothing.
        index.apply(node(8, without));
        let policy = json!({"apiVersion": "andreas.dev/v1alpha1", "kind": "EnergyPolicy",
            "metadata": {"name": "default", "resourceVersion": "9"}, "spec": {"typeLabels": [MACHINE]}});
        index.apply(serde_json::from_value::<SlimEnergyPolicy>(policy).expect("a policy"));
        assert_eq!(type_now(&index).as_deref(), Some("p4d.24xlarge"));
    }

    #[test]
    fn shared_gpus_stay_excluded_while_the_labels_that_say_so_are_gone() {
        let mut index = ClusterIndex::new();
        let shared = json!({"nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/gpu.replicas": "2", MACHINE: "g4dn.12xlarge"});
        index.apply(node(1, shared));
        index.apply(gpu_node(2, &json!({}), &json!(null)));
        written(&mut index, 3, 0, &json!(null));
        index.apply(node(4, json!({MACHINE: "g4dn.12xlarge"})));
        let kept = written(&mut index, 5, 1, &json!(null));
        assert_eq!(kept.excluded.map(|why| why.reason).as_deref(), Some("SharedGpus"));
    }

    #[test]
    fn a_node_that_offers_more_gpus_than_its_agent_sees_is_shared() {
        let mut index = ClusterIndex::new();
        index.apply(node(1, json!({MACHINE: "g4dn.12xlarge"})));
        let boards = |count: usize| {
            let gpus: Vec<_> =
                (0..count).map(|gpu| json!({"uuid": gpu.to_string(), "state": "Free"})).collect();
            json!({"agentVersion": "1", "gpus": gpus})
        };
        let use_now = |index: &ClusterIndex| {
            let node = index.nodes().iter().next().expect("a node").1;
            Inventory::from_index(index).node_use(node).exclusion()
        };
        for (version, count) in [(2, 4), (3, 8), (4, 0)] {
            index.apply(gpu_node(version, &json!({}), &boards(count)));
            assert_eq!(use_now(&index), None, "{count} boards for 4 GPUs");
        }
        index.apply(gpu_node(5, &json!({}), &boards(1)));
        let why = use_now(&index).expect("a reason");
        let words = why.message(&EnergyPolicySpec::default());
        assert_eq!(why.as_str(), "SharedGpus");
        assert!(words.starts_with("4 nvidia.com/gpu in allocatable, and 1 boards:"), "{words}");
        // An agent that has ended has seen them all the same.
        index.apply(gpu_node(6, &json!({}), &json!({"gpus": [{"uuid": "0", "state": "Free"}]})));
        assert_eq!(use_now(&index), Some(why));
    }
}
