//! `TrainingJob` (`tj`): a deep-learning training run with a deadline and a weight.

mod status;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration::DurationText;
use crate::known;
use crate::shared_template::SharedTemplate;

pub use status::*;

/// What a user may say of a training run.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "andreas.dev",
    version = "v1alpha1",
    kind = "TrainingJob",
    plural = "trainingjobs",
    shortname = "tj",
    namespaced,
    status = "TrainingJobStatus",
    doc = "A deep-learning training run with a deadline and a weight. The operator decides how many GPUs of which type it gets, where, when and at which power."
)]
#[serde(rename_all = "camelCase")]
pub struct TrainingJobSpec {
    /// When the run should be done (RFC 3339). Jobs are never rejected; lateness has a price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// When the run should be done, counted from the creation of the object, for example `36h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_after: Option<DurationText>,
    /// How much its lateness and turnaround count, 1 to 1000.
    #[serde(default = "default_weight")]
    #[schemars(range(min = 1, max = 1000))]
    pub weight: i32,
    /// Units of progress of the whole run.
    #[serde(default = "default_epochs")]
    #[schemars(range(min = 1, max = 10_000_000))]
    pub epochs: i32,
    /// How many GPUs, of which kind, over how many nodes.
    #[serde(default)]
    pub gpus: GpuRequest,
    /// TrainingProfile of this namespace: the family of runs with the same model, data and batch. One named like the job is made when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub profile: Option<String>,
    /// Name of the container that trains; the first one of the template when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub container: Option<String>,
    /// Whether the template's requests are those of a whole worker or of one of its GPUs.
    #[serde(default, deserialize_with = "known::or_default")]
    pub resources_per: ResourcesPer,
    /// Pod template of a worker. GPU counts, scheduler and node are ours to set.
    pub template: SharedTemplate,
    /// Where the run saves its state. Without it a stop loses the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// Whether the run may be stopped in favour of others.
    #[serde(default)]
    pub preemption: Preemption,
    /// Whether the run may be moved for an epoch to a GPU type that its family is not known on, where knowing is worth more than that costs.
    #[serde(default, deserialize_with = "known::or_default")]
    pub profiling: Profiling,
    /// Attempts made again after a failure of the user's own making.
    #[serde(default = "default_retries")]
    #[schemars(range(min = 0, max = 100))]
    pub retries: i32,
    /// Longest time from bound to running (image, volume), at most 4h.
    #[serde(default = "default_start_timeout")]
    pub start_timeout: DurationText,
    /// Longest time without progress of a running attempt; off when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_timeout: Option<DurationText>,
    /// Longest run of one attempt; off when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_run_time: Option<DurationText>,
    /// Hold the run, or stop it with a checkpoint.
    #[serde(default)]
    pub suspend: bool,
    /// Delete the object this long after its end; kept when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub ttl_seconds_after_finished: Option<i32>,
    /// How many ended attempts keep their pods, so that `kubectl logs` works.
    #[serde(default = "default_history_limit")]
    #[schemars(range(min = 0, max = 20))]
    pub history_limit: i32,
}

fn default_weight() -> i32 {
    10
}
fn default_epochs() -> i32 {
    1
}
fn default_retries() -> i32 {
    3
}
fn default_start_timeout() -> DurationText {
    DurationText("15m".into())
}
fn default_history_limit() -> i32 {
    3
}
fn one() -> i32 {
    1
}
fn default_grace() -> i32 {
    60
}
fn default_checkpoint_path() -> String {
    "/checkpoint".into()
}

/// GPUs of a run. Never mixed types; the same number on every node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuRequest {
    /// Fewest GPUs in total.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 4096))]
    pub min: i32,
    /// Most GPUs in total; `min` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub max: Option<i32>,
    /// Which totals are possible; when empty: `min`, `max` and the powers of two between.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(range(min = 1, max = 4096)))]
    pub counts: Vec<i32>,
    /// GPU types allowed (values of the product label); any when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 63)))]
    pub types: Vec<String>,
    /// Least memory of one GPU, GiB.
    #[serde(rename = "memoryGiB", default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub memory_gib: Option<i32>,
    /// Most nodes the run may span.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 512))]
    pub max_nodes: i32,
}

impl Default for GpuRequest {
    fn default() -> Self {
        Self { min: 1, max: None, counts: Vec::new(), types: Vec::new(), memory_gib: None, max_nodes: 1 }
    }
}

impl TrainingJobSpec {
    /// Name of the container that trains: `container`, else the first of the template. A pod may have others before it,
    /// which admission put there.
    pub fn training_container(&self) -> Option<&str> {
        let first =
            || self.template.spec.as_ref()?.containers.first().map(|container| container.name.as_str());
        self.container.as_deref().or_else(first)
    }
}

impl GpuRequest {
    /// Most GPUs in total.
    pub fn max_total(&self) -> i32 {
        self.max.unwrap_or(self.min).max(self.min)
    }

    /// The totals that may be given, ascending, without repetition: `counts` within `min..=max`, else `min`, `max`
    /// and the powers of two between.
    pub fn totals(&self) -> Vec<i32> {
        let (min, max) = (self.min.max(1), self.max_total().max(1));
        let mut totals: Vec<i32> = if self.counts.is_empty() {
            (0..12).map(|p| 1 << p).chain([min, max]).collect()
        } else {
            self.counts.clone()
        };
        totals.retain(|t| (min..=max).contains(t));
        totals.sort_unstable();
        totals.dedup();
        totals
    }
}

/// What the requests of the template mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ResourcesPer {
    /// Those of one worker, whatever its number of GPUs.
    #[default]
    Worker,
    /// Those of one GPU: multiplied by the worker's GPUs.
    Gpu,
}

/// Whether a run may be moved to see how fast it is elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Profiling {
    /// It is moved only for its own good as far as that is known.
    #[default]
    Off,
    /// It may be, if it has a checkpoint, may be stopped, and is on time even if it turns out slow there.
    Auto,
}

/// Whether a run may be stopped in favour of others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Preemption {
    /// It may.
    #[default]
    Allowed,
    /// Only its user, a drain or a power emergency stops it. A word of another release counts as this one.
    #[serde(other)]
    Never,
}

/// Where a run saves its state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// PersistentVolumeClaim of the namespace, mounted at `path`; when absent the template brings its own storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: Option<String>,
    /// Folder in the container, also in the environment as `CHECKPOINT_DIR`.
    #[serde(default = "default_checkpoint_path")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^/"))]
    pub path: String,
    /// Seconds between SIGTERM and SIGKILL: the time to save.
    #[serde(default = "default_grace")]
    #[schemars(range(min = 0, max = 3600))]
    pub grace_seconds: i32,
    /// Two attempts at once would corrupt it: the job of a node that is not ready waits for proof that the node is dead.
    #[serde(default)]
    pub exclusive: bool,
}
