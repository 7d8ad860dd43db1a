//! What flows in and out.

use andreas_core::{Configuration, GpuCount, GpuType, Seconds, Time, Watts};
use serde::{Deserialize, Serialize};

use crate::{Estimate, OutOfRange};

/// A GPU type of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuModel {
    /// Its product name.
    pub gpu_type: GpuType,
    /// Draw of one GPU without work.
    pub idle: Watts,
    /// Default power limit of one GPU.
    pub max: Watts,
}

/// A row of the table that the user gave with the family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Given {
    /// On this type.
    pub gpu_type: GpuType,
    /// GPUs in total.
    pub gpus: GpuCount,
    /// Nodes they are spread over; absent: over however many it takes.
    pub nodes: Option<u32>,
    /// Time of one epoch.
    pub epoch: Option<Seconds>,
    /// Draw of all these GPUs together.
    pub power: Option<Watts>,
}

/// What was measured of a run of the family, on one configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// Where it ran; `limit` as it was set then.
    pub configuration: Configuration,
    /// Time of one epoch.
    pub epoch: Option<Seconds>,
    /// Mean draw of one of its GPUs.
    pub watts_per_gpu: Option<Watts>,
    /// How many epochs were watched (may be a fraction): the weight.
    pub epochs: f64,
    /// When; newer rows are kept when there are too many.
    pub at: Time,
    /// GPUs in total, where they are not the same on every node.
    pub gpus: Option<GpuCount>,
    /// Samples of one global batch, where runs of one family differ in it.
    pub batch: Option<f64>,
    /// Said by the job, not measured by the system: it stays with its family and never enters a pooled fit.
    pub claimed: bool,
}

/// What describes a family, for predictions of what was never run. All optional; values that are not positive and
/// finite count as absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Features {
    /// Name of the model's family, e.g. `resnet50`.
    pub model_family: Option<String>,
    /// Numeric precision of the training, e.g. `bf16`.
    pub precision: Option<String>,
    /// Parameters of the model, in any one unit.
    pub parameters: Option<f64>,
    /// Samples of one batch over all GPUs.
    pub batch: Option<f64>,
    /// Samples of one epoch. Without them an epoch could be anything, and nothing can be said of its length.
    pub samples: Option<f64>,
}

/// A family of runs: same model, data and batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// `namespace/name`, unique. Namespaces are strangers to each other, unless named by [`together`](crate::together); names without one are
    /// one party's.
    pub name: String,
    /// The user's own table. Never changed by us.
    pub given: Vec<Given>,
    /// What describes it.
    pub features: Features,
    /// What was observed since.
    pub observations: Vec<Observation>,
}

/// What to think of a run of which nothing is known: the whole run takes `run_time` on `gpus` GPUs of `gpu_type`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prior {
    /// Of the whole run ([`prior_run_time`]).
    pub run_time: Seconds,
    /// Epochs of the whole run.
    pub epochs: f64,
    /// The commonest allowed type.
    pub gpu_type: GpuType,
    /// The fewest GPUs the job allows.
    pub gpus: GpuCount,
}

/// What an estimate rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Source {
    /// The table in `TrainingProfile.spec`.
    UserGiven,
    /// Runs of this family on this GPU type.
    Observed,
    /// Runs of this family on other types, and how other families compare on both.
    Regression,
    /// Nothing about the family.
    Prior,
}

impl Source {
    /// As it stands in `TrainingJob.status.prediction.source`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UserGiven => "UserGiven",
            Self::Observed => "Observed",
            Self::Regression => "Regression",
            Self::Prior => "Prior",
        }
    }
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Query {
    /// On what.
    pub configuration: Configuration,
    /// GPUs in total, where they are not the same on every node.
    pub gpus: Option<GpuCount>,
    /// Samples of one global batch, where it is not the family's.
    pub batch: Option<f64>,
}

/// What is expected of a family on one configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// As it was asked.
    pub configuration: Configuration,
    /// Time of one epoch, seconds.
    pub epoch: Estimate,
    /// Draw of all its GPUs together, watts.
    pub power: Estimate,
    /// In what it lies beyond everything that was seen.
    pub out_of_range: OutOfRange,
}

/// Errors of a family's own rows, each as the others predict it, as a part of the truth.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Check {
    /// Of times.
    pub epoch: Vec<f64>,
    /// Of draws.
    pub power: Vec<f64>,
}

impl Prediction {
    /// Median time of one epoch.
    pub fn epoch_seconds(&self) -> Seconds {
        Seconds(self.epoch.median)
    }

    /// Median draw of the whole gang.
    pub fn watts(&self) -> Watts {
        Watts(self.power.median)
    }
}

/// The run time to assume for a job of which nothing is known: the median of the finished jobs' run times, else the
/// policy's `defaultRunTime`. Run times that are not positive and finite are left out.
pub fn prior_run_time(finished: &[Seconds], default: Seconds) -> Seconds {
    let mut times: Vec<f64> = finished.iter().map(|s| s.0).filter(|s| s.is_finite() && *s > 0.0).collect();
    times.sort_by(f64::total_cmp);
    match times.len() {
        0 => default,
        n if n % 2 == 1 => Seconds(times[n / 2]),
        n => Seconds(times[n / 2 - 1] / 2.0 + times[n / 2] / 2.0),
    }
}
