//! Shadow prices: the value of a GPU of each class, and of a watt of budget, in each coming period.
//!
//! Every job takes its cheapest configuration and start at the present prices. One that runs to its end where it is
//! takes nothing: what it holds is not for sale. Overused resources become more expensive, underused ones cheaper. This is a subgradient method on the Lagrangian dual of the time-indexed
//! problem. Each price has its own step, which grows while its direction lasts and shrinks when it turns, as
//! in Rprop (Riedmiller and Braun 1993). The result is the mean over the second half of the rounds, because
//! single rounds oscillate.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Kept;
use super::choosers::{Choosers, cheapest};
use super::classes::Classes;
use super::cost_table::{CostTable, time_in_system};
use super::periods::{PERIODS, Periods, Price, budget_by_period};
use super::track::Track;
use crate::instance::{Instance, JobData};
use crate::snapshot::Prices;

/// Rounds without and with prices of the last decision.
const COLD: usize = 32;
const WARM: usize = 16;
/// A job evaluates all its columns every this many rounds, otherwise only its shortlist.
const FULL: usize = 8;
/// A change that loses this part of the first period counts as expensive.
const DEAR: f64 = 0.1;
/// Cost of a second up to an expensive later change, as a share of the cost of a second late. Such changes are
/// often not made: something else has happened by then.
const CHANGE_PENALTY: f64 = 0.5;
/// Above this number of jobs a sample sets the prices; it has at least a sixteenth of all.
const SAMPLE: usize = 256;
/// Prices may be rough from this gap on.
const ROUGH: f64 = 1e-3;
/// Name of the price of watts; no class has this name.
const WATTS: &str = "watts";

/// Prices for one decision.
pub(super) struct ShadowPrices {
    /// By class.
    pub gpu: Vec<Price>,
    pub watt: Price,
    /// Whether there is a budget.
    pub budget: bool,
    periods: Periods,
}

impl ShadowPrices {
    /// Finds prices, with half the rounds if `gap` allows rough prices.
    pub fn new(
        instance: &Instance<'_>,
        (classes, cost_table): (&Classes, &CostTable),
        kept: &Kept,
        gap: f64,
    ) -> Self {
        let part = if gap >= ROUGH { 2 } else { 1 };
        let periods = &cost_table.periods;
        let old = Old::from_snapshot(instance, periods);
        let step = first_step(instance, cost_table);
        let mut gpu: Vec<Track> =
            classes.list.iter().map(|c| Track::new(old.price(&c.name), [c.gpus; PERIODS], step)).collect();
        let watts = watts(instance, periods);
        let step = if instance.allowed_mw.is_some() { watt_step(instance) } else { 0.0 };
        let mut watt = Track::new(old.price(WATTS), watts.unwrap_or([f64::INFINITY; PERIODS]), step);
        if watts.is_none() {
            watt.price = Price::default();
        }
        take_what_is_kept(instance, (classes, cost_table), kept, (&mut gpu, &mut watt));
        let rounds = if old.known { WARM } else { COLD } / part;
        let mut choice = Choosers::new(instance, cost_table, kept, SAMPLE / part);
        let mut counted = 0.0;
        for round in 0..rounds {
            choice.round(&mut gpu, &mut watt, round % FULL == 0);
            gpu.iter_mut().for_each(|track| track.update(periods));
            if watts.is_some() {
                watt.update(periods);
            }
            if round * 2 >= rounds {
                counted += 1.0;
                for track in gpu.iter_mut().chain([&mut watt]) {
                    for p in 0..periods.count() {
                        track.sum[p] += track.price.rate[p];
                    }
                }
            }
        }
        let mean = |track: &Track| Price::new(periods, track.sum.map(|sum| sum / counted));
        Self {
            gpu: gpu.iter().map(mean).collect(),
            watt: mean(&watt),
            budget: watts.is_some(),
            periods: *periods,
        }
    }

    /// No prices: nothing is scarce.
    pub fn none(instance: &Instance<'_>, (classes, cost_table): (&Classes, &CostTable)) -> Self {
        Self {
            gpu: vec![Price::default(); classes.list.len()],
            watt: Price::default(),
            budget: instance.snapshot.budget.is_some(),
            periods: cost_table.periods,
        }
    }

    /// Exports the prices for the plan and the next decision.
    pub fn publish(&self, instance: &Instance<'_>, classes: &Classes) -> Prices {
        let rates = |price: &Price| price.rate[..self.periods.count() - 1].to_vec();
        let mut values: BTreeMap<Arc<str>, Vec<f64>> =
            classes.list.iter().zip(&self.gpu).map(|(c, price)| (c.name.clone(), rates(price))).collect();
        if self.budget {
            values.insert(WATTS.into(), rates(&self.watt));
        }
        Prices { now: instance.snapshot.now, bounds: self.periods.ends(), values }
    }

    /// Cheapest class for a column from the start of one period to its end.
    fn cheapest(&self, mask: u128, from: usize, end: usize, until: f64) -> (usize, f64) {
        cheapest(|c| &self.gpu[c], mask, from, end, until)
    }

    /// Extra cost of a run of which nothing is known: its GPUs beyond the fewest, at their price from `begin` seconds
    /// on until its first report, by how wrong its speed-up may be.
    pub fn unknown_cost(&self, data: &JobData<'_>, gpus: f64, class: usize, begin: f64) -> f64 {
        let Some(unknown) = &data.job.unknown else { return 0.0 };
        let until = |seconds: f64| self.gpu[class].until(self.periods.index_at(seconds), seconds);
        let more = (gpus - f64::from(unknown.least.0)).max(0.0);
        unknown.shape * more * (until(begin + unknown.first_report.0) - until(begin))
    }

    /// The best later start; `None` without a configuration.
    pub fn best_later(
        &self,
        instance: &Instance<'_>,
        (classes, cost_table): (&Classes, &CostTable),
        job: usize,
    ) -> Option<DeferredStart> {
        let mut best: Option<DeferredStart> = None;
        for i in cost_table.columns_of(job) {
            let item = &cost_table.items[i];
            if !item.possible() {
                continue;
            }
            // A deferred start costs no less than a start now.
            if cost_table.rising
                && best.as_ref().is_some_and(|best| cost_table.now(i) + item.fragmentation >= best.cost)
            {
                continue;
            }
            for (s, begin) in cost_table.periods.starts().iter().enumerate().skip(1) {
                let base = cost_table.cost_at(instance, job, i, s) + item.fragmentation;
                if best.as_ref().is_some_and(|best| base >= best.cost) {
                    if cost_table.rising {
                        break;
                    }
                    continue;
                }
                if !item.may_start(s) {
                    continue;
                }
                let until = begin.max(cost_table.delay[job]) + item.time;
                let end = cost_table.periods.index_at(until);
                let (class, gpu) = self.cheapest(cost_table.classes(item), s, end, until);
                let watt = self.watt.until(end, until) - self.watt.until_period(s);
                let wake = cost_table.wake_cost(instance, &instance.jobs[job], &classes.list[class]);
                let extra = self.unknown_cost(&instance.jobs[job], item.gpus, class, *begin);
                let cost = base + wake + extra + item.gpus * gpu + item.watts * watt;
                if best.as_ref().is_none_or(|best| cost < best.cost) {
                    best = Some(DeferredStart { cost, item: i, start: s, class });
                }
            }
        }
        best
    }

    /// Whether a class or the watts become cheaper with the start of a period.
    pub fn falls(&self, class: usize, start: usize) -> bool {
        let falls = |price: &Price| price.rate[start] < price.rate[start - 1];
        falls(&self.gpu[class]) || falls(&self.watt)
    }

    /// Cost of running on a column now and changing to another at the start of a later period, without GPUs
    /// and watts up to then. It is infinite if the run would have ended by then, so free capacity is used at
    /// once.
    pub fn changing(
        &self,
        instance: &Instance<'_>,
        cost_table: &CostTable,
        (job, i): (usize, usize),
        later: &DeferredStart,
    ) -> f64 {
        let data = &instance.jobs[job];
        let (now, then) = (&cost_table.items[i], &cost_table.items[later.item]);
        let (delay, begin) = (cost_table.delay[job], cost_table.periods.starts()[later.start]);
        if !data.job.may_restart()
            || begin <= delay
            || begin < data.job.min_run.0
            || delay + now.time <= begin
        {
            return f64::INFINITY;
        }
        let done = (begin - delay) / now.time;
        let lost = data.restart + data.job.lost.0 * then.time / now.time;
        let rest = {
            let until = begin + lost + then.time * (1.0 - done);
            let end = cost_table.periods.index_at(until);
            let gpu = &self.gpu[later.class];
            let gpus = gpu.until(end, until) - gpu.until_period(later.start);
            let watts = self.watt.until(end, until) - self.watt.until_period(later.start);
            let room = then.gpus * gpus + then.watts * watts;
            room + cost_table.rest(instance, data, then, begin, lost, 1.0 - done)
        };
        let prices = &instance.prices;
        let energy = now.billed * (prices.integral(begin) - prices.integral(delay));
        // The time up to it is charged, less so for a cheap change. A cheap change will be made when its time comes,
        // an expensive one may no longer pay off. A free one commits to nothing.
        let share = CHANGE_PENALTY * (lost / (DEAR * cost_table.periods.unit())).min(1.0);
        let premium = share * data.weight * (begin - delay);
        let first = energy + time_in_system(data, now, delay, done);
        first + rest + cost_table.wear(instance, data, then) + premium
    }
}

/// Takes the GPUs and watts of jobs that run to their end where they are: no price makes room of them.
fn take_what_is_kept(
    instance: &Instance<'_>,
    (classes, cost_table): (&Classes, &CostTable),
    kept: &Kept,
    (gpu, watt): (&mut [Track], &mut Track),
) {
    let periods = &cost_table.periods;
    for (job, (data, kept)) in instance.jobs.iter().zip(kept).enumerate() {
        let Some(kept) = kept else { continue };
        let item = &cost_table.items[cost_table.columns_of(job).start + kept.config];
        let until = cost_table.delay[job] + item.time;
        let end = periods.index_at(until);
        for node in kept.nodes.as_slice() {
            let gpus = data.configs[kept.config].gpus as f64;
            gpu[classes.of_node[*node as usize]].add(periods, gpus, 0, end, until);
        }
        watt.add(periods, item.watts, 0, end, until);
    }
    gpu.iter_mut().chain([watt]).for_each(Track::take_used);
}

/// A later start.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeferredStart {
    pub cost: f64,
    pub item: usize,
    /// The period at whose start it begins.
    pub start: usize,
    pub class: usize,
}

/// First step of GPU prices: cost of a second of waiting per GPU, and a part of its energy.
fn first_step(instance: &Instance<'_>, cost_table: &CostTable) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for (job, data) in instance.jobs.iter().enumerate() {
        let offered = || cost_table.items[cost_table.columns_of(job)].iter().filter(|i| i.possible());
        if let Some(item) = offered().min_by(|a, b| a.gpus.total_cmp(&b.gpus)) {
            let energy = instance.prices.energy_cost(item.billed, item.time.min(1e9)) / item.time.min(1e9);
            sum += (0.1 * energy + 0.3 * data.weight * data.share.max(0.05)) / item.gpus;
            count += 1.0;
        }
    }
    if count > 0.0 { sum / count } else { 0.0 }
}

/// First step of watt prices: the cost of drawing one.
fn watt_step(instance: &Instance<'_>) -> f64 {
    (instance.prices.integral(3600.0) / 3600.0 * 0.1).max(1e-12)
}

/// Watts of the budget left for jobs in each period, on average.
fn watts(instance: &Instance<'_>, periods: &Periods) -> Option<[f64; PERIODS]> {
    budget_by_period(instance, periods, |watts, part| watts * part, |sum, watts| sum + watts).map(|budget| {
        let mut left = [0.0; PERIODS];
        for (left, mean) in left.iter_mut().zip(budget) {
            *left = (mean - instance.floor_mw as f64 / 1e3).max(0.0);
        }
        left
    })
}

/// Prices of the last decision, shifted to the present.
struct Old {
    values: BTreeMap<Arc<str>, Price>,
    known: bool,
}

impl Old {
    fn from_snapshot(instance: &Instance<'_>, periods: &Periods) -> Self {
        let mut old = Self { values: BTreeMap::new(), known: false };
        let Some(prices) = &instance.snapshot.prices else { return old };
        let by = (instance.snapshot.now - prices.now).0;
        // Other periods were not made by this planner or are outdated.
        let Some(before) = Periods::with_ends(&prices.bounds) else { return old };
        let starts = before.starts();
        if !(0.0..=starts[starts.len() - 1]).contains(&by) {
            return old;
        }
        for (name, values) in &prices.values {
            let mut rate = [0.0; PERIODS];
            if values.len() != starts.len() - 1 || values.iter().any(|v| !(0.0..=1e30).contains(v)) {
                continue;
            }
            rate[..values.len()].copy_from_slice(values);
            old.known = true;
            old.values.insert(name.clone(), Price::new(&before, rate).shifted(&before, by, periods));
        }
        old
    }

    fn price(&self, name: &str) -> Price {
        self.values.get(name).copied().unwrap_or_default()
    }
}
