//! What a decision is made from: the whole cluster at one instant, as plain data.
//!
//! A snapshot can be written to a file and planned again later, anywhere, with the same result. Its shape says
//! what it means; [`Snapshot::check`](crate::Snapshot::check) says whether the numbers make sense.

use std::collections::BTreeMap;
use std::sync::Arc;

use andreas_core::{
    CostRate, GpuCount, GpuType, JobId, NamespaceName, NodeName, Seconds, Steps, Tariff, Time, Watts,
};
use serde::{Deserialize, Serialize};

use crate::memory::Memory;
use crate::plan::Prices;

/// A cluster, its rules and its jobs at one instant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The instant the decision is for.
    pub now: Time,
    /// Price of energy over time, PUE included.
    pub tariff: Tariff,
    /// The power budget; none means power is not limited.
    #[serde(default)]
    pub budget: Option<PowerBudget>,
    /// What lateness and time in the system cost.
    #[serde(default)]
    pub lateness: Lateness,
    /// What a started job loses (checkpoint, stop, start, load) when it changes configuration, >= 0.
    #[serde(default)]
    pub restart: Seconds,
    /// How far apart decisions are expected to be at most. Advice, not an objective.
    #[serde(default)]
    pub horizon: Option<Seconds>,
    /// What is known about each GPU type on any node. Every node's type must be here.
    pub gpu_types: Vec<GpuTypeInfo>,
    /// Nodes that are up and ours to use, each by name.
    pub nodes: Vec<Node>,
    /// Namespaces with quotas; a namespace that is not here has none.
    #[serde(default)]
    pub namespaces: Vec<Namespace>,
    /// Every job that waits or holds something. Suspended jobs that hold nothing are not here.
    pub jobs: Vec<Job>,
    /// Prices out of the last plan, for a warm start; none starts cold.
    #[serde(default)]
    pub prices: Option<Prices>,
    /// Memory out of the last plan, of a policy that must know who had how much; none starts anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
}

/// The power budget of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PowerBudget {
    /// Watts over time, > 0.
    pub watts: Steps<Watts>,
    /// Part of the budget that plans leave free, 0 <= margin < 1.
    #[serde(default)]
    pub margin: f64,
    /// What the power of nodes and GPUs is multiplied with before it is compared with the budget: 1 for a budget
    /// of IT power, the PUE for a budget of the facility. >= 1.
    #[serde(default = "one")]
    pub scope_factor: f64,
    /// How far ahead a lower window must be respected (the longest grace period), >= 0.
    #[serde(default)]
    pub look_ahead: Seconds,
}

fn one() -> f64 {
    1.0
}

/// What lateness costs, beside the jobs' weights.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lateness {
    /// A second in the system costs this share of a second late, >= 0. At least 0.1 is used for jobs without deadline.
    #[serde(default)]
    pub turnaround_share: f64,
    /// A miss costs as much as this much more lateness, >= 0.
    #[serde(default)]
    pub late_fixed: Seconds,
    /// Hours of waiting that double a job's planning weight (up to ten times the weight); none turns ageing off. > 0.
    #[serde(default)]
    pub aging: Option<Seconds>,
}

/// A GPU model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuTypeInfo {
    /// Its name.
    pub name: GpuType,
    /// Draw of one GPU that holds no job, >= 0.
    pub idle: Watts,
    /// Most that one GPU draws, >= idle.
    pub max: Watts,
}

/// A node and what of it our jobs may use.
///
/// Everything "free" is what is left after *others* (foreign pods, reservations): what our own jobs of this
/// snapshot hold is **not** taken off, the planner does that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: NodeName,
    /// The one type of its GPUs.
    pub gpu_type: GpuType,
    /// GPUs in the node.
    pub gpus: GpuCount,
    /// GPUs that are not used by foreign pods (nor broken), <= `gpus`.
    pub free_gpus: GpuCount,
    /// Draw of the node apart from its GPUs that counts while a job of ours runs there, >= 0.
    #[serde(default)]
    pub overhead: Watts,
    /// Draw of the GPUs that foreign pods hold, measured; none counts `max` for each, >= 0.
    #[serde(default)]
    pub foreign_power: Option<Watts>,
    /// CPU, memory, pod slots and others not used by foreign pods; a resource that is not here is not limited.
    #[serde(default)]
    pub free: Resources,
}

/// Amounts of what a worker needs and a node has. `None` on a node means not limited.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Resources {
    /// CPU in thousandths of a core.
    #[serde(default)]
    pub cpu_milli: Option<u64>,
    /// Memory in bytes.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Pods. A worker always takes one; what a worker says here is ignored.
    #[serde(default)]
    pub pods: Option<u64>,
    /// Anything else by resource name, in whole units.
    #[serde(default)]
    pub others: BTreeMap<Arc<str>, u64>,
}

/// A namespace and what its quotas leave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Namespace {
    /// Its name.
    pub name: NamespaceName,
    /// What is left per key after everything but the jobs of this snapshot. The keys are the caller's
    /// (`requests.cpu`, `limits.memory`, `pods`, `requests.nvidia.com/gpu`; with several quota objects one key
    /// per object and resource); a job states what it takes from each key.
    #[serde(default)]
    pub quota: BTreeMap<Arc<str>, u64>,
    /// Its part of the GPU time where a policy shares it out, relative to the other namespaces', > 0.
    #[serde(default = "one")]
    pub tickets: f64,
}

/// What a job needs and holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// `namespace/name`.
    pub id: JobId,
    /// Its namespace.
    pub namespace: NamespaceName,
    /// When it was submitted, <= now.
    pub submit: Time,
    /// When it should be done.
    #[serde(default)]
    pub deadline: Option<Time>,
    /// What a second of lateness costs (weight x price of lateness, without ageing), >= 0.
    pub weight: CostRate,
    /// Epochs left, > 0. Progress made since the last checkpoint counts; see `lost`.
    pub epochs_left: f64,
    /// Times and powers of the allowed configurations. One row per GPU type and total number of GPUs.
    pub estimates: Arc<[Estimate]>,
    /// How many nodes a gang may span beside one, and how much slower an epoch is then.
    #[serde(default)]
    pub spread: Vec<Spread>,
    /// Power limits its GPUs may be run at, beside none.
    #[serde(default)]
    pub limits: Vec<LimitEffect>,
    /// From when on the lower draw of a power limit counts against the budget.
    #[serde(default)]
    pub limits_count: LimitsCount,
    /// GPUs the user would ask for from a scheduler with fixed requests; the `-fixed` methods use it.
    /// None means the smallest allowed number.
    #[serde(default)]
    pub requested_gpus: Option<GpuCount>,
    /// What one worker (one node's part of the gang) needs beside GPUs.
    #[serde(default)]
    pub worker: Worker,
    /// Nodes that admit its workers by taints, selectors, affinity and volumes; none means all nodes.
    #[serde(default)]
    pub candidates: Option<Arc<[NodeName]>>,
    /// Nodes where it failed to be placed a short while ago.
    #[serde(default)]
    pub forbidden: Vec<NodeName>,
    /// Whether it may be stopped for others.
    #[serde(default)]
    pub preemption: Preemption,
    /// Whether a job that holds something may get another configuration. If not it keeps what it holds or is committed to,
    /// the power limit aside. The power budget may still stop it: then it waits until it has left, and is placed like
    /// any other that waits from then on.
    #[serde(default = "yes")]
    pub movable: bool,
    /// It is left alone until it has run for this long, >= 0.
    #[serde(default)]
    pub min_run: Seconds,
    /// Work since the last checkpoint, in seconds on what it runs on; lost when it is stopped, >= 0.
    #[serde(default)]
    pub lost: Seconds,
    /// What it holds now.
    pub state: JobState,
}

fn yes() -> bool {
    true
}

/// Time and power of a job on one number of GPUs of one type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// GPU type.
    pub gpu_type: GpuType,
    /// Total GPUs, >= 1.
    pub gpus: GpuCount,
    /// Seconds per epoch on one node, > 0.
    pub epoch: Seconds,
    /// Draw of all its GPUs together while it trains, >= 0: what energy and cost are counted with.
    pub power: Watts,
    /// What it counts for against the power budget without a power limit; none: `power`. A caller that does not know the
    /// real draw gives a bound here, so that a guess never lets more start than the budget carries. >= 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draw: Option<Watts>,
    /// Standard deviation of the logarithm of the time, >= 0; 0 = taken as exact.
    #[serde(default)]
    pub rel_std: f64,
}

/// A gang over several nodes of one type, with the same number of GPUs on each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Nodes, >= 2.
    pub nodes: u32,
    /// An epoch takes this many times as long as on one node, > 0.
    pub time_factor: f64,
}

/// What a power limit does to a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitEffect {
    /// On GPUs of this type.
    pub gpu_type: GpuType,
    /// The limit per GPU, > 0.
    pub limit: Watts,
    /// An epoch takes this many times as long, > 0.
    pub time_factor: f64,
    /// The draw is this many times what it is without limit, >= 0.
    pub power_factor: f64,
}

/// From when on the lower draw of a job's power limit counts against the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LimitsCount {
    /// With the decision.
    #[default]
    AtOnce,
    /// Once the limit is in force; the limit of what the job holds is. A job that starts draws as without a limit at first.
    WhenSet,
    /// The same, and the limit of what it holds is not in force yet: until then nothing starts on what it saves.
    NotYetSet,
}

/// What a worker with g GPUs takes: `fixed + g x per_gpu`, from its node and from its namespace's quotas.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Worker {
    /// From the node, whatever its GPUs.
    #[serde(default)]
    pub fixed: Resources,
    /// From the node, for each of its GPUs.
    #[serde(default)]
    pub per_gpu: Resources,
    /// From the namespace's quotas by key, for each worker.
    #[serde(default)]
    pub quota_fixed: BTreeMap<Arc<str>, u64>,
    /// From the namespace's quotas by key, for each GPU.
    #[serde(default)]
    pub quota_per_gpu: BTreeMap<Arc<str>, u64>,
    /// From the namespace's quotas by key, once for a gang of two or more (its Service).
    #[serde(default)]
    pub quota_per_gang: BTreeMap<Arc<str>, u64>,
}

/// Whether a running job may be stopped for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Preemption {
    /// It may.
    #[default]
    Allowed,
    /// Only where the power budget leaves nothing else.
    Never,
}

/// Where a job is, or is to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// GPU type of all its nodes.
    pub gpu_type: GpuType,
    /// Nodes in order of the workers' index, each once, at least one.
    pub nodes: Vec<NodeName>,
    /// GPUs on each.
    pub gpus_per_node: GpuCount,
    /// Power limit per GPU; none means the board's default.
    #[serde(default)]
    pub limit: Option<Watts>,
}

impl Placement {
    /// GPUs of the whole gang.
    pub fn total_gpus(&self) -> GpuCount {
        GpuCount(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX).saturating_mul(self.gpus_per_node.0))
    }

    /// Same GPUs on the same nodes, the limit aside: going from one to the other needs no restart.
    pub fn same_gpus(&self, other: &Self) -> bool {
        self.gpus_per_node == other.gpus_per_node && andreas_core::same_nodes(&self.nodes, &other.nodes)
    }
}

/// What a job holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum JobState {
    /// Nothing.
    Waiting,
    /// Its target's GPUs, but not all workers run yet.
    Starting {
        /// The commitment.
        target: Placement,
        /// Since when.
        since: Time,
    },
    /// It trains.
    Running {
        /// Where.
        placement: Placement,
        /// Since when.
        since: Time,
    },
    /// It was told to checkpoint and stop; what it holds is busy until it is gone.
    Stopping {
        /// What it still holds.
        holds: Placement,
        /// Where it is to go on, if that is decided.
        target: Option<Placement>,
        /// When it will have ended at the latest.
        gone_by: Time,
    },
}
