//! What jobs take at given prices: each its cheapest configuration and start.

use super::Kept;
use super::cost_table::CostTable;
use super::periods::Price;
use super::track::Track;
use crate::instance::Instance;

/// Size of the shortlist, the columns that were nearly the best.
const SHORTLIST: usize = 4;
/// One job in so many, the largest by GPU-seconds, is always in the sample.
const LARGE_ONE_IN: usize = 20;

/// What jobs take at given prices.
pub(super) struct Choosers<'a, 'b> {
    instance: &'a Instance<'b>,
    cost_table: &'a CostTable,
    jobs: Vec<Chooser>,
}

/// A job that chooses.
struct Chooser {
    job: usize,
    /// Its shortlist, as offsets from its first column.
    short: [u16; SHORTLIST],
    /// By column, then by start: energy and lateness; NaN if not yet computed.
    costs: Vec<f64>,
    /// Number of jobs that it stands for.
    each: f64,
}

/// A start of a column: cost, offset of the column, period, class.
#[derive(Clone, Copy)]
struct Start {
    cost: f64,
    item: usize,
    start: usize,
    class: usize,
}

impl<'a, 'b> Choosers<'a, 'b> {
    /// All jobs that may choose, or a sample of many. The largest jobs are always in it: a few of them may want most of the
    /// GPUs. Of the others it has sizes in proportion, since only the sum of their demand matters.
    pub fn new(instance: &'a Instance<'b>, cost_table: &'a CostTable, kept: &Kept, sample: usize) -> Self {
        let work = |job: usize| {
            if kept[job].is_some() {
                return None;
            }
            let offered = cost_table.items[cost_table.columns_of(job)].iter().filter(|item| item.possible());
            offered.map(|item| item.gpus * item.time).reduce(f64::min).map(|work| (work, job))
        };
        let mut jobs: Vec<(f64, usize)> = (0..instance.jobs.len()).filter_map(work).collect();
        let all = jobs.len();
        let large = all.div_ceil(LARGE_ONE_IN);
        let few = (sample + all / 16).max(2 * large);
        let mut each = 1.0;
        if few < all {
            jobs.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            let (others, chosen) = (all - large, few - large);
            each = others as f64 / chosen as f64;
            let sampled = (0..chosen).map(|i| (2 * i + 1) * others / (2 * chosen));
            jobs = sampled.chain(others..all).map(|i| jobs[i]).collect();
        }
        let starts = cost_table.periods.count();
        let small = if few < all { few - large } else { 0 };
        let chooser = |(i, &(_, job)): (usize, &(f64, usize))| Chooser {
            job,
            short: [u16::MAX; SHORTLIST],
            costs: vec![f64::NAN; cost_table.columns_of(job).len() * starts],
            each: if i < small { each } else { 1.0 },
        };
        Self { instance, cost_table, jobs: jobs.iter().enumerate().map(chooser).collect() }
    }

    pub fn round(&mut self, gpu: &mut [Track], watt: &mut Track, full: bool) {
        let (instance, cost_table) = (self.instance, self.cost_table);
        for chooser in &mut self.jobs {
            let items = cost_table.columns_of(chooser.job);
            let mut best: Option<Start> = None;
            if full {
                let mut ranked = [(f64::INFINITY, u16::MAX); SHORTLIST];
                let alike = cost_table.items[items.clone()].chunk_by(|a, b| a.hardware == b.hardware);
                let mut names = 0_u16..;
                for group in alike {
                    // Only one of the columns that differ by the limit: the others would fill the list.
                    let (mut limit, mut found) = (ranked[SHORTLIST - 1].0, None);
                    for (_, name) in group.iter().zip(&mut names) {
                        let start =
                            chooser.best_start(instance, cost_table, usize::from(name), gpu, watt, limit);
                        if let Some(start) = start {
                            (limit, found) = (start.cost, Some((start, name)));
                        }
                    }
                    let Some((found, name)) = found else { continue };
                    if best.is_none_or(|best| found.cost < best.cost) {
                        best = Some(found);
                    }
                    let mut entry = (found.cost, name);
                    for slot in &mut ranked {
                        if entry.0 < slot.0 {
                            std::mem::swap(slot, &mut entry);
                        }
                    }
                }
                chooser.short = ranked.map(|(_, i)| i);
            } else {
                for i in chooser.short {
                    if i == u16::MAX {
                        break;
                    }
                    let limit = best.map_or(f64::INFINITY, |best| best.cost);
                    best =
                        chooser.best_start(instance, cost_table, usize::from(i), gpu, watt, limit).or(best);
                }
            }
            let Some(best) = best else { continue };
            let item = &cost_table.items[items.start + best.item];
            let begin = cost_table.periods.starts()[best.start];
            let until = begin.max(cost_table.delay[chooser.job]) + item.time;
            let end = cost_table.periods.index_at(until);
            let each = chooser.each;
            gpu[best.class].add(&cost_table.periods, each * item.gpus, best.start, end, until);
            watt.add(&cost_table.periods, each * item.watts, best.start, end, until);
        }
    }
}

impl Chooser {
    /// The best start of a column, if it costs less than a limit.
    fn best_start(
        &mut self,
        instance: &Instance<'_>,
        cost_table: &CostTable,
        i: usize,
        gpu: &[Track],
        watt: &Track,
        limit: f64,
    ) -> Option<Start> {
        let first = cost_table.columns_of(self.job).start;
        let item = &cost_table.items[first + i];
        if !item.possible() {
            return None;
        }
        let mut best = None;
        let mut least = limit;
        let delay = cost_table.delay[self.job];
        let classes = cost_table.classes(item);
        let starts = cost_table.periods.starts();
        let costs = &mut self.costs[i * starts.len()..][..starts.len()];
        for (s, begin) in starts.iter().enumerate() {
            if costs[s].is_nan() {
                costs[s] = cost_table.cost_at(instance, self.job, first + i, s);
            }
            if costs[s] >= least {
                if cost_table.rising {
                    break;
                }
                continue;
            }
            if !item.may_start(s) {
                continue;
            }
            let until = begin.max(delay) + item.time;
            let end = cost_table.periods.index_at(until);
            let (class, price) = cheapest(|c| &gpu[c].price, classes, s, end, until);
            let watts = watt.price.until(end, until) - watt.price.until_period(s);
            let cost = costs[s] + item.gpus * price + item.watts * watts;
            if cost < least {
                least = cost;
                best = Some(Start { cost, item: i, start: s, class });
            }
        }
        best
    }
}

/// The cheapest of some classes for a GPU from the start of a period to a moment, and its price.
pub(super) fn cheapest<'a>(
    price: impl Fn(usize) -> &'a Price,
    mut mask: u128,
    from: usize,
    end: usize,
    until: f64,
) -> (usize, f64) {
    let mut best = (0, f64::INFINITY);
    if mask.is_power_of_two() {
        let class = mask.trailing_zeros() as usize;
        let price = price(class);
        return (class, price.until(end, until) - price.until_period(from));
    }
    while mask != 0 {
        let class = mask.trailing_zeros() as usize;
        mask &= mask - 1;
        let price = price(class);
        let cost = price.until(end, until) - price.until_period(from);
        if cost < best.1 {
            best = (class, cost);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use andreas_core::{CostRate, EnergyPrice, GpuCount, Seconds, StepFunction, Time, Watts};

    use super::super::classes::Classes;
    use super::*;
    use crate::budget;
    use crate::snapshot::{DEFAULT_WEAR, Estimate, GpuTypeInfo, Job, Lateness, Node, Snapshot};

    /// Waiting jobs on one GPU each, of 1 to `count` hours in no order; and the hours of each.
    fn waiting(count: usize) -> (Snapshot, Vec<usize>) {
        let hours: Vec<usize> = (0..count).map(|i| 1 + i * 7919 % count).collect();
        let job = |(i, hours): (usize, &usize)| {
            let epoch = Seconds(3600.0 * *hours as f64);
            let row = Estimate::new("A100".into(), GpuCount(1), epoch, Watts(300.0));
            let (id, weight) = (format!("team/j{i:04}"), CostRate(1e-5));
            Job::new(id.into(), "team".into(), Time(0.0), weight, 1.0, [row].into())
        };
        let snapshot = Snapshot {
            now: Time(0.0),
            tariff: StepFunction::flat(EnergyPrice::per_kwh(0.2, 1.3)),
            budget: None,
            lateness: Lateness::default(),
            restart: Seconds(120.0),
            wear: DEFAULT_WEAR,
            gpu_types: vec![GpuTypeInfo { name: "A100".into(), idle: Watts(50.0), max: Watts(400.0) }],
            nodes: vec![Node::new("n".into(), "A100".into(), GpuCount(8))],
            namespaces: vec![],
            jobs: hours.iter().enumerate().map(job).collect(),
            prices: None,
            intended: vec![],
        };
        (snapshot, hours)
    }

    #[test]
    fn the_largest_jobs_are_in_every_sample_and_stand_for_themselves() {
        for (count, sample) in [(100, 256), (1000, 256), (2000, 128), (2000, 0)] {
            let (snapshot, hours) = waiting(count);
            let instance = budget::prepared(&snapshot);
            let classes = Classes::new(&instance);
            let cost_table = CostTable::new(&instance, &classes);
            let choosers = Choosers::new(&instance, &cost_table, &vec![None; count], sample).jobs;
            // One in twenty, however small the sample,
            let largest: BTreeSet<usize> =
                (0..count).filter(|job| hours[*job] > count - count / LARGE_ONE_IN).collect();
            let themselves: BTreeSet<usize> =
                choosers.iter().filter(|one| one.each == 1.0).map(|one| one.job).collect();
            assert_eq!(largest.len(), count / LARGE_ONE_IN);
            assert!(themselves.is_superset(&largest), "{count} jobs, a sample of {sample}");
            // and the others stand for all that were left out.
            let all: f64 = choosers.iter().map(|one| one.each).sum();
            assert!((all - count as f64).abs() < 1e-6, "{count} jobs, a sample of {sample}: {all}");
            assert_eq!(choosers.len() < count, count > sample, "{count} jobs, a sample of {sample}");
        }
    }
}
