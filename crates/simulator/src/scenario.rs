//! A cluster, its policy settings, and the true data of the future jobs.

use std::collections::BTreeMap;

use andreas_baselines::{Accounting, Tickets};
use andreas_core::{CostRate, GpuType, JobId, NodeName, Seconds, StepFunction, Tariff, Time, Watts};
use andreas_planner::{GpuTypeInfo, Job, Lateness, Node};
use andreas_predictor::Features;

/// Input of a replay.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name in reports.
    pub name: String,
    /// GPU types of the nodes.
    pub gpu_types: Vec<GpuTypeInfo>,
    /// Nodes.
    pub nodes: Vec<Node>,
    /// Shares of the namespaces, for fair-share policies.
    pub tickets: Tickets,
    /// Price of energy, including PUE.
    pub tariff: Tariff,
    /// Power budget of nodes and GPUs.
    pub budget: Option<StepFunction<Watts>>,
    /// Cost of lateness. The bill never uses ageing.
    pub lateness: Lateness,
    /// Seconds that a restart takes, >= 0. The job holds its GPUs and draws its full power meanwhile.
    pub restart: Seconds,
    /// Training time between checkpoints; a stop loses the work since the last one. 0: never any loss.
    pub checkpoint: Seconds,
    /// Maximum time between decisions; `None`: decisions are made at events only.
    pub tick: Option<Seconds>,
    /// Money per second of a node by its type and its GPUs in use, instead of watts: the accounting of the
    /// published ANDREAS simulator.
    pub catalogue: Option<BTreeMap<GpuType, Vec<CostRate>>>,
    /// Failures of nodes.
    pub failures: Vec<Failure>,
    /// Jobs in order of submission, waiting, with their true times and powers.
    pub jobs: Vec<Job>,
    /// Features from users, for replays with predicted times; other jobs have none.
    pub features: BTreeMap<JobId, Features>,
}

/// A temporary failure of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The node.
    pub node: NodeName,
    /// Start.
    pub at: Time,
    /// Duration.
    pub duration: Seconds,
}

impl Scenario {
    /// Energy cost model: the scenario's catalogue prices if it has any, else predicted energy at
    /// the tariff.
    pub fn accounting(&self) -> Accounting {
        self.catalogue.clone().map_or(Accounting::Predicted, Accounting::Catalogue)
    }

    /// Sorts jobs by submission, then by name.
    pub fn sort(&mut self) {
        self.jobs.sort_by(|a, b| a.submit.total_cmp(&b.submit).then_with(|| a.id.cmp(&b.id)));
    }
}
