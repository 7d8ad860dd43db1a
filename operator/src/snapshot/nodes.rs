//! Which nodes are ours to plan, and what of them is free.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use andreas_api::gpu_node::GpuCondition;
use andreas_api::names::{LABEL_GPU_MEMORY, LABEL_GPU_PRODUCT, LABEL_GPU_REPLICAS, LABEL_MIG_STRATEGY};
use andreas_api::slim::SlimNode;
use andreas_api::{EnergyPolicySpec, GpuNodeStatus};
use andreas_core::{GpuType, Watts};
use andreas_planner::{Node, Resources};
use andreas_runtime::watch::ObjectKey;
use kube::ResourceExt;

use super::boards::board;
use super::jobs::Holders;
use super::limits;
use super::tables::Types;
use super::{gpus, node_name};
use crate::index::quantity::HOST_PORT;
use crate::index::{Amounts, ClusterIndex, owner, takes};

/// The node has all the labels of the policy's selector.
pub fn is_managed(node: &SlimNode, policy: &EnergyPolicySpec) -> bool {
    let labels = node.labels();
    policy.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// Why a node's GPUs are not whole ones, so that it is left alone: MIG, or time slicing.
pub fn left_alone(node: &SlimNode) -> Option<&'static str> {
    let labels = node.labels();
    let product = labels.get(LABEL_GPU_PRODUCT).map(String::as_str).unwrap_or_default();
    let strategy = labels.get(LABEL_MIG_STRATEGY).map(String::as_str).unwrap_or_default();
    let replicas: u64 = labels.get(LABEL_GPU_REPLICAS).and_then(|text| text.parse().ok()).unwrap_or(0);
    if product.contains("-MIG-") || matches!(strategy, "single" | "mixed") {
        return Some("MIG");
    }
    (product.ends_with("-SHARED") || replicas > 1).then_some("time slicing")
}

/// Memory of one of its GPUs, MiB; 0 where no label says.
pub fn gpu_memory(node: &SlimNode) -> i64 {
    node.labels().get(LABEL_GPU_MEMORY).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// A worker may be put there now: ready, not cordoned, not being deleted.
pub fn usable(node: &SlimNode) -> bool {
    let ready = node.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
    ready && !node.spec.unschedulable && node.metadata.deletion_timestamp.is_none()
}

/// The nodes of a snapshot.
#[derive(Default)]
pub struct Cluster {
    /// Types of the nodes, with how many GPUs there are.
    pub types: Types,
    /// Nodes in the snapshot, by name.
    pub nodes: BTreeMap<String, Node>,
    /// What they have, and what of it pods take that the planner does not account for, beside GPUs, CPU, memory and pods.
    others: BTreeMap<String, [Others; 2]>,
    /// Those of them that may take new workers.
    pub usable: BTreeSet<String>,
    /// Nodes of the selector that are left alone.
    pub left_alone: Vec<String>,
}

type Others = BTreeMap<Arc<str>, u64>;

impl Cluster {
    /// Limits every node to what it has of the named resources and host ports: what no worker asks for is of no interest, and
    /// what a worker asks for and a node does not have is 0 there.
    pub fn limit(&mut self, names: &BTreeSet<Arc<str>>) {
        for (name, node) in &mut self.nodes {
            let Some([has, taken]) = self.others.get(name) else { continue };
            let left = |resource: &Arc<str>| {
                let one = u64::from(resource.starts_with(HOST_PORT));
                let has = has.get(resource).copied().unwrap_or(one);
                has.saturating_sub(taken.get(resource).copied().unwrap_or(0))
            };
            node.free.others = names.iter().map(|resource| (Arc::clone(resource), left(resource))).collect();
        }
    }

    /// For the planner, in order of name.
    pub fn planned(&self) -> Vec<Node> {
        self.nodes.values().cloned().collect()
    }
}

/// Gathers the managed nodes, and any others that hold jobs of ours.
pub fn gather(index: &ClusterIndex, policy: &EnergyPolicySpec, holders: &Holders) -> Cluster {
    let mut cluster = Cluster::default();
    let leftovers = leftovers(index, holders);
    let mut ranges: BTreeMap<GpuType, Option<(i32, i32)>> = BTreeMap::new();
    for (key, node) in index.nodes.iter() {
        let managed = is_managed(node, policy);
        let alone = left_alone(node).is_some();
        if managed && alone {
            cluster.left_alone.push(key.name.clone());
        }
        let held = holders.gpus_on(&key.name);
        let open = managed && !alone && usable(node);
        if !open && held == 0 {
            continue;
        }
        let Some(product) = node.labels().get(LABEL_GPU_PRODUCT) else { continue };
        let allocatable = Amounts::of(&node.status.allocatable);
        let ours: BTreeSet<&str> = index
            .pods_on(&key.name)
            .filter(|pod| holders.accounts_for(pod))
            .filter_map(|pod| pod.metadata.uid.as_deref())
            .collect();
        let foreign = index.foreign_use(&key.name);
        let taken = foreign.plus(leftovers.get(&key.name).cloned().unwrap_or_default());
        cluster.others.insert(key.name.clone(), [allocatable.others.clone(), taken.others.clone()]);
        let accounted = |uid: &str| ours.contains(uid);
        let broken = broken_gpus(index, key, node, accounted);
        let mut free = allocatable.clone().minus(taken);
        free.gpus = free.gpus.saturating_sub(broken);
        // What is not open is only as large as what our jobs hold there.
        if !open {
            free.gpus = free.gpus.min(held);
        }
        let gpu_type = GpuType::new(product.as_str());
        let facts = cluster.types.entry(gpu_type.clone()).or_default();
        facts.gpus += allocatable.gpus;
        facts.per_node = facts.per_node.max(allocatable.gpus);
        facts.memory_mib = facts.memory_mib.max(gpu_memory(node));
        let takes = limits::of_node(agent_status(index, key));
        ranges
            .entry(gpu_type.clone())
            .and_modify(|range: &mut Option<_>| {
                *range = range.zip(takes).and_then(|(a, b)| limits::shared(a, b))
            })
            .or_insert(takes);
        let power = board(product, policy);
        // A node that vanished from `allocatable` while jobs run there is as large as what they hold.
        let size = allocatable.gpus.max(held);
        let planned = Node {
            name: node_name(&key.name),
            gpu_type,
            gpus: gpus(size),
            free_gpus: gpus(free.gpus.max(held).min(size)),
            overhead: power.overhead,
            foreign_power: foreign_power(index, key, &ours),
            free: Resources {
                cpu_milli: Some(free.cpu_milli),
                memory_bytes: Some(free.memory),
                pods: (allocatable.pods > 0).then_some(free.pods),
                others: BTreeMap::new(),
            },
        };
        cluster.nodes.insert(key.name.clone(), planned);
        if open {
            cluster.usable.insert(key.name.clone());
        }
    }
    for (gpu_type, range) in ranges {
        let levels = limits::levels(gpu_type.as_str(), range, policy);
        if let Some(facts) = cluster.types.get_mut(&gpu_type) {
            facts.levels = levels;
        }
    }
    cluster
}

/// What pods of ours take whose job the planner does not account for: of deleted jobs, of earlier attempts, withdrawn ones.
fn leftovers(index: &ClusterIndex, holders: &Holders) -> BTreeMap<String, Amounts> {
    let mut sums: BTreeMap<String, Amounts> = BTreeMap::new();
    for (_, pod) in index.pods.iter() {
        // Orphans are foreign use already.
        if owner(&pod.metadata).is_none() || holders.accounts_for(pod) {
            continue;
        }
        if let Some((node, amounts)) = takes(pod) {
            let sum = sums.entry(node.to_owned()).or_default();
            *sum = std::mem::take(sum).plus(amounts);
        }
    }
    sums
}

/// What the agent on a node says; `None`: none lives there, or it has ended.
pub fn agent_status<'a>(index: &'a ClusterIndex, key: &ObjectKey) -> Option<&'a GpuNodeStatus> {
    let status = index.gpu_nodes.get(key)?.status.as_ref()?;
    status.agent_version.is_some().then_some(status)
}

/// GPUs that must not be used and are still among those that pods may ask for. `ours` says of a pod's UID whether the caller counts its
/// GPUs as free or held by jobs; GPUs of all others are in use anyway, broken or not.
///
/// The device plug-in takes broken GPUs out of `allocatable` and leaves them in `capacity`; the agent names them too, sooner or
/// later or for other reasons. It is not known which ones the plug-in means: as many as possible are taken for the same ones.
pub fn broken_gpus(
    index: &ClusterIndex,
    key: &ObjectKey,
    node: &SlimNode,
    ours: impl Fn(&str) -> bool,
) -> u64 {
    let gpus = agent_status(index, key).map(|status| status.gpus.as_slice()).unwrap_or_default();
    let broken = gpus.iter().filter(|gpu| gpu.state == GpuCondition::Unhealthy);
    let (of_others, open): (Vec<_>, Vec<_>) =
        broken.partition(|gpu| gpu.holder.as_deref().is_some_and(|uid| !ours(uid)));
    let capacity = Amounts::of(&node.status.capacity).gpus;
    let taken_out = capacity.saturating_sub(Amounts::of(&node.status.allocatable).gpus);
    let taken_out_of_ours = taken_out.saturating_sub(of_others.len() as u64);
    (open.len() as u64).saturating_sub(taken_out_of_ours)
}

/// Draw of GPUs that pods of others hold, where an agent says.
fn foreign_power(index: &ClusterIndex, key: &ObjectKey, ours: &BTreeSet<&str>) -> Option<Watts> {
    let status = agent_status(index, key)?;
    let foreign =
        status.gpus.iter().filter(|gpu| gpu.holder.as_deref().is_some_and(|uid| !ours.contains(uid)));
    Some(Watts(foreign.map(|gpu| f64::from(gpu.watts.max(0))).sum()))
}
