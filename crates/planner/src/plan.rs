//! What a decision says: for every job where it runs or why it waits, and what all of it costs.

use std::collections::BTreeMap;
use std::sync::Arc;

use andreas_core::{JobId, Joules, Money, Seconds, Time, Watts};
use serde::{Deserialize, Serialize};

use crate::memory::Memory;
use crate::method::MethodName;
use crate::snapshot::Placement;

/// One decision for the whole cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The instant it was made for.
    pub now: Time,
    /// The method that made it.
    pub method: MethodName,
    /// The seed it was made with.
    pub seed: u64,
    /// Constructions and moves that were tried.
    pub trials: u64,
    /// What the method minimised, for this decision; comparable only between plans of one snapshot and method.
    pub cost: Money,
    /// Proven lower bound of `cost`, where the method has one.
    pub bound: Option<Money>,
    /// `(cost - bound) / bound`, where there is a bound.
    pub gap: Option<f64>,
    /// Budgeted power once the plan is carried out, in the scope of the budget.
    pub budgeted_power: Watts,
    /// What the budget allows now, less the margin.
    pub allowed_power: Option<Watts>,
    /// When to plan again at the latest, as far as the planner sees: the first end of a job, edge of a window, or later
    /// start or change that it has in view.
    pub next_event: Option<Time>,
    /// A decision for every job of the snapshot.
    pub jobs: BTreeMap<JobId, JobPlan>,
    /// For the next snapshot's warm start.
    pub prices: Option<Prices>,
    /// For the next snapshot, of a policy that must know who had how much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
}

/// The decision about one job and what is expected of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobPlan {
    /// Run where, or wait why.
    pub decision: Decision,
    /// Jobs that must have left before it may start there: they still hold GPUs, quota or watts it needs, and the
    /// plan stops or moves them. Empty: its room is free at once.
    pub after: Vec<JobId>,
    /// When it is expected to be done, if it runs.
    pub finish: Option<Time>,
    /// Energy it is still expected to take, PUE not included; 0 if it waits.
    pub energy: Joules,
    /// Probability that it meets its deadline if nothing changes; 1 without deadline. If it waits: as if started
    /// now on its fastest configuration.
    pub on_time: f64,
    /// Its expected energy and lateness in money, at its plain weight; 0 if it waits.
    pub cost: Money,
}

/// Run or wait.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Decision {
    /// Run there (from the end of its stopping, where it stops first). Equal to where it is: go on.
    Run(Placement),
    /// Wait; a running job stops.
    Wait {
        /// Why.
        reason: WaitReason,
        /// Jobs in the way, the largest holders first; at most eight.
        blockers: Vec<JobId>,
        /// One sentence for people. It names no job: readers of one namespace may not know the jobs of another.
        message: String,
    },
}

impl Decision {
    /// Where it runs.
    pub fn placement(&self) -> Option<&Placement> {
        match self {
            Self::Run(placement) => Some(placement),
            Self::Wait { .. } => None,
        }
    }
}

/// Why a job waits. The names are those of the job's conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum WaitReason {
    /// Nodes could take it, other jobs hold them.
    WaitingForCapacity,
    /// It is cheaper to run it later.
    DeferredForEnergy,
    /// There are GPUs, but not the watts.
    PowerBudget,
    /// The budget is below what nodes draw without any job of ours.
    BudgetInfeasible,
    /// No node has GPUs of a type and in a number it can use.
    NoFeasibleGpuType,
    /// Such nodes exist, but none admits its workers (CPU, memory, taints, selectors, failed placements).
    NoFeasibleNode,
    /// Its namespace's quota leaves no room.
    QuotaExceeded,
    /// It was running and had to make room.
    Preempted,
}

impl WaitReason {
    /// Every reason.
    pub const ALL: [Self; 8] = [
        Self::WaitingForCapacity,
        Self::DeferredForEnergy,
        Self::PowerBudget,
        Self::BudgetInfeasible,
        Self::NoFeasibleGpuType,
        Self::NoFeasibleNode,
        Self::QuotaExceeded,
        Self::Preempted,
    ];

    /// The spelling of conditions and metric labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::WaitingForCapacity => "WaitingForCapacity",
            Self::DeferredForEnergy => "DeferredForEnergy",
            Self::PowerBudget => "PowerBudget",
            Self::BudgetInfeasible => "BudgetInfeasible",
            Self::NoFeasibleGpuType => "NoFeasibleGpuType",
            Self::NoFeasibleNode => "NoFeasibleNode",
            Self::QuotaExceeded => "QuotaExceeded",
            Self::Preempted => "Preempted",
        }
    }
}

/// ShadowPrices-ahead prices: what a GPU of each class, and a watt, is worth in each coming period.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prices {
    /// The instant they were made for.
    pub now: Time,
    /// Ends of the periods, counted from `now`.
    pub bounds: Vec<Seconds>,
    /// Money per unit and second, by class name, one value per period.
    pub values: BTreeMap<Arc<str>, Vec<f64>>,
}
