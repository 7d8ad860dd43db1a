//! Options of a decision by any method.

use std::collections::BTreeMap;

use andreas_model::{CostRate, GpuType};
use andreas_planner::MethodName;
use serde::{Deserialize, Serialize};

use crate::method::Method;

/// Options of a decision, as [`andreas_planner::Options`] for the product's methods.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    /// The method.
    pub method: Method,
    /// Seed of the randomized methods.
    pub seed: u64,
    /// Maximum number of constructions of a randomized method; default 1000. Time is never used.
    pub trials: u64,
    /// The cost model of energy.
    pub accounting: Accounting,
    /// Allowed gap of the product's randomized methods: distance of cost from bound, as part of the cost,
    /// 0 <= gap < 1.
    pub gap: f64,
}

/// The cost model of energy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Accounting {
    /// From the snapshot: predicted watts of jobs, overhead of nodes, tariff; changes cost restarts.
    #[default]
    Predicted,
    /// As in the published ANDREAS optimizer. A catalogue gives the cost per second of a node of a type with
    /// k of its GPUs in use (first entry: one GPU). Jobs share it by GPUs and changes are free. Only for
    /// comparisons with the original. The product's methods take nothing of it.
    Catalogue(BTreeMap<GpuType, Vec<CostRate>>),
}

impl Options {
    /// The same options for a method of the product.
    pub(crate) fn for_product(&self, method: MethodName) -> andreas_planner::Options {
        andreas_planner::Options { method, seed: self.seed, trials: self.trials, gap: self.gap }
    }
}

impl Default for Options {
    fn default() -> Self {
        let andreas_planner::Options { method, seed, trials, gap, .. } = andreas_planner::Options::default();
        Self { method: method.into(), seed, trials, accounting: Accounting::default(), gap }
    }
}
