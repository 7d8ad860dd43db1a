//! GPU types, nodes and sets of nodes, compiled to indices.

use std::collections::BTreeMap;
use std::sync::Arc;

use andreas_core::{GpuType, NodeName};

use super::data::{NodeData, TypeData, milliwatts};
use crate::snapshot::{Job, Node, NodePower, NodeSleep, Snapshot};

/// Node resources with fixed indices; the others follow.
pub(super) const CPU: usize = 0;
pub(super) const MEMORY: usize = 1;
pub(super) const PODS: usize = 2;
/// Stands for "not limited": above any amount, far below overflow.
const UNLIMITED: i128 = 1 << 100;

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
