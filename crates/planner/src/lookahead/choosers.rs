//! What jobs take at given prices: each its cheapest configuration and start.

use super::Kept;
use super::classes::classes_in;
use super::cost_table::CostTable;
use super::track::Tracks;
use crate::instance::Instance;

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
    /// Offsets of its columns, the one that it took last first.
    order: Vec<u16>,
    /// By column, then by start.
    runs: Vec<Run>,
    /// Number of jobs that it stands for.
    each: f64,
}

/// A run of a column from a start on, before prices; computed when it is first looked at.
#[derive(Clone, Copy)]
struct Run {
    /// Energy and lateness; NaN if not yet computed.
    cost: f64,
    /// Its end, and the period of that.
    until: f64,
    end: usize,
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
        let chooser = |(i, &(_, job)): (usize, &(f64, usize))| {
            let items = cost_table.columns_of(job);
            let possible = (0..).zip(&cost_table.items[items.clone()]).filter(|(_, item)| item.possible());
            Chooser {
                job,
                order: possible.map(|(column, _)| column).collect(),
                runs: vec![Run { cost: f64::NAN, until: 0.0, end: 0 }; items.len() * starts],
                each: if i < small { each } else { 1.0 },
            }
        };
        Self { instance, cost_table, jobs: jobs.iter().enumerate().map(chooser).collect() }
    }

    /// Each job takes its cheapest start on any of its columns, at prices that rise a little as more is asked for.
    pub fn round(&mut self, tracks: &mut Tracks) {
        for chooser in &mut self.jobs {
            if let Some(best) = chooser.best(self.instance, self.cost_table, tracks) {
                chooser.take(self.cost_table, &best, tracks);
            }
        }
    }
}

impl Chooser {
    /// Its cheapest start.
    fn best(&mut self, instance: &Instance<'_>, cost_table: &CostTable, tracks: &Tracks) -> Option<Start> {
        let mut best = None;
        for at in 0..self.order.len() {
            let limit = best.map_or(f64::INFINITY, |best: Start| best.cost);
            let start = self.best_start(instance, cost_table, usize::from(self.order[at]), tracks, limit);
            if start.is_some() {
                best = start;
                // What was the best is nearly the best next time, and spares most of the others.
                self.order.swap(0, at);
            }
        }
        best
    }

    /// The best start of a column, if it costs less than a limit.
    fn best_start(
        &mut self,
        instance: &Instance<'_>,
        cost_table: &CostTable,
        i: usize,
        tracks: &Tracks,
        mut limit: f64,
    ) -> Option<Start> {
        let first = cost_table.columns_of(self.job).start;
        let item = &cost_table.items[first + i];
        let mut best = None;
        let delay = cost_table.delay[self.job];
        let starts = cost_table.periods.starts();
        let runs = &mut self.runs[i * starts.len()..][..starts.len()];
        for class in classes_in(cost_table.classes(item)) {
            let track = &tracks.gpu[class];
            for (s, (run, crowding)) in runs.iter_mut().zip(track.crowding()).enumerate() {
                if run.cost.is_nan() {
                    run.cost = cost_table.cost_at(instance, self.job, first + i, s);
                    run.until = starts[s].max(delay) + item.time;
                    run.end = cost_table.periods.index_at(run.until);
                }
                if run.cost >= limit {
                    if cost_table.rising {
                        break;
                    }
                    continue;
                }
                if !item.may_start(s) {
                    continue;
                }
                let Run { cost, until, end } = *run;
                let mut cost = cost + item.gpus * crowding * track.price.between(s, end, until);
                if let Some(watt) = &tracks.watt {
                    cost += item.watts * watt.price.between(s, end, until);
                }
                if cost < limit {
                    limit = cost;
                    best = Some(Start { cost, item: i, start: s, class });
                }
            }
        }
        best
    }

    /// Adds what it uses from a start on.
    fn take(&self, cost_table: &CostTable, start: &Start, tracks: &mut Tracks) {
        let periods = &cost_table.periods;
        let item = &cost_table.items[cost_table.columns_of(self.job).start + start.item];
        let Run { until, end, .. } = self.runs[start.item * periods.count() + start.start];
        tracks.gpu[start.class].add(periods, self.each * item.gpus, start.start, end, until);
        if let Some(watt) = &mut tracks.watt {
            watt.add(periods, self.each * item.watts, start.start, end, until);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use andreas_model::{CostRate, EnergyPrice, GpuCount, Seconds, StepFunction, Time, Watts};

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
