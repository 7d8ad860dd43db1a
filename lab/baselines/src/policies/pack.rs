//! Assigns preferences to nodes.

use andreas_planner::Preemption;
use andreas_planner::policy::{
    Assignment, Holding, Instance, PartialPlan, Reservation, enforce, reserve, run,
};

use super::ranking::{Preference, Ranking, View};
use crate::memory::Memory;
use crate::tickets::Tickets;

/// The resulting assignments.
pub(super) struct StableAssignment {
    pub assignments: Vec<Option<Assignment>>,
    /// Jobs stopped to meet the power budget.
    pub stopped: Vec<usize>,
    pub reserved_for: Option<usize>,
    /// Number of repetitions.
    pub rounds: u64,
}

/// Maximum repetitions until nothing changes. Few are needed: served jobs only improve in the order of
/// preferences.
const REPETITIONS: u64 = 8;
/// Maximum rounds of assignment: a later job may open a node whose overhead had exceeded the budget.
const ROUNDS: usize = 16;

/// Assigns by a policy's preferences and repeats on the outcome until it is stable.
///
/// `keep`: moves and stops no job; assigns free capacity only.
pub(super) fn assign_until_stable(
    instance: &Instance<'_>,
    policy: &dyn Ranking,
    (memory, tickets): (&Memory, &Tickets),
    keep: bool,
) -> StableAssignment {
    let mut whole = PartialPlan::new(instance, |_, _| true);
    let stopped = enforce(instance, &mut whole);
    if instance.above_budget && stopped.is_empty() {
        // While jobs leave for a lower budget, no job takes their place.
        return StableAssignment { assignments: whole.assignments, stopped, reserved_for: None, rounds: 0 };
    }
    let mut base = whole.clone();
    if !keep && !instance.above_budget {
        for (job, data) in instance.jobs.iter().enumerate() {
            if matches!(data.holding, Holding::Running { free_to_move: true, .. }) {
                base.unassign(instance, job);
            }
        }
    }
    let mut current = whole.assignments;
    let mut reserved_for = None;
    let mut rounds = 0;
    while rounds < REPETITIONS {
        rounds += 1;
        let mut preferences =
            ordered(policy, &View { instance, base: &base, current: &current, memory, tickets });
        // A job stopped for a lower budget does not start on watts that leaving jobs still draw.
        preferences.retain(|preference| !instance.above_budget || !stopped.contains(&preference.job));
        let (mut partial, reserved) = assign(instance, &base, &current, &preferences);
        if reserved.is_none()
            && let Some(stayed) = keep_running_in_place(instance, &base, &current, &partial)
        {
            partial = stayed;
        }
        reserved_for = reserved.map(|r| r.job);
        let stable = partial.assignments == current;
        current = partial.assignments;
        if stable {
            break;
        }
        // A new job that is immovable once it runs is treated so from here, as at the next decision.
        for (job, assignment) in current.iter().enumerate() {
            let begins = assignment.as_ref() != instance.jobs[job].current();
            if let (Some(assignment), None, true) =
                (assignment, &base.assignments[job], begins && immovable_once_started(instance, job))
            {
                base.assign(instance, job, assignment.clone());
            }
        }
    }
    StableAssignment { assignments: current, stopped, reserved_for, rounds }
}

/// Whether a job that starts now is immovable at the next decision.
fn immovable_once_started(instance: &Instance<'_>, job: usize) -> bool {
    let job = instance.jobs[job].job;
    !job.movable || job.preemption == Preemption::Never || job.min_run.0 > 0.0
}

/// Fully aged jobs first, then preferences, then jobs without one for leftovers.
fn ordered(policy: &dyn Ranking, view: &View<'_, '_>) -> Vec<Preference> {
    let instance = view.instance;
    let mut preferences = policy.preferences(view);
    preferences.retain(|preference| view.base.assignments[preference.job].is_none());
    let rest = view.unassigned_jobs().map(|job| Preference { job, configs: policy.leftovers(instance, job) });
    // Fully aged jobs ignore the policy's choice.
    let (fully_aged, others): (Vec<Preference>, Vec<Preference>) =
        rest.partition(|w| instance.jobs[w.job].fully_aged);
    let mut fully_aged = fully_aged;
    fully_aged.sort_by(|a, b| {
        let submit = |w: &Preference| instance.jobs[w.job].job.submit;
        submit(a).total_cmp(&submit(b)).then(a.job.cmp(&b.job))
    });
    fully_aged.into_iter().chain(preferences).chain(others).collect()
}

/// Assigns in order; a job whose present placement is allowed keeps it. The first fully aged job that does not
/// fit gets a reservation.
fn assign(
    instance: &Instance<'_>,
    base: &PartialPlan,
    current: &[Option<Assignment>],
    preferences: &[Preference],
) -> (PartialPlan, Option<Reservation>) {
    let mut partial = base.clone();
    let mut reserved: Option<Reservation> = None;
    for _ in 0..ROUNDS {
        let mut placed = false;
        for Preference { job, configs } in preferences {
            let job = *job;
            if partial.assignments[job].is_some() {
                continue;
            }
            if let Some(own) = reserved.take_if(|r| r.job == job) {
                partial.ledger.release(instance, job, &own.assignment);
            }
            if try_assign(instance, &mut partial, current, job, configs) {
                placed = true;
            } else if let Some(kept) = &reserved {
                // Until the reserved capacity is expected to be free, other jobs may use it.
                let short: Vec<usize> =
                    configs.iter().copied().filter(|c| run(instance, job, *c) <= kept.ready).collect();
                partial.ledger.release(instance, kept.job, &kept.assignment);
                placed |= try_assign(instance, &mut partial, current, job, &short);
                partial.ledger.take(instance, kept.job, &kept.assignment);
            } else if instance.jobs[job].fully_aged {
                reserved = reserve(instance, &mut partial, job, configs);
            }
        }
        if !placed {
            break;
        }
    }
    (partial, reserved)
}

/// Assigns the current placement if allowed, else the first configuration that fits. Returns
/// whether the job was placed.
fn try_assign(
    instance: &Instance<'_>,
    partial: &mut PartialPlan,
    current: &[Option<Assignment>],
    job: usize,
    configs: &[usize],
) -> bool {
    let all = &instance.jobs[job].configs;
    // Setting a power limit needs no move.
    if let Some(assignment) = &current[job]
        && configs.iter().any(|c| all[*c].same_hardware(&all[assignment.config]))
        && partial.try_put(instance, job, assignment.clone()).is_ok()
    {
        return true;
    }
    partial.ledger.has_free_gpu() && partial.place_first(instance, job, configs)
}

/// The same jobs with the same GPUs, with running jobs kept in place; `None` if the others then do not fit.
fn keep_running_in_place(
    instance: &Instance<'_>,
    base: &PartialPlan,
    current: &[Option<Assignment>],
    wanted: &PartialPlan,
) -> Option<PartialPlan> {
    let mut partial = base.clone();
    let mut others = Vec::new();
    for (job, assignment) in wanted.assignments.iter().enumerate() {
        let Some(assignment) = assignment.as_ref().filter(|_| partial.assignments[job].is_none()) else {
            continue;
        };
        let all = &instance.jobs[job].configs;
        match &current[job] {
            Some(here) if all[assignment.config].same_hardware(&all[here.config]) => {
                partial.try_put(instance, job, here.clone()).ok()?;
            }
            _ => others.push((job, assignment.config)),
        }
    }
    others.sort_by_key(|(job, config)| {
        (std::cmp::Reverse(instance.jobs[*job].configs[*config].total_gpus()), *job)
    });
    others.into_iter().all(|(job, config)| partial.place_first(instance, job, &[config])).then_some(partial)
}
