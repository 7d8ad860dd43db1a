//! Costs at this instant: each job in each place now, or deferred at the shadow prices.
//!
//! With these costs the decision is an assignment of jobs to free capacity. Its Lagrangian dual has one price
//! per GPU of a class and one per watt. It gives a lower bound on every plan and the order in which jobs are
//! placed.

use super::classes::Classes;
use super::cost_table::{Column, CostTable};
use super::prices::{DeferredStart, MIGRATION_FACTOR, ShadowPrices};
use crate::instance::{Assignment, Config, Instance};
use crate::partial::PartialPlan;

/// Maximum rounds of the dual search.
const ROUNDS: usize = 80;
/// The search ends after this many rounds that each gained less than the required part of the bound.
const MAX_IDLE_ROUNDS: usize = 10;
const CLOSE: f64 = 1e-7;
/// With an allowed gap, a gain below this part of the gap ends the search.
const ENOUGH: f64 = 0.02;

/// A configuration of a job on a class of nodes, now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub config: usize,
    pub class: usize,
    pub gpus: f64,
    /// Watts above the idle draw, without the nodes' overhead.
    pub watts: f64,
    pub cost: f64,
    /// Reduced cost: cost plus the capacity it takes at the dual prices.
    pub reduced: f64,
    /// Whether it stays on the job's present nodes.
    pub stays: bool,
    /// Nodes of the gang.
    pub span: u32,
}

/// Costs of deferred starts; they do not depend on where jobs are now.
pub(super) struct DeferredCosts {
    /// By job: its best later start.
    pub later: Vec<Option<DeferredStart>>,
    /// By column: cost of running on it now and changing to the later start.
    pub changing: Vec<f64>,
}

impl DeferredCosts {
    pub fn new(instance: &Instance<'_>, cost_table: &CostTable, shadow_prices: &ShadowPrices) -> Self {
        let later: Vec<_> =
            (0..instance.jobs.len()).map(|job| shadow_prices.best_later(instance, cost_table, job)).collect();
        let mut changing = vec![f64::INFINITY; cost_table.items.len()];
        for (job, later) in later.iter().enumerate() {
            for i in cost_table.of(job) {
                if let Some(later) = later {
                    changing[i] = shadow_prices.changing(instance, cost_table, (job, i), later);
                }
            }
        }
        Self { later, changing }
    }
}

/// Costs of one decision.
pub(super) struct Step<'a, 'b> {
    pub instance: &'a Instance<'b>,
    pub cost_table: &'a CostTable,
    pub classes: &'a Classes,
    pub shadow_prices: &'a ShadowPrices,
    deferred: &'a DeferredCosts,
    /// Current assignments; migrations are charged against them.
    pub current: &'a [Option<Assignment>],
    /// By job: cost of waiting.
    pub wait: Vec<f64>,
    /// By job: options worth trying now, cheapest at the dual prices first.
    pub options: Vec<Vec<Choice>>,
    /// By job: whether its assignment is fixed.
    decided: Vec<bool>,
    /// Proven lower bound of the cost.
    pub bound: f64,
    pub dual: Prices,
}

/// Result of the dual of a step, with the capacity it was solved for.
#[derive(Default)]
pub(super) struct Prices {
    /// By class: price of a GPU.
    pub gpu: Vec<f64>,
    pub watt: f64,
    /// By class: number of GPUs.
    pub room: Vec<f64>,
    /// Available watts; infinite without a budget.
    pub watts: f64,
}

impl<'a, 'b> Step<'a, 'b> {
    /// Costs for jobs that are not in `base`; they share the free capacity of `base`.
    pub fn new(
        instance: &'a Instance<'b>,
        (cost_table, classes, shadow_prices, deferred): (
            &'a CostTable,
            &'a Classes,
            &'a ShadowPrices,
            &'a DeferredCosts,
        ),
        current: &'a [Option<Assignment>],
        base: &PartialPlan,
    ) -> Self {
        let none = Vec::new();
        let mut step = Self {
            instance,
            cost_table,
            classes,
            shadow_prices,
            deferred,
            current,
            wait: Vec::with_capacity(current.len()),
            options: vec![none; current.len()],
            decided: base.assignments.iter().map(Option::is_some).collect(),
            bound: 0.0,
            dual: Prices::default(),
        };
        for (job, later) in deferred.later.iter().enumerate() {
            let wait = step.waiting(job, later.as_ref());
            step.wait.push(wait);
        }
        step
    }

    /// Computes the ordered options and the bound; a larger allowed gap makes them less exact.
    pub fn weigh(mut self, base: &PartialPlan, gap: f64) -> Self {
        for job in 0..self.current.len() {
            if base.assignments[job].is_none() {
                self.options[job] = self.options_better_than_waiting(job);
            }
        }
        self.price(base, CLOSE.max(gap * ENOUGH));
        self
    }

    /// Progress lost by a change to a column, in seconds on it.
    fn lost(&self, job: usize, item: usize) -> f64 {
        let Some(current) = &self.current[job] else { return 0.0 };
        let before = self.cost_table.items[self.cost_table.of(job).start + current.config].time;
        let scale = if before > 0.0 { self.cost_table.items[item].time / before } else { 1.0 };
        self.instance.snapshot.restart.0 + self.instance.jobs[job].job.lost.0 * scale
    }

    /// Cost of a deferred start at the best time; a running job also loses work.
    fn waiting(&self, job: usize, later: Option<&DeferredStart>) -> f64 {
        let (instance, cost_table, data) = (self.instance, self.cost_table, &self.instance.jobs[job]);
        let (cost, item, start) = match (later, &self.current[job]) {
            (Some(later), _) => (later.cost, later.item, later.start),
            // It can only continue as it is.
            (None, Some(current)) => {
                let item = cost_table.of(job).start + current.config;
                (cost_table.at(instance, job, item, 1), item, 1)
            }
            (None, None) => return 0.0,
        };
        if self.current[job].is_none() {
            return cost;
        }
        let begin = cost_table.periods.begins[start].max(cost_table.delay[job]);
        let stopped = cost_table.cost(instance, data, &cost_table.items[item], begin, self.lost(job, item));
        cost + MIGRATION_FACTOR * (stopped - cost_table.at(instance, job, item, start)).max(0.0)
    }

    /// Energy, lateness and later prices of a job that runs there from now on.
    pub fn cost(&self, job: usize, assignment: &Assignment) -> f64 {
        let nodes = assignment.nodes.as_slice();
        let moved = self.moved(job, assignment);
        let item = &self.cost_table.items[self.cost_table.of(job).start + assignment.config];
        let per_node = item.gpus / nodes.len().max(1) as f64;
        let gpus = |until: f64| -> f64 {
            let price = |n: &u32| self.gpu(item, self.classes.of_node[*n as usize], until);
            nodes.iter().map(|n| per_node * price(n)).sum()
        };
        let mut least = f64::INFINITY;
        for (base, until) in self.stay_and_change_costs(job, assignment.config, moved) {
            if base < least {
                least = least.min(base + gpus(until) + self.later_watts(item.watts, until));
            }
        }
        least
    }

    /// Price of a GPU after the first period. Time that a job adds by choice costs the present price: the
    /// present queue is the best forecast, and future jobs are in no price yet.
    fn gpu(&self, item: &Column, class: usize, until: f64) -> f64 {
        let (price, periods) = (&self.shadow_prices.gpu[class], &self.cost_table.periods);
        let later = price.later(periods, until);
        if item.slowed > 0.0 { later + item.slowed * price.mean_of_first(periods) } else { later }
    }

    /// Seconds until the first deferred start or change.
    pub fn wake(&self, assignments: &[Option<Assignment>]) -> Option<f64> {
        let begin = |job: usize| {
            let later = self.deferred.later[job].as_ref()?;
            let begin = self.cost_table.periods.begins[later.start].max(self.cost_table.delay[job]);
            let Some(assignment) = &assignments[job] else { return Some(begin) };
            let moved = self.moved(job, assignment);
            let item = &self.cost_table.items[self.cost_table.of(job).start + assignment.config];
            let node = *assignment.nodes.as_slice().first()?;
            let price = &self.shadow_prices.gpu[self.classes.of_node[node as usize]];
            let cost =
                |(base, until): (f64, f64)| base + item.gpus * price.later(&self.cost_table.periods, until);
            let [stay, change] = self.stay_and_change_costs(job, assignment.config, moved).map(cost);
            (change < stay).then_some(begin)
        };
        (0..assignments.len()).filter_map(begin).reduce(f64::min)
    }

    /// For a job that runs on a configuration now: staying to the end, or changing at its best later start.
    /// Each has a cost without GPUs and watts, and the time until which it holds them.
    fn stay_and_change_costs(&self, job: usize, config: usize, moved: bool) -> [(f64, f64); 2] {
        let item = self.cost_table.of(job).start + config;
        let base = self.base(job, config, moved);
        let paid = base - self.cost_table.now(item);
        let begin = self.deferred.later[job]
            .as_ref()
            .map_or(0.0, |later| self.cost_table.periods.begins[later.start]);
        [(base, self.until(job, config, moved)), (self.deferred.changing[item] + paid, begin)]
    }

    fn later_watts(&self, watts: f64, until: f64) -> f64 {
        if self.shadow_prices.budget {
            watts * self.shadow_prices.watt.later(&self.cost_table.periods, until)
        } else {
            0.0
        }
    }

    /// Whether the job would have to stop for this assignment.
    pub fn moved(&self, job: usize, assignment: &Assignment) -> bool {
        self.current[job].as_ref().is_some_and(|current| !self.same_gpus(job, current, assignment))
    }

    /// Same GPUs on the same nodes; the limit may differ.
    pub fn same_gpus(&self, job: usize, a: &Assignment, b: &Assignment) -> bool {
        let configs = &self.instance.jobs[job].configs;
        a.nodes == b.nodes && configs[a.config].gpus == configs[b.config].gpus
    }

    fn base(&self, job: usize, config: usize, moved: bool) -> f64 {
        let item = self.cost_table.of(job).start + config;
        let stays = self.cost_table.now(item);
        if !moved {
            return stays;
        }
        let data = &self.instance.jobs[job];
        let lost = self.lost(job, item);
        let cost = self.cost_table.cost(
            self.instance,
            data,
            &self.cost_table.items[item],
            self.cost_table.delay[job],
            lost,
        );
        stays + MIGRATION_FACTOR * (cost - stays).max(0.0)
    }

    fn until(&self, job: usize, config: usize, moved: bool) -> f64 {
        let item = self.cost_table.of(job).start + config;
        let lost = if moved { self.lost(job, item) } else { 0.0 };
        self.cost_table.delay[job] + lost + self.cost_table.items[item].time
    }

    /// Options that are better than waiting.
    fn options_better_than_waiting(&self, job: usize) -> Vec<Choice> {
        let mut options = Vec::new();
        let data = &self.instance.jobs[job];
        let moved = self.current[job].is_some();
        for (config, of) in data.configs.iter().enumerate() {
            let item = &self.cost_table.items[self.cost_table.of(job).start + config];
            let mut mask = self.cost_table.classes(item);
            if mask == 0 || !of.offered {
                continue;
            }
            let courses = self.stay_and_change_costs(job, config, moved);
            let limit = self.wait[job] + item.fills;
            if courses[0].0.min(courses[1].0) >= limit && !data.fully_aged {
                continue;
            }
            let watts = courses.map(|(_, until)| self.later_watts(item.watts, until));
            while mask != 0 {
                let class = mask.trailing_zeros() as usize;
                mask &= mask - 1;
                let mut cost = f64::INFINITY;
                for ((base, until), watts) in courses.iter().zip(watts) {
                    if *base < cost {
                        cost = cost.min(base + watts + item.gpus * self.gpu(item, class, *until));
                    }
                }
                if cost < limit || data.fully_aged {
                    self.offer(job, &mut options, self.option(job, (config, class), of, cost));
                }
            }
        }
        if let Some(current) = &self.current[job] {
            for (config, of) in data.configs.iter().enumerate() {
                let assignment = Assignment { config, nodes: current.nodes.clone() };
                let (old, stays) = (&data.configs[current.config], config == current.config);
                let limit_only = of.kind == old.kind && of.nodes == old.nodes && of.gpus == old.gpus;
                let node = current.nodes.as_slice().first();
                if let (true, Some(node)) = (stays || (limit_only && of.offered), node) {
                    let class = self.classes.of_node[*node as usize];
                    let cost = self.cost(job, &assignment);
                    let option = Choice { stays: true, ..self.option(job, (config, class), of, cost) };
                    self.offer(job, &mut options, option);
                }
            }
        }
        options.shrink_to_fit();
        options
    }

    /// Adds an option. Where watts are not scarce, only the cheapest power limit is kept.
    fn offer(&self, job: usize, options: &mut Vec<Choice>, option: Choice) {
        if self.instance.allowed_mw.is_none() {
            let items = &self.cost_table.items[self.cost_table.of(job)];
            let alike = |o: &Choice| {
                items[o.config].hardware == items[option.config].hardware && o.stays == option.stays
            };
            let mut same = options.iter_mut().rev().take_while(|o| alike(o));
            if let Some(other) = same.find(|o| o.class == option.class) {
                if option.cost < other.cost {
                    *other = option;
                }
                return;
            }
        }
        options.push(option);
    }

    fn option(&self, job: usize, (config, class): (usize, usize), of: &Config, cost: f64) -> Choice {
        let kind = self.classes.list[class].kind;
        let idle = self.instance.types[kind].idle;
        let (mut gpus, mut watts) = (of.total_gpus() as f64, 0.0);
        let data = &self.instance.jobs[job];
        // A job that restarts where it stops gives back its capacity there.
        if let Some(old) =
            data.leaving().map(|assignment| &data.configs[assignment.config]).filter(|o| o.kind == kind)
        {
            gpus = (gpus - old.total_gpus() as f64).max(0.0);
            watts = -old.draw.min(of.draw);
        }
        watts += of.draw - idle * gpus;
        Choice { config, class, gpus, watts, cost, reduced: cost, stays: false, span: of.nodes }
    }

    /// Solves the dual of the step: prices of the free capacity, the bound, and the ordered options.
    fn price(&mut self, base: &PartialPlan, close: f64) {
        let instance = self.instance;
        let mut room = vec![0.0; self.classes.list.len()];
        for (node, class) in self.classes.of_node.iter().enumerate() {
            let free = u32::try_from(node).map_or(0, |n| base.ledger.free_gpus(n));
            room[*class] += free.max(0) as f64;
        }
        let watts = instance.allowed_mw.map(|allowed| (allowed - base.ledger.power()).max(0) as f64 / 1e3);
        let fixed: f64 = (0..self.current.len())
            .filter_map(|job| Some(self.cost(job, base.assignments[job].as_ref()?)))
            .sum();
        let mut dual = Dual::new(self, &room, watts);
        let mut best = (f64::NEG_INFINITY, dual.gpu.clone(), 0.0);
        let mut idle = 0;
        for _ in 0..ROUNDS {
            let value = dual.round(self, &room, watts);
            let gained = value - best.0;
            idle = if gained > close * value.abs() { 0 } else { idle + 1 };
            if gained > 0.0 {
                best = (value, dual.at.0.clone(), dual.at.1);
            }
            if dual.settled || idle >= MAX_IDLE_ROUNDS {
                break;
            }
        }
        let (value, gpu, watt) = best;
        self.bound = fixed + value;
        self.dual = Prices { gpu: gpu.clone(), watt, room, watts: watts.unwrap_or(f64::INFINITY) };
        for options in &mut self.options {
            for o in options.iter_mut() {
                o.reduced = o.cost + gpu[o.class] * o.gpus + watt * o.watts;
            }
            options.sort_by(|a, b| {
                a.reduced.total_cmp(&b.reduced).then(a.config.cmp(&b.config)).then(a.class.cmp(&b.class))
            });
        }
    }
}

/// Search for the best prices of the free capacity.
struct Dual {
    gpu: Vec<f64>,
    watt: f64,
    steps: Vec<f64>,
    up: Vec<i8>,
    /// Prices of the last round.
    at: (Vec<f64>, f64),
    settled: bool,
    jobs: Vec<usize>,
    /// Cost of the jobs without any option.
    idle: f64,
}

impl Dual {
    fn new(step: &Step<'_, '_>, room: &[f64], watts: Option<f64>) -> Self {
        let worth = |o: &&Choice| o.gpus > 0.0;
        let mut scale = (0.0, 0.0);
        for (job, options) in step.options.iter().enumerate() {
            let gain = |o: &Choice| ((step.wait[job] - o.cost) / o.gpus).max(0.0);
            if let Some(most) = options.iter().filter(worth).map(gain).reduce(f64::max) {
                scale = (scale.0 + most, scale.1 + 1.0);
            }
        }
        let mean = if scale.1 > 0.0 { scale.0 / scale.1 } else { 0.0 };
        let mut steps = vec![mean * 0.25; room.len()];
        steps.push(if watts.is_some() { mean * 0.25 / 300.0 } else { 0.0 });
        let (jobs, others): (Vec<usize>, Vec<usize>) =
            (0..step.options.len()).partition(|j| !step.options[*j].is_empty());
        Self {
            gpu: vec![0.0; room.len()],
            watt: 0.0,
            up: vec![0; steps.len()],
            steps,
            at: (Vec::new(), 0.0),
            settled: false,
            idle: others.iter().map(|j| step.waiting_cost(*j)).sum(),
            jobs,
        }
    }

    /// The dual value at the present prices; then updates the prices.
    fn round(&mut self, step: &Step<'_, '_>, room: &[f64], watts: Option<f64>) -> f64 {
        let (mut used, mut drawn) = (vec![0.0; room.len()], 0.0);
        let mut value = self.idle;
        for &job in &self.jobs {
            let mut best = (step.wait[job], None);
            for o in &step.options[job] {
                let cost = o.cost + self.gpu[o.class] * o.gpus + self.watt * o.watts;
                if cost < best.0 {
                    best = (cost, Some(o));
                }
            }
            value += best.0;
            if let Some(o) = best.1 {
                used[o.class] += o.gpus;
                drawn += o.watts;
            }
        }
        for (class, room) in room.iter().enumerate() {
            value -= self.gpu[class] * room;
        }
        value -= self.watt * watts.unwrap_or(0.0);
        self.at = (self.gpu.clone(), self.watt);
        self.settled = true;
        for class in 0..room.len() {
            self.gpu[class] = self.adjust(class, self.gpu[class], used[class] - room[class]);
        }
        if let Some(watts) = watts {
            self.watt = self.adjust(room.len(), self.watt, drawn - watts);
        }
        value
    }

    fn adjust(&mut self, at: usize, price: f64, excess: f64) -> f64 {
        let up: i8 = if excess > 0.0 {
            1
        } else if excess < 0.0 && price > 0.0 {
            -1
        } else {
            return price;
        };
        self.settled = false;
        if up * self.up[at] > 0 {
            self.steps[at] *= 1.4;
        } else if up * self.up[at] < 0 {
            self.steps[at] *= 0.45;
        }
        self.up[at] = up;
        (price + f64::from(up) * self.steps[at]).max(0.0)
    }
}

impl Step<'_, '_> {
    /// Cost of a job without options: waiting, or 0 if it is placed already.
    fn waiting_cost(&self, job: usize) -> f64 {
        if self.decided[job] { 0.0 } else { self.wait[job] }
    }
}
