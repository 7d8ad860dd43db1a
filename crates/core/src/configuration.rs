//! What a job runs on, apart from which nodes.

use serde::{Deserialize, Serialize};

use crate::{GpuCount, GpuType, Watts};

/// GPU type, number of nodes, GPUs on each (always the same number on every node, never mixed types) and the
/// power limit per GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// Which GPUs.
    pub gpu_type: GpuType,
    /// How many nodes the gang spans; 1 for an ordinary job.
    pub nodes: u32,
    /// GPUs on each of them.
    pub gpus_per_node: GpuCount,
    /// Limit per GPU; none means the board's default.
    pub limit: Option<Watts>,
}

impl Configuration {
    /// GPUs of the whole gang.
    pub fn total_gpus(&self) -> GpuCount {
        GpuCount(self.nodes.saturating_mul(self.gpus_per_node.0))
    }
}
