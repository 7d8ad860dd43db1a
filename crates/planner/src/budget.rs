//! Meeting a power budget that was lowered below the present draw.
//!
//! Power limits are lowered first, then jobs are stopped, each by least cost per watt saved. Jobs with
//! `preemption: Never` come last, and promises that hold nothing yet first. Stops that turn out to be unnecessary are undone.
//!
//! **A stopped job waits from then on**, under every method. The same decision offers it the rest of the
//! budget in its normal order, as the next decision would. Otherwise the next decision would start it at once
//! and change a plan just carried out. Such a restart counts as a migration, on other nodes or fewer GPUs. It
//! costs a restart where changes have a price.
//!
//! A job that is not [movable](crate::Job::movable) never gets another configuration. It continues with as
//! many GPUs of the same type where they fit the budget; else it is stopped and waits until it has left.

use crate::capacity::{Capacity, shared_power};
use crate::cost::Forecast;
use crate::instance::{Assignment, Holding, Instance, JobData};
use crate::partial::PartialPlan;
use crate::snapshot::{Preemption, Snapshot};

/// A stop that ends no later than this after the begin of a lower window is in time for it, in seconds: plans are made a
/// little later than asked for.
const IN_TIME_S: f64 = 60.0;
/// Assumed waiting time of a stopped job, in seconds.
const PAUSE_S: f64 = 3600.0;

/// Compiles a snapshot that passed [`Snapshot::check`] for planning.
///
/// Every method takes its instance from here. `Instance::new` alone allows the whole budget, even while
/// leaving jobs draw above it.
pub fn prepared(snapshot: &Snapshot) -> Instance<'_> {
    let mut instance = Instance::new(snapshot);
    keep_late_leavers(&mut instance);
    while_leaving(&mut instance);
    instance
}

/// A run that could not be gone before a lower window draws its power there, whatever a plan decides: it is not moved, so
/// that its watts are not given to another.
fn keep_late_leavers(instance: &mut Instance<'_>) {
    let windows = &instance.lower_windows;
    for data in &mut instance.jobs {
        let late = windows[..data.lower_windows].iter().any(|window| ends_late(data, window.after));
        if let Holding::Running { free_to_move, .. } = &mut data.holding {
            *free_to_move &= !late;
        }
    }
}

/// Whether a stop that begins now ends too late for a window that begins so many seconds from now.
fn ends_late(data: &JobData<'_>, after: f64) -> bool {
    data.job.grace.0 > after + IN_TIME_S
}

/// If more is held than the budget allows and some jobs are leaving, plans for the time when they have left.
///
/// A leaving job draws power until it is gone. Stopping others in its place would not be faster and would
/// stop too many. Nothing starts on its watts, nor on watts that a limit saves only later: the rest of the
/// budget counts both. While a job leaves for good, no job is moved. The moves were made when it was told to
/// leave, and the next decision finds further ones.
fn while_leaving(instance: &mut Instance<'_>) {
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

/// Power of a plan plus that of leaving jobs, while plans are made for the time when they have left.
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

/// Brings the partial plan within the budget by limits and stops, commitments included. Returns the stopped
/// jobs.
pub fn enforce(instance: &Instance<'_>, partial: &mut PartialPlan) -> Vec<usize> {
    if partial.ledger.within_budget(instance) {
        return Vec::new();
    }
    lower_limits(instance, partial);
    let Some(exceeded) = partial.ledger.first_exceeded(instance) else { return Vec::new() };
    let window = exceeded.checked_sub(1).map(|window| instance.lower_windows[window].after);
    let mut victims: Vec<((bool, u8), f64, usize)> = (0..instance.jobs.len())
        .filter_map(|job| {
            let (assignment, data) = (partial.assignments[job].as_ref()?, &instance.jobs[job]);
            // A promise that is withdrawn stops nobody.
            let rank = match data.job.preemption {
                _ if data.is_promised() => 0,
                Preemption::Allowed => 1,
                Preemption::Never => 2,
            };
            // What is stopped for a window but not gone by then does not help there.
            let late = rank > 0 && window.is_some_and(|after| ends_late(data, after));
            Some((
                (late, rank),
                stop_cost(instance, job, assignment) / saved_by_stop(instance, job, assignment).max(1e-3),
                job,
            ))
        })
        .collect();
    victims.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
    let mut stopped = Vec::new();
    for (_, _, job) in victims {
        let Some(exceeded) = partial.ledger.first_exceeded(instance) else { break };
        if instance.jobs[job].lower_windows >= exceeded
            && let Some(assignment) = partial.unassign(instance, job)
        {
            stopped.push((job, assignment));
        }
    }
    // The most expensive job was stopped last: restore every job that still fits.
    stopped
        .into_iter()
        .rev()
        .filter_map(|(job, assignment)| partial.try_put(instance, job, assignment).err().map(|_| job))
        .collect()
}

fn saved_by_stop(instance: &Instance<'_>, job: usize, assignment: &Assignment) -> f64 {
    instance.jobs[job].configs[assignment.config].draw
}

/// Cost of a stop: work done again, and the lateness of the pause.
fn stop_cost(instance: &Instance<'_>, job: usize, assignment: &Assignment) -> f64 {
    let data = &instance.jobs[job];
    let config = &data.configs[assignment.config];
    let lost = data.restart + data.job.lost.0;
    instance.prices.energy_cost(config.power, lost) + lateness(instance, job, config.time, lost + PAUSE_S)
        - lateness(instance, job, config.time, 0.0)
}

fn lateness(instance: &Instance<'_>, job: usize, time: f64, delay: f64) -> f64 {
    let data = &instance.jobs[job];
    let run = Forecast { delay, time, rel_std: 0.0 };
    run.lateness_cost(data.deadline - instance.now, data.weight, data.share, 0.0, &instance.snapshot.lateness)
}

/// Lowers power limits, least cost per watt saved first, until the budget is met or no limit helps.
fn lower_limits(instance: &Instance<'_>, partial: &mut PartialPlan) {
    let mut steps: Vec<(f64, usize, usize)> = Vec::new();
    for job in 0..instance.jobs.len() {
        steps.extend(
            partial.assignments[job].as_ref().and_then(|assignment| next_limit(instance, job, assignment)),
        );
    }
    while let Some(exceeded) = partial.ledger.first_exceeded(instance) {
        let least = (0..steps.len())
            .filter(|at| instance.jobs[steps[*at].1].lower_windows >= exceeded)
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

/// The lower limit of a job with the least cost per watt saved: (cost per watt, job, configuration).
fn next_limit(instance: &Instance<'_>, job: usize, assignment: &Assignment) -> Option<(f64, usize, usize)> {
    let data = &instance.jobs[job];
    let now = &data.configs[assignment.config];
    if assignment.nodes.as_slice().len() != now.nodes as usize {
        // The job is on a node that is no longer known, so no placement can be stated.
        return None;
    }
    let cost =
        |time: f64, power: f64| instance.prices.energy_cost(power, time) + lateness(instance, job, time, 0.0);
    data.configs
        .iter()
        .enumerate()
        .filter(|(_, c)| c.offered && c.same_hardware(now) && c.draw_mw() < now.draw_mw())
        .map(|(i, c)| {
            let extra_cost = cost(c.time, c.power) - cost(now.time, now.power);
            (extra_cost / (now.draw - c.draw).max(1e-3), job, i)
        })
        .min_by(|a, b| a.0.total_cmp(&b.0).then(a.2.cmp(&b.2)))
}
