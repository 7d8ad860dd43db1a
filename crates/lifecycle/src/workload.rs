//! What the workload of another kind says, for which a job stands (`spec.adopts`).

use andreas_api::{Outcome, Reason};
use andreas_workloads::adopt::End;

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
        return true;
    }
    d.not_plannable = true;
    d.wait_for(Reason::NotAdopted, "it was started by somebody else; planned again when it is suspended");
    false
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
