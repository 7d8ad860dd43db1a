//! The result of a decision: for every job where it runs or why it waits, and the cost of all jobs.

use std::borrow::Cow;
use std::collections::BTreeMap;

use andreas_model::{JobId, Joules, Money, Time, Watts};
use serde::{Deserialize, Serialize};

use crate::snapshot::{IntendedChange, Placement, Prices};

/// One decision for the whole cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The instant it was made for.
    pub now: Time,
    /// Name of the method that made it, as on command lines.
    pub method: Cow<'static, str>,
    /// The seed it was made with.
    pub seed: u64,
    /// Number of constructions and moves tried.
    pub trials: u64,
    /// The minimized objective of this decision; comparable only between plans of one snapshot and method.
    pub cost: Money,
    /// Proven lower bound of `cost`, if the method has one.
    pub bound: Option<Money>,
    /// `(cost - bound) / bound`, if there is a bound: how far the step may be from its optimum. It says nothing
    /// about the prices of later periods.
    pub gap: Option<f64>,
    /// `(cost - bound) / (cost of everybody waiting - bound)`, if there is a bound: the part of what planning
    /// could save in this step that may be missed; 0 to 1.
    #[serde(default)]
    pub missed_saving: Option<f64>,
    /// What jobs ask for at the prices of this plan in the coming periods, as a part of what is there: of the GPUs or
    /// watts of which most is asked for. About 1 where something is scarce and prices are right; several times that
    /// where they are not, and then neither cost nor gap means much. `None` if the method has no prices.
    #[serde(default)]
    pub asked_over_available: Option<f64>,
    /// Free GPUs of nodes on which a job that waits could start now, though neither tariff nor budget gets better.
    #[serde(default)]
    pub gpus_left_free: u64,
    /// The method computed a bound above the cost, so it has proven nothing, and `bound` is left out. It is an
    /// error of the method, except while a lowered budget makes it stop jobs that the bound takes as given.
    #[serde(default)]
    pub bound_invalid: bool,
    /// Budgeted power once the plan is carried out, in the scope of the budget; while more leaves than the budget
    /// allows, the most until then.
    pub budgeted_power: Watts,
    /// What the budget allows now, less the margin.
    pub allowed_power: Option<Watts>,
    /// Latest time of the next plan, as far as known: the next end of a job, edge of a window, deferred start or change, or the time
    /// from which a young run that would be late as it is may be moved.
    pub next_event: Option<Time>,
    /// A decision for every job of the snapshot.
    pub jobs: BTreeMap<JobId, JobPlan>,
    /// Shadow prices, for the next snapshot's warm start.
    pub prices: Option<Prices>,
    /// Changes of running jobs that make this plan worth its cost, and starts of waiting gangs, with their instants, for the next
    /// snapshot.
    #[serde(default)]
    pub intended: Vec<IntendedChange>,
    /// Starts of waiting jobs that the plan expects later on nodes that are off now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deferred: Vec<IntendedChange>,
}

/// The decision about one job and its forecast.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobPlan {
    /// Where it runs or why it waits.
    pub decision: Decision,
    /// Jobs that must all leave before it may start there, by name: they hold GPUs, other resources, quota or watts that
    /// it needs, and stop or are stopped or moved by the plan. Empty: the capacity is free at once. The next plan
    /// states it anew.
    pub after: Vec<JobId>,
    /// Expected end, if it runs.
    pub finish: Option<Time>,
    /// Expected remaining energy of its GPUs, without PUE; 0 if it waits.
    pub energy: Joules,
    /// Probability that it meets its deadline if nothing changes; 1 without a deadline. A waiting job counts
    /// as started now on its fastest configuration.
    pub on_time: f64,
    /// Expected cost of that energy and of lateness, at the weight without ageing; 0 if it waits.
    pub cost: Money,
}

/// Run or wait.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Decision {
    /// Run there; a stopping job starts there once it has stopped. Unchanged placement: continue.
    Run(Placement),
    /// Wait; a running job stops.
    Wait {
        /// The reason.
        reason: WaitReason,
        /// Blocking jobs, the largest holders first; at most eight.
        blockers: Vec<JobId>,
        /// One sentence for users. It names no job, since users may not see jobs of other namespaces.
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

andreas_model::names! {
    /// The reason why a job waits. The names are those of the job's conditions.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    pub enum WaitReason {
        /// Suitable nodes exist, but other jobs hold them.
        WaitingForCapacity,
        /// A later start is cheaper.
        DeferredForEnergy,
        /// GPUs are free, but not enough watts.
        PowerBudget,
        /// The budget is below the draw of the nodes without any of our jobs.
        BudgetInfeasible,
        /// No node has enough GPUs of a type it can use.
        NoFeasibleGpuType,
        /// Such nodes exist, but none admits its workers (CPU, memory, taints, selectors, failed placements).
        NoFeasibleNode,
        /// The quota of its namespace is used up.
        QuotaExceeded,
        /// It was running and was preempted.
        Preempted,
    }
}
