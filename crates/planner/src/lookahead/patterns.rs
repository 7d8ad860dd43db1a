//! A tighter bound of the step: what fits on one node together, and what a node costs that a plan opens.
//!
//! The dual of [`Step`] has one price per GPU of a class. It takes the GPUs of a class for one heap: 3-GPU jobs
//! could use all of a 4-GPU node. Here every number of GPUs that a worker may have gets a price of its own, and
//! each node earns the best *pattern*, the workers that fit it together (Gilmore and Gomory 1961), less the
//! fragmentation that the pattern leaves and the overhead watts of a node that it opens. Every set of prices
//! gives a lower bound, so the search may end anywhere. It starts at the prices of the step, with at least the
//! step's bound, and takes subgradient steps of Polyak's length towards the cost of the best plan known.

use super::step::Step;
use crate::partial::PartialPlan;

/// Maximum rounds of the search.
const ROUNDS: usize = 150;
/// Without a gain in this many rounds the steps are halved.
const PATIENCE: usize = 6;
/// The search ends with steps below this part of Polyak's length.
const SHORTEST: f64 = 1e-2;
/// Watts that are as much of a change as one worker.
const WATTS_PER_WORKER: f64 = 300.0;
/// Maximum number of options priced in all rounds, beyond the first few rounds.
const WORK: usize = 600_000;
/// Minimum rounds.
const FIRST_ROUNDS: usize = 10;
/// Maximum work of one round, as entries of the patterns' tables; above it the step's bound is kept.
const MAX_TABLE: usize = 4_000_000;

/// An option of a job, with the size of its workers.
struct Entry {
    cost: f64,
    watts: f64,
    workers: f64,
    /// Index of its size; `None`: it may need no GPUs beside those that it holds.
    size: Option<usize>,
}

/// Alike nodes.
struct Group {
    count: f64,
    /// Its class's sizes.
    sizes: std::ops::Range<usize>,
    free: usize,
    /// By GPUs in use besides those taken now: money for fragmentation.
    fragmentation: Vec<f64>,
    /// Watts that the node adds to those of the budget once a worker runs there; 0 if one does already.
    overhead: f64,
}

struct Patterns {
    /// By job: cost of waiting, and its options.
    jobs: Vec<(f64, Vec<Entry>)>,
    groups: Vec<Group>,
    /// GPUs of a worker, by size; the sizes of a class are adjacent.
    sizes: Vec<usize>,
    /// Cost of what is fixed and of the jobs without any option.
    fixed: f64,
    watts: Option<f64>,
}

/// Prices: one per size and worker, and one per watt.
#[derive(Clone)]
struct Point {
    size: Vec<f64>,
    watt: f64,
}

/// The best bound found, at least the step's; the search ends once `enough` holds for it. `cost` is that of a
/// known plan.
pub(super) fn bound(
    step: &Step<'_, '_>,
    base: &PartialPlan,
    cost: f64,
    enough: &impl Fn(f64) -> bool,
) -> f64 {
    let (patterns, mut point) = Patterns::new(step, base);
    let table: usize = patterns.groups.iter().map(|g| (g.free + 1) * g.sizes.len()).sum();
    if table > MAX_TABLE {
        return step.bound;
    }
    let mut best = (step.bound, point.clone());
    let (mut length, mut idle) = (1.0, 0);
    let options: usize = patterns.jobs.iter().map(|(_, entries)| entries.len()).sum();
    let rounds = (WORK / options.max(1)).clamp(FIRST_ROUNDS, ROUNDS);
    for _ in 0..rounds {
        let (value, slope) = patterns.value(&point);
        if value > best.0 {
            best = (value, point.clone());
            idle = 0;
        } else {
            idle += 1;
            if idle >= PATIENCE {
                (length, idle) = (length * 0.5, 0);
                point.clone_from(&best.1);
                continue;
            }
        }
        let norm: f64 = slope.size.iter().map(|s| s * s).sum::<f64>() + slope.watt * slope.watt;
        if enough(best.0) || value >= cost || norm <= 0.0 || length < SHORTEST {
            break;
        }
        let by = length * (cost - value) / norm;
        for (price, slope) in point.size.iter_mut().zip(&slope.size) {
            *price = (*price + by * slope).max(0.0);
        }
        point.watt = (point.watt + by * slope.watt / WATTS_PER_WORKER).max(0.0);
    }
    best.0
}

impl Patterns {
    /// With the prices of the step's dual.
    fn new(step: &Step<'_, '_>, base: &PartialPlan) -> (Self, Point) {
        let instance = step.instance;
        let classes = step.classes.list.len();
        let mut used: Vec<Vec<usize>> = vec![Vec::new(); classes];
        let worker = |job: usize, config: usize| {
            usize::try_from(instance.jobs[job].configs[config].gpus).unwrap_or(usize::MAX)
        };
        for (job, options) in step.options.iter().enumerate() {
            for o in options {
                let gpus = worker(job, o.config);
                if !used[o.class].contains(&gpus) {
                    used[o.class].push(gpus);
                }
            }
        }
        let mut first = vec![0];
        let (mut sizes, mut start) = (Vec::new(), Vec::new());
        for (class, used) in used.iter_mut().enumerate() {
            used.sort_unstable();
            start.extend(used.iter().map(|gpus| step.dual.gpu[class] * *gpus as f64));
            sizes.extend_from_slice(used);
            first.push(sizes.len());
        }
        let mut patterns = Self {
            jobs: Vec::new(),
            groups: Vec::new(),
            sizes,
            fixed: step.fixed,
            watts: step.dual.watts.is_finite().then_some(step.dual.watts),
        };
        for (job, options) in step.options.iter().enumerate() {
            if options.is_empty() {
                patterns.fixed += step.waiting_cost(job);
                continue;
            }
            let leaves = instance.jobs[job].leaving().is_some();
            let entry = |o: &super::step::Choice| {
                let gpus = worker(job, o.config);
                let at = used[o.class].iter().position(|size| *size == gpus).map(|at| first[o.class] + at);
                // A job may stay on nodes of several classes.
                let elsewhere = o.stays && o.span > 1;
                let size = at.filter(|_| !leaves && !elsewhere);
                Entry { cost: o.cost, watts: o.watts, workers: f64::from(o.span), size }
            };
            patterns.jobs.push((step.wait[job], options.iter().map(entry).collect()));
        }
        patterns.group(step, base, &first);
        let watt = if patterns.watts.is_some() { step.dual.watt } else { 0.0 };
        (patterns, Point { size: start, watt })
    }

    /// Groups nodes with as much room, as large and with the same overhead.
    fn group(&mut self, step: &Step<'_, '_>, base: &PartialPlan, first: &[usize]) {
        let instance = step.instance;
        let mut known = std::collections::BTreeMap::new();
        for (node, data) in (0_u32..).zip(&instance.nodes) {
            let left = base.ledger.free_gpus(node).max(0);
            let (busy, class) = (base.ledger.busy(node), step.classes.of_node[node as usize]);
            let key = (class, left, data.free_gpus, data.overhead.to_bits(), data.overhead_mw, busy);
            let at = *known.entry(key).or_insert(self.groups.len());
            if at < self.groups.len() {
                self.groups[at].count += 1.0;
                continue;
            }
            let free = usize::try_from(left).unwrap_or(0);
            let taken = data.free_gpus - base.ledger.free_gpus(node);
            let used = (0_i64..).take(free + 1).map(|more| taken + more);
            self.groups.push(Group {
                count: 1.0,
                sizes: first[class]..first[class + 1],
                free,
                fragmentation: used.map(|used| step.cost_table.fragmentation(instance, node, used)).collect(),
                overhead: if busy { 0.0 } else { data.overhead_mw as f64 / 1e3 },
            });
        }
    }

    /// The dual value, and in which direction it grows.
    fn value(&self, at: &Point) -> (f64, Point) {
        let mut slope = Point { size: vec![0.0; at.size.len()], watt: 0.0 };
        let mut value = self.fixed;
        for (wait, entries) in &self.jobs {
            let mut best: (f64, Option<&Entry>) = (*wait, None);
            for entry in entries {
                let room = entry.size.map_or(0.0, |size| at.size[size] * entry.workers);
                let cost = entry.cost + room + at.watt * entry.watts;
                if cost < best.0 {
                    best = (cost, Some(entry));
                }
            }
            value += best.0;
            if let Some(entry) = best.1 {
                slope.watt += entry.watts;
                if let Some(size) = entry.size {
                    slope.size[size] += entry.workers;
                }
            }
        }
        let mut table = Vec::new();
        for group in &self.groups {
            let (earned, opened) = self.best_pattern(group, at, &mut table, &mut slope.size);
            value -= group.count * earned;
            slope.watt += if opened { group.count * group.overhead } else { 0.0 };
        }
        match self.watts {
            Some(watts) => {
                value -= at.watt * watts;
                slope.watt = (slope.watt - watts) / WATTS_PER_WORKER;
            }
            None => slope.watt = 0.0,
        }
        // At a price of 0 there is nothing to lower.
        for (slope, price) in slope.size.iter_mut().zip(&at.size) {
            if *price <= 0.0 {
                *slope = slope.max(0.0);
            }
        }
        if at.watt <= 0.0 {
            slope.watt = slope.watt.max(0.0);
        }
        (value, slope)
    }

    /// What the best pattern earns on a node of a group, and whether it has any worker. Takes its workers from
    /// `supply`.
    fn best_pattern(
        &self,
        group: &Group,
        at: &Point,
        table: &mut Vec<(f64, usize)>,
        supply: &mut [f64],
    ) -> (f64, bool) {
        // By GPUs used exactly: the most that workers pay, and the size of the last of them.
        table.clear();
        table.resize(group.free + 1, (f64::NEG_INFINITY, usize::MAX));
        table[0].0 = 0.0;
        for used in 1..=group.free {
            for size in group.sizes.clone() {
                let Some(before) = used.checked_sub(self.sizes[size]) else { break };
                let paid = table[before].0 + at.size[size];
                if paid > table[used].0 {
                    table[used] = (paid, size);
                }
            }
        }
        let open = at.watt * group.overhead;
        let earned =
            |used: usize| table[used].0 - group.fragmentation[used] - if used > 0 { open } else { 0.0 };
        let mut best = 0;
        for used in 1..=group.free {
            if earned(used) > earned(best) {
                best = used;
            }
        }
        let (most, opened) = (earned(best), best > 0);
        while best > 0 {
            let size = table[best].1;
            supply[size] -= group.count;
            best -= self.sizes[size];
        }
        (most, opened)
    }
}
