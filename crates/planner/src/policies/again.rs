//! What a plan leads to, if it is carried out at once.

use crate::instance::{Instance, Spot};
use crate::snapshot::{JobState, Snapshot};

/// The snapshot a moment later: whoever begins or moves runs since now.
pub(super) fn carried_out(instance: &Instance<'_>, spots: &[Option<Spot>]) -> Snapshot {
    let mut next = instance.snapshot.clone();
    let now = next.now;
    next.jobs.sort_by(|a, b| a.id.cmp(&b.id));
    for (at, (job, spot)) in next.jobs.iter_mut().zip(spots).enumerate() {
        let goes = spot.as_ref().map(|spot| instance.placement(at, spot));
        job.state = match (&job.state, goes) {
            (JobState::Stopping { holds, gone_by, .. }, target) => {
                JobState::Stopping { holds: holds.clone(), target, gone_by: *gone_by }
            }
            // Until it has left, it is offered nothing but what it holds.
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

/// Spots of a later instance of the same jobs and nodes, by the numbers of an earlier one.
pub(super) fn seen_from(
    instance: &Instance<'_>,
    later: &Instance<'_>,
    spots: &[Option<Spot>],
) -> Vec<Option<Spot>> {
    let same = |job: usize, spot: &Spot| {
        let wanted = &later.jobs[job].configs[spot.config];
        let config = instance.jobs[job].configs.iter().position(|c| {
            (c.kind, c.nodes, c.gpus, c.limit) == (wanted.kind, wanted.nodes, wanted.gpus, wanted.limit)
        })?;
        Some(Spot { config, nodes: spot.nodes.clone() })
    };
    spots.iter().enumerate().map(|(job, spot)| same(job, spot.as_ref()?)).collect()
}
