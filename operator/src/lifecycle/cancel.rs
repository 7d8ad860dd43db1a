//! A job that is being deleted: its pods end with their grace, and it holds nothing once they have.
//!
//! The garbage collector deletes pods only when their owner is gone, and a finalizer can keep the owner for ever. So the
//! operator ends the members itself. Only an orphaning delete leaves them: the garbage collector takes our reference from
//! them, and from then on they count as pods of others.

use andreas_api::phase::condition;
use andreas_api::{Phase, Reason};

use super::draft::Draft;
use super::member::Members;
use super::status::ConditionValue;
use super::{end, start, stop};

/// The garbage collector takes the owner's reference from the pods instead of deleting them.
const ORPHAN: &str = "orphan";
const WORDS: &str = "the job is being deleted";

/// The job has a deletion timestamp.
pub(super) fn cancelled(d: &mut Draft<'_>) {
    if is_orphaning(d) && has_pods(d) {
        return;
    }
    if matches!(d.status.phase, Phase::Starting | Phase::Running) {
        match d.status.allocation {
            Some(_) => d.ask_to_stop(Reason::Stopping, WORDS),
            None => start::lost_allocation(d),
        }
    }
    let stopped = d.status.phase == Phase::Stopping;
    if stopped {
        stop::stopping(d);
    }
    end::tidy(d);
    if stopped && d.status.phase == Phase::Pending {
        d.status.not_before = None;
        d.say(condition::RUNNING, ConditionValue::False, Reason::Stopping, WORDS);
        d.wait_for(Reason::Stopping, WORDS);
    }
}

fn is_orphaning(d: &Draft<'_>) -> bool {
    d.o.job.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == ORPHAN)
}

fn has_pods(d: &Draft<'_>) -> bool {
    let allocation = d.allocation();
    let members = Members::of(d.o, allocation.as_ref());
    !members.other.is_empty() || members.gang.iter().any(|member| member.live.is_some())
}
