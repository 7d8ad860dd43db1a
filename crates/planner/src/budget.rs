//! Coming down to a power budget that was lowered below the present draw.
//!
//! Power limits first, then stops, each by least cost per watt saved; jobs with `preemption: Never` last. What turns
//! out not to have been necessary is taken back.
//!
//! **Who is stopped waits from then on**, in the eyes of every method: in the same decision it is offered what is left of
//! the budget as anybody who waits, in its turn, and gets there what the next decision would give it. Were it left out once,
//! the next decision would start it after all, and a plan that is carried out would be changed at once. For a job it is a
//! move: it stops and goes on elsewhere or on fewer GPUs, and where changes have a price it pays that of a restart.
//!
//! A job that may not be moved ([`Job::movable`](crate::Job::movable)) is never given another configuration for it: it goes on
//! with as many GPUs of the same type on nodes where they fit the budget, else it is stopped and waits until it has left.

use crate::capacity::{Capacity, shared_power};
use crate::cost::Forecast;
use crate::instance::{Assignment, Holding, Instance};
use crate::partial::PartialPlan;
use crate::snapshot::Preemption;

/// A stopped job is taken to wait about this long before it goes on.
const PAUSE_S: f64 = 3600.0;

/// Where more is held than the budget allows and some of it leaves already, plans are made for the time when it has left:
/// within the budget then.
///
/// What leaves draws until it is gone, and nothing else is gone any sooner: to stop others in its place would stop too
/// many. And nothing begins on its watts, for those are to be saved, nor on those that a limit will save once it goes on:
/// only on what is left of the budget with both. While one leaves for good nobody is moved either: who was to move did so when
/// it was told to leave, and anything better is found as soon as it is gone.
pub(crate) fn while_leaving(instance: &mut Instance<'_>) {
    let Some(budget) = instance.budget_mw else { return };
    let leaves = instance.jobs.iter().any(|data| data.leaving().is_some());
    if leaves && PartialPlan::new(instance, |_, _| true).ledger.power() > budget {
        instance.above_budget = true;
        let mut stays = PartialPlan::new(instance, |_, _| true);
        enforce(instance, &mut stays);
        let left = (budget - with_leaving(instance, &stays.assignments)).max(0);
        instance.allowed_mw = Some(budget.min(stays.ledger.power() + left));
        if instance.jobs.iter().any(|data| matches!(data.holding, Holding::Leaving { .. })) {
            for data in &mut instance.jobs {
                if let Holding::Running { free_to_move, .. } = &mut data.holding {
                    *free_to_move = false;
                }
            }
        }
    }
}

/// Power of a plan and of what leaves, where plans are made for the time when it has left.
pub(crate) fn with_leaving(instance: &Instance<'_>, assignments: &[Option<Assignment>]) -> i128 {
    let mut ledger = Capacity::empty(instance);
    let mut shared = 0;
    for (job, assignment) in assignments.iter().enumerate() {
        let leaving = instance.jobs[job].leaving();
        leaving.into_iter().chain(assignment).for_each(|assignment| ledger.take(instance, job, assignment));
        shared += leaving
            .zip(assignment.as_ref())
            .map_or(0, |assignments| shared_power(instance, job, assignments));
    }
    ledger.power() - shared
}

/// Brings the board within the budget by limits and stops; commitments and kept jobs alike. Says who was stopped.
pub(crate) fn enforce(instance: &Instance<'_>, partial: &mut PartialPlan) -> Vec<usize> {
    if partial.ledger.within_budget(instance) {
        return Vec::new();
    }
    lower_limits(instance, partial);
    if partial.ledger.within_budget(instance) {
        return Vec::new();
    }
    let mut victims: Vec<(bool, f64, usize)> = (0..instance.jobs.len())
        .filter_map(|job| {
            let assignment = partial.assignments[job].as_ref()?;
            let never = instance.jobs[job].job.preemption == Preemption::Never;
            Some((
                never,
                stop_cost(instance, job, assignment) / saved_by_stop(instance, job, assignment).max(1e-3),
                job,
            ))
        })
        .collect();
    victims.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
    let mut stopped = Vec::new();
    for (_, _, job) in victims {
        if partial.ledger.within_budget(instance) {
            break;
        }
        if let Some(assignment) = partial.unassign(instance, job) {
            stopped.push((job, assignment));
        }
    }
    // The dearest was stopped last; whoever still fits was stopped for nothing.
    stopped
        .into_iter()
        .rev()
        .filter_map(|(job, assignment)| partial.try_put(instance, job, assignment).err().map(|_| job))
        .collect()
}

fn saved_by_stop(instance: &Instance<'_>, job: usize, assignment: &Assignment) -> f64 {
    instance.jobs[job].configs[assignment.config].draw
}

/// Work done again, and the lateness of a pause.
fn stop_cost(instance: &Instance<'_>, job: usize, assignment: &Assignment) -> f64 {
    let data = &instance.jobs[job];
    let config = &data.configs[assignment.config];
    let lost = instance.snapshot.restart.0 + data.job.lost.0;
    instance.prices.energy_cost(config.power, lost) + lateness(instance, job, config.time, lost + PAUSE_S)
        - lateness(instance, job, config.time, 0.0)
}

fn lateness(instance: &Instance<'_>, job: usize, time: f64, delay: f64) -> f64 {
    let data = &instance.jobs[job];
    let run = Forecast { delay, time, rel_std: 0.0 };
    run.lateness_cost(data.deadline - instance.now, data.weight, data.share, 0.0, &instance.snapshot.lateness)
}

/// Lowers power limits, always the one with the least cost per watt saved, until the budget is kept or no
/// limit helps.
fn lower_limits(instance: &Instance<'_>, partial: &mut PartialPlan) {
    let mut steps: Vec<(f64, usize, usize)> = Vec::new();
    for job in 0..instance.jobs.len() {
        steps.extend(
            partial.assignments[job].as_ref().and_then(|assignment| next_limit(instance, job, assignment)),
        );
    }
    while !partial.ledger.within_budget(instance) && !steps.is_empty() {
        let least = (0..steps.len())
            .min_by(|a, b| steps[*a].0.total_cmp(&steps[*b].0).then(steps[*a].1.cmp(&steps[*b].1)));
        let Some(least) = least else { return };
        let (_, job, config) = steps.swap_remove(least);
        if let Some(assignment) = partial.unassign(instance, job) {
            let assignment = Assignment { config, nodes: assignment.nodes };
            steps.extend(next_limit(instance, job, &assignment));
            partial.assign(instance, job, assignment);
        }
    }
}

/// The limit below a job's present one with the least cost per watt: (cost per watt, job, configuration).
fn next_limit(instance: &Instance<'_>, job: usize, assignment: &Assignment) -> Option<(f64, usize, usize)> {
    let data = &instance.jobs[job];
    let now = &data.configs[assignment.config];
    if assignment.nodes.as_slice().len() != now.nodes as usize {
        // On nodes that are no longer known: nobody could say where it is to stay.
        return None;
    }
    let cost =
        |time: f64, power: f64| instance.prices.energy_cost(power, time) + lateness(instance, job, time, 0.0);
    data.configs
        .iter()
        .enumerate()
        .filter(|(_, c)| {
            let same = c.kind == now.kind && c.nodes == now.nodes && c.gpus == now.gpus;
            c.offered && same && c.draw_mw() < now.draw_mw()
        })
        .map(|(i, c)| {
            let dearer = cost(c.time, c.power) - cost(now.time, now.power);
            (dearer / (now.draw - c.draw).max(1e-3), job, i)
        })
        .min_by(|a, b| a.0.total_cmp(&b.0).then(a.2.cmp(&b.2)))
}
