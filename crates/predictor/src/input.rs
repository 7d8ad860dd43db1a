//! Input types: GPU types, profiles with tables and observations, questions.

use andreas_model::{Configuration, GpuCount, GpuType, Seconds, Time, Watts};
use serde::{Deserialize, Serialize};

/// A GPU type of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuModel {
    /// Product name.
    pub gpu_type: GpuType,
    /// Draw of one idle GPU.
    pub idle: Watts,
    /// Default power limit of one GPU.
    pub max: Watts,
}

/// A row of the table that the user gave with the profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableRow {
    /// GPU type.
    pub gpu_type: GpuType,
    /// GPUs in total.
    pub gpus: GpuCount,
    /// Nodes; absent means one node.
    pub nodes: Option<u32>,
    /// Time of one epoch.
    pub epoch: Option<Seconds>,
    /// Draw of all these GPUs together.
    pub power: Option<Watts>,
}

/// One measurement of a run of the profile, on one configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// Where it ran; `limit` as set then.
    pub configuration: Configuration,
    /// Time of one epoch.
    pub epoch: Option<Seconds>,
    /// Mean draw of one of its GPUs.
    pub watts_per_gpu: Option<Watts>,
    /// Epochs observed (may be a fraction); used as weight.
    pub epochs: f64,
    /// Time of the observation; newer rows are kept when there are too many.
    pub at: Time,
    /// GPUs in total, if nodes have different numbers of them.
    pub gpus: Option<GpuCount>,
    /// Samples of one global batch, if runs of the profile differ in it.
    pub batch: Option<f64>,
    /// Self-reported by the job, not measured by the system. Used only within its profile, never in
    /// a pooled fit.
    pub claimed: bool,
}

/// Describes a profile, to predict what never ran. All fields are optional; values that are not
/// positive and finite count as absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Features {
    /// Name of the model family, e.g. `resnet50`.
    pub model_family: Option<String>,
    /// Numeric precision of the training, e.g. `bf16`.
    pub precision: Option<String>,
    /// Parameters of the model, in any one unit.
    pub parameters: Option<f64>,
    /// Samples of one batch over all GPUs.
    pub batch: Option<f64>,
    /// Samples of one epoch. Without it, epochs of different profiles cannot be compared.
    pub samples: Option<f64>,
}

/// A profile: runs of the same model, data and batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// `namespace/name`: each namespace is a tenant of its own. Names without a namespace belong to one tenant.
    pub name: String,
    /// The user's own table. The operator never changes it.
    pub given: Vec<TableRow>,
    /// Description of the model and its data.
    pub features: Features,
    /// Observations since.
    pub observations: Vec<Observation>,
}

/// Assumption for a run of an unknown job: the whole run takes `run_time` on `gpus` GPUs of
/// `gpu_type`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prior {
    /// Time of the whole run ([`prior_run_time`]).
    pub run_time: Seconds,
    /// Epochs of the whole run.
    pub epochs: f64,
    /// The most common allowed type.
    pub gpu_type: GpuType,
    /// The fewest GPUs the job allows.
    pub gpus: GpuCount,
}

/// One question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Query {
    /// Configuration.
    pub configuration: Configuration,
    /// GPUs in total, if nodes have different numbers of them.
    pub gpus: Option<GpuCount>,
    /// Samples of one global batch, if it differs from the profile's.
    pub batch: Option<f64>,
}

/// Restarts that must have been observed before their time counts.
const MIN_RESTARTS: usize = 3;
/// An observed restart counts for at most this many times the median.
const MAX_OF_MEDIAN: i64 = 4;

/// Seconds that a restart of runs with one profile takes: the upper quartile of those observed. `None` before
/// there are three.
#[must_use]
pub fn restart_time(observed: impl IntoIterator<Item = i64>) -> Option<Seconds> {
    let mut seconds: Vec<i64> = observed.into_iter().map(|seconds| seconds.clamp(1, 3_600)).collect();
    if seconds.len() < MIN_RESTARTS {
        return None;
    }
    seconds.sort_unstable();
    let most = seconds[seconds.len() / 2] * MAX_OF_MEDIAN;
    let upper = (seconds.len() * 3).div_ceil(4) - 1;
    Some(Seconds(seconds[upper].min(most) as f64))
}

/// Run time assumed for an unknown job: the median of the finished jobs' run times, else the
/// policy's `unknownJobs.runTime`. Run times that are not positive and finite are ignored.
pub fn prior_run_time(finished: &[Seconds], default: Seconds) -> Seconds {
    let mut times: Vec<f64> = finished.iter().map(|s| s.0).filter(|s| s.is_finite() && *s > 0.0).collect();
    times.sort_by(f64::total_cmp);
    match times.len() {
        0 => default,
        n if n % 2 == 1 => Seconds(times[n / 2]),
        n => Seconds(times[n / 2 - 1] / 2.0 + times[n / 2] / 2.0),
    }
}
