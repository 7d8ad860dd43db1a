//! What the workload of another kind says, for which a job stands (`spec.adopts`).

use andreas_api::training_job::AttemptRecord;
use andreas_api::{Outcome, Reason};
use andreas_cluster::instants::{after, seconds_between};
use andreas_workloads::adopt::{End, Workload};

use super::draft::Draft;
use super::end;
use super::judge::Judgement;

/// Whether the workload waits for GPUs. Ends the job with a workload that ended without us.
pub(super) fn may_wait(d: &mut Draft<'_>) -> bool {
    let Some(workload) = d.o.workload else {
        d.not_plannable = true;
        return false;
    };
    if let Some(end) = &workload.end {
        end::ended_unplanned(d, &judged(end));
        return false;
    }
    if workload.suspended {
        return !undone_each_time(d, workload);
    }
    d.not_plannable = true;
    d.wait_for(Reason::NotAdopted, "it was started by somebody else; planned again when it is suspended");
    false
}

/// Seconds within which somebody undid a release.
const UNDONE: i64 = 600;
/// Seconds until a release that was undone twice is tried once more.
const TRY_AGAIN: i64 = 3_600;

/// Who suspended a workload, and what to do about it.
pub(super) fn suspended_by(workload: &Workload) -> String {
    match &workload.switched_by {
        Some(manager) => format!(
            "it was suspended by {manager}, which owns the field suspend of this {}: let it ignore that field, or remove the label andreas.dev/adopt",
            workload.kind.name()
        ),
        None => "it was suspended by somebody else".to_owned(),
    }
}

/// Whether a field manager that owns the switch has undone the last two releases at once: it will undo the next one too. GPUs are taken
/// again when it gives the field up, or after an hour.
fn undone_each_time(d: &mut Draft<'_>, workload: &Workload) -> bool {
    let words = suspended_by(workload);
    let undone = |record: &&AttemptRecord| {
        let ran = record.started.as_ref().map_or(0, |started| seconds_between(started.0, record.ended.0));
        // What people did, or another manager, has other words.
        record.message == words && ran < UNDONE
    };
    let undone = d.status.history.iter().rev().take_while(undone).count();
    let last = d.status.history.last().map(|record| record.ended.0);
    let Some(until) = last.map(|last| after(last, TRY_AGAIN)).filter(|until| *until > d.o.now) else {
        return false;
    };
    if undone < 2 || workload.switched_by.is_none() {
        return false;
    }
    d.not_plannable = true;
    d.requeue_at(until);
    d.wait_for(Reason::NotAdopted, &words);
    true
}

/// What the end of a workload is for the job that stands for it.
pub(super) fn judged(end: &End) -> Judgement {
    let message =
        |otherwise: &str| if end.message.is_empty() { otherwise.to_owned() } else { end.message.clone() };
    if end.succeeded {
        Judgement::new(Outcome::Finished, Reason::Completed, message("it is complete"))
    } else {
        Judgement::new(Outcome::UserFailure, Reason::ContainerFailed, message("it failed"))
    }
}
