//! What an instance is made of: nodes, types, jobs and their configurations, as plain data by index.

use andreas_core::{GpuType, NodeName};

use crate::snapshot::{Job, LimitsCount};

/// Power in whole milliwatts. Integers make sums exact, so counters never drift.
pub(crate) fn milliwatts(watts: f64) -> i128 {
    i128::from(whole_milliwatts(watts))
}

/// The same as stored; amounts beyond its range exceed every budget.
pub(super) fn whole_milliwatts(watts: f64) -> i64 {
    let milliwatts = watts * 1e3;
    let below = milliwatts as i64;
    if (below as f64) < milliwatts { below.saturating_add(1) } else { below }
}

pub(crate) struct NodeData {
    pub name: NodeName,
    pub kind: usize,
    /// Position among the nodes of its type.
    pub rank: usize,
    pub free_gpus: i64,
    pub overhead: f64,
    pub overhead_mw: i128,
}

pub(crate) struct TypeData {
    pub name: GpuType,
    pub idle_mw: i128,
    /// The idle draw in watts.
    pub idle: f64,
    pub max: f64,
    /// Its nodes, by name.
    pub nodes: Vec<u32>,
    /// Maximum GPUs for us in one of its nodes.
    pub widest: i64,
    /// Minimum overhead of one of its nodes, in watts.
    pub overhead: f64,
}

/// One configuration of a job.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub kind: usize,
    pub nodes: u32,
    /// GPUs per node.
    pub gpus: i64,
    pub limit: Option<f64>,
    /// Seconds for all remaining epochs.
    pub time: f64,
    /// Watts of all its GPUs, for energy and cost.
    pub power: f64,
    /// Watts of all its GPUs, for the budget.
    pub draw: f64,
    pub(super) milliwatts: i64,
    pub rel_std: f64,
    /// Whether it is in the job's table and nodes are large enough (false: only held now).
    pub listed: bool,
    /// Whether the job may get it now: it is listed and its holdings do not exclude it.
    pub offered: bool,
}

impl Config {
    /// Draw for the budget, in whole milliwatts.
    pub fn draw_mw(&self) -> i128 {
        i128::from(self.milliwatts)
    }

    /// Sets the draw for the budget.
    pub(super) fn count_as(&mut self, draw: f64) {
        (self.draw, self.milliwatts) = (draw, whole_milliwatts(draw));
    }

    pub fn total_gpus(&self) -> i64 {
        i64::from(self.nodes) * self.gpus
    }

    /// Same GPU type, GPUs and nodes; only the limit may differ.
    pub fn same_hardware(&self, other: &Self) -> bool {
        self.kind == other.kind && self.nodes == other.nodes && self.gpus == other.gpus
    }
}

/// Demand of a job for one resource, per worker, GPU and gang.
pub(crate) struct Demand {
    pub what: usize,
    pub fixed: u64,
    pub per_gpu: u64,
    pub per_gang: u64,
}

impl Demand {
    pub fn of_worker(&self, gpus: i64) -> i128 {
        i128::from(self.fixed) + i128::from(self.per_gpu) * i128::from(gpus)
    }

    pub fn of_job(&self, config: &Config) -> i128 {
        self.of_worker(config.gpus) * i128::from(config.nodes)
            + if config.nodes > 1 { i128::from(self.per_gang) } else { 0 }
    }
}

/// A configuration on nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Assignment {
    pub config: usize,
    pub nodes: Nodes,
}

/// Nodes of a job, nearly always one. Equality ignores the order.
#[derive(Clone, Debug, Eq)]
pub(crate) enum Nodes {
    One(u32),
    Many(Box<[u32]>),
}

impl Nodes {
    pub fn as_slice(&self) -> &[u32] {
        match self {
            Self::One(node) => std::slice::from_ref(node),
            Self::Many(nodes) => nodes,
        }
    }
}

impl PartialEq for Nodes {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::One(a), Self::One(b)) => a == b,
            _ => andreas_core::same_nodes(self.as_slice(), other.as_slice()),
        }
    }
}

/// Holdings of a job at the time of the decision.
pub(crate) enum Holding {
    Nothing,
    /// Runs there; may be moved if `free_to_move`.
    Running {
        assignment: Assignment,
        free_to_move: bool,
    },
    /// Committed to start there.
    Committed {
        target: Assignment,
        leaving: Option<Assignment>,
    },
    /// Is stopping; its next place is open.
    Leaving {
        assignment: Assignment,
    },
}

pub(crate) struct JobData<'a> {
    pub job: &'a Job,
    pub configs: Vec<Config>,
    /// Money per second late, aged.
    pub weight: f64,
    /// Share of the weight that a second in the system costs.
    pub share: f64,
    /// Infinite without a deadline.
    pub deadline: f64,
    /// Its weight has reached the maximum of ageing: served first.
    pub aged_out: bool,
    pub holding: Holding,
    /// Index of its set of nodes.
    pub admits: usize,
    pub node_demand: Vec<Demand>,
    pub quota_demand: Vec<Demand>,
    /// Cost of a change of nodes or GPUs.
    pub change: f64,
    /// Time on its fastest and its slowest configuration; infinite and zero without any.
    pub fastest: f64,
    pub slowest: f64,
}

impl JobData<'_> {
    /// Where it runs or is committed to run.
    pub fn present(&self) -> Option<&Assignment> {
        match &self.holding {
            Holding::Running { assignment, .. } | Holding::Committed { target: assignment, .. } => {
                Some(assignment)
            }
            Holding::Nothing | Holding::Leaving { .. } => None,
        }
    }

    /// Watts that a limit on its holdings will save but that it draws until the limit is in force.
    pub fn unset_mw(&self) -> i128 {
        if self.job.limits_count != LimitsCount::NotYetSet {
            return 0;
        }
        let saved = |assignment: &Assignment| {
            let held = &self.configs[assignment.config];
            let without = self.configs.iter().find(|c| c.limit.is_none() && c.same_hardware(held));
            without.map_or(0, |without| (without.draw_mw() - held.draw_mw()).max(0))
        };
        self.leaving().or(self.present()).map_or(0, saved)
    }

    /// The placement that it is giving up.
    pub fn leaving(&self) -> Option<&Assignment> {
        match &self.holding {
            Holding::Leaving { assignment } | Holding::Committed { leaving: Some(assignment), .. } => {
                Some(assignment)
            }
            _ => None,
        }
    }
}
