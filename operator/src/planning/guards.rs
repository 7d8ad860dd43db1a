//! Power limits of runs that nobody has measured, from their start until then.
//!
//! A start counts for its guard instead of the board's maximum, so others keep the watts that it will not draw. A guard that holds a run
//! back is raised as soon as the budget has room for more, and lifted once the run is measured and draws less.

use std::collections::BTreeMap;

use andreas_api::energy_policy::Limits;
use andreas_api::training_job::Allocation;
use andreas_cluster::energy::draws::{is_at_guard, reported};
use andreas_cluster::index::ClusterIndex;
use andreas_lifecycle::{Guard, Planned};
use andreas_model::{GpuType, ObjectKey, TypeDraw};
use andreas_planner::{Estimate, Job, Plan};

use crate::snapshot::Built;

/// How much more a run gets that is held back.
const RAISE: f64 = 1.25;

/// Chooses the guards of a plan's runs.
pub struct Guards<'a> {
    index: &'a ClusterIndex,
    measured: &'a BTreeMap<ObjectKey, f64>,
    types: &'a BTreeMap<GpuType, TypeDraw>,
    /// What the budget leaves, W, in its scope.
    left: f64,
    scope: f64,
    /// Whether the policy has guards now.
    wanted: bool,
}

impl<'a> Guards<'a> {
    /// Those of a plan.
    pub fn new(index: &'a ClusterIndex, built: &'a Built, plan: &Plan) -> Self {
        let left = plan.allowed_power.map_or(f64::INFINITY, |allowed| allowed.0 - plan.budgeted_power.0);
        let scope = built.snapshot.budget.as_ref().map_or(1.0, |budget| budget.scope_factor);
        let policy = index.policy().map(|policy| &policy.spec);
        let wanted =
            policy.is_some_and(|policy| policy.limits != Limits::Off && policy.power_budget.limits_power());
        Self { index, measured: &built.measured, types: &built.types, left, scope, wanted }
    }

    /// The decision for a job, with the guard of its run.
    pub fn guarded(&mut self, planned: Planned, key: &ObjectKey, input: &Job) -> Planned {
        let Some(job) = self.index.jobs().get(key) else { return planned };
        let held = job.status.as_ref().and_then(|status| status.allocation.as_ref());
        let held = held.filter(|held| planned.runs_on(&held.nodes, held.gpus_per_worker));
        let chosen = match held {
            Some(held) => self.of_run(key, held),
            // Nobody knows the names of its pods before they are there.
            None if job.spec.adopts.is_some() => Guard::default(),
            None => self.of_start(&planned, input),
        };
        match planned {
            Planned::Run { gpu_type, nodes, gpus_per_worker, limit_watts, watts, .. } => {
                Planned::Run { gpu_type, nodes, gpus_per_worker, limit_watts, watts, guard: chosen }
            }
            waits @ Planned::Wait { .. } => waits,
        }
    }

    fn of_start(&self, planned: &Planned, input: &Job) -> Guard {
        let Planned::Run { gpu_type, nodes, gpus_per_worker, .. } = planned else { return Guard::default() };
        let gpus = nodes.len().saturating_mul(usize::try_from(*gpus_per_worker).unwrap_or(0));
        let is_its = |row: &&Estimate| {
            row.gpu_type.as_str() == gpu_type && usize::try_from(row.gpus.0).is_ok_and(|of| of == gpus)
        };
        let each =
            input.estimates.iter().find(is_its).and_then(|row| Some(row.draw?.0 / f64::from(row.gpus.0)));
        let guards = self.types.get(&GpuType::new(gpu_type.as_str())).and_then(|draw| draw.guards);
        let watts = each.zip(guards).filter(|(each, (_, highest))| each < highest);
        Guard { watts: watts.map(|(each, _)| each.round() as i32), reached: false }
    }

    fn of_run(&mut self, key: &ObjectKey, held: &Allocation) -> Guard {
        let reached = held.guard_reached;
        let Some(guard) = held.guard_watts.filter(|_| self.wanted) else {
            return Guard { watts: None, reached };
        };
        let Some(draw) = self.types.get(&GpuType::new(held.gpu_type.as_str())) else {
            return Guard { watts: Some(guard), reached };
        };
        let gpus = u32::try_from(held.gpus).unwrap_or(0);
        let counted = f64::from(guard) * f64::from(gpus);
        let each = reported(self.index, key, held).map(|watts| watts / f64::from(gpus));
        let held_back = each.is_some_and(|each| is_at_guard(each, guard));
        let measured = self.measured.get(key).copied().filter(|_| !held_back);
        let (watts, counts) = match (held_back, measured) {
            (true, _) => {
                let more = (f64::from(guard) * RAISE).round();
                let highest = draw.guards.map_or(draw.max, |(_, highest)| highest);
                match more < highest {
                    true => (Some(more as i32), more * f64::from(gpus)),
                    false => (None, draw.max * f64::from(gpus)),
                }
            }
            (false, Some(each)) => (None, draw.of_measured(each, gpus)),
            (false, None) => (Some(guard), counted),
        };
        let more = (counts - counted).max(0.0) * self.scope;
        let reached = reached || held_back;
        if more > self.left {
            return Guard { watts: Some(guard), reached };
        }
        self.left -= more;
        Guard { watts, reached }
    }
}
