//! The randomized greedy published by the ANDREAS authors (arXiv 2105.05080; public optimizer, GPU model).
//!
//! All movable jobs are planned from scratch, in order of their pressure. Each gets the cheapest
//! configuration that meets its deadline (else the fastest), on the best-fitting node. Further passes perturb
//! the order by random swaps of neighbours and, for long tables, draw random configurations. The plan with
//! the lowest *proxy* wins: the cost up to the first end of a job, plus 100 times the worst-case tardiness of
//! waiting jobs.
//!
//! The original charges nothing for a restart and moves jobs freely. [`Accounting::Predicted`] adds the cost
//! of migrations to the proxy, includes the plan that keeps every job in place, and breaks ties in its
//! favour. [`Accounting::Catalogue`] is the original, including a counter that the public code never resets.
//! A node filled in one pass counts as full in all later passes. Passes stop once as many nodes have been
//! filled, over all passes, as the cluster has. Nearly all of its 1000 passes therefore plan nothing.

mod elite;
mod keep;
mod perturb;
mod polish;
mod proxy;
mod rng;

pub(crate) use proxy::proxy;

use andreas_planner::Preemption;
use andreas_planner::policy::{
    Assignment, Capacity, Holding, Instance, Nodes, Outcome, PartialPlan, Reservation, enforce, fill, reserve,
};

use crate::candidates::{self, Candidates};
use crate::method::Method;
use crate::options::{Accounting, Options};
use perturb::{draw, perturb_order};
use rng::Numbers;

/// Maximum number of plans tried, as published.
const PLANS: u64 = 1000;
/// Work limit of a decision, in visits of a node or a configuration: some tens of milliseconds.
const WORK: u64 = 8_000_000;
/// Cost of leaving a fully aged job waiting; larger than any value of other jobs.
const FULLY_AGED_PENALTY: f64 = 1e15;
/// Maximum number of repeated decisions until one changes nothing.
const ROUNDS: usize = 6;
/// Relative difference below which two proxies count as equal.
const EQUAL: f64 = 1e-9;

type AssignmentList = Vec<(usize, Assignment)>;

/// Makes one decision.
pub(crate) fn decide(instance: &Instance<'_>, options: &Options) -> Outcome {
    let current: Vec<Option<Assignment>> = instance.jobs.iter().map(|d| d.current().cloned()).collect();
    let movable: Vec<bool> = instance
        .jobs
        .iter()
        .map(|d| match d.holding {
            Holding::Nothing | Holding::Leaving { .. } => true,
            Holding::Running { free_to_move, .. } => free_to_move,
            Holding::Committed { .. } => false,
        })
        .collect();
    let mut search = Search::new(instance, options, current, movable);
    search.run();
    if matches!(options.accounting, Accounting::Catalogue(_)) {
        return search.outcome();
    }
    // A plan that the next decision would change at once is not stable, so decide again. Each round is
    // strictly cheaper.
    let mut outcome = search.outcome();
    for _ in 1..ROUNDS {
        let current = outcome.assignments.clone();
        let movable = search.movable_after(&current);
        let trials = outcome.trials;
        search = Search::new(instance, options, current, movable);
        search.run();
        let mut next = search.outcome();
        let stable = next.assignments == outcome.assignments;
        next.stopped.append(&mut outcome.stopped);
        outcome = Outcome { trials: trials + next.trials, ..next };
        if stable {
            break;
        }
    }
    outcome
}

struct Search<'a, 'b> {
    instance: &'a Instance<'b>,
    options: &'a Options,
    /// Current assignments; changes are charged against them.
    current: Vec<Option<Assignment>>,
    movable: Vec<bool>,
    base: Base,
    queue: Queue,
    scratch: Capacity,
    incumbent: Option<Incumbent>,
    /// Elite set for the local search.
    elite: elite::Elite,
    effort: Effort,
    /// Jobs stopped to meet the power budget.
    stopped: Vec<usize>,
}

/// What every plan of a search has.
struct Base {
    /// Assignments that must not change.
    plan: PartialPlan,
    /// Capacity reserved in `plan`.
    reserved: Option<Reservation>,
}

/// The best plan so far.
struct Incumbent {
    /// Lower is better.
    score: f64,
    plan: PartialPlan,
    reserved_for: Option<usize>,
}

/// What a search has tried so far.
#[derive(Default)]
struct Effort {
    trials: u64,
    work: u64,
    /// Nodes filled by random passes so far; only the original uses it.
    ever_full: usize,
}

/// Jobs to plan, highest pressure first.
struct Queue {
    order: Vec<usize>,
    /// The first ones of `order` that stay in front.
    fully_aged: usize,
    /// Configurations of each job of the instance.
    candidates: Vec<Candidates>,
}

impl Queue {
    /// Sorts by pressure: tardiness on the fastest configuration, multiplied by the weight if positive.
    fn new(instance: &Instance<'_>, options: &Options, jobs: &[usize]) -> Self {
        let mut candidates = vec![Candidates::default(); instance.jobs.len()];
        for &job in jobs {
            candidates[job] = candidates::published(instance, &options.accounting, job);
        }
        let pressure = |job: usize| {
            let data = &instance.jobs[job];
            let late = instance.now + data.fastest - data.deadline;
            // A job without configurations or without deadline has no pressure.
            let pressure = if late.is_finite() { late } else { f64::NEG_INFINITY };
            if pressure > 0.0 { pressure * data.weight } else { pressure }
        };
        let mut keyed: Vec<(bool, f64, usize)> =
            jobs.iter().map(|&j| (instance.jobs[j].fully_aged, pressure(j), j)).collect();
        keyed.sort_by(|a, b| {
            let by_submit = || instance.jobs[a.2].job.submit.total_cmp(&instance.jobs[b.2].job.submit);
            let by_pressure = if a.0 && b.0 { by_submit() } else { b.1.total_cmp(&a.1) };
            b.0.cmp(&a.0).then(by_pressure).then_with(by_submit).then(a.2.cmp(&b.2))
        });
        Self {
            fully_aged: keyed.iter().take_while(|k| k.0).count(),
            order: keyed.into_iter().map(|(_, _, job)| job).collect(),
            candidates,
        }
    }
}

impl<'a, 'b> Search<'a, 'b> {
    fn new(
        instance: &'a Instance<'b>,
        options: &'a Options,
        current: Vec<Option<Assignment>>,
        movable: Vec<bool>,
    ) -> Self {
        let mut plan = PartialPlan::after(instance, &current, &movable);
        let stopped = enforce(instance, &mut plan);
        let jobs: Vec<usize> = (0..instance.jobs.len()).filter(|j| plan.assignments[*j].is_none()).collect();
        Self {
            instance,
            options,
            current,
            movable,
            queue: Queue::new(instance, options, &jobs),
            scratch: plan.ledger.clone(),
            base: Base { plan, reserved: None },
            incumbent: None,
            elite: elite::Elite::default(),
            effort: Effort::default(),
            stopped,
        }
    }

    fn run(&mut self) {
        let original = matches!(self.options.accounting, Accounting::Catalogue(_));
        if !original && self.queue.order.iter().any(|j| self.current[*j].is_some()) {
            self.keep_running_jobs();
        }
        self.reserve();
        let order = self.queue.order.clone();
        let greedy = self.construct(&order, None);
        self.offer(greedy);
        let mut rng = Numbers::new(&self.options.accounting, self.options.seed);
        let mut perturbed = order.clone();
        for _ in 1..self.plans() {
            if self.effort.work > WORK {
                break;
            }
            perturbed.copy_from_slice(&order);
            perturb_order(self.instance, &mut perturbed[self.queue.fully_aged..], &mut rng, original);
            let plan = self.construct(&perturbed, Some(&mut rng));
            self.offer(plan);
        }
        if self.options.method == Method::AndreasLs {
            self.polish();
        }
        if original {
            self.keep_nodes_at_the_end();
        }
    }

    /// Plans to try: nodes x jobs x GPU counts of the catalogue (1 + 2 + ... per type), at most 1000.
    fn plans(&self) -> u64 {
        let counts = |most: u64| most * (most + 1) / 2;
        let sizes: u64 = match &self.options.accounting {
            Accounting::Predicted => {
                self.instance.types.iter().map(|t| counts(t.max_node_gpus.unsigned_abs())).sum()
            }
            Accounting::Catalogue(rates) => rates.values().map(|of| counts(of.len() as u64)).sum(),
        };
        let size = (self.instance.nodes.len() as u64)
            .saturating_mul(self.queue.order.len() as u64)
            .saturating_mul(sizes);
        size.min(PLANS).min(self.options.trials).max(1)
    }

    /// Reserves capacity for the first fully aged job that only immovable jobs keep from starting.
    fn reserve(&mut self) {
        for &job in &self.queue.order[..self.queue.fully_aged] {
            if self.current[job].is_some() {
                continue;
            }
            let candidates = &self.queue.candidates[job].order;
            let fits = candidates.iter().any(|&c| self.base.plan.ledger.find(self.instance, job, c).is_ok());
            if !fits {
                self.base.reserved = reserve(self.instance, &mut self.base.plan, job, candidates);
            }
            if self.base.reserved.is_some() {
                break;
            }
        }
    }

    /// Builds the plan in which running jobs keep their place and waiting jobs fill the rest.
    fn keep_running_jobs(&mut self) {
        let mut partial = self.base.plan.clone();
        for &job in &self.queue.order {
            if let Some(assignment) = &self.current[job] {
                partial.assign(self.instance, job, assignment.clone());
            }
        }
        // A reservation draws no power yet, so no job is stopped for its watts.
        if let Some(kept) = &self.base.reserved {
            partial.ledger.release(self.instance, kept.job, &kept.assignment);
        }
        let stopped = enforce(self.instance, &mut partial);
        if let Some(kept) = &self.base.reserved {
            partial.ledger.take(self.instance, kept.job, &kept.assignment);
        }
        self.stopped.extend(stopped);
        self.finish(partial);
    }

    /// Fills the free capacity and keeps the plan if it is better.
    fn finish(&mut self, mut partial: PartialPlan) {
        let waiting: Vec<usize> =
            self.queue.order.iter().copied().filter(|j| partial.assignments[*j].is_none()).collect();
        let candidates = &self.queue.candidates;
        let mut reserved = self.base.reserved.clone();
        fill(self.instance, &mut partial, &waiting, &mut |job| candidates[job].order.clone(), &mut reserved);
        if let Some(kept) = &reserved {
            partial.ledger.release(self.instance, kept.job, &kept.assignment);
        }
        let score = self.score(&partial.assignments);
        if self.better(score) {
            self.incumbent = Some(Incumbent { score, plan: partial, reserved_for: reserved.map(|r| r.job) });
        }
    }

    /// One greedy pass over an order of jobs.
    fn construct(&mut self, order: &[usize], mut rng: Option<&mut Numbers>) -> AssignmentList {
        let mut chosen = AssignmentList::new();
        let original = matches!(self.options.accounting, Accounting::Catalogue(_)) && rng.is_some();
        self.scratch.reset_to(&self.base.plan.ledger);
        self.scratch.work = 0;
        for &job in order {
            self.scratch.work += 1;
            if !self.scratch.has_free_gpu()
                || (original && self.effort.ever_full >= self.instance.nodes.len())
            {
                break;
            }
            let candidates = &self.queue.candidates[job];
            if self.base.reserved.as_ref().is_some_and(|kept| kept.job == job) {
                continue;
            }
            let assignment = match rng.as_deref_mut() {
                Some(rng) if candidates.order.len() >= 30 => {
                    let drawn = draw(candidates, rng);
                    place(self.instance, &mut self.scratch, job, &drawn)
                }
                _ => place(self.instance, &mut self.scratch, job, &candidates.order),
            };
            if let Some(assignment) = assignment {
                self.scratch.take(self.instance, job, &assignment);
                if original {
                    let full = |n: &&u32| self.scratch.free_gpus(**n) == 0;
                    self.effort.ever_full += assignment.nodes.as_slice().iter().filter(full).count();
                }
                chosen.push((job, assignment));
            }
        }
        self.effort.trials += 1;
        self.effort.work += self.scratch.work;
        chosen
    }

    /// Makes a constructed plan the incumbent if it is better.
    fn offer(&mut self, chosen: AssignmentList) {
        let mut assignments = self.base.plan.assignments.clone();
        for (job, assignment) in &chosen {
            assignments[*job] = Some(assignment.clone());
        }
        if self.options.method != Method::Andreas {
            self.elite.offer(self.score(&assignments), &chosen);
        }
        if matches!(self.options.accounting, Accounting::Catalogue(_)) {
            let score = self.score(&assignments);
            if !chosen.is_empty() && self.better(score) {
                self.incumbent = Some(Incumbent { score, plan: self.partial(&chosen), reserved_for: None });
            }
            return;
        }
        let published = self.options.method == Method::Andreas;
        // Only stopped jobs and new types or numbers of GPUs are certain changes: a lower bound of their
        // cost.
        let sure: f64 = self
            .queue
            .order
            .iter()
            .map(|&job| {
                if self.keeps_configuration(job, &assignments) { 0.0 } else { self.instance.jobs[job].change }
            })
            .sum();
        if published && !self.better(self.proxy_without_changes(&assignments) + sure) {
            return;
        }
        let kept = self.keep_nodes(&chosen);
        let partial = self.partial(kept.as_ref().unwrap_or(&chosen));
        self.finish(partial);
    }

    fn partial(&self, chosen: &AssignmentList) -> PartialPlan {
        let mut partial = self.base.plan.clone();
        for (job, assignment) in chosen {
            partial.assign(self.instance, *job, assignment.clone());
        }
        partial
    }

    fn better(&self, score: f64) -> bool {
        self.incumbent.as_ref().is_none_or(|best| score < best.score - EQUAL * best.score.abs())
    }

    fn keeps_configuration(&self, job: usize, assignments: &[Option<Assignment>]) -> bool {
        let Some(current) = &self.current[job] else { return true };
        let data = &self.instance.jobs[job];
        let old = &data.configs[current.config];
        assignments[job].as_ref().is_some_and(|new| old.same_hardware(&data.configs[new.config]))
    }

    /// The proxy of a plan without the cost of changes.
    fn proxy_without_changes(&self, assignments: &[Option<Assignment>]) -> f64 {
        let chosen: AssignmentList =
            assignments.iter().enumerate().filter_map(|(job, s)| Some((job, s.clone()?))).collect();
        proxy(self.instance, &self.options.accounting, &chosen, |job| assignments[job].is_none())
    }

    /// The objective of the local search; lower is better, values are negative.
    fn objective_value(&self, assignments: &[Option<Assignment>]) -> f64 {
        let predicted = matches!(self.options.accounting, Accounting::Predicted);
        let change = |job: usize| {
            let moved = self.current[job].is_some() && !self.same_gpus(job, assignments[job].as_ref());
            if predicted && moved { self.instance.jobs[job].change } else { 0.0 }
        };
        let kept = self.base.reserved.as_ref().map(|kept| kept.job);
        let waits = |job: &&usize| {
            self.instance.jobs[**job].fully_aged && assignments[**job].is_none() && kept != Some(**job)
        };
        let fully_aged = self.queue.order.iter().filter(waits).count() as f64;
        fully_aged * FULLY_AGED_PENALTY
            - proxy::value(self.instance, &self.options.accounting, assignments, change)
    }

    /// Score of a plan, lower is better: the proxy in money plus the cost of restarts
    /// ([`Accounting::Predicted`] only). Other methods: [`Self::objective_value`].
    fn score(&self, assignments: &[Option<Assignment>]) -> f64 {
        if self.options.method != Method::Andreas {
            return self.objective_value(assignments);
        }
        let mut score = self.proxy_without_changes(assignments);
        if matches!(self.options.accounting, Accounting::Predicted) {
            for &job in &self.queue.order {
                if self.current[job].is_some() && !self.same_gpus(job, assignments[job].as_ref()) {
                    score += self.instance.jobs[job].change;
                }
            }
        }
        score
    }

    fn same_gpus(&self, job: usize, assignment: Option<&Assignment>) -> bool {
        let both = self.current[job].as_ref().zip(assignment);
        both.is_some_and(|(old, new)| self.instance.jobs[job].same_gpus(old, new))
    }

    /// The original calls the Analyzer once, at the end.
    fn keep_nodes_at_the_end(&mut self) {
        let Some(best) = self.incumbent.take() else { return };
        let assignments = &best.plan.assignments;
        let chosen: AssignmentList =
            self.queue.order.iter().filter_map(|&job| Some((job, assignments[job].clone()?))).collect();
        let plan = self.keep_nodes(&chosen).map(|kept| self.partial(&kept));
        self.incumbent = Some(Incumbent { plan: plan.unwrap_or(best.plan), ..best });
    }

    /// Jobs that the next decision could still move once the plan is carried out.
    fn movable_after(&self, assignments: &[Option<Assignment>]) -> Vec<bool> {
        let movable = |(job, assignment): (usize, &Option<Assignment>)| {
            let data = &self.instance.jobs[job];
            if assignment.is_none() {
                return true;
            }
            if self.same_gpus(job, assignment.as_ref()) {
                return self.movable[job];
            }
            if data.leaving().is_some() {
                return false;
            }
            data.job.movable && data.job.preemption == Preemption::Allowed && data.job.min_run.0 <= 0.0
        };
        assignments.iter().enumerate().map(movable).collect()
    }

    fn outcome(&mut self) -> Outcome {
        let best = self.incumbent.take();
        let nothing = || Incumbent { score: 0.0, plan: self.base.plan.clone(), reserved_for: None };
        let best = best.unwrap_or_else(nothing);
        Outcome {
            assignments: best.plan.assignments,
            objective: Some(best.score),
            trials: self.effort.trials,
            reserved_for: best.reserved_for,
            stopped: std::mem::take(&mut self.stopped),
            ..Outcome::default()
        }
    }
}

/// The first of `configs` that fits, with its nodes.
fn place(
    instance: &Instance<'_>,
    ledger: &mut Capacity,
    job: usize,
    configs: &[usize],
) -> Option<Assignment> {
    configs.iter().find_map(|&config| {
        let nodes: Nodes = ledger.find(instance, job, config).ok()?;
        Some(Assignment { config, nodes })
    })
}
