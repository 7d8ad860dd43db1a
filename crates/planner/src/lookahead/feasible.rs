//! What the cluster could hold if no other job of ours ran: nodes' resources, quotas and the power budget.
//!
//! A configuration beyond that is never worth waiting for. Prices cannot tell, since to them a part of a job would do.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use andreas_model::Seconds;

use super::classes::{Classes, Mask};
use super::periods::{Periods, most_watts};
use crate::instance::{Config, Demand, Instance, JobData};

/// The shortest grace period but 0 that is told apart, in seconds.
const LEAST_GRACE_S: f64 = 60.0;

/// What is left for one job on an otherwise idle cluster.
pub(super) struct Feasible<'a, 'b> {
    instance: &'a Instance<'b>,
    classes: &'a Classes,
    /// By grace period, rounded up: what the budget leaves; empty without one.
    watts: Vec<(Seconds, LeftWatts)>,
    /// By class: its nodes.
    nodes: Vec<Vec<u32>>,
    /// The last demand of a worker, and the set of nodes that admit it.
    demand: (&'a [Demand], usize),
    /// By GPU type: what its empty nodes could hold of that worker.
    room: Vec<OnceCell<Room>>,
    /// Number of changes of that demand so far; jobs of one number have the same.
    pub demands: usize,
}

/// Watts for one job at each start.
struct LeftWatts {
    /// By start: most milliwatts above the floor until the next start.
    most_mw: Vec<i128>,
    /// The least of these: what is left at every start.
    least_mw: i128,
}

/// What the empty nodes of a GPU type could hold of a worker, computed once for all its configurations.
struct Room {
    /// By class: GPUs of the largest worker on any of its nodes.
    by_class: Vec<i64>,
    /// Number of nodes by what distinguishes them for a gang: the class that it may not leave, overhead in milliwatts, GPUs of
    /// the largest worker.
    nodes: BTreeMap<(u32, i128, i64), usize>,
}

/// Grace periods are rounded up to a few: each has its own list of watts. A start now is held to the exact one.
fn rounded_up(grace: Seconds) -> Seconds {
    if grace.0 <= 0.0 {
        return Seconds::ZERO;
    }
    let mut rounded = LEAST_GRACE_S;
    while rounded < grace.0 {
        rounded *= 2.0;
    }
    Seconds(rounded)
}

impl<'a, 'b> Feasible<'a, 'b> {
    pub fn new(instance: &'a Instance<'b>, classes: &'a Classes, periods: &Periods) -> Self {
        let mut graces: Vec<Seconds> = instance.jobs.iter().map(|data| rounded_up(data.job.grace)).collect();
        graces.sort_by(Seconds::total_cmp);
        graces.dedup();
        let watts = graces.into_iter().filter_map(|grace| {
            let most = most_watts(instance, periods, grace)?.into_iter();
            let most_mw: Vec<i128> = most.map(|w| libm::floor(w * 1e3) as i128 - instance.floor_mw).collect();
            let least_mw = most_mw.iter().copied().min().unwrap_or(i128::MAX);
            Some((grace, LeftWatts { most_mw, least_mw }))
        });
        let watts = watts.collect();
        let mut nodes = vec![Vec::new(); classes.list.len()];
        for (class, node) in classes.of_node.iter().zip(0..) {
            nodes[*class].push(node);
        }
        let room = instance.types.iter().map(|_| OnceCell::new()).collect();
        Self { instance, classes, watts, nodes, demand: (&[], usize::MAX), room, demands: 0 }
    }

    /// Bit by start: whether budget and quotas could hold this configuration from then on, on nodes with this overhead
    /// together.
    pub fn starts(&self, data: &JobData<'_>, config: &Config, overhead_mw: i128) -> u16 {
        let instance = self.instance;
        if !data.quota_demand.iter().all(|demand| demand.of_job(config) <= instance.quotas[demand.what]) {
            return 0;
        }
        let grace = rounded_up(data.job.grace);
        let Some((_, left)) = self.watts.iter().find(|(of, _)| *of == grace) else { return u16::MAX };
        let needed = instance.alone_mw(config, overhead_mw);
        if needed <= left.least_mw {
            return u16::MAX;
        }
        let fits = |(start, most): (usize, &i128)| u16::from(needed <= *most) << start;
        left.most_mw.iter().enumerate().map(fits).fold(0, |starts, bit| starts | bit)
    }

    /// Sets the job of the following queries.
    pub fn set_job(&mut self, data: &'a JobData<'b>) {
        if self.demand != (&data.node_demand, data.admits) {
            self.demand = (&data.node_demand, data.admits);
            self.demands += 1;
            self.room.iter_mut().for_each(|room| _ = room.take());
        }
    }

    /// What the empty nodes of a type could hold of the job's worker.
    fn room(&self, data: &JobData<'_>, kind: usize) -> &Room {
        self.room[kind].get_or_init(|| {
            let instance = self.instance;
            let mut room = Room { by_class: vec![-1; self.classes.list.len()], nodes: BTreeMap::new() };
            for &node in &instance.types[kind].nodes {
                let (of, class) = (&instance.nodes[node as usize], self.classes.of_node[node as usize]);
                let largest = instance.largest_worker(data, node);
                room.by_class[class] = room.by_class[class].max(largest);
                *room.nodes.entry((of.gang_class, of.overhead_mw, largest)).or_default() += 1;
            }
            room
        })
    }

    /// Classes with nodes that could hold a worker of this configuration, none if they are too few for the gang, and
    /// the least overhead of the nodes that it needs, in milliwatts.
    pub fn classes(&self, data: &JobData<'_>, config: &Config) -> (Mask, i128) {
        let mut left = self.classes.mask(config.kind, config.gpus, data.admits);
        let mut fits = 0;
        while left != 0 {
            let class = left.trailing_zeros() as usize;
            left &= left - 1;
            let is_known = self.room[config.kind].get().is_some();
            if !is_known && self.instance.first_nodes_fit(data, (config, 1), &self.nodes[class])
                || self.room(data, config.kind).by_class[class] >= config.gpus
            {
                fits |= 1 << class;
            }
        }
        let overhead_mw = if fits == 0 { None } else { self.gang(data, config) };
        overhead_mw.map_or((0, 0), |overhead_mw| (fits, overhead_mw))
    }

    /// Least overhead of enough nodes that could hold a worker each and may share a gang; `None` if there are none.
    fn gang(&self, data: &JobData<'_>, config: &Config) -> Option<i128> {
        let (instance, is_known) = (self.instance, self.room[config.kind].get().is_some());
        let first_fit = || {
            instance.first_nodes_fit(
                data,
                (config, config.nodes as usize),
                &instance.types[config.kind].nodes,
            )
        };
        if self.watts.is_empty() && !is_known && first_fit() {
            return Some(0);
        }
        let mut least: Option<i128> = None;
        let (mut class, mut lacking, mut overhead) = (None, 0, 0);
        // By class, the least overhead first.
        for ((of_class, overhead_mw, largest), nodes) in &self.room(data, config.kind).nodes {
            if class != Some(*of_class) {
                (class, lacking, overhead) = (Some(*of_class), config.nodes as usize, 0);
            }
            let taken = if *largest >= config.gpus { lacking.min(*nodes) } else { 0 };
            lacking -= taken;
            overhead += overhead_mw * taken as i128;
            if lacking == 0 && taken > 0 {
                least = Some(least.map_or(overhead, |least| least.min(overhead)));
            }
        }
        least
    }
}
