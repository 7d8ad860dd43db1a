//! What it is worth to try a GPU type, as plans count it.

use andreas_core::{GpuCount, GpuType};
use serde::{Deserialize, Serialize};

use super::{Estimate, Job};

/// A configuration that a job may try because its GPU type is not known for the job. What a run there would
/// teach is counted as a shorter time in plans. Forecasts and explanations count the estimate itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exploration {
    /// GPU type.
    pub gpu_type: GpuType,
    /// Total GPUs.
    pub gpus: GpuCount,
    /// Factor on the time of an epoch, > 0, at most 1.
    pub time_factor: f64,
}

impl Job {
    /// Seconds of an epoch on a row of its estimates, as plans count them.
    pub(crate) fn planned_epoch(&self, row: &Estimate) -> f64 {
        let explored = self.exploration.as_ref();
        let explored = explored.filter(|it| it.gpu_type == row.gpu_type && it.gpus == row.gpus);
        explored.map_or(row.epoch.0, |explored| row.epoch.0 * explored.time_factor)
    }
}
