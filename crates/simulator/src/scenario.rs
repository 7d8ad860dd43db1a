//! A cluster, its rules, and the jobs that will come, as they truly are.

use std::collections::BTreeMap;

use andreas_core::{CostRate, GpuType, JobId, NodeName, Seconds, Steps, Tariff, Time, Watts};
use andreas_planner::{Accounting, GpuTypeInfo, Job, Lateness, Namespace, Node};
use andreas_predictor::Features;

/// What is replayed.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it is called in reports.
    pub name: String,
    /// GPU types of the nodes.
    pub gpu_types: Vec<GpuTypeInfo>,
    /// Nodes.
    pub nodes: Vec<Node>,
    /// Namespaces with tickets; one that is not here has one ticket.
    pub namespaces: Vec<Namespace>,
    /// Price of energy, PUE included.
    pub tariff: Tariff,
    /// Power budget of nodes and GPUs.
    pub budget: Option<Steps<Watts>>,
    /// What lateness costs. The bill never uses the ageing.
    pub lateness: Lateness,
    /// What a started job loses when it starts again, >= 0. It holds its GPUs and draws its power meanwhile.
    pub restart: Seconds,
    /// Training time between checkpoints; what was done since the last one is lost with a stop. 0: nothing ever is.
    pub checkpoint: Seconds,
    /// Longest time between decisions; none: decisions are made at events only.
    pub tick: Option<Seconds>,
    /// Money per second of a node by its type and the number of its GPUs in use, instead of watts: the accounting of
    /// the published ANDREAS simulator.
    pub catalogue: Option<BTreeMap<GpuType, Vec<CostRate>>>,
    /// Nodes that fail.
    pub failures: Vec<Failure>,
    /// Jobs in order of submission, waiting, with their true times and powers.
    pub jobs: Vec<Job>,
    /// What users say of their jobs' models, for replays with predicted times; of a job that is not here, nothing.
    pub features: BTreeMap<JobId, Features>,
}

/// A node is gone for a while.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// Which.
    pub node: NodeName,
    /// From when.
    pub at: Time,
    /// For how long.
    pub duration: Seconds,
}

impl Scenario {
    /// How the planner is to account for energy here.
    pub fn accounting(&self) -> Accounting {
        self.catalogue.clone().map_or(Accounting::Predicted, Accounting::Catalogue)
    }

    /// Puts jobs in order of submission, and by name among equals.
    pub fn sort(&mut self) {
        self.jobs.sort_by(|a, b| a.submit.total_cmp(&b.submit).then_with(|| a.id.cmp(&b.id)));
    }
}
