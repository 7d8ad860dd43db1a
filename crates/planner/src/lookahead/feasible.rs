//! What the cluster could hold if no other job of ours ran: nodes' resources, quotas and the power budget.
//!
//! A configuration beyond that is never worth waiting for. Prices cannot tell, since to them a part of a job would do.

use std::collections::BTreeMap;

use super::classes::{Classes, Mask};
use super::periods::{Periods, most_watts};
use crate::instance::{Config, Demand, Instance, JobData};

/// What is left for one job on an otherwise idle cluster.
pub(super) struct Feasible<'a, 'b> {
    instance: &'a Instance<'b>,
    classes: &'a Classes,
    /// By start: most milliwatts above the floor until the next start; empty without a budget.
    most_mw: Vec<i128>,
    /// The least of these: what is left at every start.
    least_mw: i128,
    /// By class: its nodes.
    nodes: Vec<Vec<u32>>,
    /// The last demand of a worker.
    demand: &'a [Demand],
    /// Number of changes of that demand so far; jobs of one number have the same.
    pub demands: usize,
}

impl<'a, 'b> Feasible<'a, 'b> {
    pub fn new(instance: &'a Instance<'b>, classes: &'a Classes, periods: &Periods) -> Self {
        let most = most_watts(instance, periods);
        let most_mw: Vec<i128> =
            most.into_iter().flatten().map(|w| libm::floor(w * 1e3) as i128 - instance.floor_mw).collect();
        let mut nodes = vec![Vec::new(); classes.list.len()];
        for (class, node) in classes.of_node.iter().zip(0..) {
            nodes[*class].push(node);
        }
        let least_mw = most_mw.iter().copied().min().unwrap_or(i128::MAX);
        Self { instance, classes, most_mw, least_mw, nodes, demand: &[], demands: 0 }
    }

    /// Bit by start: whether budget and quotas could hold this configuration from then on, on nodes with this overhead
    /// together.
    pub fn starts(&self, data: &JobData<'_>, config: &Config, overhead_mw: i128) -> u16 {
        let instance = self.instance;
        if !data.quota_demand.iter().all(|demand| demand.of_job(config) <= instance.quotas[demand.what]) {
            return 0;
        }
        if self.most_mw.is_empty() {
            return u16::MAX;
        }
        let needed = instance.alone_mw(config, overhead_mw);
        if needed <= self.least_mw {
            return u16::MAX;
        }
        let fits = |(start, most): (usize, &i128)| u16::from(needed <= *most) << start;
        self.most_mw.iter().enumerate().map(fits).fold(0, |starts, bit| starts | bit)
    }

    /// Sets the job of the following queries.
    pub fn set_job(&mut self, data: &'a JobData<'b>) {
        if self.demand != data.node_demand {
            self.demand = &data.node_demand;
            self.demands += 1;
        }
    }

    /// Classes with nodes that could hold a worker of this configuration, none if they are too few for the gang, and
    /// the least overhead of the nodes that it needs, in milliwatts.
    pub fn classes(&self, data: &JobData<'_>, config: &Config) -> (Mask, i128) {
        let mut left = self.classes.mask(config.kind, config.gpus, data.admits);
        let mut fits = 0;
        while left != 0 {
            let class = left.trailing_zeros() as usize;
            left &= left - 1;
            if self.nodes[class].iter().any(|node| self.instance.empty_node_fits(data, config, *node)) {
                fits |= 1 << class;
            }
        }
        let overhead_mw = if fits == 0 { None } else { self.gang(data, config) };
        overhead_mw.map_or((0, 0), |overhead_mw| (fits, overhead_mw))
    }

    /// Least overhead of enough nodes that could hold a worker each and may share a gang; `None` if there are none.
    /// Without a budget the first that are found will do.
    fn gang(&self, data: &JobData<'_>, config: &Config) -> Option<i128> {
        let instance = self.instance;
        let mut found: BTreeMap<u32, Vec<i128>> = BTreeMap::new();
        for &node in instance.types[config.kind]
            .nodes
            .iter()
            .filter(|node| instance.empty_node_fits(data, config, **node))
        {
            let of = &instance.nodes[node as usize];
            let overheads = found.entry(of.gang_class).or_default();
            overheads.push(of.overhead_mw);
            if self.most_mw.is_empty() && overheads.len() == config.nodes as usize {
                return Some(0);
            }
        }
        let least = |mut overheads: Vec<i128>| {
            overheads.sort_unstable();
            let needed = overheads.get(..config.nodes as usize)?;
            Some(needed.iter().sum())
        };
        found.into_values().filter_map(least).min()
    }
}
