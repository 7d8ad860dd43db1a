//! What an instance is made of: nodes, types, jobs and their configurations, as plain data by index.

use andreas_model::{GpuType, NodeName, Time};

use crate::snapshot::{IntendedChange, Job, JobState, LimitsCount, NodePower};

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

/// A node.
pub struct NodeData {
    pub(crate) name: NodeName,
    /// Index of the type of its GPUs.
    pub kind: usize,
    /// Position among the nodes of its type.
    pub(crate) rank: usize,
    /// Gangs have nodes of one class only.
    pub(crate) gang_class: u32,
    pub(crate) free_gpus: i64,
    /// Draw of its host that jobs there are billed for, in watts: busy less idle, or all where it could sleep.
    pub overhead: f64,
    /// Draw that its first job adds to the budget, in milliwatts.
    pub(crate) overhead_mw: i128,
    /// Whether it is powered on.
    pub(crate) power: NodePower,
    /// Seconds until a job can start there, and joules to wake it; both 0 where it is on.
    pub(crate) wake: (f64, f64),
}

/// A GPU type.
pub struct TypeData {
    /// Its name.
    pub name: GpuType,
    /// Draw of an unused GPU, in milliwatts.
    pub idle_mw: i128,
    /// The idle draw in watts.
    pub(crate) idle: f64,
    pub(crate) max: f64,
    /// Its nodes: those that are on before those that are off, then by name.
    pub nodes: Vec<u32>,
    /// Maximum GPUs that TrainingJobs may use on one of its nodes.
    pub max_node_gpus: i64,
    /// Nodes of its largest gang class.
    pub(crate) max_gang: usize,
    /// Minimum overhead of one of its nodes, in watts.
    pub overhead: f64,
}

/// One configuration of a job.
#[derive(Clone, Debug)]
pub struct Config {
    /// Index of the GPU type.
    pub kind: usize,
    /// Number of nodes.
    pub nodes: u32,
    /// GPUs per node.
    pub gpus: i64,
    /// Power limit per GPU in watts; `None`: the board's default.
    pub limit: Option<f64>,
    /// Seconds for all remaining epochs.
    pub time: f64,
    /// Watts of all its GPUs, for energy and cost.
    pub power: f64,
    /// Watts of all its GPUs, for the budget.
    pub(crate) draw: f64,
    pub(super) milliwatts: i64,
    /// Standard deviation of the logarithm of the time.
    pub(crate) rel_std: f64,
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

    /// GPUs on all its nodes.
    pub fn total_gpus(&self) -> i64 {
        i64::from(self.nodes) * self.gpus
    }

    /// Same GPU type, GPUs and nodes; only the limit may differ.
    pub fn same_hardware(&self, other: &Self) -> bool {
        self.kind == other.kind && self.nodes == other.nodes && self.gpus == other.gpus
    }
}

/// Demand of a job for one resource, per worker, GPU and gang.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Demand {
    pub what: usize,
    pub fixed: u64,
    pub per_gpu: u64,
    /// Thousandths per GPU of what a worker has whole ones of.
    pub share: u64,
    pub per_gang: u64,
}

impl Demand {
    pub fn of_worker(&self, gpus: i64) -> i128 {
        let linear = i128::from(self.fixed) + i128::from(self.per_gpu) * i128::from(gpus);
        // Rare, and a division would be most of the work here.
        if self.share == 0 {
            return linear;
        }
        linear + (i128::from(self.share) * i128::from(gpus) + 999) / 1_000
    }

    pub fn of_job(&self, config: &Config) -> i128 {
        self.of_worker(config.gpus) * i128::from(config.nodes)
            + if config.nodes > 1 { i128::from(self.per_gang) } else { 0 }
    }
}

impl IntendedChange {
    /// Whether it is a change to these GPUs, at any power limit.
    pub(crate) fn config_is(&self, instance: &super::Instance<'_>, config: &Config) -> bool {
        self.nodes == config.nodes
            && i64::from(self.gpus_per_node.0) == config.gpus
            && self.gpu_type == instance.types[config.kind].name
    }
}

/// A configuration on nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Index of the job's configuration.
    pub config: usize,
    /// Its nodes.
    pub nodes: Nodes,
}

/// Nodes of a job, nearly always one. Equality ignores the order.
#[derive(Clone, Debug, Eq)]
pub enum Nodes {
    /// One node.
    One(u32),
    /// The nodes of a gang.
    Many(Box<[u32]>),
}

impl Nodes {
    /// Their indices.
    pub fn as_slice(&self) -> &[u32] {
        match self {
            Self::One(node) => std::slice::from_ref(node),
            Self::Many(nodes) => nodes,
        }
    }
}

impl From<Vec<u32>> for Nodes {
    fn from(nodes: Vec<u32>) -> Self {
        match nodes.as_slice() {
            [node] => Self::One(*node),
            _ => Self::Many(nodes.into_boxed_slice()),
        }
    }
}

impl PartialEq for Nodes {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::One(a), Self::One(b)) => a == b,
            _ => andreas_model::same_nodes(self.as_slice(), other.as_slice()),
        }
    }
}

/// Holdings of a job at the time of the decision.
pub enum Holding {
    /// Nothing.
    Nothing,
    /// Runs there.
    Running {
        /// Its placement.
        assignment: Assignment,
        /// Whether it may be moved or stopped now.
        free_to_move: bool,
    },
    /// Committed to start there.
    Committed {
        /// Its next placement.
        target: Assignment,
        /// The placement that it still holds.
        leaving: Option<Assignment>,
    },
    /// Is stopping; its next place is open.
    Leaving {
        /// The placement that it still holds.
        assignment: Assignment,
    },
}

/// A job.
pub struct JobData<'a> {
    /// The job of the snapshot.
    pub job: &'a Job,
    /// Its configurations: those of its table, and those that it holds.
    pub configs: Vec<Config>,
    /// Money per second late, aged.
    pub weight: f64,
    /// Share of the weight that a second in the system costs.
    pub share: f64,
    /// Share of the weight that a second of waiting costs.
    pub(crate) waiting: f64,
    /// Seconds since the snapshot's origin; infinite without a deadline.
    pub deadline: f64,
    /// How many of the [lower windows](super::Instance::lower_windows) it could not be gone by: it has to fit these too.
    pub(crate) lower_windows: usize,
    /// Its weight has reached the maximum of ageing: served first.
    pub fully_aged: bool,
    /// What it holds now.
    pub holding: Holding,
    /// Index of its set of nodes.
    pub(crate) admits: usize,
    pub(crate) node_demand: Vec<Demand>,
    pub(crate) quota_demand: Vec<Demand>,
    /// Seconds that a change of nodes or GPUs takes, from the stop to the first progress.
    pub restart: f64,
    /// Cost of a change of nodes or GPUs, money.
    pub change: f64,
    /// The change that the last plan intended.
    pub(crate) intended: Option<&'a IntendedChange>,
    /// Seconds on its fastest configuration; infinite without any.
    pub fastest: f64,
    /// Seconds on its slowest configuration; 0 without any.
    pub slowest: f64,
}

impl JobData<'_> {
    /// Configurations that it may get now, with their indices.
    pub fn offered(&self) -> impl Iterator<Item = (usize, &Config)> {
        self.configs.iter().enumerate().filter(|(_, c)| c.offered)
    }

    /// Where it runs or is committed to run.
    pub fn current(&self) -> Option<&Assignment> {
        match &self.holding {
            Holding::Running { assignment, .. } | Holding::Committed { target: assignment, .. } => {
                Some(assignment)
            }
            Holding::Nothing | Holding::Leaving { .. } => None,
        }
    }

    /// Whether the placement that it is committed to is still to come: nothing of it is held or drawn yet.
    pub(crate) fn is_promised(&self) -> bool {
        match &self.job.state {
            JobState::Starting { .. } => self.job.promised,
            JobState::Stopping { target, .. } => target.is_some(),
            JobState::Waiting | JobState::Running { .. } => false,
        }
    }

    /// The placement that it holds and draws in now.
    pub(crate) fn held(&self) -> Option<&Assignment> {
        self.leaving().or(self.current().filter(|_| !self.is_promised()))
    }

    /// Whether it should have left long ago: nobody can say when it will be gone.
    pub(crate) fn is_overdue(&self, now: f64) -> bool {
        self.job.state.is_overdue(Time(now))
    }

    /// Seconds until it is gone, where it is stopping; `now` as in the instance.
    pub(crate) fn gone_in(&self, now: f64) -> f64 {
        self.job.state.gone_at(Time(now)).map_or(0.0, |at| at.0 - now)
    }

    /// Same GPUs on the same nodes; the limit may differ.
    pub fn same_gpus(&self, a: &Assignment, b: &Assignment) -> bool {
        a.nodes == b.nodes && self.configs[a.config].gpus == self.configs[b.config].gpus
    }

    /// Watts that a limit on its holdings will save but that it draws until the limit is in force.
    pub(crate) fn unset_mw(&self) -> i128 {
        if self.job.limits_count != LimitsCount::NotYetSet {
            return 0;
        }
        let saved = |assignment: &Assignment| {
            let held = &self.configs[assignment.config];
            let without = self.configs.iter().find(|c| c.limit.is_none() && c.same_hardware(held));
            without.map_or(0, |without| (without.draw_mw() - held.draw_mw()).max(0))
        };
        self.held().map_or(0, saved)
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

#[cfg(test)]
mod tests {
    use super::{Demand, Nodes};

    #[test]
    fn gpus_that_share_a_device_need_whole_ones() {
        let of = |share: u64, gpus: i64| Demand { fixed: 2, share, ..Demand::default() }.of_worker(gpus);
        assert_eq!([1, 8, 9, 16].map(|gpus| of(125, gpus)), [3, 3, 4, 4]);
        assert_eq!([0, 1, 6, 7, 12].map(|gpus| of(166, gpus)), [2, 3, 3, 4, 4]);
    }

    #[test]
    fn a_gang_on_the_same_nodes_in_another_order_is_where_it_was() {
        let many = |nodes: &[u32]| Nodes::Many(nodes.into());
        assert!(many(&[1, 2]) == many(&[2, 1]));
        assert!(many(&[1, 2]) != many(&[1, 3]) && many(&[1]) == Nodes::One(1));
    }
}
