//! Which nodes are planned, their GPU type, and why other GPU nodes are excluded.
//!
//! A pure function of the nodes, the agents' reports and the policy. Rules, in this order:
//!
//! 1. A node without any sign of NVIDIA GPUs is ignored.
//! 2. `EnergyPolicy.spec.nodeSelector` must select it; the default selects every node.
//! 3. MIG or shared GPUs exclude it: a counted GPU is then not a whole one. The label
//!    `nvidia.com/mig.strategy` is no evidence. GPU feature discovery writes it on every node of a cluster
//!    with NVIDIA's GPU operator (`internal/lm/mig-strategy.go` of k8s-device-plugin). Not all that share GPUs
//!    say so in labels: more GPUs than the node has boards, by `nvidia.com/gpu.count` or by its agent, are shared.
//!    Nor are boards planned that differ by a factor of two in what they may draw, if all are offered: a display board is no GPU of the
//!    type that the labels name.
//! 4. The device plug-in must offer `nvidia.com/gpu`, in `allocatable` or `capacity`.
//! 5. The GPU type is the value of the first of `EnergyPolicy.spec.typeLabels` that the node has. A label may be
//!    gone for minutes, as while GPU feature discovery is upgraded; the next one then names another type, such as
//!    the machine's. So a node keeps the type that its GpuNode says, until the operator gives it up there.
//! 6. With a power budget, the type's draw must be known: from the policy, the table of boards, or an agent
//!    that reads the driver's highest power limit. Without a budget a mid-range board is assumed for costs,
//!    and the policy's status says so.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use andreas_api::EnergyPolicySpec;
use andreas_api::energy_policy::GpuTypePower;
use andreas_api::names::{
    GPU_RESOURCE, LABEL_GKE_ACCELERATOR, LABEL_GKE_PARTITION, LABEL_GKE_SHARED_CLIENTS, LABEL_GKE_SHARING,
    LABEL_GPU_COUNT, LABEL_GPU_PRESENT, LABEL_GPU_PRODUCT, LABEL_GPU_REPLICAS, LABEL_GPU_SHARING,
    LABEL_MIG_CAPABLE, MIG_PREFIX,
};
use andreas_api::slim::{SlimGpuNode, SlimNode};
use andreas_model::{ObjectKey, Watts};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;

use super::exclusion::{Exclusion, MAX_TYPES};
use super::limits;
use crate::index::{ClusterIndex, MOST_GPUS, agent_status, ready, reporting_agent, whole_gpus};
use crate::policy::boards::{self, Board};
use crate::policy::type_label;

/// Resource name of shared GPUs if the device plug-in renames them.
const SHARED_RESOURCE: &str = "nvidia.com/gpu.shared";

/// Labels of GPU nodes only, besides [`LABEL_GPU_PRESENT`], which may be `false`.
const TRACES: [&str; 5] = [
    LABEL_GPU_PRODUCT,
    LABEL_GPU_COUNT,
    LABEL_GKE_ACCELERATOR,
    "k8s.amazonaws.com/accelerator",
    "kubernetes.azure.com/accelerator",
];

/// Maximum names of excluded nodes in one message.
const NAMED: usize = 3;

/// How a node is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeUse<'a> {
    /// It has no GPUs.
    NoGpus,
    /// Its GPUs of this type are planned.
    Planned(&'a str),
    /// It has GPUs that are not planned.
    Excluded(Exclusion),
}

impl<'a> NodeUse<'a> {
    /// The GPU type if its GPUs are planned.
    pub fn planned(self) -> Option<&'a str> {
        match self {
            Self::Planned(gpu_type) => Some(gpu_type),
            Self::NoGpus | Self::Excluded(_) => None,
        }
    }

    /// The reason if it is excluded.
    pub fn exclusion(self) -> Option<Exclusion> {
        match self {
            Self::Excluded(why) => Some(why),
            Self::NoGpus | Self::Planned(_) => None,
        }
    }
}

static DEFAULT: LazyLock<EnergyPolicySpec> = LazyLock::new(EnergyPolicySpec::default);

/// The policy in force and the power of the cluster's GPU types.
pub struct Inventory<'a> {
    pub(super) index: &'a ClusterIndex,
    policy: Cow<'a, EnergyPolicySpec>,
    unknown: BTreeSet<String>,
    /// GPU types beyond the maximum.
    beyond: BTreeSet<String>,
    /// The highest ceiling of each type's GPUs, W, where all agents report it.
    ceilings: BTreeMap<String, i32>,
}

impl<'a> Inventory<'a> {
    /// From all nodes and agents.
    ///
    /// A type in neither the policy nor the table of boards takes its agents' readings. The maximum is the
    /// board's highest power limit, at most [`boards::HIGHEST`]. The idle draw is a fifth of it, more than
    /// most boards draw.
    pub fn from_index(index: &'a ClusterIndex) -> Self {
        Self::with(index, index.policy().map_or(&*DEFAULT, |policy| &policy.spec))
    }

    /// The same under another policy.
    pub fn with(index: &'a ClusterIndex, policy: &'a EnergyPolicySpec) -> Self {
        let mut policy = Cow::Borrowed(policy);
        // By type: `None` if it is described, else the highest reading of an agent.
        let mut types: BTreeMap<&str, Option<i32>> = BTreeMap::new();
        let mut gpus_of: BTreeMap<&str, u64> = BTreeMap::new();
        // By type: the highest ceiling of its GPUs; `None` if one is not known.
        let mut ceilings: BTreeMap<String, Option<i32>> = BTreeMap::new();
        for (key, node) in index.nodes().iter() {
            let known = gpu_type(index, node, &policy);
            let Some(gpu_type) = known.filter(|_| whole_gpus(node) > 0) else { continue };
            let gpus = gpus_of.entry(gpu_type).or_default();
            *gpus = gpus.saturating_add(whole_gpus(node).min(MOST_GPUS));
            let described = || if boards::is_described(gpu_type, &policy) { None } else { Some(0) };
            if let Some(most) = types.entry(gpu_type).or_insert_with(described) {
                let gpus = agent_status(index, key).map(|status| status.gpus.as_slice()).unwrap_or_default();
                *most = gpus.iter().filter_map(|gpu| gpu.board_watts).fold(*most, i32::max);
            }
            let agent = reporting_agent(index, key);
            if !limits::all_broken(agent) {
                let ceiling = limits::ceiling(agent, whole_gpus(node));
                let of_type = ceilings.entry(gpu_type.to_owned()).or_insert(ceiling);
                *of_type = of_type.zip(ceiling).map(|(a, b)| a.max(b));
            }
        }
        let mut by_size: Vec<(u64, &str)> = gpus_of.into_iter().map(|(name, gpus)| (gpus, name)).collect();
        by_size.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
        let beyond = by_size.into_iter().skip(MAX_TYPES).map(|(_, name)| name.to_owned()).collect();
        let mut unknown = BTreeSet::new();
        let mut read = Vec::new();
        for (gpu_type, most) in types {
            match most {
                None => {}
                Some(..1) => _ = unknown.insert(gpu_type.to_owned()),
                Some(most) => read.push((gpu_type.to_owned(), most.min(boards::HIGHEST))),
            }
        }
        for (name, max_watts) in read {
            let idle_watts = max_watts / boards::IDLE_PART;
            let row = GpuTypePower {
                name,
                idle_watts,
                max_watts,
                host_idle_watts: None,
                host_busy_watts: None,
                host_off_watts: None,
                min_limit_watts: None,
            };
            policy.to_mut().gpu_types.push(row);
        }
        let ceilings = ceilings.into_iter().filter_map(|(name, ceiling)| Some((name, ceiling?))).collect();
        Self { index, policy, unknown, beyond, ceilings }
    }

    /// The policy in force, with rows for types described by agents.
    pub fn policy(&self) -> &EnergyPolicySpec {
        &self.policy
    }

    /// Power of a GPU type. Without a limit of ours no GPU draws more than its ceiling.
    pub fn board(&self, gpu_type: &str) -> Board {
        let ceiling = self.ceilings.get(gpu_type).map(|watts| Watts(f64::from(*watts)));
        boards::board(gpu_type, &self.policy).with_ceiling(ceiling)
    }

    /// GPU types in the cluster with unknown draw.
    pub fn unknown(&self) -> &BTreeSet<String> {
        &self.unknown
    }

    /// The GPU type of a node.
    pub fn gpu_type<'n>(&self, node: &'n SlimNode) -> Option<&'n str>
    where
        'a: 'n,
    {
        gpu_type(self.index, node, &self.policy)
    }

    /// The type of a planned node that has power, as far as its kubelet says, whether it takes new workers or not.
    pub fn powered<'n>(&self, node: &'n SlimNode) -> Option<&'n str>
    where
        'a: 'n,
    {
        self.node_use(node).planned().filter(|_| ready(node))
    }

    /// How a node is used, ready or not.
    pub fn node_use<'n>(&self, node: &'n SlimNode) -> NodeUse<'n>
    where
        'a: 'n,
    {
        let limited = self.policy.power_budget.limits_power();
        let witness = Witness {
            gpu_type: self.gpu_type(node),
            boards: boards_seen(self.index, node),
            mixed: mixed_boards(self.index, node),
            excluded: kept_exclusion(self.index, node, &self.policy),
        };
        match use_of(node, &self.policy, witness) {
            NodeUse::Planned(gpu_type) if limited && self.unknown.contains(gpu_type) => {
                NodeUse::Excluded(Exclusion::UnknownBoard)
            }
            NodeUse::Planned(gpu_type) if self.beyond.contains(gpu_type) => {
                NodeUse::Excluded(Exclusion::TooManyTypes)
            }
            other => other,
        }
    }
}

/// What a node's GpuNode says of it beside its labels.
#[derive(Clone, Copy, Debug, Default)]
struct Witness<'a> {
    /// The GPU type by the labels, or the one that the node keeps.
    gpu_type: Option<&'a str>,
    /// Boards that its agent has seen, if any.
    boards: Option<u64>,
    /// Highest power limits of the least and the largest of them, W, if these are of different models.
    mixed: Option<(i32, i32)>,
    /// Why it was not planned while it had its labels.
    excluded: Option<Exclusion>,
}

/// The GpuNode of this node, not of an earlier one of its name.
pub fn gpu_node_of<'a>(index: &'a ClusterIndex, node: &SlimNode) -> Option<&'a SlimGpuNode> {
    let key = ObjectKey { namespace: String::new(), name: node.name_any() };
    let gpu_node = index.gpu_nodes().get(&key)?;
    let owners = gpu_node.metadata.owner_references.iter().flatten();
    let of_another = |owner: &OwnerReference| owner.kind == "Node" && Some(&owner.uid) != node.uid().as_ref();
    (!owners.into_iter().any(of_another)).then_some(gpu_node)
}

/// The type that a node keeps because it lacks the label of that type, before any other of its type labels.
pub fn kept_type<'a>(index: &'a ClusterIndex, node: &SlimNode, policy: &EnergyPolicySpec) -> Option<&'a str> {
    let spec = &gpu_node_of(index, node)?.spec;
    let kept_label = spec.type_label.as_ref()?;
    let at = policy.type_labels.iter().position(|label| label == kept_label)?;
    let lost =
        !node.labels().contains_key(kept_label) && type_label(node, policy).is_none_or(|(now, _)| now > at);
    spec.gpu_type.as_deref().filter(|_| lost)
}

/// Labels that say that GPUs are shared or split go together with that of the type: a node that keeps its type stays excluded.
fn kept_exclusion(index: &ClusterIndex, node: &SlimNode, policy: &EnergyPolicySpec) -> Option<Exclusion> {
    kept_type(index, node, policy)?;
    let reason = gpu_node_of(index, node)?.spec.excluded.as_ref()?.reason.as_str();
    [Exclusion::MigInUse, Exclusion::SharedGpus].into_iter().find(|why| why.as_str() == reason)
}

/// The GPU type of a node: by its labels, or the one that it keeps.
fn gpu_type<'a>(index: &'a ClusterIndex, node: &'a SlimNode, policy: &EnergyPolicySpec) -> Option<&'a str> {
    kept_type(index, node, policy).or_else(|| crate::policy::gpu_type(node, policy))
}

/// Boards that a node's agent has seen. One that has seen none waits for the driver.
fn boards_seen(index: &ClusterIndex, node: &SlimNode) -> Option<u64> {
    let status = gpu_node_of(index, node)?.status.as_ref()?;
    Some(status.gpus.len() as u64).filter(|boards| *boards > 0)
}

/// The highest power limits of a node's least and largest board, W, if no two boards of one model differ so much and the device plug-in
/// offers all of them.
fn mixed_boards(index: &ClusterIndex, node: &SlimNode) -> Option<(i32, i32)> {
    let gpus = &gpu_node_of(index, node)?.status.as_ref()?.gpus;
    let watts = || gpus.iter().filter_map(|gpu| gpu.board_watts);
    let (least, largest) = (watts().min()?, watts().max()?);
    (largest > least.saturating_mul(2) && whole_gpus(node) >= gpus.len() as u64).then_some((least, largest))
}

/// How a node without a GpuNode is used, by its labels and resources.
#[cfg(any(test, feature = "testing"))]
pub fn node_use<'a>(node: &'a SlimNode, policy: &EnergyPolicySpec) -> NodeUse<'a> {
    let gpu_type = crate::policy::gpu_type(node, policy);
    use_of(node, policy, Witness { gpu_type, ..Witness::default() })
}

/// How a node is used, by its labels and resources, and what its GpuNode says.
fn use_of<'a>(node: &'a SlimNode, policy: &EnergyPolicySpec, witness: Witness<'a>) -> NodeUse<'a> {
    let gpus = whole_gpus(node);
    let (mig, renamed) = (mig_in_use(node), has_resource_with_prefix(node, SHARED_RESOURCE));
    let traces = || {
        let labels = node.labels();
        labels.get(LABEL_GPU_PRESENT).is_some_and(|value| value == "true")
            || TRACES.iter().any(|label| labels.contains_key(*label))
    };
    if gpus == 0 && !mig && !renamed && !traces() {
        return NodeUse::NoGpus;
    }
    let why = if !selected(node, policy) {
        Exclusion::NotSelected
    } else if mig {
        Exclusion::MigInUse
    } else if renamed || shared(node) {
        Exclusion::SharedGpus
    } else if gpus == 0 {
        Exclusion::NoWholeGpus
    } else if let Some(boards) = fewer_boards(node, witness.boards) {
        Exclusion::MoreThanBoards { offered: allocatable_gpus(node), boards }
    } else if let Some(watts) = witness.mixed {
        Exclusion::MixedBoards { watts }
    } else if let Some(why) = witness.excluded {
        why
    } else if gpus > MOST_GPUS {
        Exclusion::TooManyGpus
    } else if let Some(gpu_type) = witness.gpu_type {
        return NodeUse::Planned(gpu_type);
    } else {
        Exclusion::NoTypeLabel
    };
    NodeUse::Excluded(why)
}

/// The number of boards, if the node offers more GPUs than that: by its label, and by its agent. What `capacity` says is
/// not asked: a board that is gone may be in it for hours.
fn fewer_boards(node: &SlimNode, seen: Option<u64>) -> Option<u64> {
    let labelled = count(node.labels(), LABEL_GPU_COUNT).filter(|boards| *boards > 0);
    labelled.into_iter().chain(seen).min().filter(|boards| allocatable_gpus(node) > *boards)
}

fn allocatable_gpus(node: &SlimNode) -> u64 {
    node.status.allocatable.get(GPU_RESOURCE).map_or(0, andreas_api::quantity::units)
}

fn selected(node: &SlimNode, policy: &EnergyPolicySpec) -> bool {
    let labels = node.labels();
    policy.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// Value of a label; empty if it is missing.
fn label_value<'a>(labels: &'a BTreeMap<String, String>, label: &str) -> &'a str {
    labels.get(label).map(String::as_str).unwrap_or_default()
}

fn count(labels: &BTreeMap<String, String>, label: &str) -> Option<u64> {
    labels.get(label)?.parse().ok()
}

/// MIG instances are offered, or MIG mode is on. With the strategy `mixed` a node may have whole GPUs too.
/// Which ones is unknown, so the node is excluded.
fn mig_in_use(node: &SlimNode) -> bool {
    let labels = node.labels();
    let instances = || {
        let mig = labels.range(MIG_PREFIX.to_owned()..).take_while(|(name, _)| name.starts_with(MIG_PREFIX));
        mig.into_iter().any(|(name, value)| name.ends_with(".count") && value != "0")
    };
    // Replicas are 0 if every GPU has MIG mode on, sliced or not, else at least 1.
    let mode_on =
        || label_value(labels, LABEL_MIG_CAPABLE) == "true" && count(labels, LABEL_GPU_REPLICAS) == Some(0);
    label_value(labels, LABEL_GPU_PRODUCT).contains("-MIG-")
        || labels.contains_key(LABEL_GKE_PARTITION)
        || has_resource_with_prefix(node, MIG_PREFIX)
        || instances()
        || mode_on()
}

/// The node has a resource whose name starts with `prefix`.
fn has_resource_with_prefix(node: &SlimNode, prefix: &str) -> bool {
    let status = &node.status;
    let all = status.allocatable.iter().chain(&status.capacity);
    all.into_iter().any(|(name, amount)| name.starts_with(prefix) && andreas_api::quantity::units(amount) > 0)
}

/// Several pods may share a GPU.
fn shared(node: &SlimNode) -> bool {
    let labels = node.labels();
    label_value(labels, LABEL_GPU_PRODUCT).ends_with("-SHARED")
        || [LABEL_GPU_REPLICAS, LABEL_GKE_SHARED_CLIENTS]
            .iter()
            .any(|label| count(labels, label).is_some_and(|pods| pods > 1))
        || [LABEL_GPU_SHARING, LABEL_GKE_SHARING]
            .iter()
            .any(|label| !matches!(label_value(labels, label), "" | "none"))
}

/// GPUs of the largest planned node.
pub fn largest_node(index: &ClusterIndex) -> Option<i32> {
    let inventory = Inventory::from_index(index);
    let planned = index.nodes().iter().filter(|(_, node)| inventory.node_use(node).planned().is_some());
    planned.map(|(_, node)| i32::try_from(whole_gpus(node)).unwrap_or(i32::MAX)).max()
}

/// One message on excluded nodes by reason: number, reason and some names.
pub fn summary(excluded: &[(String, Exclusion)], policy: &EnergyPolicySpec) -> Option<String> {
    let mut by_reason: BTreeMap<&str, (Exclusion, Vec<&str>)> = BTreeMap::new();
    for (node, why) in excluded {
        by_reason.entry(why.as_str()).or_insert((*why, Vec::new())).1.push(node);
    }
    let mut by_reason: Vec<_> = by_reason.into_values().collect();
    by_reason.sort();
    let mut named = 0;
    let mut parts = Vec::new();
    for (why, nodes) in by_reason {
        let names: Vec<&str> = nodes.iter().copied().take(NAMED - named).collect();
        named += names.len();
        let more = if nodes.len() > names.len() { ", ..." } else { "" };
        let names = if names.is_empty() { String::new() } else { format!(" ({}{more})", names.join(", ")) };
        parts.push(format!("{} {}{names}: {}", nodes.len(), why.as_str(), why.message(policy)));
    }
    (!parts.is_empty())
        .then(|| format!("{} nodes with GPUs are excluded: {}", excluded.len(), parts.join("; ")))
}
