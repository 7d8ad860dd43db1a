//! Shadow prices: the value of a GPU of each class, and of a watt of budget, in each coming period.
//!
//! Every job takes its cheapest configuration and start at the present prices. Overused resources become more
//! expensive, underused ones cheaper. This is a subgradient method on the Lagrangian dual of the time-indexed
//! problem. Each price has its own step, which grows while its direction lasts and shrinks when it turns, as
//! in Rprop (Riedmiller and Braun 1993). The result is the mean over the second half of the rounds, because
//! single rounds oscillate.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::classes::Classes;
use super::cost_table::{CostTable, DELAY_PENALTY};
use super::periods::{PERIODS, Periods, Price};
use crate::instance::Instance;
use crate::snapshot::Prices;

/// A migration must save this many times its cost. Prices change, and half of an apparent gain is gone a few
/// decisions later.
pub(super) const MIGRATION_FACTOR: f64 = 3.0;
/// Rounds without and with prices of the last decision.
const COLD: usize = 32;
const WARM: usize = 16;
/// A job evaluates all its columns every this many rounds, otherwise only its shortlist.
const FULL: usize = 8;
/// Size of the shortlist, the columns that were nearly the best.
const SHORTLIST: usize = 4;
/// A change that loses this part of the first period counts as expensive.
const DEAR: f64 = 0.1;
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

/// Search state of the price of one resource.
struct Track {
    price: Price,
    step: [f64; PERIODS],
    up: [i8; PERIODS],
    capacity: [f64; PERIODS],
    used: [f64; PERIODS],
    sum: [f64; PERIODS],
    least: f64,
}

impl Track {
    fn new(price: Price, capacity: [f64; PERIODS], step: f64) -> Self {
        Self {
            price,
            step: [step; PERIODS],
            up: [0; PERIODS],
            capacity,
            used: [0.0; PERIODS],
            sum: [0.0; PERIODS],
            least: step * 1e-3,
        }
    }

    /// Adds a use from the start of a period on.
    fn add(&mut self, periods: &Periods, amount: f64, start: usize, end: usize, until: f64) {
        let begins = &periods.begins;
        for p in start..end {
            self.used[p] += amount;
        }
        if end + 1 < PERIODS {
            self.used[end] += amount * (until - begins[end]) / (begins[end + 1] - begins[end]);
        }
    }

    fn update(&mut self, periods: &Periods) {
        for p in 0..PERIODS - 1 {
            let (used, capacity) = (self.used[p], self.capacity[p]);
            let up: i8 = if used > capacity * 1.005 {
                1
            } else if used < capacity * 0.995 && self.price.rate[p] > 0.0 {
                -1
            } else {
                0
            };
            if up * self.up[p] > 0 {
                self.step[p] *= 1.5;
            } else if up * self.up[p] < 0 {
                self.step[p] = (self.step[p] * 0.4).max(self.least);
            }
            if up != 0 {
                self.up[p] = up;
            }
            self.price.rate[p] = (self.price.rate[p] + f64::from(up) * self.step[p]).max(0.0);
            self.used[p] = 0.0;
        }
        self.used[PERIODS - 1] = 0.0;
        self.price.integrate(periods);
    }
}

impl ShadowPrices {
    /// Finds prices, with half the rounds if `gap` allows rough prices.
    pub fn new(instance: &Instance<'_>, classes: &Classes, cost_table: &CostTable, gap: f64) -> Self {
        let part = if gap >= ROUGH { 2 } else { 1 };
        let periods = &cost_table.periods;
        let old = Old::of(instance, periods);
        let step = first_step(instance, cost_table);
        let mut gpu: Vec<Track> =
            classes.list.iter().map(|c| Track::new(old.price(&c.name), [c.gpus; PERIODS], step)).collect();
        let watts = watts(instance, periods);
        let step = if instance.allowed_mw.is_some() { watt_step(instance) } else { 0.0 };
        let mut watt = Track::new(old.price(WATTS), watts.unwrap_or([f64::INFINITY; PERIODS]), step);
        if watts.is_none() {
            watt.price = Price::default();
        }
        let rounds = if old.known { WARM } else { COLD } / part;
        let mut choice = Choice::new(instance, cost_table, SAMPLE / part);
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
                    for p in 0..PERIODS {
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

    /// Exports the prices for the plan and the next decision.
    pub fn publish(&self, instance: &Instance<'_>, classes: &Classes) -> Prices {
        let rates = |price: &Price| price.rate[..PERIODS - 1].to_vec();
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

    /// The best later start; `None` without a configuration.
    pub fn best_later(
        &self,
        instance: &Instance<'_>,
        cost_table: &CostTable,
        job: usize,
    ) -> Option<DeferredStart> {
        let mut best: Option<DeferredStart> = None;
        for i in cost_table.of(job) {
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
            for (s, begin) in cost_table.periods.begins.iter().enumerate().skip(1) {
                let base = cost_table.at(instance, job, i, s) + item.fragmentation;
                if best.as_ref().is_some_and(|best| base >= best.cost) {
                    if cost_table.rising {
                        break;
                    }
                    continue;
                }
                let until = begin.max(cost_table.delay[job]) + item.time;
                let end = cost_table.periods.index_at(until);
                let (class, gpu) = self.cheapest(cost_table.classes(item), s, end, until);
                let watt = self.watt.until(end, until) - self.watt.until_period(s);
                let cost = base + item.gpus * gpu + item.watts * watt;
                if best.as_ref().is_none_or(|best| cost < best.cost) {
                    best = Some(DeferredStart { cost, item: i, start: s, class });
                }
            }
        }
        best
    }

    /// Cost of running on a column now and changing to the best later start, without GPUs and watts up to
    /// then. It is infinite if the run would have ended by then, so free capacity is used at once.
    pub fn changing(
        &self,
        instance: &Instance<'_>,
        cost_table: &CostTable,
        (job, i): (usize, usize),
        later: &DeferredStart,
    ) -> f64 {
        let data = &instance.jobs[job];
        let (now, then) = (&cost_table.items[i], &cost_table.items[later.item]);
        let (delay, begin) = (cost_table.delay[job], cost_table.periods.begins[later.start]);
        let movable = data.job.movable && data.job.preemption == crate::snapshot::Preemption::Allowed;
        if !movable || begin <= delay || begin < data.job.min_run.0 || delay + now.time <= begin {
            return f64::INFINITY;
        }
        let done = (begin - delay) / now.time;
        let lost = instance.snapshot.restart.0 + data.job.lost.0;
        let rest = |lost: f64| {
            let until = begin + lost + then.time * (1.0 - done);
            let end = cost_table.periods.index_at(until);
            let gpu = &self.gpu[later.class];
            let room = then.gpus * (gpu.until(end, until) - gpu.until_period(later.start))
                + then.watts * (self.watt.until(end, until) - self.watt.until_period(later.start));
            room + cost_table.rest(instance, data, then, begin, lost, 1.0 - done)
        };
        let (free, paid) = (rest(0.0), rest(lost));
        let prices = &instance.prices;
        let energy = now.billed * (prices.integral(begin) - prices.integral(delay));
        // The rest is charged like a deferred start, less so for a cheap change. A free change will be made
        // when its time comes, an expensive one may no longer pay off.
        let premium = DELAY_PENALTY
            * (lost / (DEAR * cost_table.periods.unit())).min(1.0)
            * data.weight
            * (begin - delay);
        energy + free + MIGRATION_FACTOR * (paid - free).max(0.0) + premium
    }
}

/// A later start.
#[derive(Clone, Debug)]
pub(super) struct DeferredStart {
    pub cost: f64,
    pub item: usize,
    /// The period at whose start it begins.
    pub start: usize,
    pub class: usize,
}

fn cheapest<'a>(
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

/// What jobs take at given prices.
struct Choice<'a, 'b> {
    instance: &'a Instance<'b>,
    cost_table: &'a CostTable,
    jobs: Vec<Chooser>,
    /// Number of jobs that each sampled one stands for.
    each: f64,
}

/// A job that chooses.
struct Chooser {
    job: usize,
    /// Its shortlist, as offsets from its first column.
    short: [u16; SHORTLIST],
    /// By column, then by start: energy and lateness; NaN if not yet computed.
    costs: Vec<[f64; PERIODS]>,
}

/// A start of a column: cost, offset of the column, period, class.
#[derive(Clone, Copy)]
struct Start {
    cost: f64,
    item: usize,
    start: usize,
    class: usize,
}

impl<'a, 'b> Choice<'a, 'b> {
    /// All jobs, or a sample of many with sizes in proportion: only the sum of their demand matters.
    fn new(instance: &'a Instance<'b>, cost_table: &'a CostTable, sample: usize) -> Self {
        let work = |job: usize| {
            let offered = cost_table.items[cost_table.of(job)].iter().filter(|item| item.possible());
            offered.map(|item| item.gpus * item.time).reduce(f64::min).map(|work| (work, job))
        };
        let mut jobs: Vec<(f64, usize)> = (0..instance.jobs.len()).filter_map(work).collect();
        let (all, few) = (jobs.len(), jobs.len().min(sample + jobs.len() / 16));
        if few < all {
            jobs.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            jobs = (0..few).map(|i| jobs[(2 * i + 1) * all / (2 * few)]).collect();
        }
        let chooser = |&(_, job): &(f64, usize)| Chooser {
            job,
            short: [u16::MAX; SHORTLIST],
            costs: vec![[f64::NAN; PERIODS]; cost_table.of(job).len()],
        };
        let each = if few > 0 { all as f64 / few as f64 } else { 1.0 };
        Self { instance, cost_table, jobs: jobs.iter().map(chooser).collect(), each }
    }

    fn round(&mut self, gpu: &mut [Track], watt: &mut Track, full: bool) {
        let (instance, cost_table) = (self.instance, self.cost_table);
        for chooser in &mut self.jobs {
            let items = cost_table.of(chooser.job);
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
            let until = cost_table.periods.begins[best.start].max(cost_table.delay[chooser.job]) + item.time;
            let end = cost_table.periods.index_at(until);
            gpu[best.class].add(&cost_table.periods, self.each * item.gpus, best.start, end, until);
            watt.add(&cost_table.periods, self.each * item.watts, best.start, end, until);
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
        let first = cost_table.of(self.job).start;
        let item = &cost_table.items[first + i];
        if !item.possible() {
            return None;
        }
        let mut best = None;
        let mut least = limit;
        let delay = cost_table.delay[self.job];
        let classes = cost_table.classes(item);
        let costs = &mut self.costs[i];
        for (s, begin) in cost_table.periods.begins.iter().enumerate() {
            if costs[s].is_nan() {
                costs[s] = cost_table.at(instance, self.job, first + i, s);
            }
            if costs[s] >= least {
                if cost_table.rising {
                    break;
                }
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

/// First step of GPU prices: cost of a second of waiting per GPU, and a part of its energy.
fn first_step(instance: &Instance<'_>, cost_table: &CostTable) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for (job, data) in instance.jobs.iter().enumerate() {
        let offered = || cost_table.items[cost_table.of(job)].iter().filter(|i| i.possible());
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

/// Watts of the budget left for jobs in each period.
fn watts(instance: &Instance<'_>, periods: &Periods) -> Option<[f64; PERIODS]> {
    let budget = instance.snapshot.budget.as_ref()?;
    let now = instance.snapshot.now;
    let begins = &periods.begins;
    let mut capacity = [0.0; PERIODS];
    for (p, capacity) in capacity.iter_mut().enumerate() {
        let to = begins.get(p + 1).copied().unwrap_or(begins[p] * 2.0);
        let pieces =
            budget.watts.pieces(now + andreas_core::Seconds(begins[p]), now + andreas_core::Seconds(to));
        let sum: f64 = pieces.map(|(begin, end, watts)| watts.0 * (end - begin).0).sum();
        let mean = sum / (to - begins[p]);
        let watts = mean * (1.0 - budget.margin) / budget.scope_factor;
        *capacity = (watts - instance.floor_mw as f64 / 1e3).max(0.0);
    }
    Some(capacity)
}

/// Prices of the last decision, shifted to the present.
struct Old {
    values: BTreeMap<Arc<str>, Price>,
    known: bool,
}

impl Old {
    fn of(instance: &Instance<'_>, periods: &Periods) -> Self {
        let mut old = Self { values: BTreeMap::new(), known: false };
        let Some(prices) = &instance.snapshot.prices else { return old };
        let by = (instance.snapshot.now - prices.now).0;
        // Other periods were not made by this planner or are outdated.
        let Some(before) = Periods::with_ends(&prices.bounds) else { return old };
        if !(0.0..=before.begins[PERIODS - 1]).contains(&by) {
            return old;
        }
        for (name, values) in &prices.values {
            let mut rate = [0.0; PERIODS];
            if values.len() != PERIODS - 1 || values.iter().any(|v| !(0.0..=1e30).contains(v)) {
                continue;
            }
            rate[..PERIODS - 1].copy_from_slice(values);
            old.known = true;
            old.values.insert(name.clone(), Price::new(&before, rate).shifted(&before, by, periods));
        }
        old
    }

    fn price(&self, name: &str) -> Price {
        self.values.get(name).copied().unwrap_or_default()
    }
}
