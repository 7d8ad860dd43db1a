//! What a later start costs those who would have to leave for it.
//!
//! Prices know what is there in all in a period, not on which nodes it is in one piece, nor who runs there. Where a start
//! needs room that is not there by then, a later one would stop others just as one now does. A gang that did not count that would
//! be about to start at every decision, at little cost, and would never start.
//!
//! GPUs alone count: whoever leaves them leaves the rest that it holds. A job that may not be moved is no exception. Until its end
//! the prices have no room for others there.

use std::collections::BTreeMap;

use super::classes::Classes;
use super::cost_table::{Column, CostTable};
use super::periods::PERIODS;
use crate::instance::{Assignment, Config, Instance};

/// Who holds what on the nodes, and the cost of making room.
pub(super) struct Room<'a, 'b> {
    instance: &'a Instance<'b>,
    classes: &'a Classes,
    cost_table: &'a CostTable,
    /// By node: those who hold GPUs there, the cheapest to stop first.
    holders: Vec<Vec<Holder>>,
    /// By set of classes, GPUs of a node and nodes: the cost by start.
    known: BTreeMap<(u128, i64, u32), [f64; PERIODS]>,
}

/// A job's part on a node.
struct Holder {
    gpus: i64,
    /// Seconds from now until it is expected to end.
    until: f64,
    /// Money for its stop, as a part of that of the whole job.
    cost: f64,
}

impl<'a, 'b> Room<'a, 'b> {
    pub fn new(
        instance: &'a Instance<'b>,
        (classes, cost_table): (&'a Classes, &'a CostTable),
        current: &[Option<Assignment>],
    ) -> Self {
        let mut holders: Vec<Vec<Holder>> = instance.nodes.iter().map(|_| Vec::new()).collect();
        for (job, (data, current)) in instance.jobs.iter().zip(current).enumerate() {
            let Some(current) = current else { continue };
            let config = &data.configs[current.config];
            let item = cost_table.columns_of(job).start + current.config;
            let (delay, lost) = (cost_table.delay[job], data.restart + data.job.lost.0);
            let parts = current.nodes.as_slice().len().max(1) as f64;
            let column = &cost_table.items[item];
            let cost = cost_table.lost_cost(instance, data, column, delay, lost)
                + cost_table.wear(instance, data, column);
            let cost = cost / parts;
            for &node in current.nodes.as_slice() {
                holders[node as usize].push(Holder { gpus: config.gpus, until: delay + config.time, cost });
            }
        }
        for of_node in &mut holders {
            of_node.sort_by(|a, b| a.cost.total_cmp(&b.cost));
        }
        Self { instance, classes, cost_table, holders, known: BTreeMap::new() }
    }

    /// Money for the stops that make room for a configuration, by the start at which it needs it; none where there is room by itself.
    pub fn cost(&mut self, item: &Column, config: &Config) -> [f64; PERIODS] {
        let classes = self.cost_table.classes(item);
        let key = (classes, config.gpus, config.nodes);
        if let Some(cost) = self.known.get(&key) {
            return *cost;
        }
        let of_class = |node: &&u32| classes & 1 << self.classes.of_node[**node as usize] != 0;
        let nodes: Vec<u32> =
            self.instance.types[config.kind].nodes.iter().filter(of_class).copied().collect();
        let mut cost = [0.0; PERIODS];
        let mut least = Vec::with_capacity(nodes.len());
        for (start, cost) in self.cost_table.periods.starts().iter().zip(&mut cost) {
            least.clear();
            least.extend(nodes.iter().filter_map(|node| self.of_node(*node, config.gpus, *start)));
            let needed = config.nodes as usize;
            if needed < least.len() {
                least.select_nth_unstable_by(needed, f64::total_cmp);
            }
            *cost = least.iter().take(needed).sum();
            // What is free by itself stays so.
            if *cost <= 0.0 {
                break;
            }
        }
        self.known.insert(key, cost);
        cost
    }

    /// The same on one node; `None` if it has not that many.
    fn of_node(&self, node: u32, gpus: i64, start: f64) -> Option<f64> {
        let holders = &self.holders[node as usize];
        let held: i64 = holders.iter().filter(|holder| holder.until > start).map(|holder| holder.gpus).sum();
        let (mut free, mut cost) = (self.instance.nodes[node as usize].free_gpus - held, 0.0);
        for holder in holders.iter().filter(|holder| holder.until > start) {
            if free >= gpus {
                break;
            }
            free += holder.gpus;
            cost += holder.cost;
        }
        (free >= gpus).then_some(cost)
    }
}
