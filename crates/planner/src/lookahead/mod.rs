//! `randomized-greedy`: the randomized greedy with shadow prices over time.
//!
//! Long-run quality depends on the cost of waiting. So the method first finds prices over time, for each
//! class of GPUs and for watts ([`prices`]). They give the cost of each job in each configuration now and of
//! its best later start ([`step`]). Jobs are then placed in order of regret, first as computed, then in
//! perturbed orders. A local search improves the incumbent ([`improve`]). The Lagrangian dual of the step
//! bounds every plan from below.
//!
//! **Data flow**: takes an [`Instance`], returns an [`Outcome`]. Moves take room only through
//! [`Capacity`](crate::capacity::Capacity), so none can break a hard constraint.
//!
//! **What is never waited for.** A configuration that an otherwise idle cluster could not hold is not one
//! ([`feasible`]), and no plan leaves the whole cluster idle for prices alone.
//!
//! **Stability.** Costs of running do not depend on where jobs are that may be moved; migrations are charged on top,
//! against the present state. A later start pays for those who would have to leave for it ([`room`]). A plan must beat
//! "continue and fill free capacity" by a threshold. A gang whose start is overdue is kept room for ([`promised`]). The
//! decision is repeated on its own outcome, with the room that it leaves, until it changes nothing, or [`ROUNDS`] times.
//! Where one has started or stopped a job that may not be moved, prices are searched again first; a job is started so
//! once.

mod aged;
mod choosers;
mod classes;
mod cost_table;
mod deferred;
mod dual;
mod feasible;
mod improve;
mod periods;
mod price_search;
mod prices;
mod promised;
mod room;
mod search_state;
mod step;
#[cfg(test)]
mod tests;
mod track;

use aged::Served;
use classes::Classes;
use cost_table::CostTable;
use deferred::DeferredCosts;
use improve::Improver;
use prices::ShadowPrices;
use room::Room;
use search_state::SearchState;
use step::{Choice, Step};

use crate::budget;
use crate::instance::{Assignment, Holding, Instance, JobData};
use crate::method::Options;
use crate::outcome::Outcome;
use crate::partial::PartialPlan;
use crate::reserve::Reservation;
use crate::rng::Random;

/// Maximum number of repeated decisions until one changes nothing.
const ROUNDS: usize = 24;
/// Minimum relative gain over continuing as now.
const HYSTERESIS: f64 = 1e-4;

/// Data that does not depend on where jobs are that may be moved.
#[derive(Clone, Copy)]
struct Context<'a, 'b> {
    instance: &'a Instance<'b>,
    options: &'a Options,
    classes: &'a Classes,
    cost_table: &'a CostTable,
    priced: &'a Priced<'a>,
}

/// Makes one decision.
pub(crate) fn decide(instance: &Instance<'_>, options: &Options) -> Outcome {
    let classes = Classes::new(instance);
    let cost_table = CostTable::new(instance, &classes);
    let tables = (&classes, &cost_table);
    let prices = |kept: &Kept| ShadowPrices::new(instance, tables, kept, options.gap);
    let outcome = decide_at(instance, options, tables, &prices);
    if !waits_for_nothing(instance, &cost_table, &outcome) {
        return outcome;
    }
    decide_at(instance, options, tables, &|_| ShadowPrices::none(instance, tables))
}

/// By job: its placement, if it runs there to its end.
type Kept = [Option<Assignment>];

/// Those of these assignments that are kept to the job's end.
fn kept(instance: &Instance<'_>, assignments: &[Option<Assignment>]) -> Vec<Option<Assignment>> {
    let kept = |(data, assignment): (&JobData<'_>, &Option<Assignment>)| {
        if data.job.may_restart() { None } else { assignment.clone() }
    };
    instance.jobs.iter().zip(assignments).map(kept).collect()
}

/// Prices, and what follows from them beside what is held.
struct Priced<'p> {
    shadow_prices: &'p ShadowPrices,
    deferred: DeferredCosts,
}

impl<'p> Priced<'p> {
    fn new(
        instance: &Instance<'_>,
        (classes, cost_table): (&Classes, &CostTable),
        shadow_prices: &'p ShadowPrices,
        current: &[Option<Assignment>],
    ) -> Self {
        let room = Room::new(instance, (classes, cost_table), current);
        Self {
            shadow_prices,
            deferred: DeferredCosts::new(instance, (classes, cost_table), shadow_prices, room),
        }
    }
}

/// Whether a plan leaves the whole cluster idle although neither tariff nor budget changes before it would start
/// something. Then nothing happens until the next decision, which would postpone all again. Prices lead there where
/// what fits as a whole does not fit by their averages, such as the overhead of nodes per GPU.
fn waits_for_nothing(instance: &Instance<'_>, cost_table: &CostTable, outcome: &Outcome) -> bool {
    let idle = outcome.assignments.iter().all(Option::is_none)
        && instance.jobs.iter().all(|data| matches!(data.holding, Holding::Nothing));
    let news = periods::edges(instance).first().copied().unwrap_or(f64::INFINITY);
    idle && outcome.wake.is_some_and(|begin| begin + cost_table.periods.unit() <= news)
}

/// Makes one decision at the prices that go with what is kept.
fn decide_at(
    instance: &Instance<'_>,
    options: &Options,
    tables: (&Classes, &CostTable),
    prices: &dyn Fn(&Kept) -> ShadowPrices,
) -> Outcome {
    let (classes, cost_table) = tables;
    let (mut current, mut movable) = present(instance);
    let mut fixed = kept(instance, &current);
    let first_prices = prices(&fixed);
    let priced_first = Priced::new(instance, tables, &first_prices, &current);
    let mut prices_again = None;
    let context = Context { instance, options, classes, cost_table, priced: &priced_first };
    let first = context.round(&current, &movable, Vec::new());
    let (mut bound, mut waiting_cost) = (first.bound, first.waiting_cost);
    let aged = fully_aged(instance, &first.assignments);
    let mut last = first;
    let (mut stopped, mut trials) = (Vec::new(), 0);
    let mut later = priced_first.deferred.later.clone();
    for _ in 1..ROUNDS {
        stopped.append(&mut last.stopped);
        trials += last.trials;
        if last.assignments == current {
            break;
        }
        movable = movable_after(instance, &current, &last.assignments, &movable);
        // What starts now and is then kept is no longer the others' to take.
        let fixed_now = kept(instance, &last.assignments);
        let again = fixed_now != fixed;
        if again {
            prices_again = Some(prices(&fixed_now));
            fixed = fixed_now;
        }
        let shadow_prices = prices_again.as_ref().unwrap_or(&first_prices);
        let priced = Priced::new(instance, tables, shadow_prices, &last.assignments);
        // The options of a job that waits, as before, are the same where waiting costs the same: they depend on nobody else.
        let waits = |job: usize| current[job].is_none() && last.assignments[job].is_none();
        let same = |job: usize| !again && waits(job) && priced.deferred.later[job] == later[job];
        let known = std::mem::take(&mut last.options).into_iter().enumerate();
        let known = known.map(|(job, options)| options.filter(|_| same(job))).collect();
        current.clone_from(&last.assignments);
        last = Context { priced: &priced, ..context }.round(&current, &movable, known);
        later = priced.deferred.later;
    }
    let aged_at_last = fully_aged(instance, &last.assignments);
    if aged_at_last != aged {
        (bound, waiting_cost) = context.bound_with_aged(aged_at_last);
    }
    // The bound is of the first prices, so the cost is as well. What is meant for later is of the last.
    let PricedFromTheStart { cost, mut wake, mut intended, mut deferred } =
        context.priced_from_the_start(&last.assignments);
    let shadow_prices = prices_again.as_ref().unwrap_or(&first_prices);
    if prices_again.is_some() {
        let priced = Priced::new(instance, tables, shadow_prices, &present(instance).0);
        let again = Context { priced: &priced, ..context }.priced_from_the_start(&last.assignments);
        (wake, intended, deferred) = (again.wake, again.intended, again.deferred);
    }
    Outcome {
        assignments: last.assignments,
        objective: Some(cost),
        trials,
        reserved_for: last.reserved_for,
        stopped,
        bound: Some(bound),
        waiting_cost: Some(waiting_cost),
        intended,
        deferred,
        prices: Some(shadow_prices.publish(instance, classes)),
        asked: shadow_prices.asked,
        wake,
    }
}

/// By job: its present assignment, and whether it may be moved now.
fn present(instance: &Instance<'_>) -> (Vec<Option<Assignment>>, Vec<bool>) {
    let movable = |holding: &Holding| match holding {
        Holding::Nothing | Holding::Leaving { .. } => true,
        Holding::Running { free_to_move, .. } => *free_to_move,
        Holding::Committed { .. } => false,
    };
    instance.jobs.iter().map(|data| (data.current().cloned(), movable(&data.holding))).unzip()
}

/// A plan against the initial state.
struct PricedFromTheStart {
    cost: f64,
    /// Seconds until the first deferred start or change.
    wake: Option<f64>,
    /// Intended changes and promised starts: job, seconds from now, configuration.
    intended: Vec<(usize, f64, usize)>,
    /// Deferred starts on nodes that are off: likewise.
    deferred: Vec<(usize, f64, usize)>,
}

/// Result of one round.
struct RoundResult {
    assignments: Vec<Option<Assignment>>,
    bound: f64,
    waiting_cost: f64,
    trials: u64,
    reserved_for: Option<usize>,
    stopped: Vec<usize>,
    /// By job: its options, if it was open.
    options: Vec<Option<Vec<Choice>>>,
}

impl<'b> Context<'_, 'b> {
    fn step<'s>(&'s self, current: &'s [Option<Assignment>], base: &PartialPlan) -> Step<'s, 'b> {
        let Priced { shadow_prices, deferred } = self.priced;
        let tables = (self.cost_table, self.classes, *shadow_prices, deferred);
        Step::new(self.instance, tables, current, base)
    }

    /// What a plan costs, and means to do later, seen from the present state.
    fn priced_from_the_start(&self, assignments: &[Option<Assignment>]) -> PricedFromTheStart {
        let (current, _) = present(self.instance);
        let mut partial = PartialPlan::new(self.instance, |_, _| false);
        let fixed = partial.clone();
        for (job, assignment) in assignments.iter().enumerate() {
            if partial.assignments[job].is_some() {
                partial.unassign(self.instance, job);
            }
            if let Some(assignment) = assignment {
                partial.assign(self.instance, job, assignment.clone());
            }
        }
        let step = self.step(&current, &fixed);
        let open = vec![false; assignments.len()];
        let change = |job: usize| {
            let (begin, config) = step.intended_change(job, assignments[job].as_ref()?)?;
            Some((job, begin, config))
        };
        PricedFromTheStart {
            wake: step.wake(assignments),
            intended: (0..assignments.len())
                .filter_map(change)
                .chain(promised::starts(&step, assignments))
                .collect(),
            deferred: step.deferred_to_nodes_off(assignments),
            cost: SearchState::new(&step, partial, &open).total(),
        }
    }

    /// The lower bound of the plans in which fully aged jobs run so, and the cost of letting all others wait. Fully aged
    /// jobs are placed first, so the bound of a round holds only for what that round gave them.
    fn bound_with_aged(&self, aged: Vec<(usize, Assignment)>) -> (f64, f64) {
        let (current, movable) = present(self.instance);
        let mut base = PartialPlan::after(self.instance, &current, &movable);
        for (job, assignment) in aged {
            if base.assignments[job].is_none() {
                base.assign(self.instance, job, assignment);
            }
        }
        let step = self.step(&current, &base).with_options(&base, Vec::new());
        let step = dual::priced_step(step, &base, self.options.gap);
        (step.bound, step.cost_of_waiting())
    }

    /// One decision on a state; `known` has the options of jobs for which they are known.
    fn round(
        &self,
        current: &[Option<Assignment>],
        movable: &[bool],
        known: Vec<Option<Vec<Choice>>>,
    ) -> RoundResult {
        let instance = self.instance;
        let mut base = PartialPlan::after(instance, current, movable);
        let mut stopped = budget::enforce(instance, &mut base);
        let Served { kept, before } = self.serve_fully_aged(current, &mut base);
        // The bound holds for all free capacity, with or without the reservation.
        if let Some(kept) = &kept {
            base.ledger.release(instance, kept.job, &kept.assignment);
        }
        let step = self.step(current, &base).with_options(&base, known);
        let step = dual::priced_step(step, &base, self.options.gap);
        let mut stay = base.clone();
        let taken = before.map(|before| (before, stay.ledger.clone()));
        if let Some(kept) = &kept {
            base.ledger.take(instance, kept.job, &kept.assignment);
        }
        let open: Vec<bool> = base.assignments.iter().map(Option::is_none).collect();
        let jobs: Vec<usize> = (0..open.len()).filter(|j| open[*j] && !step.options[*j].is_empty()).collect();
        let mut queue = order(&step, &jobs);
        // Backfilling reserved capacity is open even to jobs that would prefer to wait.
        queue.extend((0..open.len()).filter(|j| kept.is_some() && open[*j] && step.options[*j].is_empty()));

        for (job, assignment) in current.iter().enumerate() {
            if let (Some(assignment), None) = (assignment, &stay.assignments[job]) {
                // A held placement stays, unless a job with precedence has just taken of its capacity.
                let is_displaced = taken.as_ref().is_some_and(|(before, after)| {
                    stay.ledger.is_displaced(instance, job, assignment, (before, after))
                });
                if !is_displaced {
                    stay.assign(instance, job, assignment.clone());
                }
            }
        }
        stopped.extend(budget::enforce(instance, &mut stay));
        // A reservation draws no power yet, so no job is stopped for its watts.
        if let Some(kept) = &kept {
            stay.ledger.take(instance, kept.job, &kept.assignment);
        }
        let unmoved = (kept.is_none() && promised::any_is_due(instance)).then(|| stay.clone());
        let mut stay = SearchState::new(&step, stay, &open);
        stay.fill(&queue, kept.as_ref());
        // No plan is cheaper by more than the threshold: no search is needed.
        let near = HYSTERESIS.max(self.options.gap);
        let (bound, waiting_cost) = (step.bound, step.cost_of_waiting());
        let enough = |cost: f64| cost - bound <= near * cost.abs();
        let mut trials = 1;
        let mut chosen = match enough(stay.cost) {
            true => stay,
            false => self.search(&step, (stay, base), (&jobs, &queue, kept.as_ref()), &enough, &mut trials),
        };
        let kept = match unmoved {
            Some(unmoved) => promised::keep_room(&mut chosen, unmoved, &queue),
            None => kept,
        };
        RoundResult {
            reserved_for: kept.as_ref().map(|k| k.job),
            assignments: finished(instance, chosen.partial, kept.as_ref()),
            bound,
            waiting_cost,
            trials,
            stopped,
            options: step.into_options(),
        }
    }

    /// A plan that is cheaper than staying by more than the threshold, or else that one.
    fn search<'s, 'a>(
        &self,
        step: &'s Step<'a, 'b>,
        (stay, base): (SearchState<'s, 'a, 'b>, PartialPlan),
        (jobs, queue, kept): (&[usize], &[usize], Option<&Reservation>),
        enough: &impl Fn(f64) -> bool,
        trials: &mut u64,
    ) -> SearchState<'s, 'a, 'b> {
        let open = stay.open;
        let mut rng = Random::new(self.options.seed);
        let mut best = SearchState::new(step, base.clone(), open);
        best.construct(queue);
        best.fill(queue, kept);
        for _ in 0..self.passes(jobs.len()) {
            if enough(best.cost) {
                break;
            }
            let mut search_state = SearchState::new(step, base.clone(), open);
            search_state.construct(&perturbed(step, queue, &mut rng));
            search_state.fill(queue, kept);
            *trials += 1;
            if search_state.cost < best.cost {
                best = search_state;
            }
        }
        if stay.cost <= best.cost {
            best = SearchState::new(step, stay.partial.clone(), open);
        }
        let moves = self.moves(jobs.len());
        let improver = Improver { search_state: &mut best, rng: &mut rng, jobs, waiting: Vec::new() };
        *trials += improver.run(moves, enough);
        best.fill(queue, kept);
        let better = best.cost < stay.cost - HYSTERESIS * stay.cost.abs();
        if better { best } else { stay }
    }

    /// Number of constructions with a perturbed order.
    fn passes(&self, jobs: usize) -> u64 {
        let most = (1000 / jobs.max(1)).clamp(1, 8) as u64;
        most.min(self.options.trials)
    }

    /// Number of local search moves.
    fn moves(&self, jobs: usize) -> u64 {
        (200 + 6 * jobs.min(500) as u64 + 2 * jobs as u64).saturating_mul(self.options.trials) / 1000
    }
}

/// The fully aged jobs that run, with their placements.
fn fully_aged(instance: &Instance<'_>, assignments: &[Option<Assignment>]) -> Vec<(usize, Assignment)> {
    let runs = |job: usize| Some((job, assignments[job].clone()?));
    (0..assignments.len()).filter(|job| instance.jobs[*job].fully_aged).filter_map(runs).collect()
}

/// Jobs that the next decision could still move once the plan is carried out.
fn movable_after(
    instance: &Instance<'_>,
    current: &[Option<Assignment>],
    assignments: &[Option<Assignment>],
    before: &[bool],
) -> Vec<bool> {
    let movable = |job: usize| {
        let data = &instance.jobs[job];
        let (Some(new), old) = (&assignments[job], &current[job]) else { return true };
        if old.as_ref().is_some_and(|old| data.same_gpus(old, new)) {
            return before[job];
        }
        if data.leaving().is_some() {
            return false;
        }
        data.job.may_restart() && data.job.min_run.0 <= 0.0
    };
    (0..assignments.len()).map(movable).collect()
}

/// The plan itself, without the reservation.
fn finished(
    instance: &Instance<'_>,
    mut partial: PartialPlan,
    kept: Option<&Reservation>,
) -> Vec<Option<Assignment>> {
    if let Some(kept) = kept {
        partial.ledger.release(instance, kept.job, &kept.assignment);
    }
    partial.assignments
}

/// Sorts jobs by their loss per GPU if they wait, at the dual prices.
fn order(step: &Step<'_, '_>, jobs: &[usize]) -> Vec<usize> {
    sorted(jobs.iter().map(|&job| (regret(step, job), job)).collect())
}

fn regret(step: &Step<'_, '_>, job: usize) -> f64 {
    step.options[job].first().map_or(0.0, |o| (step.wait[job] - o.reduced) / libm::sqrt(o.gpus.max(1.0)))
}

fn perturbed(step: &Step<'_, '_>, queue: &[usize], rng: &mut Random) -> Vec<usize> {
    let noisy =
        |job: &usize, rng: &mut Random| (regret(step, *job) * (0.7 + 0.6 * rng.unit_interval()), *job);
    sorted(queue.iter().map(|job| noisy(job, rng)).collect())
}

fn sorted(mut keyed: Vec<(f64, usize)>) -> Vec<usize> {
    keyed.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    keyed.into_iter().map(|(_, job)| job).collect()
}
