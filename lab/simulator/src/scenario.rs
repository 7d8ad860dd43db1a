//! A cluster, its policy settings, and the true data of the future jobs.

use std::collections::BTreeMap;

use andreas_baselines::{Accounting, Tickets};
use andreas_model::{CostRate, GpuType, JobId, NodeName, Seconds, StepFunction, Tariff, Time, Watts};
use andreas_planner::node_sleep::SleepRule;
use andreas_planner::{GpuTypeInfo, Job, Lateness, Node};
use andreas_predictor::Features;
use serde::Deserialize;

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
    /// Seconds of a job's weight and draw that a restart must be worth besides, >= 0 ([`andreas_planner::Snapshot::wear`]).
    /// Where restarts are free, as in the published instances, they do not wear either.
    pub wear: Seconds,
    /// Times that starts, stops and decisions take besides.
    pub delays: Delays,
    /// Training time between checkpoints; a stop loses the work since the last one. 0: never any loss.
    pub checkpoint: Seconds,
    /// Maximum time between decisions; `None`: decisions are made at events only.
    pub tick: Option<Seconds>,
    /// Money per second of a node by its type and its GPUs in use, instead of watts: the accounting of the
    /// published ANDREAS simulator.
    pub catalogue: Option<BTreeMap<GpuType, Vec<CostRate>>>,
    /// Failures of nodes.
    pub failures: Vec<Failure>,
    /// How nodes go to sleep and wake; used by replays that let them ([`crate::Sleep`]).
    pub sleep: SleepModel,
    /// The part of a looped trace that is counted: all draw within it, and the jobs submitted in it. `None`: from
    /// the first to the last submission, with all work to its end.
    pub window: Option<(Time, Time)>,
    /// Jobs in order of submission, waiting, with their true times and powers.
    pub jobs: Vec<Job>,
    /// Features from users, for replays with predicted times; other jobs have none.
    pub features: BTreeMap<JobId, Features>,
    /// The profile that a job shares with the other runs of its program; others have one each. Jobs of one program have
    /// epochs of the same work.
    pub programs: BTreeMap<JobId, String>,
    /// Epochs that jobs announce and never train, because they fail or are cancelled before; others have none.
    pub unfinished: BTreeMap<JobId, f64>,
}

/// Times that starts, stops and decisions take. 0 by default: all happen at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Delays {
    /// Seconds from an event to the decision on it; events meanwhile are decided together.
    pub debounce_s: f64,
    /// Seconds from a decision until the pods are bound, at every start.
    pub bind_s: f64,
    /// Seconds from the binding of a job's first pods to its first training: image, data, first compilation.
    pub first_start_s: f64,
    /// Seconds until a stopped job has left its GPUs; others start there after that.
    pub stop_s: f64,
}

/// How nodes go to sleep and wake.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SleepModel {
    /// Seconds to wake, at the draw of a busy host.
    pub wake_s: f64,
    /// Joules of one sleep and wake besides.
    pub wake_j: f64,
    /// Share of wakes that fail and are tried again.
    pub wake_fails: f64,
    /// When nodes sleep.
    pub rule: SleepRule,
}

impl Default for SleepModel {
    fn default() -> Self {
        Self { wake_s: 600.0, wake_j: 0.0, wake_fails: 0.01, rule: SleepRule::default() }
    }
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

    /// Whether a job's lateness and turnaround count. In a looped trace only those submitted in the window do.
    pub fn counts(&self, job: &Job) -> bool {
        self.window.is_none_or(|(from, to)| job.submit.0 >= from.0 && job.submit.0 < to.0)
    }

    /// Number of the jobs that count.
    pub fn counted(&self) -> usize {
        self.jobs.iter().filter(|job| self.counts(job)).count()
    }

    /// The scenario with its jobs by submission, then by name.
    #[must_use]
    pub fn sorted(mut self) -> Self {
        self.jobs.sort_by(|a, b| a.submit.total_cmp(&b.submit).then_with(|| a.id.cmp(&b.id)));
        self
    }
}
