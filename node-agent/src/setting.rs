//! What can be set on a GPU, and how the brain asks the setter for it.
//!
//! One JSON object per line each way. A request names everything that is wanted: a GPU that is not named gets back what it had.
//! So a request can be repeated, lost or answered late without harm, and is the brain's sign of life at the same time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Longest line either side reads, bytes: 64 GPUs take about 8 KiB.
pub const LONGEST_LINE: usize = 64 * 1024;
/// Most GPUs that a request may name.
pub const MOST_GPUS: usize = 64;

/// NVML's UUID of a GPU (`GPU-...`).
pub type Uuid = String;

/// What is set on one GPU. The default is: nothing, as it was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Setting {
    /// Power limit, mW.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_mw: Option<u32>,
    /// SM clocks are locked at or below this, MHz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_mhz: Option<u32>,
}

impl Setting {
    /// Whether nothing is set.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What the brain wants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Wanted {
    /// Settings by GPU.
    pub settings: BTreeMap<Uuid, Setting>,
}

/// What the setter did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Done {
    /// Without a word from the brain, settings end after this time, ms.
    pub ttl_ms: u64,
    /// The administrator's lowest power limit, mW: lower ones are refused.
    #[serde(default)]
    pub floor_limit_mw: u32,
    /// By GPU that was ever named.
    pub gpus: BTreeMap<Uuid, Outcome>,
}

/// What is set on one GPU now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// In force; `None` when a call failed half-way and it is not known.
    pub setting: Option<Setting>,
    /// Why it is not what was wanted: [`crate::gpu::GpuError::reason`], `out_of_range`, `record`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}
