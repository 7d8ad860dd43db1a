//! Costs at this instant: each job in each place now, or deferred at the shadow prices.
//!
//! With these costs the decision is an assignment of jobs to free capacity. Its Lagrangian dual has one price
//! per GPU of a class and one per watt. It gives a lower bound on every plan and the order in which jobs are
//! placed.

use super::classes::Classes;
use super::cost_table::{Column, CostTable};
use super::deferred::DeferredCosts;
use super::prices::{DeferredStart, ShadowPrices};
use crate::instance::{Assignment, Config, Instance};
use crate::partial::PartialPlan;

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
}

/// What a job that runs now does from then on.
#[derive(Clone, Copy, Debug)]
struct Course {
    /// Money without the GPUs and watts that it holds first.
    cost: f64,
    /// Seconds from now until which it holds them.
    until: f64,
}

/// Costs of one decision.
pub(super) struct Step<'a, 'b> {
    pub instance: &'a Instance<'b>,
    pub cost_table: &'a CostTable,
    pub classes: &'a Classes,
    pub shadow_prices: &'a ShadowPrices,
    pub deferred: &'a DeferredCosts,
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
    /// Cost of the jobs whose assignment is fixed.
    pub fixed: f64,
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
            fixed: 0.0,
        };
        for (job, later) in deferred.later.iter().enumerate() {
            let wait = step.waiting(job, later.as_ref());
            step.wait.push(wait);
        }
        step
    }

    /// With the options of the jobs that are open. Those that are `known` from a round in which the job was in the same
    /// state are taken over.
    pub fn with_options(mut self, base: &PartialPlan, mut known: Vec<Option<Vec<Choice>>>) -> Self {
        for job in 0..self.current.len() {
            if base.assignments[job].is_none() {
                let known = known.get_mut(job).and_then(Option::take);
                self.options[job] = known.unwrap_or_else(|| self.options_better_than_waiting(job));
            }
        }
        self
    }

    /// Progress lost by a change to a column, in seconds on it.
    fn lost(&self, job: usize, item: usize) -> f64 {
        let Some(current) = &self.current[job] else { return 0.0 };
        let before = self.cost_table.items[self.cost_table.columns_of(job).start + current.config].time;
        let scale = if before > 0.0 { self.cost_table.items[item].time / before } else { 1.0 };
        let data = &self.instance.jobs[job];
        data.restart + data.job.lost.0 * scale
    }

    /// Cost of a deferred start at the best time; a running job also loses work.
    fn waiting(&self, job: usize, later: Option<&DeferredStart>) -> f64 {
        let (instance, cost_table, data) = (self.instance, self.cost_table, &self.instance.jobs[job]);
        let (cost, item, start) = match (later, &self.current[job]) {
            (Some(later), _) => (later.cost, later.item, later.start),
            // It can only continue as it is.
            (None, Some(current)) => {
                let item = cost_table.columns_of(job).start + current.config;
                let next = cost_table.periods.second();
                (cost_table.cost_at(instance, job, item, next), item, next)
            }
            (None, None) => return 0.0,
        };
        if self.current[job].is_none() {
            return cost;
        }
        let begin = cost_table.periods.starts()[start].max(cost_table.delay[job]);
        cost + cost_table.restart_cost(instance, data, item, begin, self.lost(job, item))
    }

    /// Energy, lateness and later prices of a job that runs there from now on.
    pub fn cost(&self, job: usize, assignment: &Assignment) -> f64 {
        let nodes = assignment.nodes.as_slice();
        let moved = self.moved(job, assignment);
        let item = &self.cost_table.items[self.cost_table.columns_of(job).start + assignment.config];
        let per_node = item.gpus / nodes.len().max(1) as f64;
        let gpus = |course: &Course| -> f64 {
            let price = |n: &u32| self.gpu(course, self.classes.of_node[*n as usize]);
            nodes.iter().map(|n| per_node * price(n)).sum()
        };
        let mut least = f64::INFINITY;
        for course in self.stay_and_change_costs(job, assignment.config, moved) {
            if course.cost < least {
                least = least.min(course.cost + gpus(&course) + self.later_watts(item.watts, course.until));
            }
        }
        let stays = self.current[job].as_ref().is_some_and(|current| current.nodes == assignment.nodes);
        let class = |n: &u32| self.classes.of_node[*n as usize];
        let wake = |n: &u32| self.wake_cost(job, class(n));
        let unknown = |n: &u32| self.unknown_cost(job, item, class(n));
        least += nodes.iter().map(unknown).fold(0.0, f64::max);
        least + if stays { 0.0 } else { nodes.iter().map(wake).fold(0.0, f64::max) }
    }

    /// Extra cost of a run of which nothing is known.
    fn unknown_cost(&self, job: usize, item: &Column, class: usize) -> f64 {
        self.shadow_prices.unknown_cost(&self.instance.jobs[job], item.gpus, class, 0.0)
    }

    /// Cost of starting on a class whose nodes are off or starting up, per gang.
    fn wake_cost(&self, job: usize, class: usize) -> f64 {
        self.cost_table.wake_cost(self.instance, &self.instance.jobs[job], &self.classes.list[class])
    }

    /// Price of a GPU of a course after the first octave.
    fn gpu(&self, course: &Course, class: usize) -> f64 {
        self.shadow_prices.gpu[class].later(&self.cost_table.periods, course.until)
    }

    /// Seconds until the first deferred start or change.
    pub fn wake(&self, assignments: &[Option<Assignment>]) -> Option<f64> {
        let begin = |job: usize| match &assignments[job] {
            Some(assignment) => self.intended_change(job, assignment).map(|(begin, _)| begin),
            None => self.deferred.later[job].as_ref().map(|later| self.begin(job, later.start)),
        };
        (0..assignments.len()).filter_map(begin).reduce(f64::min)
    }

    /// Starts of waiting jobs that are meant for later, on nodes that are off now: job, seconds from now, configuration.
    pub fn deferred_to_nodes_off(&self, assignments: &[Option<Assignment>]) -> Vec<(usize, f64, usize)> {
        let waiting = (0..assignments.len()).filter(|job| assignments[*job].is_none());
        let later = waiting.filter_map(|job| {
            let later = self.deferred.later[job].as_ref()?;
            let off = self.classes.list[later.class].wake.0 > 0.0;
            let config = later.item - self.cost_table.columns_of(job).start;
            off.then(|| (job, self.begin(job, later.start), config))
        });
        later.collect()
    }

    pub fn begin(&self, job: usize, start: usize) -> f64 {
        self.cost_table.periods.starts()[start].max(self.cost_table.delay[job])
    }

    /// The change that makes an assignment worth its cost, if it does not stay to its end: when, and the
    /// configuration from then on.
    pub fn intended_change(&self, job: usize, assignment: &Assignment) -> Option<(f64, usize)> {
        let first = self.cost_table.columns_of(job).start;
        let (at, later) = (first + assignment.config, self.deferred.later[job].as_ref()?);
        self.deferred.change(at)?;
        let moved = self.moved(job, assignment);
        let item = &self.cost_table.items[at];
        let class = self.classes.of_node[*assignment.nodes.as_slice().first()? as usize];
        let cost = |course: Course| {
            let room = item.gpus * self.gpu(&course, class) + self.later_watts(item.watts, course.until);
            course.cost + room
        };
        let [stay, changes] = self.stay_and_change_costs(job, assignment.config, moved).map(cost);
        let start = self.deferred.expected_change(at);
        (changes < stay).then(|| (self.begin(job, start), later.item - first))
    }

    /// For a job that runs on a configuration now: staying to the end, or changing at a later start.
    fn stay_and_change_costs(&self, job: usize, config: usize, moved: bool) -> [Course; 2] {
        let at = self.cost_table.columns_of(job).start + config;
        let base = self.base(job, config, moved);
        let paid = base - self.cost_table.now(at);
        let stay = Course { cost: base, until: self.until(job, config, moved) };
        let change = match self.deferred.change(at) {
            Some(start) => {
                let begin = self.cost_table.periods.starts()[start];
                Course { cost: self.deferred.changing[at] + paid, until: begin }
            }
            None => Course { cost: f64::INFINITY, until: 0.0 },
        };
        [stay, change]
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
        let data = &self.instance.jobs[job];
        self.current[job].as_ref().is_some_and(|current| !data.same_gpus(current, assignment))
    }

    fn base(&self, job: usize, config: usize, moved: bool) -> f64 {
        let item = self.cost_table.columns_of(job).start + config;
        let stays = self.cost_table.now(item);
        if !moved {
            return stays;
        }
        let (data, lost) = (&self.instance.jobs[job], self.lost(job, item));
        let (column, delay) = (&self.cost_table.items[item], self.cost_table.delay[job]);
        let cost = self.cost_table.cost(self.instance, data, column, delay, lost);
        cost.max(stays) + self.cost_table.wear_now(self.instance, data, column)
    }

    fn until(&self, job: usize, config: usize, moved: bool) -> f64 {
        let item = self.cost_table.columns_of(job).start + config;
        let lost = if moved { self.lost(job, item) } else { 0.0 };
        self.cost_table.delay[job] + lost + self.cost_table.items[item].time
    }

    /// Options that are better than waiting.
    pub fn options_better_than_waiting(&self, job: usize) -> Vec<Choice> {
        let mut options = Vec::new();
        let data = &self.instance.jobs[job];
        let moved = self.current[job].is_some();
        for (config, of) in data.configs.iter().enumerate() {
            let item = &self.cost_table.items[self.cost_table.columns_of(job).start + config];
            let mut mask = self.cost_table.classes(item);
            if mask == 0 || !of.offered {
                continue;
            }
            let courses = self.stay_and_change_costs(job, config, moved);
            let limit = self.wait[job] + item.fills;
            if courses[0].cost.min(courses[1].cost) >= limit && !data.fully_aged {
                continue;
            }
            let watts = courses.map(|course| self.later_watts(item.watts, course.until));
            while mask != 0 {
                let class = mask.trailing_zeros() as usize;
                mask &= mask - 1;
                let mut cost = f64::INFINITY;
                for (course, watts) in courses.iter().zip(watts) {
                    if course.cost < cost {
                        cost = cost.min(course.cost + watts + item.gpus * self.gpu(course, class));
                    }
                }
                cost += self.wake_cost(job, class) + self.unknown_cost(job, item, class);
                if cost < limit || data.fully_aged {
                    self.offer(job, &mut options, self.option(job, (config, class), of, cost));
                }
            }
        }
        if let Some(current) = &self.current[job] {
            for (config, of) in data.configs.iter().enumerate() {
                let assignment = Assignment { config, nodes: current.nodes.clone() };
                let (old, stays) = (&data.configs[current.config], config == current.config);
                let limit_only = of.same_hardware(old);
                let node = current.nodes.as_slice().first();
                if let (true, Some(node)) = (stays || (limit_only && of.offered), node) {
                    let class = self.classes.of_node[*node as usize];
                    let cost = self.cost(job, &assignment);
                    let mut option = Choice { stays: true, ..self.option(job, (config, class), of, cost) };
                    let of_class = |n: &u32| self.classes.of_node[*n as usize] == class;
                    if !current.nodes.as_slice().iter().all(of_class) {
                        // The bound may charge it for no class, since it takes part of several.
                        option.gpus = 0.0;
                    }
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
            let items = &self.cost_table.items[self.cost_table.columns_of(job)];
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
        Choice { config, class, gpus, watts, cost, reduced: cost, stays: false }
    }
}

impl Step<'_, '_> {
    /// By job: its options, if it was open.
    pub fn into_options(self) -> Vec<Option<Vec<Choice>>> {
        let open = self.decided.into_iter().map(|decided| !decided);
        self.options.into_iter().zip(open).map(|(options, open)| open.then_some(options)).collect()
    }

    /// Cost of a job without options: waiting, or 0 if it is placed already.
    pub fn waiting_cost(&self, job: usize) -> f64 {
        if self.decided[job] { 0.0 } else { self.wait[job] }
    }

    /// Cost of a plan in which every job waits that may.
    pub fn cost_of_waiting(&self) -> f64 {
        self.fixed + (0..self.wait.len()).map(|job| self.waiting_cost(job)).sum::<f64>()
    }
}
