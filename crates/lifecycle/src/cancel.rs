//! A job that is being deleted: its pods end with their grace period, then it holds nothing.
//!
//! The garbage collector deletes pods only after their owner is gone, and a finalizer can keep the owner
//! forever. So the operator deletes the members itself. An orphaning delete is the exception: the garbage
//! collector removes the owner reference, and the pods then count as foreign.

use andreas_api::phase::condition;
use andreas_api::{Phase, Reason};

use super::draft::Draft;
use super::member::Members;
use super::status::ConditionValue;
use super::{adopted, end, stop};

/// Finalizer of an orphaning delete: the garbage collector removes the owner reference instead of deleting
/// the pods.
const ORPHAN: &str = "orphan";
const MESSAGE: &str = "the job is being deleted";

/// Handles a job with a deletion timestamp.
pub(super) fn cancelled(d: &mut Draft<'_>) {
    if is_orphaning(d) && has_pods(d) {
        return;
    }
    if matches!(d.status.phase, Phase::Starting | Phase::Running) {
        match d.status.allocation {
            Some(_) => d.ask_to_stop(Reason::Stopping, MESSAGE),
            None => d.lose_allocation(),
        }
    }
    let stopped = d.status.phase == Phase::Stopping;
    if stopped && d.o.job.spec.adopts.is_some() {
        adopted::stopping(d);
    } else if stopped {
        stop::stopping(d);
    }
    end::delete_unneeded_pods(d);
    if stopped && d.status.phase == Phase::Pending {
        d.status.not_before = None;
        d.set_condition(condition::RUNNING, ConditionValue::False, Reason::Stopping, MESSAGE);
        d.wait_for(Reason::Stopping, MESSAGE);
    }
}

fn is_orphaning(d: &Draft<'_>) -> bool {
    d.o.job.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == ORPHAN)
}

fn has_pods(d: &Draft<'_>) -> bool {
    let allocation = d.allocation();
    let members = Members::new(d.o, allocation.as_ref());
    !members.other.is_empty() || members.gang.iter().any(|member| member.live.is_some())
}
