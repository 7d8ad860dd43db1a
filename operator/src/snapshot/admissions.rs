//! Which nodes admit a worker, kept between plans: each different demand is held against a node once, and again
//! when the node changes.

use std::collections::HashMap;
use std::sync::Arc;

use andreas_api::slim::SlimNode;
use andreas_cluster::index::ClusterIndex;
use andreas_model::NodeName;
use andreas_runtime::watch::ObjectKey;

use super::nodes::Cluster;
use super::worker::Digest;

/// Nodes by workers' demands.
#[derive(Default)]
pub struct Admissions {
    /// Number of this plan.
    plan: u64,
    /// Nodes of the cluster by name, each with the plan in which it was last seen to have changed.
    nodes: Vec<(NodeName, Arc<SlimNode>, u64)>,
    /// Bit by node: it takes new workers. And the plan in which that was last seen to have changed.
    usable: (Vec<u64>, u64),
    by_demands: HashMap<Digest, Admitted>,
    /// How often a demand was held against a node, for tests.
    #[cfg(test)]
    pub checks: usize,
}

struct Admitted {
    /// The last plan that asked for it.
    plan: u64,
    /// Bit by node, usable or not.
    bits: Vec<u64>,
    /// Those that are usable; `None`: all nodes.
    list: Option<Arc<[NodeName]>>,
}

fn bit(bits: &[u64], at: usize) -> bool {
    bits[at / 64] >> (at % 64) & 1 == 1
}

fn set(bits: &mut [u64], at: usize, value: bool) {
    if value {
        bits[at / 64] |= 1 << (at % 64);
    } else {
        bits[at / 64] &= !(1 << (at % 64));
    }
}

impl Admissions {
    /// A plan begins with these nodes.
    pub fn begin(&mut self, index: &ClusterIndex, cluster: &Cluster) {
        self.plan += 1;
        let plan = self.plan;
        let object = |name: &str| {
            index.nodes().get(&ObjectKey { namespace: String::new(), name: name.to_owned() }).cloned()
        };
        let nodes = cluster.nodes.values().filter_map(|node| Some((&node.name, object(node.name.as_str())?)));
        let nodes: Vec<_> = nodes.collect();
        let same = nodes.len() == self.nodes.len()
            && nodes.iter().zip(&self.nodes).all(|((name, _), (known, _, _))| *name == known);
        if same {
            for ((_, object), (_, known, changed)) in nodes.into_iter().zip(&mut self.nodes) {
                if !Arc::ptr_eq(&object, known) {
                    (*known, *changed) = (object, plan);
                }
            }
        } else {
            self.by_demands.clear();
            self.nodes = nodes.into_iter().map(|(name, object)| (name.clone(), object, plan)).collect();
        }
        let mut usable = vec![0; self.nodes.len().div_ceil(64)];
        for (at, (name, _, _)) in self.nodes.iter().enumerate() {
            set(&mut usable, at, cluster.usable.contains(name.as_str()));
        }
        if usable != self.usable.0 {
            self.usable = (usable, plan);
        }
    }

    /// The nodes that take a new worker with these demands, by name; `None`: all of the cluster.
    pub fn of(&mut self, demands: Digest, admits: impl Fn(&SlimNode) -> bool) -> Option<Arc<[NodeName]>> {
        let (plan, words) = (self.plan, self.nodes.len().div_ceil(64));
        let new = || Admitted { plan: 0, bits: vec![0; words], list: None };
        let admitted = self.by_demands.entry(demands).or_insert_with(new);
        let since = std::mem::replace(&mut admitted.plan, plan);
        if since == plan {
            return admitted.list.clone();
        }
        let mut changed = since == 0 || self.usable.1 > since;
        for (at, (_, node, _)) in self.nodes.iter().enumerate().filter(|(_, (_, _, seen))| *seen > since) {
            #[cfg(test)]
            {
                self.checks += 1;
            }
            let admits = admits(node);
            changed |= admits != bit(&admitted.bits, at);
            set(&mut admitted.bits, at, admits);
        }
        if changed {
            let listed = |at: &usize| bit(&admitted.bits, *at) && bit(&self.usable.0, *at);
            let names = (0..self.nodes.len()).filter(listed).map(|at| self.nodes[at].0.clone());
            let names: Vec<NodeName> = names.collect();
            admitted.list = (names.len() < self.nodes.len()).then(|| names.into());
        }
        admitted.list.clone()
    }

    /// The plan has all its jobs: what none of them asked for is forgotten.
    pub fn end(&mut self) {
        let plan = self.plan;
        self.by_demands.retain(|_, admitted| admitted.plan == plan);
    }

    /// Names in lists, for tests.
    #[cfg(test)]
    pub fn names(&self) -> usize {
        self.by_demands.values().filter_map(|admitted| admitted.list.as_ref()).map(|list| list.len()).sum()
    }
}
