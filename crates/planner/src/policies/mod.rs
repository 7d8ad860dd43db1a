//! Other systems' policies, behind the same door and under the same constraints.
//!
//! A policy says who may have what, most entitled first ([`Policy::wishes`]); `pack` gives it out on the ledger that all methods
//! share, leaves who runs where it runs as far as that is possible, and repeats that until nothing changes any more. So a policy can
//! neither break a constraint nor move jobs about for nothing.
//!
//! What every method of this planner promises holds for these as well, though the published systems do not: jobs that may not be
//! touched are not, a lowered power budget is met by limits and stops of least cost first, and whoever has waited longest is served
//! first ([`crate::reserve`]).

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

/// A job, and configurations it may be given, best first. A job may come several times.
struct Preference {
    job: usize,
    configs: Vec<usize>,
}

/// What a policy looks at.
struct View<'a, 'b> {
    instance: &'a Instance<'b>,
    /// The cluster without those that may be moved.
    base: &'a PartialPlan,
    /// Where everybody is.
    present: &'a [Option<Assignment>],
    memory: &'a Memory,
}

impl View<'_, '_> {
    /// Jobs whose place is open.
    fn open(&self) -> impl Iterator<Item = usize> {
        (0..self.instance.jobs.len()).filter(|job| self.base.assignments[*job].is_none())
    }

    /// GPUs of a type that nobody holds who may not be moved.
    fn free(&self, kind: usize) -> i64 {
        self.instance.types[kind].nodes.iter().map(|n| self.base.ledger.free_gpus(*n).max(0)).sum()
    }

    fn config(&self, job: usize, config: usize) -> &Config {
        &self.instance.jobs[job].configs[config]
    }
}

/// A rule of who may have what.
trait Policy {
    /// Brings what is remembered up to date before it is looked at.
    fn prepare(&self, _instance: &Instance<'_>, _memory: &mut Memory) {}

    /// Most entitled first. Who is in none is offered what is left.
    fn wishes(&self, view: &View<'_, '_>) -> Vec<Preference>;

    /// What a job is offered of what is left, best first.
    fn leftovers(&self, instance: &Instance<'_>, job: usize) -> Vec<usize> {
        crate::candidates::fixed(instance, job)
    }
}

/// Least length of a round: Gavel's.
const ROUND: Seconds = Seconds(360.0);
/// A round is at least so many restarts long, so that no more than a tenth of it goes into them.
const RESTARTS_IN_ROUND: f64 = 10.0;

/// Most looks at what a plan leads to.
const REPETITIONS: usize = 6;

/// One decision.
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
    // A plan carried out is kept: what the policy says then is what it says now.
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

/// A job's configurations on a GPU type without power limit, one for each number of GPUs (on as few nodes as possible), in order of GPUs.
fn levels(instance: &Instance<'_>, job: usize, kind: usize) -> Vec<usize> {
    let configs = &instance.jobs[job].configs;
    let mut levels: Vec<usize> = (0..configs.len())
        .filter(|c| configs[*c].offered && configs[*c].kind == kind && configs[*c].limit.is_none())
        .collect();
    levels.sort_by_key(|c| (configs[*c].total_gpus(), configs[*c].nodes));
    levels.dedup_by_key(|c| configs[*c].total_gpus());
    levels
}

/// Whether a job holds anything that may be counted as a start.
fn runs(view: &View<'_, '_>, job: usize) -> bool {
    view.present[job].is_some()
}
