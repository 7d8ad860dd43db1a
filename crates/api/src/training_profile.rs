//! `TrainingProfile` (`tp`): what is known of runs with the same model, data and batch.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the user already knows of such runs.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "andreas.dev",
    version = "v1alpha1",
    kind = "TrainingProfile",
    plural = "trainingprofiles",
    shortname = "tp",
    namespaced,
    status = "TrainingProfileStatus",
    derive = "PartialEq",
    doc = "Times and watts of training runs with the same model, data and batch: what the user already knows of them, and what was observed since."
)]
#[serde(rename_all = "camelCase", default)]
pub struct TrainingProfileSpec {
    /// Times and watts by configuration, as the user knows them. Default: none. The operator never changes them; what it observes counts more
    /// where the two differ.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub measurements: Vec<Measurement>,
    /// What describes model, data and batch. Default: nothing. Used to predict configurations that were never run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub features: Option<Features>,
}

/// Time and power of one configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Measurement {
    /// GPU type: the value of the nodes' type label, for example `NVIDIA-A100-SXM4-80GB`.
    #[schemars(length(min = 1, max = 253))]
    pub gpu_type: String,
    /// GPUs in total.
    #[schemars(range(min = 1, max = 4096))]
    pub gpus: i32,
    /// Nodes they are spread over. Default: 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 512))]
    pub nodes: i32,
    /// Time of one epoch, ms.
    #[schemars(range(min = 1, max = 31_536_000_000_i64))]
    pub millis_per_epoch: i64,
    /// Draw of all these GPUs together while training, W. Default: not known, predicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000_000))]
    pub watts: Option<i32>,
}

fn one() -> i32 {
    1
}

/// What describes model, data and batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Features {
    /// Name of the model, for example `resnet50`. Default: none. Profiles with the same name inform each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub model_family: Option<String>,
    /// Parameters of the model, millions. Default: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub parameters_million: Option<i32>,
    /// Samples of one batch over all GPUs. Default: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub batch_size: Option<i32>,
    /// Samples of one epoch. Default: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub dataset_samples: Option<i64>,
    /// Numeric precision of the training: `fp32`, `tf32`, `bf16`, `fp16` or `fp8`. Default: not known.
    #[serde(deserialize_with = "crate::known::optional", skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
}

/// Numeric precision of a training run. Default: not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit floating point.
    Fp32,
    /// TensorFloat-32.
    Tf32,
    /// 16-bit brain floating point.
    Bf16,
    /// 16-bit floating point.
    Fp16,
    /// 8-bit floating point.
    Fp8,
}

/// What was observed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TrainingProfileStatus {
    /// Observed times and watts, newest last, bounded.
    #[serde(deserialize_with = "crate::known::items", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub observations: Vec<Observation>,
    /// Choices of plans that failed for runs with this profile. They are not made again while another one is left.
    #[serde(deserialize_with = "crate::known::items", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub barred: Vec<Barred>,
    /// How long finished runs with this profile took, newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub finished_runs: Vec<FinishedRun>,
    /// What restarts of runs with this profile took, newest last.
    #[serde(deserialize_with = "crate::known::items", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub restarts: Vec<ObservedRestart>,
}

/// A choice of a plan that failed: what has all that the fields name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Barred {
    /// GPU type. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub gpu_type: Option<String>,
    /// GPUs in total whose memory was exhausted: so many and fewer, also of types with no more memory. Default: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub most_gpus: Option<i32>,
    /// GPUs of one worker that a kubelet could not place: workers of that size, for an hour. Default: any size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub gpus_per_worker: Option<i32>,
    /// Processor architecture of nodes (their label `kubernetes.io/arch`) for which the image has no code. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub architecture: Option<String>,
    /// When it failed last.
    pub at: Time,
}

impl Barred {
    /// Whether both are about the same choice, but for the number of GPUs and the time.
    pub fn is_like(&self, other: &Self) -> bool {
        (&self.gpu_type, self.gpus_per_worker, &self.architecture, self.most_gpus.is_some())
            == (&other.gpu_type, other.gpus_per_worker, &other.architecture, other.most_gpus.is_some())
    }
}

impl std::fmt::Display for Barred {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of = self.gpu_type.as_deref().map(|name| format!(" of {name}")).unwrap_or_default();
        match (self.most_gpus, self.gpus_per_worker, &self.architecture) {
            (Some(most), ..) => write!(f, "{most} and fewer GPUs{of}"),
            (_, Some(each), _) => write!(f, "workers with {each} GPUs{of}"),
            (.., Some(architecture)) => write!(f, "nodes of architecture {architecture}"),
            _ => write!(f, "GPUs{of}"),
        }
    }
}

/// What a restart took: the stop of one attempt and the start of the next one, without the time between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObservedRestart {
    /// Name of the TrainingJob and the attempt that was started: `<job>-<attempt>`.
    #[schemars(length(max = 253))]
    pub run: String,
    /// Seconds from the request to stop to the end of the last worker, and from the next allocation to its first progress.
    #[schemars(range(min = 1, max = 3600))]
    pub seconds: i64,
    /// When the started attempt first reported progress.
    pub at: Time,
}

/// How long a run took from its beginning to its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FinishedRun {
    /// Name of the TrainingJob and its last attempt: `<job>-<attempt>`.
    #[schemars(length(max = 253))]
    pub run: String,
    /// Seconds of training, all attempts together.
    #[schemars(range(min = 1))]
    pub seconds: i64,
    /// When it finished. With the name it distinguishes runs, also where a job was created again.
    pub at: Time,
}

/// Time and power of one configuration as one attempt had them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Observation {
    /// Name of the TrainingJob and its attempt: `<job>-<attempt>`.
    #[schemars(length(max = 253))]
    pub run: String,
    /// GPU type (value of the product label).
    #[schemars(length(max = 253))]
    pub gpu_type: String,
    /// GPUs in total.
    #[schemars(range(min = 1))]
    pub gpus: i32,
    /// Nodes they were spread over.
    #[schemars(range(min = 1))]
    pub nodes: i32,
    /// Power limit of each GPU, W; none when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_limit_watts: Option<i32>,
    /// Milliseconds of one epoch.
    #[schemars(range(min = 1))]
    pub millis_per_epoch: i64,
    /// Thousandths of an epoch that were observed.
    #[schemars(range(min = 0))]
    pub milli_epochs: i64,
    /// Measured draw of all these GPUs together, W.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watts: Option<i32>,
    /// The time rests on the program's word alone: neither did the operator's clock time it between two counted reports, nor was it a
    /// whole run. It counts for this profile, never for others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub claimed: bool,
    /// When.
    pub at: Time,
}
