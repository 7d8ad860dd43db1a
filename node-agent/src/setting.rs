//! Settings of a GPU, and the protocol between the agent process and the setter.
//!
//! One JSON object per line in each direction. A request names all desired settings; GPUs not named are
//! restored. Requests are therefore idempotent and may be lost or late, and each one is also a heartbeat.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Maximum line length, bytes: 64 GPUs take about 8 KiB.
pub const MAX_LINE: usize = 64 * 1024;
/// Maximum number of GPUs in a request.
pub const MAX_GPUS: usize = 64;

/// NVML's UUID of a GPU (`GPU-...`).
pub type Uuid = String;

/// Settings of one GPU. Default: none, original settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Setting {
    /// Power limit, mW.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_mw: Option<u32>,
    /// Upper bound of locked SM clocks, MHz.
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

/// The administrator's minimum values, in addition to the driver's range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Floor {
    /// Lowest power limit, mW.
    pub limit_mw: u32,
    /// Lowest locked SM clock, MHz.
    pub clock_mhz: u32,
}

/// Request of the agent process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SettingsRequest {
    /// Desired settings by GPU.
    pub settings: BTreeMap<Uuid, Setting>,
}

/// Response of the setter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SettingsResponse {
    /// Time to live, ms: settings end if no request arrives for this time.
    pub ttl_ms: u64,
    /// The administrator's lowest power limit, mW; lower ones are refused.
    #[serde(default)]
    pub floor_limit_mw: u32,
    /// The administrator's lowest SM clock, MHz; lower ones are refused.
    #[serde(default)]
    pub floor_clock_mhz: u32,
    /// Outcome for each GPU that was ever named. The agent names all, so that it knows their ceilings.
    pub gpus: BTreeMap<Uuid, Outcome>,
}

/// Result for one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// Setting in force; `None` if unknown after a failed call.
    pub setting: Option<Setting>,
    /// Highest power limit that the setter accepts, mW: the limit in force before one of its own. `None` while it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling_mw: Option<u32>,
    /// Why it differs from the desired one: [`crate::gpu::GpuError::reason`], `out_of_range`, `above_ceiling`, `braked` (the limit in
    /// force may be low for a moment only), `overridden` (another writer changed the limit again), `record`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}
