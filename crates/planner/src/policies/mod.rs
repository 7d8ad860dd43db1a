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
mod history;
mod pack;
mod policy;
mod powerflow;
mod queues;
#[cfg(test)]
mod tests;

use andreas_core::Time;

use crate::budget;
use crate::instance::Instance;
use crate::memory::Memory;
use crate::method::MethodName;
use crate::outcome::Outcome;
use policy::{Policy, ROUND};

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
        let then = budget::prepared(&next);
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
