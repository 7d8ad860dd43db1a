//! GPU types, nodes and sets of nodes, compiled to indices.

use std::collections::BTreeMap;
use std::sync::Arc;

use andreas_model::{GpuType, NodeName};

use super::data::{NodeData, TypeData, milliwatts};
use crate::snapshot::{Job, Node, NodePower, NodeSleep, Snapshot};

/// Node resources with fixed indices; the others follow.
pub(super) const CPU: usize = 0;
pub(super) const MEMORY: usize = 1;
pub(super) const PODS: usize = 2;
/// Stands for "not limited": above any amount, far below overflow.
pub(crate) const UNLIMITED: i128 = 1 << 100;

/// GPU types by name, then one entry for placements on unknown types. Watts become whole milliwatts.
pub(super) fn compile_types(snapshot: &Snapshot) -> Vec<TypeData> {
    let mut types: Vec<_> = snapshot
        .gpu_types
        .iter()
        .map(|t| TypeData {
            name: t.name.clone(),
            idle_mw: milliwatts(t.idle.0),
            idle: milliwatts(t.idle.0) as f64 / 1e3,
            max: t.max.0,
            nodes: Vec::new(),
            max_node_gpus: 0,
            max_gang: 0,
            overhead: f64::INFINITY,
        })
        .collect();
    types.sort_by(|a, b| a.name.cmp(&b.name));
    // One more for placements on GPUs of unknown type: no idle draw, the largest maximum.
    let max = types.iter().map(|t| t.max).fold(0.0, f64::max);
    let name = GpuType::from("");
    types.push(TypeData {
        name,
        idle_mw: 0,
        idle: 0.0,
        max,
        nodes: Vec::new(),
        max_node_gpus: 0,
        max_gang: 0,
        overhead: 0.0,
    });
    types
}

/// Indices of the other node resources.
#[derive(Default)]
pub(super) struct Names {
    pub others: BTreeMap<Arc<str>, usize>,
    pub pods_limited: bool,
}

impl Names {
    pub fn kinds(&self) -> usize {
        PODS + 1 + self.others.len()
    }
}

pub(super) fn compile_nodes(
    snapshot: &Snapshot,
    kind_of: &BTreeMap<GpuType, usize>,
    names: &mut Names,
) -> (Vec<NodeData>, Vec<i128>) {
    for key in snapshot.nodes.iter().flat_map(|n| n.free.others.keys()) {
        let next = names.kinds();
        names.others.entry(key.clone()).or_insert(next);
    }
    names.pods_limited = snapshot.nodes.iter().any(|n| n.free.pods.is_some());
    let mut order: Vec<_> = snapshot.nodes.iter().collect();
    order.sort_by(|a, b| a.name.cmp(&b.name));
    let kinds = names.kinds();
    let mut resources = vec![UNLIMITED; kinds * order.len()];
    let mut nodes = Vec::with_capacity(order.len());
    for (i, node) in order.into_iter().enumerate() {
        let free = &mut resources[i * kinds..(i + 1) * kinds];
        let limited = [(CPU, node.free.cpu_milli), (MEMORY, node.free.memory_bytes), (PODS, node.free.pods)];
        for (kind, amount) in limited {
            if let Some(amount) = amount {
                free[kind] = i128::from(amount);
            }
        }
        for (key, amount) in &node.free.others {
            free[names.others[key]] = i128::from(*amount);
        }
        nodes.push(NodeData {
            name: node.name.clone(),
            kind: kind_of[&node.gpu_type],
            rank: 0,
            gang_class: node.gang_class,
            free_gpus: i64::from(node.free_gpus.0),
            overhead: billed_overhead(node),
            overhead_mw: milliwatts(budgeted_overhead(snapshot, node)),
            power: node.sleep.map_or(NodePower::On, |sleep| sleep.state),
            wake: wake(snapshot, node),
        });
    }
    (nodes, resources)
}

/// Tells each type its nodes, and each node its rank among them.
pub(super) fn link(types: &mut [TypeData], nodes: &mut [NodeData]) {
    let mut of_class: BTreeMap<(usize, u32), usize> = BTreeMap::new();
    // Those that are on come first: of two nodes with as much room, nobody is woken.
    let (off, on): (Vec<_>, Vec<_>) =
        nodes.iter_mut().enumerate().partition(|(_, node)| node.power == NodePower::Asleep);
    for (i, node) in on.into_iter().chain(off) {
        let kind = &mut types[node.kind];
        node.rank = kind.nodes.len();
        kind.nodes.push(u32::try_from(i).expect("the number of nodes is checked"));
        kind.max_node_gpus = kind.max_node_gpus.max(node.free_gpus);
        kind.overhead = kind.overhead.min(node.overhead);
        let size = of_class.entry((node.kind, node.gang_class)).or_default();
        *size += 1;
        kind.max_gang = kind.max_gang.max(*size);
    }
}

/// Draw without any of our jobs, in milliwatts.
pub(super) fn floor_mw(snapshot: &Snapshot, types: &[TypeData], nodes: &[NodeData]) -> i128 {
    let by_name: BTreeMap<_, _> = snapshot.nodes.iter().map(|n| (&n.name, n)).collect();
    let mut floor = 0;
    for node in nodes {
        let kind = &types[node.kind];
        let source = by_name[&node.name];
        let foreign_gpus = f64::from(source.gpus.0 - source.free_gpus.0);
        let foreign = source.foreign_power.map_or(foreign_gpus * kind.max, |w| w.0);
        floor += milliwatts(foreign);
        // A node that is off draws nothing; one that starts up draws as if busy.
        let host = match node.power {
            NodePower::On => source.host_idle.0,
            NodePower::Waking { .. } => source.host_busy.0.max(source.host_idle.0),
            NodePower::Asleep => continue,
        };
        floor += milliwatts(host) + kind.idle_mw * i128::from(node.free_gpus);
    }
    floor
}

/// Indices of the namespaces' quotas by namespace and resource.
pub(super) type QuotaIndex = BTreeMap<(String, Arc<str>), usize>;

/// What the namespaces' quotas leave.
pub(super) fn compile_quotas(snapshot: &Snapshot) -> (Vec<i128>, QuotaIndex) {
    let (mut quotas, mut index) = (Vec::new(), QuotaIndex::new());
    let mut namespaces: Vec<_> = snapshot.namespaces.iter().collect();
    namespaces.sort_by(|a, b| a.name.cmp(&b.name));
    for namespace in namespaces {
        for (key, left) in &namespace.quota {
            index.insert((namespace.name.as_str().to_owned(), key.clone()), quotas.len());
            quotas.push(i128::from(*left));
        }
    }
    (quotas, index)
}

/// Watts that jobs on a node are billed for its host. Whoever keeps a node awake that could sleep pays for all of it.
fn billed_overhead(node: &Node) -> f64 {
    match node.sleep {
        Some(_) => node.host_busy.0.max(node.host_idle.0),
        None => node.overhead().0,
    }
}

/// Watts that the first job on a node adds to the budget's floor, in which a waking node already counts as busy.
fn budgeted_overhead(snapshot: &Snapshot, node: &Node) -> f64 {
    match node.sleep.map(|sleep| sleep.state) {
        Some(NodePower::Waking { .. }) => 0.0,
        Some(NodePower::Asleep) => {
            let of_type = snapshot.gpu_types.iter().find(|t| t.name == node.gpu_type);
            let idle = of_type.map_or(0.0, |t| t.idle.0) * f64::from(node.free_gpus.0);
            node.host_busy.0.max(node.host_idle.0) + idle
        }
        Some(NodePower::On) | None => node.overhead().0,
    }
}

/// Seconds until a job can start on a node, and joules to wake it.
fn wake(snapshot: &Snapshot, node: &Node) -> (f64, f64) {
    match node.sleep {
        Some(NodeSleep { state: NodePower::Asleep, wake, wake_energy }) => (wake.0, wake_energy.0),
        Some(NodeSleep { state: NodePower::Waking { until }, .. }) => {
            ((until - snapshot.now).0.max(0.0), 0.0)
        }
        _ => (0.0, 0.0),
    }
}

/// Sets of nodes, each stored once.
pub(super) struct Sets<'a> {
    pub by_name: &'a BTreeMap<NodeName, u32>,
    pub known: BTreeMap<Vec<u64>, usize>,
    pub sets: &'a mut Vec<Vec<u64>>,
}

impl Sets<'_> {
    /// Index of the set of nodes that a job may use; 0 is the set of all nodes. `nodes` is their number.
    pub fn index_of(&mut self, job: &Job, nodes: usize) -> usize {
        if job.candidates.is_none() && job.forbidden.is_empty() {
            return 0;
        }
        let words = nodes.div_ceil(64);
        let mut bits = vec![if job.candidates.is_some() { 0 } else { u64::MAX }; words];
        for name in job.candidates.iter().flat_map(|c| c.iter()) {
            if let Some(node) = self.by_name.get(name) {
                bits[*node as usize / 64] |= 1 << (node % 64);
            }
        }
        for node in job.forbidden.iter().filter_map(|name| self.by_name.get(name)) {
            bits[*node as usize / 64] &= !(1 << (node % 64));
        }
        let next = self.sets.len();
        *self.known.entry(bits).or_insert_with_key(|bits| {
            self.sets.push(bits.clone());
            next
        })
    }
}
