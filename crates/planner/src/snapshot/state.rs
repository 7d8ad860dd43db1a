//! What a job does and holds at the instant of a snapshot, and what it is not given.

use andreas_model::{GpuCount, GpuType, Seconds, Time};
use serde::{Deserialize, Serialize};

use super::Placement;

/// A stopping job is overdue so long after its latest end: the kubelet needs some seconds to report it.
const OVERDUE: Seconds = Seconds(60.0);
/// Expected time until an overdue job is gone.
const UNKNOWN_STOP: Seconds = Seconds(3600.0);

/// Sizes of workers that are refused: by admission, or by kubelets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedWorkers {
    /// On nodes of this type; `None`: of all.
    #[serde(default)]
    pub gpu_type: Option<GpuType>,
    /// Fewest GPUs.
    pub least: GpuCount,
    /// Most GPUs.
    pub most: GpuCount,
}

/// State of a job and its holdings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum JobState {
    /// Holds nothing.
    Waiting,
    /// Holds its target's GPUs, but not all workers run yet. See [`promised`](super::Job::promised).
    Starting {
        /// The committed placement.
        target: Placement,
        /// Start of this state.
        since: Time,
    },
    /// Trains.
    Running {
        /// The present placement.
        placement: Placement,
        /// Start of this state.
        since: Time,
    },
    /// Told to checkpoint and stop; its holdings stay in use until it is gone.
    Stopping {
        /// The placement that it still holds.
        holds: Placement,
        /// Its next placement, if already decided.
        target: Option<Placement>,
        /// Latest time of its end. A minute later it is overdue: it may never end, and no start waits for it.
        gone_by: Time,
    },
}

impl JobState {
    /// Whether it is stopping and should have ended long ago.
    pub fn is_overdue(&self, now: Time) -> bool {
        matches!(self, Self::Stopping { gone_by, .. } if *gone_by + OVERDUE < now)
    }

    /// When a stopping job is expected to be gone, not before `now`; `None` in other states.
    pub fn gone_at(&self, now: Time) -> Option<Time> {
        let Self::Stopping { gone_by, .. } = self else { return None };
        Some(if self.is_overdue(now) { now + UNKNOWN_STOP } else { gone_by.max(now) })
    }
}
