//! Cost of each job in each configuration at each start, without the prices of GPUs.
//!
//! The table depends on the job and the cluster, never on the job's present place. A plan that was carried
//! out is therefore evaluated exactly as before.

use std::collections::BTreeMap;

use super::classes::{Class, Classes, Mask};
use super::feasible::Feasible;
use super::periods::Periods;
use crate::instance::{Config, Instance, JobData, NodeData, TypeData};

/// A stop of a run that has not run as long as its restart takes wears as so many restarts more.
const YOUNG: f64 = 2.0;
/// A newly opened node is assumed to stay fragmented for this part of the first period.
const FRAGMENTED_PART: f64 = 1.0 / 3.0;

/// A configuration of a job.
#[derive(Clone, Debug)]
pub(super) struct Column {
    /// Index of the set of feasible classes; 0 is the empty set.
    classes: u32,
    /// Index of the spread of its time.
    spread: u32,
    /// Bit by start: whether budget and quotas then could hold it on an otherwise idle cluster.
    starts: u16,
    /// The job's first column with the same GPUs and nodes; such columns differ only in the power limit.
    pub hardware: u32,
    /// GPUs of the whole gang.
    pub gpus: f64,
    pub time: f64,
    /// Seconds added by the power limit; they cost time in the system like a deferred start.
    pub slowed: f64,
    /// Watts counted against the budget: draw and share of the nodes' overhead, less the idle draw it
    /// replaces.
    pub watts: f64,
    /// Watts billed: draw and share of the nodes' overhead.
    pub billed: f64,
    /// Fragmentation cost of the nodes it would open, as money.
    pub fragmentation: f64,
    /// Fill bonus: the most it could save by filling fragmented nodes.
    pub fills: f64,
}

impl Column {
    /// Whether any class is feasible, now or later.
    pub fn possible(&self) -> bool {
        self.classes != 0
    }

    /// Whether an otherwise idle cluster could hold it from a start on. Otherwise no plan waits for that start.
    pub fn may_start(&self, start: usize) -> bool {
        self.starts & 1 << start != 0
    }
}

/// Uncertainty of a time.
#[derive(Clone, Copy, Debug)]
struct Spread {
    rel_std: f64,
    /// Tail beyond which lateness is impossible or, on the other side, certain.
    tail: f64,
}

/// Sets of classes, each stored once: there are few sets and many columns.
struct Sets {
    list: Vec<Mask>,
    known: BTreeMap<Mask, u32>,
    /// Last query at each position of a table; tables are alike.
    recent: Vec<(Query, Holders)>,
}

/// Index of a set of classes, and the least overhead of their nodes in milliwatts.
type Holders = (u32, i128);

/// Type, GPUs of a node and nodes of a configuration; set of nodes and demand of the job.
type Query = (usize, i64, u32, usize, usize);

impl Sets {
    fn new() -> Self {
        Self { list: vec![0], known: BTreeMap::from([(0, 0)]), recent: Vec::new() }
    }

    /// The classes that could hold a configuration; `at` is its position in the job's table.
    fn holders(&mut self, feasible: &Feasible<'_, '_>, at: usize, data: &JobData<'_>) -> Holders {
        let config = &data.configs[at];
        let asked = (config.kind, config.gpus, config.nodes, data.admits, feasible.demands);
        if let Some((_, found)) = self.recent.get(at).filter(|(before, _)| *before == asked) {
            return *found;
        }
        let next = self.list.len() as u32;
        let (mask, overhead_mw) = feasible.classes(data, config);
        let set = *self.known.entry(mask).or_insert_with_key(|mask| {
            self.list.push(*mask);
            next
        });
        let found = (set, overhead_mw);
        match self.recent.get_mut(at) {
            Some(slot) => *slot = (asked, found),
            None => self.recent.push((asked, found)),
        }
        found
    }
}

pub(super) struct CostTable {
    /// By job, then by configuration.
    pub items: Vec<Column>,
    sets: Vec<Mask>,
    spreads: Vec<Spread>,
    first: Vec<usize>,
    /// By column: energy and lateness of a start now.
    now: Vec<f64>,
    /// By job: seconds before it can start anywhere.
    pub delay: Vec<f64>,
    /// Whether a later start never costs less, prices aside; true with a flat tariff.
    pub rising: bool,
    pub periods: Periods,
    /// Fragmentation cost: money per unused watt in a partly used node.
    fragmentation: f64,
    /// By type: overhead of nodes per GPU that jobs are billed for, watts.
    share: Vec<f64>,
    /// The same as counted against the budget.
    budgeted_share: Vec<f64>,
    /// By type: maximum overhead of one of its nodes, watts.
    most: Vec<f64>,
    phi: Phi,
}

impl CostTable {
    pub fn new(instance: &Instance<'_>, classes: &Classes) -> Self {
        let share = per_gpu(instance, |node| node.overhead);
        let budgeted_share = per_gpu(instance, |node| node.overhead_mw as f64 / 1e3);
        let most = |kind: &TypeData| {
            let overheads = kind.nodes.iter().map(|n| instance.nodes[*n as usize].overhead);
            overheads.fold(0.0, f64::max)
        };
        let most = instance.types.iter().map(most).collect();
        let periods = Periods::for_instance(instance);
        let count = instance.jobs.iter().map(|j| j.configs.len()).sum();
        let mut sets = Sets::new();
        let mut cost_table = Self {
            fragmentation: instance.prices.integral(periods.unit() * FRAGMENTED_PART),
            periods,
            items: Vec::with_capacity(count),
            sets: Vec::new(),
            spreads: Vec::new(),
            first: vec![0],
            now: Vec::with_capacity(count),
            delay: Vec::with_capacity(instance.jobs.len()),
            rising: instance.snapshot.tariff.windows().len() == 1,
            share,
            budgeted_share,
            most,
            phi: Phi::new(),
        };
        let periods = cost_table.periods;
        let mut feasible = Feasible::new(instance, classes, &periods);
        for data in &instance.jobs {
            let delay = data.gone_in(instance.now);
            cost_table.delay.push(delay);
            feasible.set_job(data);
            let mut last: Option<(&Config, u32)> = None;
            for (config, at) in data.configs.iter().zip(0..) {
                let (mut set, mut starts) = (0, 0);
                if config.listed {
                    let (holders, overhead_mw) = sets.holders(&feasible, at as usize, data);
                    starts = feasible.starts(data, config, overhead_mw);
                    set = if starts != 0 { holders } else { 0 };
                }
                let mut item = cost_table.item(instance, config, set);
                item.starts = starts;
                // Columns that differ only in the limit are adjacent.
                let first =
                    last.filter(|(before, _)| config.same_hardware(before)).map_or(at, |(_, first)| first);
                last = Some((config, first));
                item.hardware = first;
                item.slowed = (config.time - data.configs[first as usize].time).max(0.0);
                cost_table.now.push(cost_table.cost(instance, data, &item, delay, 0.0));
                cost_table.items.push(item);
            }
            cost_table.first.push(cost_table.items.len());
        }
        cost_table.sets = sets.list;
        cost_table
    }

    fn item(&mut self, instance: &Instance<'_>, config: &Config, classes: u32) -> Column {
        let kind = &instance.types[config.kind];
        let gpus = config.total_gpus() as f64;
        let per_gpu = self.share[config.kind];
        let size = kind.max_node_gpus.max(config.gpus) as f64 * f64::from(config.nodes);
        let most = self.most[config.kind];
        if self.spreads.last().is_none_or(|last| last.rel_std != config.rel_std) {
            let tail = libm::exp(5.0 * config.rel_std);
            self.spreads.push(Spread { rel_std: config.rel_std, tail });
        }
        Column {
            classes,
            spread: (self.spreads.len() - 1) as u32,
            starts: u16::MAX,
            hardware: 0,
            gpus,
            time: config.time,
            slowed: 0.0,
            watts: config.draw + (self.budgeted_share[config.kind] - kind.idle) * gpus,
            billed: config.power + per_gpu * gpus,
            fragmentation: per_gpu * (size - gpus) * self.fragmentation,
            fills: most * f64::from(config.nodes) * self.fragmentation,
        }
    }

    /// Columns of a job, in the order of its configurations.
    #[inline]
    pub fn columns_of(&self, job: usize) -> std::ops::Range<usize> {
        self.first[job]..self.first[job + 1]
    }

    /// Feasible classes of a column; none if it is not listed.
    pub fn classes(&self, item: &Column) -> Mask {
        self.sets[item.classes as usize]
    }

    /// Energy and lateness of a column that starts now.
    pub fn now(&self, item: usize) -> f64 {
        self.now[item]
    }

    /// Energy and lateness of a column that starts with a period.
    pub fn cost_at(&self, instance: &Instance<'_>, job: usize, item: usize, start: usize) -> f64 {
        let begin = self.periods.starts()[start].max(self.delay[job]);
        self.cost(instance, &instance.jobs[job], &self.items[item], begin, 0.0)
    }

    /// Money for energy and expected lateness of a run that starts in `start` seconds. The first `lost`
    /// seconds make no progress.
    pub fn cost(
        &self,
        instance: &Instance<'_>,
        data: &JobData<'_>,
        item: &Column,
        start: f64,
        lost: f64,
    ) -> f64 {
        let prices = &instance.prices;
        let energy = item.billed * (prices.integral(start + lost + item.time) - prices.integral(start));
        energy + self.lateness(instance, data, item, start + lost)
    }

    /// What a job must gain from a restart on a column: the seconds that it loses, and its wear. Prices change,
    /// and half of an apparent gain is gone a few decisions later; the wear pays for that.
    pub fn restart_cost(
        &self,
        instance: &Instance<'_>,
        data: &JobData<'_>,
        item: usize,
        start: f64,
        lost: f64,
    ) -> f64 {
        let item = &self.items[item];
        self.lost_cost(instance, data, item, start, lost) + self.wear_now(instance, data, item)
    }

    /// The same without the wear.
    pub fn lost_cost(
        &self,
        instance: &Instance<'_>,
        data: &JobData<'_>,
        item: &Column,
        start: f64,
        lost: f64,
    ) -> f64 {
        let more = self.cost(instance, data, item, start, lost) - self.cost(instance, data, item, start, 0.0);
        more.max(0.0)
    }

    /// Money for the wear of a restart: that of as many seconds lost by the job, without the miss that they
    /// could cause; once more for each of its restarts of the last day. A job that has moved again and again is
    /// one at which prices turn: where a cluster is overloaded all the time, this leaves half of the restarts.
    pub fn wear(&self, instance: &Instance<'_>, data: &JobData<'_>, item: &Column) -> f64 {
        self.wear_of(instance, data, item, f64::from(data.job.restarts_last_day))
    }

    /// The same of a restart now. A run that has just started counts as [`YOUNG`] more: its start has cost as much as a stop would save
    /// soon. It may be stopped all the same, for a gang would wait for ever where some of those in its way have always just started.
    pub fn wear_now(&self, instance: &Instance<'_>, data: &JobData<'_>, item: &Column) -> f64 {
        let young = if data.job.has_just_started(instance.snapshot) { YOUNG } else { 0.0 };
        self.wear_of(instance, data, item, f64::from(data.job.restarts_last_day) + young)
    }

    fn wear_of(&self, instance: &Instance<'_>, data: &JobData<'_>, item: &Column, before: f64) -> f64 {
        let wear = instance.snapshot.wear.0 * (1.0 + before);
        let late = if data.deadline < instance.now + item.time { 1.0 } else { 0.0 };
        let per_second = data.weight * (late + data.waiting);
        instance.prices.energy_cost(item.billed, wear) + per_second * wear
    }

    /// The same for the last `part` of a job that has trained from the beginning. Only what follows `start` is
    /// charged, on the terms of [`Self::cost`].
    pub fn rest(
        &self,
        instance: &Instance<'_>,
        data: &JobData<'_>,
        item: &Column,
        start: f64,
        lost: f64,
        part: f64,
    ) -> f64 {
        let prices = &instance.prices;
        let time = item.time * part;
        let energy = item.billed * (prices.integral(start + lost + time) - prices.integral(start));
        let late = self.late(instance, data, item, start + lost, time);
        energy + data.weight * late + time_in_system(data, item, lost, part)
    }

    /// [`Forecast::lateness_cost`](crate::cost::Forecast::lateness_cost), from a table.
    fn lateness(&self, instance: &Instance<'_>, data: &JobData<'_>, item: &Column, delay: f64) -> f64 {
        data.weight * self.late(instance, data, item, delay, item.time)
            + time_in_system(data, item, delay, 1.0)
    }

    /// Expected seconds late, including a miss, of a run of `time` that starts to train in `delay` seconds.
    fn late(&self, instance: &Instance<'_>, data: &JobData<'_>, item: &Column, delay: f64, time: f64) -> f64 {
        let rules = &instance.snapshot.lateness;
        let left = data.deadline - instance.now - delay;
        let Spread { rel_std, tail } = self.spreads[item.spread as usize];
        if left >= time * tail {
            0.0
        } else if left * tail <= time {
            time - left + rules.late_fixed.0
        } else {
            let d = libm::log(time / left) / rel_std;
            let half = rel_std / 2.0;
            let missed = self.phi.at(d - half);
            (time * self.phi.at(d + half) - left * missed).max(0.0) + missed * rules.late_fixed.0
        }
    }

    /// Cost of waiting for a class' nodes to start up: the energy to wake one, and the job's delay. A deferred
    /// start there costs as much, so nobody waits for others to wake them.
    pub fn wake_cost(&self, instance: &Instance<'_>, data: &JobData<'_>, class: &Class) -> f64 {
        let (seconds, joules) = class.wake;
        if seconds <= 0.0 && joules <= 0.0 {
            return 0.0;
        }
        let late = if instance.now + data.fastest > data.deadline { 1.0 } else { 0.0 };
        let delay = data.weight * (data.waiting + late) * seconds;
        delay + joules * instance.prices.integral(seconds.max(1.0)) / seconds.max(1.0)
    }

    /// Fragmentation cost of a node on which our jobs use some GPUs.
    pub fn fragmentation(&self, instance: &Instance<'_>, node: u32, used: i64) -> f64 {
        let data = &instance.nodes[node as usize];
        if used <= 0 || used >= data.free_gpus {
            return 0.0;
        }
        let empty = (data.free_gpus - used) as f64 / data.free_gpus as f64;
        data.overhead * empty * self.fragmentation
    }
}

/// By type: watts of its nodes per GPU, on average.
fn per_gpu(instance: &Instance<'_>, watts: impl Fn(&NodeData) -> f64) -> Vec<f64> {
    let mean = |kind: &TypeData| {
        let nodes = || kind.nodes.iter().map(|n| &instance.nodes[*n as usize]);
        let gpus: f64 = nodes().map(|n| n.free_gpus as f64).sum();
        if gpus > 0.0 { nodes().map(&watts).sum::<f64>() / gpus } else { 0.0 }
    };
    instance.types.iter().map(mean).collect()
}

/// Money for the time in the system while a job trains this part of its work, after a delay. The delay and the
/// seconds that a power limit adds have the same price, now and later: otherwise one of the two would always
/// seem cheaper.
pub(super) fn time_in_system(data: &JobData<'_>, item: &Column, delay: f64, part: f64) -> f64 {
    let slowed = item.slowed * part;
    data.weight * (data.share * (item.time * part - slowed) + data.waiting * (delay + slowed))
}

/// The standard normal distribution function, from a table.
struct Phi(Vec<f64>);

impl Phi {
    const REACH: f64 = 6.0;
    const STEPS: f64 = 64.0;

    fn new() -> Self {
        let entries = (2.0 * Self::REACH * Self::STEPS) as i32;
        let x = |i: i32| f64::from(i) / Self::STEPS - Self::REACH;
        Self((0..=entries + 1).map(|i| 0.5 * libm::erfc(-x(i) / std::f64::consts::SQRT_2)).collect())
    }

    fn at(&self, x: f64) -> f64 {
        let at = ((x + Self::REACH) * Self::STEPS).clamp(0.0, (self.0.len() - 2) as f64);
        let i = at as usize;
        let part = at - i as f64;
        self.0[i] + (self.0[i + 1] - self.0[i]) * part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_the_normal_distribution() {
        let phi = Phi::new();
        for i in -500..500 {
            let x = f64::from(i) / 77.0;
            let exact = 0.5 * libm::erfc(-x / std::f64::consts::SQRT_2);
            assert!((phi.at(x) - exact).abs() < 1e-5, "{x}");
        }
    }
}
