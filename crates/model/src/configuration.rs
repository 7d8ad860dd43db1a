//! The resources a job runs on, without the choice of nodes.

use serde::{Deserialize, Serialize};

use crate::{GpuCount, GpuType, Watts};

/// GPU type, number of nodes, GPUs per node and power limit per GPU. All nodes have the same GPU type and
/// number of GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// GPU type.
    pub gpu_type: GpuType,
    /// Number of nodes of the gang; 1 for an ordinary job.
    pub nodes: u32,
    /// GPUs per node.
    pub gpus_per_node: GpuCount,
    /// Power limit per GPU, W; `None`: the board's default.
    pub limit: Option<Watts>,
}

impl Configuration {
    /// Total GPUs of the gang.
    pub fn total_gpus(&self) -> GpuCount {
        GpuCount(self.nodes.saturating_mul(self.gpus_per_node.0))
    }
}
