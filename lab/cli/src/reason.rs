//! Why a job runs or waits, in words: for the table of `plan` and for the line protocol.

use andreas_model::JobId;
use andreas_planner::{Decision, JobPlan};

/// One sentence: why it runs or waits.
pub fn reason(job: &JobPlan) -> String {
    let ids = |ids: &[JobId]| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match &job.decision {
        Decision::Run(_) if job.after.is_empty() => "runs".to_owned(),
        Decision::Run(_) => format!("runs once these have made room: {}", ids(&job.after)),
        Decision::Wait { reason, blockers, message } if blockers.is_empty() => {
            format!("{}: {message}", reason.as_str())
        }
        Decision::Wait { reason, blockers, message } => {
            format!("{}: {message} (in the way: {})", reason.as_str(), ids(blockers))
        }
    }
}
