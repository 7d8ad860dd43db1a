//! Policies of other systems, under the planner's constraints.
//!
//! A policy ranks jobs with the configurations they may have ([`Ranking::preferences`]). `pack` assigns them with
//! the capacity checks that all methods share, and keeps running jobs in place where possible. It repeats
//! this until nothing changes. So no policy can break a constraint or move jobs without reason.
//!
//! The planner's guarantees hold as well, though the published systems lack them. Immovable jobs are not
//! moved. A lowered power budget is met by limits and stops of least cost first. The longest-waiting job is
//! served first ([`andreas_planner::policy::reserve`]).

mod again;
mod elasticflow;
mod gandiva_fair;
mod gavel;
mod history;
mod pack;
mod powerflow;
mod queues;
mod ranking;
#[cfg(test)]
mod tests;

use andreas_model::Time;
use andreas_planner::policy::{Instance, Outcome, prepared};

use crate::memory::Memory;
use crate::method::Method;
use crate::tickets::Tickets;
use ranking::{ROUND, Ranking};

/// A round lasts at least this many restarts, so restarts take at most a tenth of it.
const RESTARTS_IN_ROUND: f64 = 10.0;

/// Maximum repetitions on a plan's own outcome.
const REPETITIONS: usize = 6;

/// Makes one decision. Takes the memory of the last one, and returns the memory for the next.
pub(crate) fn decide(
    instance: &Instance<'_>,
    method: Method,
    tickets: &Tickets,
    last: Option<&Memory>,
) -> (Outcome, Memory) {
    let policy: Box<dyn Ranking> = match method {
        Method::Tiresias => Box::new(queues::Tiresias),
        Method::Elasticflow => Box::new(elasticflow::ElasticFlow),
        Method::Gavel => Box::new(gavel::Gavel),
        Method::GandivaFair => Box::new(gandiva_fair::GandivaFair),
        Method::Powerflow => Box::new(powerflow::PowerFlow),
        _ => Box::new(queues::Srtf),
    };
    let rounds = method.in_rounds();
    let remembered = |instance: &Instance<'_>| {
        let mut memory = Memory::updated(instance, tickets, last);
        policy.prepare(instance, &mut memory);
        memory
    };
    let assign = |instance: &Instance<'_>, memory: &Memory, in_round: bool| {
        pack::assign_until_stable(instance, policy.as_ref(), (memory, tickets), in_round)
    };
    let mut memory = remembered(instance);
    let in_round = rounds && memory.round_ends.is_some_and(|end| memory.now < end);
    let mut stable = assign(instance, &memory, in_round);
    // A plan must be stable: the policy decides the same once it is carried out.
    for _ in 0..REPETITIONS {
        let next = again::carried_out(instance, &stable.assignments);
        let then = prepared(&next);
        memory = remembered(&then);
        let again = assign(&then, &memory, in_round);
        let assignments = again::seen_from(instance, &then, &again.assignments);
        if assignments == stable.assignments {
            break;
        }
        let stopped = stable.stopped.into_iter().chain(again.stopped).filter(|j| assignments[*j].is_none());
        stable = pack::StableAssignment { stopped: stopped.collect(), assignments, ..again };
    }
    if rounds && !in_round {
        let length = ROUND.max(instance.snapshot.restart * RESTARTS_IN_ROUND);
        memory.round_ends = Some(Time(memory.now.0 + length.0));
    }
    let memory = memory.after(instance, &stable.assignments);
    let outcome = Outcome {
        assignments: stable.assignments,
        trials: stable.rounds,
        reserved_for: stable.reserved_for,
        stopped: stable.stopped,
        ..Outcome::default()
    };
    (outcome, memory)
}
