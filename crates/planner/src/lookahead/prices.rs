//! Shadow prices: the value of a GPU of each class, and of a watt of budget, in each coming period.
//! [`price_search`](super::price_search) finds them; here is what follows from them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Kept;
use super::classes::{Classes, Mask, classes_in};
use super::cost_table::{CostTable, time_in_system};
use super::periods::{PERIODS, Periods, Price};
use super::price_search::{Searched, search};
use super::room::Room;
use crate::instance::{Instance, JobData};
use crate::snapshot::Prices;

/// A change that loses this part of the first period counts as expensive.
const DEAR: f64 = 0.1;
/// Cost of a second up to an expensive later change, as a share of the cost of a second late. Such changes are
/// often not made: something else has happened by then.
const CHANGE_PENALTY: f64 = 0.5;
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
    /// What jobs ask for at these prices, as a part of what is there, of the resource of which most is asked for.
    pub asked: Option<f64>,
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
        let old = Old::from_snapshot(instance, &cost_table.periods);
        let old = old
            .known
            .then(|| (classes.list.iter().map(|class| old.price(&class.name)).collect(), old.price(WATTS)));
        let Searched { gpu, watt, clearing } = search(instance, (classes, cost_table), kept, old, part);
        Self {
            gpu,
            watt: watt.unwrap_or_default(),
            budget: watt.is_some(),
            asked: clearing.most,
            periods: cost_table.periods,
        }
    }

    /// No prices: nothing is scarce.
    pub fn none(instance: &Instance<'_>, (classes, cost_table): (&Classes, &CostTable)) -> Self {
        Self {
            gpu: vec![Price::default(); classes.list.len()],
            watt: Price::default(),
            budget: instance.snapshot.budget.is_some(),
            asked: None,
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

    /// Cheapest class for a column from the start of one period to a moment in another, and its price there.
    fn cheapest(&self, classes: Mask, from: usize, end: usize, until: f64) -> (usize, f64) {
        let mut best = (0, f64::INFINITY);
        for class in classes_in(classes) {
            let price = self.gpu[class].between(from, end, until);
            if price < best.1 {
                best = (class, price);
            }
        }
        best
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
        room: &mut Room<'_, '_>,
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
            let config = &instance.jobs[job].configs[i - cost_table.columns_of(job).start];
            let room = room.cost(item, config);
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
                let watt = self.watt.between(s, end, until);
                let wake = cost_table.wake_cost(instance, &instance.jobs[job], &classes.list[class]);
                let extra = self.unknown_cost(&instance.jobs[job], item.gpus, class, *begin);
                let cost = base + wake + extra + room[s] + item.gpus * gpu + item.watts * watt;
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
        let lost = data.restart + data.job.lost_after(begin - delay) * then.time / now.time;
        let rest = {
            let until = begin + lost + then.time * (1.0 - done);
            let end = cost_table.periods.index_at(until);
            let gpu = &self.gpu[later.class];
            let gpus = gpu.between(later.start, end, until);
            let watts = self.watt.between(later.start, end, until);
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

/// A later start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DeferredStart {
    pub cost: f64,
    pub item: usize,
    /// The period at whose start it begins.
    pub start: usize,
    pub class: usize,
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
