//! A snapshot at a later instant, if nothing but its plan happened until then.

use andreas_model::Time;
use andreas_planner::{Decision, Job, JobPlan, JobState, Plan, Snapshot};

use crate::live;

/// Minimum remaining epochs: a run that should have ended has not been seen to end.
const MIN_LEFT: f64 = 1e-3;

/// The snapshot at `now`: running jobs have trained at their mean pace since, and jobs that the plan starts are
/// starting. What the plan stops or moves still runs. An instant before the snapshot's changes nothing.
#[must_use]
pub fn advanced_to(snapshot: &Snapshot, plan: &Plan, now: Time) -> Snapshot {
    let mut moved = snapshot.clone();
    if now <= snapshot.now {
        return moved;
    }
    moved.now = now;
    for job in &mut moved.jobs {
        let decided = plan.jobs.get(&job.id);
        advance(job, decided, snapshot.now, now);
    }
    moved
}

/// Advances a job from one instant to another under its decision.
fn advance(job: &mut Job, decided: Option<&JobPlan>, from: Time, now: Time) {
    match &mut job.state {
        JobState::Waiting => {
            if let Some(JobPlan { decision: Decision::Run(place), after, .. }) = decided {
                job.promised = !after.is_empty();
                job.state = JobState::Starting { target: place.clone(), since: from };
            }
        }
        JobState::Starting { .. } | JobState::Stopping { .. } => {}
        JobState::Running { placement, .. } => {
            let place = placement.clone();
            let done = (now - from) / live::mean_epoch(job, &place);
            job.epochs_left = (job.epochs_left - done).max(MIN_LEFT.min(job.epochs_left));
        }
    }
}
