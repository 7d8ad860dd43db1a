//! Converts a decision by indices into a [`Plan`] by names, with the forecast of every job.

use andreas_model::{GpuCount, JobId, Joules, Money, Seconds, Time};

use crate::budget;
use crate::cost::Forecast;
use crate::explain::Explainer;
use crate::instance::{Assignment, Holding, Instance};
use crate::order::{Execution, Order};
use crate::outcome::Outcome;
use crate::partial::PartialPlan;
use crate::plan::{Decision, JobPlan, Plan};
use crate::snapshot::{IntendedChange, Job, JobState, Snapshot};

/// Costs that differ by less than this part are equal.
const ROUNDING: f64 = 1e-9;

/// The plan of a decision, with the name and the seed of the method that made it.
pub(crate) fn assemble(
    instance: &Instance<'_>,
    (method, seed): (&'static str, u64),
    outcome: Outcome,
) -> Plan {
    let mut partial = PartialPlan::new(instance, |_, _| false);
    for (job, assignment) in outcome.assignments.iter().enumerate() {
        match (assignment, &partial.assignments[job]) {
            (Some(assignment), None) => partial.assign(instance, job, assignment.clone()),
            (None, Some(_)) => {
                partial.unassign(instance, job);
            }
            (Some(assignment), Some(there)) if assignment != there => {
                partial.unassign(instance, job);
                partial.assign(instance, job, assignment.clone());
            }
            _ => {}
        }
    }
    let assignments = partial.assignments.clone();
    let executions = Order::new(instance, &assignments).executions();
    let budgeted = budgeted_mw(instance, &assignments, &executions, partial.ledger.power());
    let mut explainer = Explainer::new(instance, partial, &outcome);
    let asked = outcome.wake.map(|wake| instance.snapshot.now + Seconds(wake));
    let next = instance.next_edge(&assignments).into_iter().chain(asked);
    let mut plan = Plan {
        now: instance.snapshot.now,
        method: method.into(),
        seed,
        trials: outcome.trials,
        cost: Money::ZERO,
        bound: None,
        gap: None,
        missed_saving: None,
        asked_over_available: outcome.asked,
        gpus_left_free: 0,
        bound_invalid: false,
        budgeted_power: instance.in_scope(budgeted),
        allowed_power: instance.budget_mw.map(|mw| instance.in_scope(mw)),
        next_event: next.reduce(Time::min),
        jobs: std::collections::BTreeMap::new(),
        prices: outcome.prices.clone(),
        intended: intended(instance, &outcome.intended),
        deferred: intended(instance, &outcome.deferred),
    };
    let mut total = Money::ZERO;
    let mut jobs = Vec::with_capacity(assignments.len());
    for (job, (data, execution)) in instance.jobs.iter().zip(executions).enumerate() {
        let expected = match (execution, &assignments[job]) {
            (Some(Execution::Wait(decision)), _) => waiting(instance, job, decision),
            (Some(Execution::Stay(held)), _) => running(instance, job, held, Vec::new()),
            (Some(Execution::Now { after }), Some(assignment)) => {
                let after = after.iter().map(|other| instance.jobs[*other].job.id.clone()).collect();
                running(instance, job, assignment, after)
            }
            _ => waiting(instance, job, explainer.wait(job)),
        };
        // A run that would be late as it is gets more GPUs as soon as it may be moved.
        let late = expected.finish.is_some_and(|end| data.job.deadline.is_some_and(|due| end > due));
        let settles = settles(data.job, instance.snapshot).filter(|_| late);
        let events = plan.next_event.into_iter().chain(expected.finish).chain(settles);
        plan.next_event = events.reduce(Time::min);
        total += expected.cost;
        jobs.push((data.job.id.clone(), expected));
    }
    plan.gpus_left_free = explainer.gpus_left_free();
    // Already sorted by name: the map is built in one pass.
    plan.jobs = jobs.into_iter().collect();
    plan.cost = outcome.objective.map_or(total, Money);
    let valid = |bound: &f64| *bound <= plan.cost.0 + ROUNDING * plan.cost.0.abs();
    plan.bound_invalid = outcome.bound.is_some_and(|bound| !valid(&bound));
    plan.bound = outcome.bound.filter(valid).map(Money);
    plan.gap = plan.bound.and_then(|bound| gap(plan.cost, bound));
    plan.missed_saving = plan.bound.zip(outcome.waiting_cost).and_then(|(bound, waiting)| {
        let missed = (plan.cost.0 - bound.0).max(0.0) / (waiting - bound.0);
        missed.is_finite().then(|| missed.clamp(0.0, 1.0))
    });
    plan
}

/// The most that is drawn while the plan is carried out. A promised job that waits for others draws nothing yet.
fn budgeted_mw(
    instance: &Instance<'_>,
    assignments: &[Option<Assignment>],
    executions: &[Option<Execution<'_>>],
    at_end: i128,
) -> i128 {
    if !instance.above_budget {
        return at_end;
    }
    let mut now = assignments.to_vec();
    for (job, execution) in executions.iter().enumerate() {
        let waits = match execution {
            Some(Execution::Now { after }) => !after.is_empty(),
            Some(Execution::Wait(_)) => true,
            Some(Execution::Stay(_)) | None => false,
        };
        let data = &instance.jobs[job];
        if waits && data.is_promised() && data.current() == assignments[job].as_ref() {
            now[job] = None;
        }
    }
    budget::with_leaving(instance, &now).max(at_end)
}

/// From when on a run that has just started is moved like any other.
fn settles(job: &Job, snapshot: &Snapshot) -> Option<Time> {
    let JobState::Running { since, .. } = &job.state else { return None };
    let at = *since + job.restart_time(snapshot).max(job.min_run);
    (job.may_restart() && at > snapshot.now).then_some(at)
}

/// Intended changes by name. One that the last plan intended too keeps its instant until that has passed.
fn intended(instance: &Instance<'_>, changes: &[(usize, f64, usize)]) -> Vec<IntendedChange> {
    let now = instance.snapshot.now;
    let named = |&(job, begin, config): &(usize, f64, usize)| {
        let data = &instance.jobs[job];
        let config = &data.configs[config];
        let earlier = data.intended.filter(|intended| intended.config_is(instance, config));
        let at = now + Seconds(begin);
        IntendedChange {
            job: data.job.id.clone(),
            at: earlier
                .map(|intended| intended.at)
                .filter(|at| *at > now)
                .map_or(at, |before| before.min(at)),
            gpu_type: instance.types[config.kind].name.clone(),
            nodes: config.nodes,
            gpus_per_node: GpuCount(u32::try_from(config.gpus).unwrap_or(u32::MAX)),
        }
    };
    changes.iter().map(named).collect()
}

/// Distance of a cost from its bound, relative to the bound.
fn gap(cost: Money, bound: Money) -> Option<f64> {
    let over = (cost.0 - bound.0).max(0.0);
    let gap = if over > 0.0 { over / bound.0 } else { 0.0 };
    (bound.0 > 0.0 && gap.is_finite()).then_some(gap)
}

/// Forecast of a job that continues, starts or moves there.
fn forecast(instance: &Instance<'_>, job: usize, assignment: &Assignment) -> Forecast {
    let data = &instance.jobs[job];
    let config = &data.configs[assignment.config];
    let delay = match &data.holding {
        Holding::Running { assignment: old, .. } if !data.same_gpus(old, assignment) => {
            let before = data.configs[old.config].time;
            let scale = if before > 0.0 { config.time / before } else { 1.0 };
            data.restart + data.job.lost.0 * scale
        }
        _ => data.gone_in(instance.now),
    };
    Forecast { delay, time: config.time, rel_std: config.rel_std }
}

fn running(instance: &Instance<'_>, job: usize, assignment: &Assignment, after: Vec<JobId>) -> JobPlan {
    let run = forecast(instance, job, assignment);
    let data = &instance.jobs[job];
    let config = &data.configs[assignment.config];
    let deadline_in = data.deadline - instance.now;
    let age = (instance.now - data.job.submit.0).max(0.0);
    let late =
        run.lateness_cost(deadline_in, data.job.weight.0, data.share, age, &instance.snapshot.lateness);
    JobPlan {
        decision: Decision::Run(instance.placement(job, assignment)),
        after,
        finish: Some(instance.snapshot.now + Seconds(run.mean_end())),
        energy: Joules(config.power * run.mean_end().max(0.0)),
        on_time: run.within(deadline_in),
        cost: Money(instance.prices.energy_cost(config.power, run.mean_end()) + late),
    }
}

fn waiting(instance: &Instance<'_>, job: usize, decision: Decision) -> JobPlan {
    JobPlan {
        decision,
        after: Vec::new(),
        finish: None,
        energy: Joules::ZERO,
        on_time: best_chance(instance, job),
        cost: Money::ZERO,
    }
}

fn best_chance(instance: &Instance<'_>, job: usize) -> f64 {
    let data = &instance.jobs[job];
    let fastest = data.configs.iter().filter(|c| c.listed).min_by(|a, b| a.time.total_cmp(&b.time));
    fastest.map_or(0.0, |c| {
        Forecast { delay: 0.0, time: c.time, rel_std: c.rel_std }.within(data.deadline - instance.now)
    })
}
