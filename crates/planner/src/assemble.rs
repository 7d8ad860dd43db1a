//! Converts a decision by indices into a [`Plan`] by names, with the forecast of every job.

use andreas_core::{GpuCount, JobId, Joules, Money, Seconds};

use crate::budget;
use crate::capacity::{Capacity, Obstacle};
use crate::cost::Forecast;
use crate::explain::{BLOCKERS, Explainer};
use crate::instance::{Assignment, Holding, Instance, JobData};
use crate::outcome::Outcome;
use crate::partial::PartialPlan;
use crate::plan::{Decision, JobPlan, Plan, WaitReason};
use crate::snapshot::{IntendedChange, LimitsCount};

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
    let budgeted = if instance.above_budget {
        budget::with_leaving(instance, &assignments)
    } else {
        partial.ledger.power()
    };
    let mut order = Order::new(instance, &assignments);
    let mut explainer = Explainer::new(instance, partial, &outcome);
    let asked = outcome.wake.map(|wake| instance.snapshot.now + Seconds(wake));
    let next = instance.next_edge().into_iter().chain(asked);
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
        bound_invalid: false,
        ended_early: outcome.ended_early,
        budgeted_power: instance.in_scope(budgeted),
        allowed_power: instance.budget_mw.map(|mw| instance.in_scope(mw)),
        next_event: next.reduce(andreas_core::Time::min),
        jobs: std::collections::BTreeMap::new(),
        prices: outcome.prices.clone(),
        intended: intended(instance, &outcome.intended),
    };
    let mut total = Money::ZERO;
    let mut jobs = Vec::with_capacity(assignments.len());
    for (job, data) in instance.jobs.iter().enumerate() {
        let expected = match &assignments[job] {
            Some(assignment) => {
                let (assignment, after) = match order.carry_out(job, assignment) {
                    Execution::Now { after } => (assignment, after),
                    Execution::Stay(current) => (current, Vec::new()),
                    Execution::Wait => {
                        jobs.push((data.job.id.clone(), waiting(instance, job, order.wait())));
                        continue;
                    }
                };
                let run = forecast(instance, job, assignment);
                let end = instance.snapshot.now + Seconds(run.mean_end());
                plan.next_event = Some(plan.next_event.map_or(end, |next| next.min(end)));
                running(instance, job, assignment, run, after)
            }
            None => waiting(instance, job, explainer.wait(job)),
        };
        total += expected.cost;
        jobs.push((data.job.id.clone(), expected));
    }
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

fn running(
    instance: &Instance<'_>,
    job: usize,
    assignment: &Assignment,
    run: Forecast,
    after: Vec<JobId>,
) -> JobPlan {
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

/// How much of a decision can be carried out now.
enum Execution<'a> {
    /// All of it, once these jobs have left.
    Now { after: Vec<JobId> },
    /// The job stays as it is: a higher limit waits for watts that lower limits of other jobs will save.
    Stay(&'a Assignment),
    /// The job does not start yet, for the same reason.
    Wait,
}

/// Order of departures and starts. Capacity is held until the pods have ended. A job draws its present power
/// until a lower limit is in force.
struct Order<'a, 'b> {
    instance: &'a Instance<'b>,
    assignments: &'a [Option<Assignment>],
    /// Capacity held now, with the starts since that wait for no other job.
    held: Capacity,
    /// Jobs that leave their present place.
    leaving: Vec<usize>,
    /// `held` once those jobs have left. Set only if some limit is not in force yet.
    left: Option<Capacity>,
}

impl<'a, 'b> Order<'a, 'b> {
    fn new(instance: &'a Instance<'b>, assignments: &'a [Option<Assignment>]) -> Self {
        let mut held = PartialPlan::new(instance, |_, _| true).ledger;
        held.draw_more(instance.jobs.iter().map(JobData::unset_mw).sum());
        let mut order = Self { instance, assignments, held, leaving: Vec::new(), left: None };
        order.leaving =
            (0..assignments.len()).filter(|job| order.placement_to_leave(*job).is_some()).collect();
        if (0..assignments.len()).any(|job| order.has_pending_lower_limit(job)) {
            let mut left = order.held.clone();
            for job in &order.leaving {
                order
                    .placement_to_leave(*job)
                    .into_iter()
                    .for_each(|assignment| left.release(instance, *job, assignment));
            }
            order.left = Some(left);
        }
        order
    }

    /// Whether a lower limit of a held placement is decided but not in force yet.
    fn has_pending_lower_limit(&self, job: usize) -> bool {
        let data = &self.instance.jobs[job];
        let draw = |assignment: &Assignment| data.configs[assignment.config].draw_mw();
        let lowered = || {
            let assignments = data
                .current()
                .zip(self.assignments[job].as_ref())
                .filter(|_| self.placement_to_leave(job).is_none());
            assignments.is_some_and(|(current, assignment)| draw(assignment) < draw(current))
        };
        data.job.limits_count != LimitsCount::AtOnce && (data.unset_mw() > 0 || lowered())
    }

    /// Whether a decision can be carried out now or waits for limits that are not in force yet.
    fn carry_out(&mut self, job: usize, assignment: &Assignment) -> Execution<'a> {
        let instance = self.instance;
        let current = instance.jobs[job].current();
        let stays = current.filter(|_| self.placement_to_leave(job).is_none());
        let Some(left) = &mut self.left else { return Execution::Now { after: self.after(job, assignment) } };
        match stays {
            Some(current) => {
                let draw = |assignment: &Assignment| instance.jobs[job].configs[assignment.config].draw_mw();
                let more = draw(assignment) - draw(current);
                if more <= 0 {
                    return Execution::Now { after: Vec::new() };
                }
                if !left.may_draw_more(instance, more) {
                    return Execution::Stay(current);
                }
                left.draw_more(more);
                self.held.draw_more(more);
                Execution::Now { after: Vec::new() }
            }
            // A moving job gives back its own watts first, which takes longer than setting a limit.
            None if current.is_none() && !left.within_power(instance, job, assignment) => Execution::Wait,
            None => {
                left.take(instance, job, assignment);
                Execution::Now { after: self.after(job, assignment) }
            }
        }
    }

    /// The wait decision of a start that waits for limits, with the jobs whose limits are lowered.
    fn wait(&self) -> Decision {
        let blockers =
            (0..self.assignments.len()).filter(|job| self.has_pending_lower_limit(*job)).take(BLOCKERS);
        Decision::Wait {
            reason: WaitReason::PowerBudget,
            blockers: blockers.map(|job| self.instance.jobs[job].job.id.clone()).collect(),
            message: "it starts once lower power limits of others are in force".to_owned(),
        }
    }

    /// The current assignment of a job that must leave it: for other nodes, other GPUs or to wait.
    fn placement_to_leave(&self, job: usize) -> Option<&'a Assignment> {
        let data = &self.instance.jobs[job];
        let current = data.current()?;
        let stays = self.assignments[job].as_ref().is_some_and(|goes| data.same_gpus(goes, current));
        (!stays).then_some(current)
    }

    fn after(&mut self, job: usize, assignment: &Assignment) -> Vec<JobId> {
        let instance = self.instance;
        let own = self.placement_to_leave(job);
        let starts = own.is_some() || instance.jobs[job].current().is_none();
        if !starts {
            return Vec::new();
        }
        if let Some(own) = own {
            self.held.release(instance, job, own);
        }
        let fits = self.held.fits(instance, job, assignment);
        if let Some(own) = own {
            self.held.take(instance, job, own);
        }
        let Err(obstacle) = fits else {
            self.held.take(instance, job, assignment);
            return Vec::new();
        };
        let namespace = &instance.jobs[job].job.namespace;
        let in_the_way = |other: usize| {
            let Some(old) = self.placement_to_leave(other).filter(|_| other != job) else { return false };
            match obstacle {
                Obstacle::Nodes => {
                    old.nodes.as_slice().iter().any(|n| assignment.nodes.as_slice().contains(n))
                }
                Obstacle::Quota => instance.jobs[other].job.namespace == *namespace,
                Obstacle::Power => true,
            }
        };
        self.leaving
            .iter()
            .filter(|other| in_the_way(**other))
            .map(|&other| instance.jobs[other].job.id.clone())
            .collect()
    }
}
