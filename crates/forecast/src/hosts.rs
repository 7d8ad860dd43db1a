//! What jobs are billed for of their hosts' draw in a future, and when hosts that are off are on.

use std::collections::BTreeMap;

use andreas_model::{GpuType, NodeName, Time, Watts};
use andreas_planner::{Node, NodePower, Placement, Snapshot};

/// The hosts of a snapshot.
pub(crate) struct Hosts<'a> {
    nodes: BTreeMap<&'a NodeName, &'a Node>,
    /// Watts for each GPU, as the mean of the type's nodes.
    per_gpu: BTreeMap<&'a GpuType, f64>,
}

impl<'a> Hosts<'a> {
    pub fn new(snapshot: &'a Snapshot) -> Self {
        let mut types: BTreeMap<&GpuType, (f64, f64)> = BTreeMap::new();
        for node in &snapshot.nodes {
            let (watts, gpus) = types.entry(&node.gpu_type).or_default();
            *watts += node.host_share(node.gpus).0;
            *gpus += f64::from(node.gpus.0);
        }
        let mean = |(watts, gpus): (f64, f64)| if gpus > 0.0 { watts / gpus } else { 0.0 };
        Self {
            nodes: snapshot.nodes.iter().map(|node| (&node.name, node)).collect(),
            per_gpu: types.into_iter().map(|(name, sums)| (name, mean(sums))).collect(),
        }
    }

    /// The share of a job on these nodes.
    pub fn share(&self, place: &Placement) -> Watts {
        let its = place.nodes.iter().filter_map(|name| self.nodes.get(name));
        its.map(|node| node.host_share(place.gpus_per_node)).sum()
    }

    /// When all these nodes are on, if those that are off now start at `now`: one that is woken in a future may be off again later.
    pub fn on_from(&self, place: &Placement, now: Time) -> Time {
        let sleeping = place.nodes.iter().filter_map(|name| self.nodes.get(name)?.sleep);
        let on = sleeping.map(|sleep| match sleep.state {
            NodePower::On => now,
            NodePower::Waking { until } => until,
            NodePower::Asleep => now + sleep.wake,
        });
        on.fold(now, Time::max)
    }

    /// The share of a job with so many GPUs of a type, on whatever nodes.
    pub fn share_of_type(&self, gpu_type: &GpuType, gpus: u32) -> Watts {
        Watts(self.per_gpu.get(gpu_type).copied().unwrap_or(0.0) * f64::from(gpus))
    }
}
