//! Clusters that draw more than they may.

use andreas_model::{StepFunction, Time, Watts};
use andreas_planner::{JobState, Plan, PowerBudget, Snapshot};
use proptest::prelude::*;

use super::{NOW, budgeted, lower_window, present, snapshots};

/// What leaves and what stays draw more than the budget: plans save the watts of what leaves. Once others have been stopped
/// for that, and the budget is kept again, the next plan may give them away.
pub fn saves_for_the_budget(snapshot: &Snapshot, plan: &Plan) -> bool {
    let leaves = snapshot.jobs.iter().any(|job| matches!(job.state, JobState::Stopping { .. }));
    leaves && draws_too_much(snapshot, plan)
}

/// More is held than the budget of the plan allows, or than that of a lower window so near that some could not be gone.
pub fn draws_too_much(snapshot: &Snapshot, plan: &Plan) -> bool {
    let drawn = budgeted(snapshot, &present(snapshot));
    let later = lower_window(snapshot).map(|(_, watts)| watts);
    plan.allowed_power.iter().map(|allowed| allowed.0).chain(later).any(|allowed| drawn > allowed)
}

/// Clusters whose budget has just been lowered below what is drawn.
pub fn lowered() -> impl Strategy<Value = Snapshot> {
    (snapshots(), 0.1..1.0_f64, 0..5_u8).prop_map(|(mut snapshot, part, leaves)| {
        if leaves > 0 {
            // Mostly nobody leaves already.
            for job in &mut snapshot.jobs {
                if let JobState::Stopping { holds: placement, .. } = &job.state {
                    job.state = JobState::Running { placement: placement.clone(), since: Time(NOW - 5000.0) };
                }
            }
        }
        let budget = |watts: f64| PowerBudget {
            watts: StepFunction::flat(Watts(watts)),
            margin: 0.05,
            scope_factor: 1.2,
        };
        snapshot.budget = Some(budget(1.0));
        let drawn = budgeted(&snapshot, &present(&snapshot));
        // The part above what idle nodes draw is what can be saved.
        let nothing = snapshot.jobs.iter().map(|job| (job.id.clone(), None)).collect();
        let mut empty = snapshot.clone();
        empty.jobs.iter_mut().for_each(|job| job.state = JobState::Waiting);
        let idle = budgeted(&empty, &nothing);
        snapshot.budget = Some(budget(((drawn - idle) * part + idle).max(1.0) / 0.95));
        snapshot
    })
}
