//! The planning methods by name, and the planning options.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use andreas_core::{CostRate, GpuType};
use serde::{Deserialize, Serialize};

/// A planning method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum MethodName {
    /// First come, first served, on the cheapest free configuration that meets the deadline.
    Fifo,
    /// First come, first served, with the GPU count the user asked for.
    FifoFixed,
    /// Earliest deadline first.
    Edf,
    /// Earliest deadline first, with the GPU count the user asked for.
    EdfFixed,
    /// Highest weight first.
    Priority,
    /// Highest weight first, with the GPU count the user asked for.
    PriorityFixed,
    /// The published randomized greedy of ANDREAS.
    Andreas,
    /// The same with its local search on the ten best plans.
    AndreasLs,
    /// The same with path relinking between the ten best plans.
    AndreasPr,
    /// The randomized greedy with shadow prices over time.
    #[default]
    RandomizedGreedy,
    /// The same, with branch and bound that proves the optimum of the step as far as the trials allow.
    Exact,
    /// Tiresias: least attained GPU-seconds first, in queues; preemptive, fixed requests.
    Tiresias,
    /// ElasticFlow: the smallest share that meets the deadline, then the rest by largest gain.
    Elasticflow,
    /// Gavel: the most progress per joule with deadlines met, in rounds; fixed requests.
    Gavel,
    /// Gandiva_fair: GPU time in proportion to the namespaces' tickets, in rounds; fixed requests.
    GandivaFair,
    /// PowerFlow-like: the largest time gain per added energy, under the power budget.
    Powerflow,
    /// Shortest remaining time first: an oracle; preemptive, fixed requests.
    Srtf,
}

impl MethodName {
    /// All methods.
    pub const ALL: [Self; 17] = [
        Self::Fifo,
        Self::FifoFixed,
        Self::Edf,
        Self::EdfFixed,
        Self::Priority,
        Self::PriorityFixed,
        Self::Andreas,
        Self::AndreasLs,
        Self::AndreasPr,
        Self::RandomizedGreedy,
        Self::Exact,
        Self::Tiresias,
        Self::Elasticflow,
        Self::Gavel,
        Self::GandivaFair,
        Self::Powerflow,
        Self::Srtf,
    ];

    /// Its name on command lines and in files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::FifoFixed => "fifo-fixed",
            Self::Edf => "edf",
            Self::EdfFixed => "edf-fixed",
            Self::Priority => "priority",
            Self::PriorityFixed => "priority-fixed",
            Self::Andreas => "andreas",
            Self::AndreasLs => "andreas-ls",
            Self::AndreasPr => "andreas-pr",
            Self::RandomizedGreedy => "randomized-greedy",
            Self::Exact => "exact",
            Self::Tiresias => "tiresias",
            Self::Elasticflow => "elasticflow",
            Self::Gavel => "gavel",
            Self::GandivaFair => "gandiva-fair",
            Self::Powerflow => "powerflow",
            Self::Srtf => "srtf",
        }
    }
}

impl fmt::Display for MethodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The error of an unknown method name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no method is called {0:?}")]
pub struct UnknownMethod(String);

impl FromStr for MethodName {
    type Err = UnknownMethod;

    fn from_str(name: &str) -> Result<Self, UnknownMethod> {
        Self::ALL.into_iter().find(|m| m.as_str() == name).ok_or_else(|| UnknownMethod(name.to_owned()))
    }
}

/// Planning options.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// The planning method.
    #[serde(default)]
    pub method: MethodName,
    /// Seed of the randomized methods.
    #[serde(default)]
    pub seed: u64,
    /// Maximum number of constructions of a randomized method; time is never used.
    #[serde(default = "thousand")]
    pub trials: u64,
    /// The cost model of energy.
    #[serde(default)]
    pub accounting: Accounting,
    /// Allowed gap of the randomized methods: distance of cost from bound, as part of the cost, 0 <= gap < 1.
    /// A larger gap needs less work. 0 uses all trials.
    #[serde(default)]
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
    /// comparisons with the original.
    Catalogue(BTreeMap<GpuType, Vec<CostRate>>),
}

fn thousand() -> u64 {
    1000
}

impl Default for Options {
    fn default() -> Self {
        Self {
            method: MethodName::default(),
            seed: 0,
            trials: thousand(),
            accounting: Accounting::default(),
            gap: 0.0,
        }
    }
}
