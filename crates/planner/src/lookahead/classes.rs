//! Classes of nodes. All nodes of a class share one shadow price per GPU.
//!
//! Nodes of a class have the same GPU type, the same number of GPUs for us, are all on, starting up or off, and
//! have the same membership in the jobs' node sets. With too many classes, the sets are ignored first, then the sizes. This makes only the
//! prices coarser: [`Capacity`](crate::capacity::Capacity) checks what fits, node by node.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::check::MAX_TYPES;
use crate::instance::Instance;
use crate::snapshot::NodePower;

/// Maximum number of classes; one bit each in a [`Mask`]. There are enough for one of each GPU type.
const MAX_CLASSES: usize = MAX_TYPES;
/// Maximum number of node sets that distinguish classes.
const SETS: usize = 24;

/// A set of classes.
pub(super) type Mask = u128;

/// The classes in a set.
pub(super) fn classes_in(mut set: Mask) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let class = (set != 0).then(|| set.trailing_zeros() as usize);
        set &= set.wrapping_sub(1);
        class
    })
}

pub(super) struct Class {
    /// Stable between decisions, for the warm start.
    pub name: Arc<str>,
    pub kind: usize,
    /// Maximum GPUs for us in one of its nodes.
    pub size: i64,
    /// GPUs for us in all its nodes.
    pub gpus: f64,
    /// Least seconds until a job can start on one of its nodes, and joules to wake it; 0 where they are on.
    pub wake: (f64, f64),
}

pub(super) struct Classes {
    pub list: Vec<Class>,
    pub of_node: Vec<usize>,
    /// By node set: classes with a node in it.
    admitted: Vec<Mask>,
}

impl Classes {
    pub fn new(instance: &Instance<'_>) -> Self {
        let (tried, sizes, plain) = (
            group(instance, |i| (instance.nodes[i].free_gpus, power(instance, i), signature(instance, i))),
            |i: usize| (instance.nodes[i].free_gpus, power(instance, i), 0),
            |_| (0, 0, 0),
        );
        let keys = [Some(tried), Some(group(instance, sizes)), Some(group(instance, plain))];
        let groups = keys.into_iter().flatten().find(|g| g.len() <= MAX_CLASSES).unwrap_or_default();
        let mut classes =
            Self { list: Vec::new(), of_node: vec![0; instance.nodes.len()], admitted: Vec::new() };
        for ((kind, size, power, sets), nodes) in groups {
            let of = &instance.nodes;
            let name = format!("{}/{size}/{sets:x}{}", instance.types[kind].name, POWER[power]);
            let wake =
                nodes.iter().map(|n| of[*n].wake).min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default();
            for &node in &nodes {
                classes.of_node[node] = classes.list.len();
            }
            classes.list.push(Class {
                name: name.into(),
                kind,
                size: nodes.iter().map(|n| of[*n].free_gpus).max().unwrap_or(0),
                gpus: nodes.iter().map(|n| of[*n].free_gpus as f64).sum(),
                wake,
            });
        }
        classes.admitted = (0..instance.sets())
            .map(|set| {
                let admitted = |n: &usize| u32::try_from(*n).is_ok_and(|node| instance.admits(set, node));
                (0..instance.nodes.len()).filter(admitted).fold(0, |mask, n| mask | 1 << classes.of_node[n])
            })
            .collect();
        classes
    }

    /// Classes with nodes that could hold a worker with this many GPUs.
    pub fn mask(&self, kind: usize, gpus: i64, set: usize) -> Mask {
        if self.list.is_empty() {
            return 0;
        }
        let wide = |c: &Class| c.kind == kind && c.size >= gpus;
        let all = self.list.iter().enumerate().filter(|(_, c)| wide(c));
        all.fold(0, |mask, (i, _)| mask | 1 << i) & self.admitted[set]
    }
}

type Groups = BTreeMap<(usize, i64, usize, u64), Vec<usize>>;

/// Ends of the names of classes by [`power`].
const POWER: [&str; 3] = ["", "/waking", "/asleep"];

/// Index of whether a node is on, starting up or off.
fn power(instance: &Instance<'_>, node: usize) -> usize {
    match instance.nodes[node].power {
        NodePower::On => 0,
        NodePower::Waking { .. } => 1,
        NodePower::Asleep => 2,
    }
}

fn group(instance: &Instance<'_>, key: impl Fn(usize) -> (i64, usize, u64)) -> Groups {
    let mut groups = Groups::new();
    for (i, node) in instance.nodes.iter().enumerate() {
        let (size, power, sets) = key(i);
        groups.entry((node.kind, size, power, sets)).or_default().push(i);
    }
    groups
}

/// Bit set of the first node sets that contain a node.
fn signature(instance: &Instance<'_>, node: usize) -> u64 {
    let Ok(name) = u32::try_from(node) else { return 0 };
    let sets = 1..instance.sets().min(SETS + 1);
    sets.filter(|set| instance.admits(*set, name)).fold(0, |bits, set| bits | 1 << (set - 1))
}
