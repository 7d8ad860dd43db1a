//! The input of a decision: the whole cluster at one instant, as plain data.
//!
//! A snapshot saved to a file can be planned again later on any machine, with the same result.
//! [`Snapshot::check`](crate::Snapshot::check) validates the numbers.

mod lateness;
mod new;
mod state;

use std::collections::BTreeMap;
use std::sync::Arc;

use andreas_model::{
    CostRate, GpuCount, GpuType, HostPower, JobId, Joules, NamespaceName, NodeName, Seconds, StepFunction,
    Tariff, Time, Watts,
};
use serde::{Deserialize, Serialize};

pub use lateness::{Charges, Lateness};
pub use state::{JobState, RefusedWorkers};

/// A cluster, its policy settings and its jobs at one instant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The instant of the decision.
    pub now: Time,
    /// Price of energy over time, including PUE.
    pub tariff: Tariff,
    /// The power budget; `None`: power is not limited.
    #[serde(default)]
    pub budget: Option<PowerBudget>,
    /// Cost of lateness and of time in the system.
    #[serde(default)]
    pub lateness: Lateness,
    /// Seconds that a started job loses by a change of configuration (checkpoint, stop, start, load), >= 0.
    #[serde(default)]
    pub restart: Seconds,
    /// Wear of a restart, beside the seconds that it takes: it must also be worth this many lost seconds of the
    /// job and its draw, >= 0, once more for each of the job's restarts of the last day; default 600.
    #[serde(default = "default_wear")]
    pub wear: Seconds,
    /// GPU types of all nodes; every node's type must be here.
    pub gpu_types: Vec<GpuTypeInfo>,
    /// Usable nodes that are up, each name once.
    pub nodes: Vec<Node>,
    /// Namespaces with quotas; other namespaces have none.
    #[serde(default)]
    pub namespaces: Vec<Namespace>,
    /// Every job that waits or holds something. Suspended jobs without holdings are left out.
    pub jobs: Vec<Job>,
    /// Shadow prices of the last plan, for a warm start; `None`: cold start.
    #[serde(default)]
    pub prices: Option<Prices>,
    /// Changes that the last plan intended. One that is due is made if it costs no more than a restart above
    /// postponing it again.
    #[serde(default)]
    pub intended: Vec<IntendedChange>,
}

/// The default of [`Snapshot::wear`].
pub const DEFAULT_WEAR: Seconds = Seconds(600.0);

fn default_wear() -> Seconds {
    DEFAULT_WEAR
}

/// A change of configuration, or the start of a waiting gang, that a plan expects to make later. A gang keeps its first one until it
/// starts or would rather wait.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IntendedChange {
    /// The job.
    pub job: JobId,
    /// When. In the past where a start is overdue.
    pub at: Time,
    /// GPU type from then on.
    pub gpu_type: GpuType,
    /// Number of nodes from then on, >= 1.
    pub nodes: u32,
    /// GPUs per node from then on, >= 1.
    pub gpus_per_node: GpuCount,
}

/// The power budget of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PowerBudget {
    /// Watts over time, > 0.
    pub watts: StepFunction<Watts>,
    /// Share of the budget that plans leave free, 0 <= margin < 1.
    #[serde(default)]
    pub margin: f64,
    /// Factor on the power of nodes and GPUs before the comparison with the budget, >= 1. Use 1 for a budget
    /// of IT power, the PUE for a budget of the facility.
    #[serde(default = "one")]
    pub scope_factor: f64,
}

impl PowerBudget {
    /// What of `watts` plans may use, in watts of nodes and GPUs.
    pub(crate) fn for_plans(&self, watts: f64) -> f64 {
        watts * (1.0 - self.margin) / self.scope_factor
    }

    /// The same in whole milliwatts.
    pub(crate) fn for_plans_mw(&self, watts: f64) -> i128 {
        libm::floor(self.for_plans(watts) * 1e3) as i128
    }
}

fn one() -> f64 {
    1.0
}

/// A GPU model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuTypeInfo {
    /// Its name.
    pub name: GpuType,
    /// Draw of an unused GPU, >= 0.
    pub idle: Watts,
    /// Maximum draw of a GPU, >= idle.
    pub max: Watts,
}

/// A node and its capacity for our jobs.
///
/// Everything "free" is what *others* (foreign pods, reservations) leave. The holdings of our own jobs in
/// this snapshot are **not** subtracted; the planner does that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: NodeName,
    /// The one type of its GPUs.
    pub gpu_type: GpuType,
    /// GPUs in the node.
    pub gpus: GpuCount,
    /// The same with those that it does not offer, as broken ones; less than `gpus` counts as that.
    #[serde(default)]
    pub boards: GpuCount,
    /// GPUs that are neither used by foreign pods nor broken, <= `gpus`.
    pub free_gpus: GpuCount,
    /// Draw of the node without its GPUs while it is powered on and has no job of ours, >= 0.
    #[serde(default)]
    pub host_idle: Watts,
    /// The same while a job of ours runs there; less than `host_idle` counts as that. Snapshots of earlier
    /// releases have `overhead` alone.
    #[serde(default, alias = "overhead")]
    pub host_busy: Watts,
    /// What it takes to wake it; `None`: it is always on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleep: Option<NodeSleep>,
    /// Measured draw of the GPUs that foreign pods hold, >= 0; `None` counts `max` for each.
    #[serde(default)]
    pub foreign_power: Option<Watts>,
    /// All nodes of a new gang have the same number here, for callers whose gangs may not mix nodes of a type.
    #[serde(default)]
    pub gang_class: u32,
    /// CPU, memory, pod slots and others not used by foreign pods; a missing resource is not limited.
    #[serde(default)]
    pub free: Resources,
}

impl Node {
    /// What the first job there adds to the node's draw without its GPUs.
    pub fn overhead(&self) -> Watts {
        Watts((self.host_busy.0 - self.host_idle.0).max(0.0))
    }

    /// What a job with so many of its GPUs is billed for of the node's draw without its GPUs.
    pub fn host_share(&self, held: GpuCount) -> Watts {
        HostPower { idle: self.host_idle, busy: self.host_busy }.share(held.0, self.gpus.max(self.boards).0)
    }
}

/// A node that is put to sleep when it is not needed. Its idle draw is no constant of the cluster: jobs pay for
/// all of the host's draw.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeSleep {
    /// Whether it is on.
    pub state: NodePower,
    /// Time from asleep to its first job's start, >= 0.
    pub wake: Seconds,
    /// Energy of one sleep and wake, beside the draw of the time that it is on, >= 0.
    #[serde(default)]
    pub wake_energy: Joules,
}

/// Whether a node is powered on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum NodePower {
    /// On.
    On,
    /// Starting up; jobs start there from `until` on.
    Waking {
        /// Expected end.
        until: Time,
    },
    /// Off: it draws nothing, and a job placed there wakes it.
    Asleep,
}

/// Amounts that a worker needs or a node has. `None` on a node: not limited.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Resources {
    /// CPU in thousandths of a core.
    #[serde(default)]
    pub cpu_milli: Option<u64>,
    /// Memory in bytes.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Pods. A worker always takes one; its value here is ignored.
    #[serde(default)]
    pub pods: Option<u64>,
    /// Other resources by name, in whole units.
    #[serde(default)]
    pub others: BTreeMap<Arc<str>, u64>,
}

/// A namespace and its remaining quota.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Namespace {
    /// Its name.
    pub name: NamespaceName,
    /// Remaining amount per key after everything but the jobs of this snapshot. The caller defines the keys
    /// (`requests.cpu`, `limits.memory`, `pods`, `requests.nvidia.com/gpu`; with several quota objects one
    /// key per object and resource). Jobs state their use of each key.
    #[serde(default)]
    pub quota: BTreeMap<Arc<str>, u64>,
}

/// Demand and holdings of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// `namespace/name`.
    pub id: JobId,
    /// Its namespace.
    pub namespace: NamespaceName,
    /// Submission time, <= now.
    pub submit: Time,
    /// Deadline; `None`: no deadline.
    #[serde(default)]
    pub deadline: Option<Time>,
    /// Cost of a second of lateness (weight x price of lateness, without ageing), >= 0.
    pub weight: CostRate,
    /// Remaining epochs, > 0. Progress since the last checkpoint counts; see `lost`.
    pub epochs_left: f64,
    /// Times and powers of the allowed configurations, one row per GPU type and total number of GPUs.
    pub estimates: Arc<[Estimate]>,
    /// Numbers of nodes a gang may use besides one, with the slowdown of an epoch.
    #[serde(default)]
    pub spread: Vec<MultiNodeEffect>,
    /// Allowed power limits of its GPUs, besides none.
    #[serde(default)]
    pub limits: Vec<LimitEffect>,
    /// Time from which a lower draw by a power limit counts against the budget.
    #[serde(default)]
    pub limits_count: LimitsCount,
    /// GPUs the user would request from a scheduler with fixed requests, for comparisons with such. `None`:
    /// the smallest allowed number.
    #[serde(default)]
    pub requested_gpus: Option<GpuCount>,
    /// Resources of one worker (one node's part of the gang) besides GPUs.
    #[serde(default)]
    pub worker: Worker,
    /// Nodes that admit its workers by taints, selectors, affinity and volumes; `None`: all nodes.
    #[serde(default)]
    pub candidates: Option<Arc<[NodeName]>>,
    /// Nodes where its placement failed recently.
    #[serde(default)]
    pub forbidden: Vec<NodeName>,
    /// Sizes of workers that it is not given anew.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_workers: Vec<RefusedWorkers>,
    /// Whether it may be preempted.
    #[serde(default)]
    pub preemption: Preemption,
    /// Whether a job with holdings may get another configuration. If false it keeps its holdings or
    /// commitment, except for the power limit. The power budget may still stop it. It then waits until it has
    /// left and is placed like any waiting job.
    #[serde(default = "yes")]
    pub movable: bool,
    /// Time that a stop takes at most, >= 0: a lower window of the budget counts for it from so long before.
    #[serde(default)]
    pub grace: Seconds,
    /// Minimum run time before it may be stopped, >= 0.
    #[serde(default)]
    pub min_run: Seconds,
    /// Work since the last checkpoint, in seconds on its present GPUs; lost by a stop, >= 0.
    #[serde(default)]
    pub lost: Seconds,
    /// What a stop usually loses of it, in seconds on the same GPUs, >= 0: `lost` grows up to this until a later stop.
    /// `None`: a later stop loses no more than one now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usually_lost: Option<Seconds>,
    /// What more GPUs cost an unknown run; `None`: something was observed of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<UnknownRun>,
    /// Seconds that a change costs this job, from its stop to its first progress (upper quartile of those
    /// seen), >= 0; `None`: the snapshot's.
    #[serde(default)]
    pub restart: Option<Seconds>,
    /// Restarts in the last 24 hours. Each makes the next one dearer ([`Snapshot::wear`]). From
    /// [`MAX_RESTARTS_PER_DAY`] on it stays where it is; only the power budget may still stop it.
    #[serde(default)]
    pub restarts_last_day: u32,
    /// A starting job's target is promised and not given yet: nothing of it is held or drawn. It starts there once
    /// nobody is in its way any more ([`crate::JobPlan::after`]). The target of a stopping job is always so.
    #[serde(default, skip_serializing_if = "is_false")]
    pub promised: bool,
    /// Its current state.
    pub state: JobState,
}

/// Restarts per job and day after which the planner leaves it where it is.
pub const MAX_RESTARTS_PER_DAY: u32 = 8;

impl Job {
    /// Seconds that a change costs it.
    pub(crate) fn restart_time(&self, snapshot: &Snapshot) -> Seconds {
        self.restart.unwrap_or(snapshot.restart)
    }

    /// Whether it has not run as long as its restart takes.
    pub(crate) fn has_just_started(&self, snapshot: &Snapshot) -> bool {
        matches!(&self.state, JobState::Running { since, .. } if *since + self.restart_time(snapshot) > snapshot.now)
    }

    /// Whether a run of it may ever be stopped for another placement; a lower budget may stop it all the same.
    pub(crate) fn may_restart(&self) -> bool {
        self.movable
            && self.preemption == Preemption::Allowed
            && self.restarts_last_day < MAX_RESTARTS_PER_DAY
    }

    /// Seconds of work on its present GPUs that a stop after so many more seconds would lose.
    pub(crate) fn lost_after(&self, seconds: f64) -> f64 {
        let usual = self.usually_lost.map_or(0.0, |usual| usual.0);
        self.lost.0.max(usual.min(self.lost.0 + seconds))
    }

    /// Seconds from now until it is gone at the latest, if it is stopping or is told to stop now.
    pub(crate) fn longest_stop(&self, now: Time) -> f64 {
        match &self.state {
            JobState::Stopping { gone_by, .. } => self.grace.0.max((*gone_by - now).0),
            _ => self.grace.0,
        }
    }
}

fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_false(value: &bool) -> bool {
    !value
}

/// A run of which nothing was observed. It may have any configuration. GPUs beyond `least` cost extra by their
/// shadow price until its first report, in proportion to how wrong its speed-up may be; idle GPUs cost nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnknownRun {
    /// Standard deviation of the logarithm of the times of its configurations relative to each other, >= 0.
    pub shape: f64,
    /// Time until its first report, >= 0.
    pub first_report: Seconds,
    /// Fewest GPUs it may have.
    pub least: GpuCount,
}

/// Time and power of a job for a GPU type and number of GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// GPU type.
    pub gpu_type: GpuType,
    /// Total GPUs, >= 1.
    pub gpus: GpuCount,
    /// Mean seconds per epoch on one node, > 0.
    pub epoch: Seconds,
    /// Mean draw of all its GPUs while it trains, for energy and cost, >= 0.
    pub power: Watts,
    /// Draw counted against the power budget without a power limit, >= 0; `None`: `power`. For an unknown
    /// draw give an upper bound, so that the budget holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draw: Option<Watts>,
    /// Standard deviation of the logarithm of the time, >= 0; 0: exact.
    #[serde(default)]
    pub rel_std: f64,
}

/// Effect of running a gang on several nodes of one type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MultiNodeEffect {
    /// Nodes, >= 2.
    pub nodes: u32,
    /// Factor on the time of an epoch on one node, > 0.
    pub time_factor: f64,
}

/// Effect of a power limit on a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitEffect {
    /// GPU type.
    pub gpu_type: GpuType,
    /// Limit per GPU, > 0.
    pub limit: Watts,
    /// Factor on the time of an epoch, > 0.
    pub time_factor: f64,
    /// Factor on the draw without limit, >= 0.
    pub power_factor: f64,
}

/// Time from which a lower draw by a power limit counts against the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LimitsCount {
    /// With the decision.
    #[default]
    AtOnce,
    /// When the limit is in force, as is that of its present placement. A starting job first draws as without
    /// a limit.
    WhenSet,
    /// As `WhenSet`, but the limit of its present placement is not in force: until then its savings are not
    /// used.
    NotYetSet,
}

/// Resources of a worker with g GPUs, of its node and its namespace's quotas: `fixed + g x per_gpu`, and besides
/// `g x shares / 1000`, rounded up, of devices that several GPUs share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Worker {
    /// From the node, independent of its GPUs.
    #[serde(default)]
    pub fixed: Resources,
    /// From the node, per GPU.
    #[serde(default)]
    pub per_gpu: Resources,
    /// From the namespace's quotas by key, per worker.
    #[serde(default)]
    pub quota_fixed: BTreeMap<Arc<str>, u64>,
    /// From the namespace's quotas by key, per GPU.
    #[serde(default)]
    pub quota_per_gpu: BTreeMap<Arc<str>, u64>,
    /// From the namespace's quotas by key, once per gang of two or more (its Service).
    #[serde(default)]
    pub quota_per_gang: BTreeMap<Arc<str>, u64>,
    /// From the node, thousandths per GPU, by the names of [`Resources::others`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shares: BTreeMap<Arc<str>, u64>,
    /// From the namespace's quotas by key, thousandths per GPU.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub quota_shares: BTreeMap<Arc<str>, u64>,
}

/// Whether a running job may be preempted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Preemption {
    /// Allowed.
    #[default]
    Allowed,
    /// Only if the power budget cannot be met otherwise.
    Never,
}

/// A present or planned placement of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// GPU type of all its nodes.
    pub gpu_type: GpuType,
    /// Nodes in order of the worker index, each once, at least one.
    pub nodes: Vec<NodeName>,
    /// GPUs per node.
    pub gpus_per_node: GpuCount,
    /// Power limit per GPU; `None`: the board's default.
    #[serde(default)]
    pub limit: Option<Watts>,
}

impl Placement {
    /// GPUs of the whole gang.
    pub fn total_gpus(&self) -> GpuCount {
        GpuCount(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX).saturating_mul(self.gpus_per_node.0))
    }

    /// Same GPUs on the same nodes; the limit may differ. A change between the two needs no restart.
    pub fn same_gpus(&self, other: &Self) -> bool {
        self.gpus_per_node == other.gpus_per_node && andreas_model::same_nodes(&self.nodes, &other.nodes)
    }
}

/// Shadow prices: the value of a GPU of each class, and of a watt, in each coming period.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prices {
    /// The instant they were made for.
    pub now: Time,
    /// Ends of the periods, counted from `now`.
    pub bounds: Vec<Seconds>,
    /// Money per unit and second, by class name, one value per period.
    pub values: BTreeMap<Arc<str>, Vec<f64>>,
}
