//! GPU types of the cluster, and what one GPU of each draws for the budget.

use std::collections::BTreeMap;

use andreas_model::GpuType;

/// Margin on agents' reports: a draw changes in the minute between two of them.
pub const REPORT_MARGIN: f64 = 1.1;

/// A GPU type of the cluster: number of GPUs and memory of each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TypeFacts {
    /// GPUs on managed nodes.
    pub gpus: u64,
    /// Memory of one GPU of the node with the largest ones, MiB; 0 without a label.
    pub memory_mib: i64,
    /// GPUs of the largest node.
    pub per_node: u64,
    /// Power limits that a GPU supports, besides none, W, lowest first.
    pub levels: Vec<i32>,
    /// Draw of a GPU for the power budget.
    pub draw: Option<TypeDraw>,
}

/// Types of the cluster, by name.
pub type Types = BTreeMap<GpuType, TypeFacts>;

/// Draw of one GPU of a type for the budget, W.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TypeDraw {
    /// Without a job: the lower bound.
    pub idle: f64,
    /// At its default power limit: the upper bound.
    pub max: f64,
    /// Minimum in an unmeasured run.
    pub unmeasured: f64,
}

impl TypeDraw {
    /// Draw of `gpus` GPUs for the budget, if `predicted` watts are predicted for all of them.
    pub fn of_predicted(&self, predicted: f64, gpus: u32) -> f64 {
        self.bounded(predicted.max(self.unmeasured * f64::from(gpus)), gpus)
    }

    /// Budget draw in watts of `gpus` GPUs that were measured at `watts_per_gpu` each, with
    /// [`REPORT_MARGIN`].
    pub fn of_measured(&self, watts_per_gpu: f64, gpus: u32) -> f64 {
        self.bounded(watts_per_gpu * REPORT_MARGIN * f64::from(gpus), gpus)
    }

    fn bounded(&self, watts: f64, gpus: u32) -> f64 {
        let all = |each: f64| each * f64::from(gpus);
        watts.clamp(all(self.idle), all(self.max.max(self.idle)))
    }
}
