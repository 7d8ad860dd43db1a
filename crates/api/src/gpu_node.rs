//! `GpuNode` (`gn`): what the operator wants of a node's GPUs, and what its agent sees.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A pod as GpuNodes name it: `namespace/name`. The kubelet gives an agent no UIDs, and an agent may not read pods.
pub fn namespaced_pod_name(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// What the operator wants of a node's GPUs.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "andreas.dev",
    version = "v1alpha1",
    kind = "GpuNode",
    plural = "gpunodes",
    shortname = "gn",
    status = "GpuNodeStatus",
    derive = "PartialEq",
    doc = "Made by the operator, one per node: wanted power limits and wake-ups of its GPUs, and what its agent sees."
)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuNodeSpec {
    /// Number of the last request to end the rest of all unheld GPUs. Default: 0, no request. The agent acknowledges it in
    /// `status.observedWakeGeneration`.
    #[schemars(range(min = 0))]
    pub wake_generation: i64,
    /// Number of the last request to report which pods hold GPUs. Default: 0, no request. The agent acknowledges it in
    /// `status.observedHoldersGeneration`.
    #[schemars(range(min = 0))]
    pub holders_generation: i64,
    /// Power limits of pods' GPUs, by pod. Default: none, their GPUs have the driver's own limit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub limits: Vec<PodPowerLimit>,
    /// Type by which plans know its GPUs: the value of the first of the policy's `typeLabels` that the node has. Default: none, it has none
    /// of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub gpu_type: Option<String>,
    /// The label that `gpuType` was read from. Default: none, as `gpuType`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub type_label: Option<String>,
    /// Since when the node lacks that label. It keeps its type for 10 minutes, and while its agent reports. Default: none, it has
    /// the label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub type_missing_since: Option<Time>,
    /// Why the node's GPUs are not planned. Default: none, they are planned. Where it is set, the agent reads the GPUs and sets nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excluded: Option<ExcludedNode>,
}

/// Why a node's GPUs are not planned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExcludedNode {
    /// `MigInUse`, `SharedGpus`, `MixedBoards`, `NoWholeGpus`, `NoTypeLabel`, `UnknownBoard`, `TooManyGpus`, `TooManyTypes`, `NotSelected`.
    #[schemars(length(min = 1, max = 63))]
    pub reason: String,
    /// What is wrong, and what to change.
    #[schemars(length(max = 4096))]
    pub message: String,
}

/// Power limit of the GPUs that a pod holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodPowerLimit {
    /// The pod, as `namespace/name`. Default: none; such an entry has no effect.
    #[serde(default)]
    #[schemars(length(max = 317))]
    pub pod: String,
    /// Power limit of each of its GPUs, W.
    #[schemars(range(min = 1, max = 100_000))]
    pub watts: i32,
}

/// What the node's agent sees.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuNodeStatus {
    /// Generation of `spec` that is in force on the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The last `spec.wakeGeneration` that was carried out: all unheld GPUs were awake.
    #[schemars(range(min = 0))]
    pub observed_wake_generation: i64,
    /// The last `spec.holdersGeneration` known before the kubelet was asked: the holders in `gpus` are no older than
    /// that request.
    #[schemars(range(min = 0))]
    pub observed_holders_generation: i64,
    /// The node's GPUs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub gpus: Vec<GpuState>,
    /// Sums over `gpus`, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub totals: Option<GpuTotals>,
    /// What pods that hold GPUs no more have used, the latest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub released: Vec<ReleasedEnergy>,
    /// Since when no GPU of the node is held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub empty_since: Option<Time>,
    /// `Ready`, `Unhealthy`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub conditions: Vec<Condition>,
    /// Version of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub agent_version: Option<String>,
    /// Time between the agent's reports while a pod holds a GPU that draws power, s. One that misses three of them
    /// counts as no agent. Absent: it reports changes alone, and none is missed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3600))]
    pub report_seconds: Option<i32>,
}

/// Sums over the GPUs of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuTotals {
    /// GPUs that the driver has.
    #[schemars(range(min = 0, max = 64))]
    pub gpus: i32,
    /// Those that a pod holds.
    #[schemars(range(min = 0, max = 64))]
    pub held: i32,
    /// Those in low power.
    #[schemars(range(min = 0, max = 64))]
    pub resting: i32,
    /// Draw of those that report it when the status was written, W; absent where none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub watts: Option<i32>,
    /// `Ok`; `Warning` where a GPU has a problem that it works with; `Unhealthy` where one must not be used.
    #[schemars(length(max = 63))]
    pub health: String,
}

impl GpuTotals {
    /// The totals of these GPUs.
    pub fn from_gpus(gpus: &[GpuState]) -> Self {
        let count = |of: GpuCondition| gpus.iter().filter(|gpu| gpu.state == of).count();
        let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
        let health = if count(GpuCondition::Unhealthy) > 0 {
            "Unhealthy"
        } else if gpus.iter().any(|gpu| !gpu.problems.is_empty()) {
            "Warning"
        } else {
            "Ok"
        };
        Self {
            gpus: number(gpus.len()),
            held: number(count(GpuCondition::Held)),
            resting: number(count(GpuCondition::Resting)),
            watts: gpus.iter().filter_map(|gpu| gpu.watts).reduce(i32::saturating_add),
            health: health.to_owned(),
        }
    }
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuState {
    /// NVML's UUID.
    #[schemars(length(min = 1, max = 96))]
    pub uuid: String,
    /// Whether it is held, free, resting or broken.
    pub state: GpuCondition,
    /// The pod that holds it, as `namespace/name`: by the kubelet, or by processes of it that still run there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub holder: Option<String>,
    /// Draw when the status was written, W; absent where the GPU does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub watts: Option<i32>,
    /// Energy counter at that time, J; absent where nothing tells the GPU's energy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub joules: Option<i64>,
    /// `joules` less the driver's counter, J: a driver that is loaded again counts anew, `joules` goes on. Below 0 where the counter moved
    /// by more than the board can draw. Absent: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counter_base: Option<i64>,
    /// Energy counter when the holder took it, J; absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub held_from: Option<i64>,
    /// When the holder took it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_since: Option<Time>,
    /// Maximum draw of its board, W: the highest power limit that its driver accepts, even if limits cannot be set.
    /// Absent where the driver does not say. Counted for types that neither the policy nor the table of boards
    /// describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub board_watts: Option<i32>,
    /// Lowest power limit that the agent can set on it, W; absent where it can set none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub min_limit_watts: Option<i32>,
    /// Highest power limit that the agent can set on it, W, which is what is in force without one of its own; absent where it can set none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_limit_watts: Option<i32>,
    /// What is wrong with it, the worst first; absent where nothing is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub problems: Vec<GpuProblem>,
    /// Since when it is `Unhealthy`, by the API server's clock; absent where it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unhealthy_since: Option<Time>,
    /// Processes that keep a context open on it and have done nothing for a minute, by pod: such a context keeps clocks
    /// and draw above those of an idle GPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub parked: Vec<ParkedContext>,
    /// Pods that share it by time-slicing or MIG, with an estimate of each one's energy. Absent for a GPU with one
    /// holder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub shares: Vec<GpuShare>,
}

/// Reason of a problem: the kubelet gave the GPU to several pods at once, though it is not divided.
pub const TWO_HOLDERS: &str = "TwoHolders";

/// Something that is wrong with a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuProblem {
    /// `GpuLost`, `ResetRequired`, `DriverHangs`, `DriverError`, `Xid`, `RowRemapFailed`, `RowRemapPending`,
    /// `PageRetirementPending`, `UncorrectedEcc`, `ThermalSlowdown`, `PowerBrake`, `HardwareSlowdown`,
    /// `ReadingMissing`, `TwoHolders`.
    #[schemars(length(min = 1, max = 63))]
    pub reason: String,
    /// Whether the GPU is `Unhealthy` because of it. A warning where false.
    #[serde(default)]
    pub fatal: bool,
    /// Number of the Xid error, for `Xid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub xid: Option<i32>,
    /// What it means and what ends it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub message: String,
}

/// Idle processes of one pod on a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ParkedContext {
    /// The pod, as `namespace/name`; its UID where the name cannot be read; absent for processes of no pod, or of an
    /// unknown one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub pod: Option<String>,
    /// Its processes with a context on the GPU.
    #[schemars(range(min = 1))]
    pub processes: i32,
}

/// An estimate of what one of several pods on a GPU uses of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuShare {
    /// The pod, as `namespace/name`.
    #[schemars(length(max = 317))]
    pub pod: String,
    /// Its part of the GPU, in thousandths: its time slices or compute slices of all that are held.
    #[schemars(range(min = 0, max = 1000))]
    pub thousandths: i32,
    /// Estimate of its energy since the agent first saw it there, J: that part of the GPU's energy, whatever it really
    /// used. Absent where nothing tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub estimated_joules: Option<i64>,
}

/// What a pod has used of a node's GPUs, by their counters, from when it took them until it let them go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReleasedEnergy {
    /// The pod, as `namespace/name`.
    #[serde(default)]
    #[schemars(length(max = 317))]
    pub pod: String,
    /// When it took the first of them. It distinguishes two pods of one name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Energy of all GPUs that it held here, J.
    #[schemars(range(min = 0))]
    pub joules: i64,
    /// How long it held them, s.
    #[schemars(range(min = 0))]
    pub seconds: i64,
    /// How many GPUs that were.
    #[schemars(range(min = 1, max = 64))]
    pub gpus: i32,
    /// Whether a part of it is an estimate: the driver's counter began anew in between, or the GPU has none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
}

/// Whether a GPU is held, free, resting or broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum GpuCondition {
    /// A pod holds it.
    Held,
    /// No pod holds it; awake.
    Free,
    /// No pod holds it; in low power.
    Resting,
    /// Must not be used. A word of another release counts as this one.
    #[serde(other)]
    Unhealthy,
}
