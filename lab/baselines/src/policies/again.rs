//! The state after a plan is carried out at once.

use andreas_planner::policy::{Assignment, Instance};
use andreas_planner::{JobState, Snapshot};

/// The snapshot a moment later: jobs that start or move run since now.
pub(super) fn carried_out(instance: &Instance<'_>, assignments: &[Option<Assignment>]) -> Snapshot {
    let mut next = instance.snapshot.clone();
    let now = next.now;
    next.jobs.sort_by(|a, b| a.id.cmp(&b.id));
    for (at, (job, assignment)) in next.jobs.iter_mut().zip(assignments).enumerate() {
        let goes = assignment.as_ref().map(|assignment| instance.placement(at, assignment));
        job.state = match (&job.state, goes) {
            (JobState::Stopping { holds, gone_by, .. }, target) => {
                JobState::Stopping { holds: holds.clone(), target, gone_by: *gone_by }
            }
            // Until it has left, it is offered only what it holds.
            (JobState::Running { placement: holds, .. } | JobState::Starting { target: holds, .. }, None)
                if !job.movable =>
            {
                JobState::Stopping { holds: holds.clone(), target: None, gone_by: now }
            }
            (_, None) => JobState::Waiting,
            (JobState::Running { placement, since }, Some(goes)) if placement.same_gpus(&goes) => {
                JobState::Running { placement: goes, since: *since }
            }
            (JobState::Starting { target, since }, Some(goes)) if target.same_gpus(&goes) => {
                JobState::Starting { target: goes, since: *since }
            }
            (_, Some(goes)) => JobState::Running { placement: goes, since: now },
        };
    }
    next
}

/// Assignments of a later instance of the same jobs and nodes, with the indices of an earlier one.
pub(super) fn seen_from(
    instance: &Instance<'_>,
    later: &Instance<'_>,
    assignments: &[Option<Assignment>],
) -> Vec<Option<Assignment>> {
    let same = |job: usize, assignment: &Assignment| {
        let wanted = &later.jobs[job].configs[assignment.config];
        let config = instance.jobs[job].configs.iter().position(|c| {
            (c.kind, c.nodes, c.gpus, c.limit) == (wanted.kind, wanted.nodes, wanted.gpus, wanted.limit)
        })?;
        Some(Assignment { config, nodes: assignment.nodes.clone() })
    };
    assignments.iter().enumerate().map(|(job, assignment)| same(job, assignment.as_ref()?)).collect()
}
