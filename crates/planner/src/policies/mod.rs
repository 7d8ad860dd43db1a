//! Policies of other systems, behind the same API and under the same constraints.
//!
//! A policy ranks jobs with the configurations they may have ([`Policy::wishes`]). `pack` assigns them with
//! the capacity checks that all methods share, and keeps running jobs in place where possible. It repeats
//! this until nothing changes. So no policy can break a constraint or move jobs without reason.
//!
//! The planner's guarantees hold as well, though the published systems lack them. Immovable jobs are not
//! moved. A lowered power budget is met by limits and stops of least cost first. The longest-waiting job is
//! served first ([`crate::reserve`]).

mod again;
mod elasticflow;
mod gandiva_fair;
mod gavel;
mod pack;
mod powerflow;
mod queues;
#[cfg(test)]
mod tests;

use andreas_core::{Seconds, Time};

use crate::baseline::Outcome;
use crate::instance::{Assignment, Config, Instance};
use crate::memory::Memory;
use crate::method::MethodName;
use crate::partial::PartialPlan;

/// A job and its allowed configurations, best first. A job may occur several times.
struct Preference {
    job: usize,
    configs: Vec<usize>,
}

/// Input of a policy.
struct View<'a, 'b> {
    instance: &'a Instance<'b>,
    /// The cluster without the movable jobs.
    base: &'a PartialPlan,
    /// Current assignments.
    present: &'a [Option<Assignment>],
    memory: &'a Memory,
}

impl View<'_, '_> {
    /// Jobs without an assignment in `base`.
    fn open(&self) -> impl Iterator<Item = usize> {
        (0..self.instance.jobs.len()).filter(|job| self.base.assignments[*job].is_none())
    }

    /// GPUs of a type that no immovable job holds.
    fn free(&self, kind: usize) -> i64 {
        self.instance.types[kind].nodes.iter().map(|n| self.base.ledger.free_gpus(*n).max(0)).sum()
    }

    fn config(&self, job: usize, config: usize) -> &Config {
        &self.instance.jobs[job].configs[config]
    }
}

/// A rule for the order of jobs and their configurations.
trait Policy {
    /// Updates the memory before it is used.
    fn prepare(&self, _instance: &Instance<'_>, _memory: &mut Memory) {}

    /// Preferences, highest priority first. Jobs without one may get leftovers.
    fn wishes(&self, view: &View<'_, '_>) -> Vec<Preference>;

    /// Configurations that a job may have from the leftovers, best first.
    fn leftovers(&self, instance: &Instance<'_>, job: usize) -> Vec<usize> {
        crate::candidates::fixed(instance, job)
    }
}

/// Minimum length of a round, as in Gavel.
const ROUND: Seconds = Seconds(360.0);
/// A round lasts at least this many restarts, so restarts take at most a tenth of it.
const RESTARTS_IN_ROUND: f64 = 10.0;

/// Maximum repetitions on a plan's own outcome.
const REPETITIONS: usize = 6;

/// Makes one decision.
pub(crate) fn decide(instance: &Instance<'_>, method: MethodName) -> Outcome {
    let (policy, rounds): (Box<dyn Policy>, bool) = match method {
        MethodName::Tiresias => (Box::new(queues::Tiresias), false),
        MethodName::Elasticflow => (Box::new(elasticflow::ElasticFlow), false),
        MethodName::Gavel => (Box::new(gavel::Gavel), true),
        MethodName::GandivaFair => (Box::new(gandiva_fair::GandivaFair), true),
        MethodName::Powerflow => (Box::new(powerflow::PowerFlow), false),
        _ => (Box::new(queues::Srtf), false),
    };
    let remembered = |instance: &Instance<'_>| {
        let mut memory = Memory::of(instance);
        policy.prepare(instance, &mut memory);
        memory
    };
    let mut memory = remembered(instance);
    let in_round = rounds && memory.round_ends.is_some_and(|end| memory.now < end);
    let mut settled = pack::settle(instance, policy.as_ref(), &memory, in_round);
    // A plan must be stable: the policy decides the same once it is carried out.
    for _ in 0..REPETITIONS {
        let next = again::carried_out(instance, &settled.assignments);
        let then = Instance::new(&next);
        memory = remembered(&then);
        let again = pack::settle(&then, policy.as_ref(), &memory, in_round);
        let assignments = again::seen_from(instance, &then, &again.assignments);
        if assignments == settled.assignments {
            break;
        }
        let stopped = settled.stopped.into_iter().chain(again.stopped).filter(|j| assignments[*j].is_none());
        settled = pack::Settled { stopped: stopped.collect(), assignments, ..again };
    }
    if rounds && !in_round {
        let length = ROUND.max(instance.snapshot.restart * RESTARTS_IN_ROUND);
        memory.round_ends = Some(Time(memory.now.0 + length.0));
    }
    Outcome {
        memory: Some(memory.after(instance, &settled.assignments)),
        assignments: settled.assignments,
        objective: None,
        trials: settled.rounds,
        reserved_for: settled.reserved_for,
        stopped: settled.stopped,
        bound: None,
        prices: None,
        wake: None,
    }
}

/// Configurations without power limit on a GPU type, one per number of GPUs (on the fewest nodes), in order
/// of GPUs.
fn levels(instance: &Instance<'_>, job: usize, kind: usize) -> Vec<usize> {
    let configs = &instance.jobs[job].configs;
    let mut levels: Vec<usize> = (0..configs.len())
        .filter(|c| configs[*c].offered && configs[*c].kind == kind && configs[*c].limit.is_none())
        .collect();
    levels.sort_by_key(|c| (configs[*c].total_gpus(), configs[*c].nodes));
    levels.dedup_by_key(|c| configs[*c].total_gpus());
    levels
}

/// Whether a job holds a placement that counts as started.
fn runs(view: &View<'_, '_>, job: usize) -> bool {
    view.present[job].is_some()
}
