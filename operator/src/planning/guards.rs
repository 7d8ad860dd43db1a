//! Power limits of runs that nobody has measured, from their start until then.
//!
//! A start counts for its guard instead of the board's maximum, so others keep the watts that it will not draw. A guard that holds a run
//! back is raised as soon as the budget has room for more, and lifted once the run is measured and draws less.

use std::collections::BTreeMap;

use andreas_api::energy_policy::Limits;
use andreas_api::slim::SlimTrainingJob;
use andreas_api::training_job::Allocation;
use andreas_cluster::energy::draws::{is_at_guard, reported};
use andreas_cluster::index::ClusterIndex;
use andreas_lifecycle::Guard;
use andreas_model::{GpuType, ObjectKey, TypeDraw};
use andreas_planner::{Job, Placement, Plan};

use crate::snapshot::{Built, job_key};

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

    /// The guard of a job that the plan runs here.
    pub fn of(
        &mut self,
        job: Option<&std::sync::Arc<SlimTrainingJob>>,
        planned: &Job,
        place: &Placement,
    ) -> Guard {
        let held = job.and_then(|job| job.status.as_ref()?.allocation.as_ref());
        let nodes: Vec<String> = place.nodes.iter().map(|node| node.as_str().to_owned()).collect();
        let goes_on = |held: &&Allocation| {
            let each = u32::try_from(held.gpus_per_worker).unwrap_or(0);
            each == place.gpus_per_node.0 && same(&held.nodes, &nodes)
        };
        match held.filter(goes_on) {
            Some(held) => self.of_run(planned, held),
            None if job.is_some_and(|job| job.spec.adopts.is_none()) => self.of_start(planned, place),
            None => Guard::default(),
        }
    }

    fn of_start(&self, planned: &Job, place: &Placement) -> Guard {
        let total = place.total_gpus();
        let row = planned.estimates.iter().find(|row| row.gpu_type == place.gpu_type && row.gpus == total);
        let each = row.and_then(|row| Some(row.draw?.0 / f64::from(total.0)));
        let guards = self.types.get(&place.gpu_type).and_then(|draw| draw.guards);
        let watts = each.zip(guards).filter(|(each, (_, highest))| each < highest);
        Guard { watts: watts.map(|(each, _)| each.round() as i32), reached: false }
    }

    fn of_run(&mut self, planned: &Job, held: &Allocation) -> Guard {
        let reached = held.guard_reached;
        let Some(guard) = held.guard_watts.filter(|_| self.wanted) else {
            return Guard { watts: None, reached };
        };
        let Some(draw) = self.types.get(&GpuType::new(held.gpu_type.as_str())) else {
            return Guard { watts: Some(guard), reached };
        };
        let key = job_key(&planned.id);
        let gpus = u32::try_from(held.gpus).unwrap_or(0);
        let counted = f64::from(guard) * f64::from(gpus);
        let each = key.as_ref().and_then(|key| Some(reported(self.index, key, held)? / f64::from(gpus)));
        let held_back = each.is_some_and(|each| is_at_guard(each, guard));
        let measured = key.and_then(|key| self.measured.get(&key).copied()).filter(|_| !held_back);
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

/// The same nodes, in any order.
fn same(one: &[String], other: &[String]) -> bool {
    one.len() == other.len() && one.iter().all(|node| other.contains(node))
}
