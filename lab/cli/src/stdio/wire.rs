//! The shape of a state. Numbers are checked later; unknown keys are ignored.

use std::collections::BTreeMap;

use andreas_baselines::Memory;
use andreas_planner::{IntendedChange, Prices};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Most jobs of one line.
pub const MAX_JOBS: usize = 200_000;

/// One line in. Times in seconds since any origin that all lines share, power in watts.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct State {
    /// Version of the protocol: 1.
    pub version: Option<u64>,
    /// The instant of the decision.
    pub now: f64,
    /// How long until the next decision at the latest.
    pub horizon_s: Option<f64>,
    /// Price of energy; needed unless there is `tariff`.
    pub eur_per_kwh: Option<f64>,
    /// Price of energy over time: begins and prices.
    pub tariff: Option<Vec<(f64, f64)>>,
    /// Power usage effectiveness; 1.
    pub pue: Option<f64>,
    /// What a change costs a started job; 0.
    pub restart_s: Option<f64>,
    /// Seconds of its weight and draw that a restart must be worth besides, once more for each of the job's `restarts_last_day`; 0.
    pub wear_s: Option<f64>,
    /// Power budget of nodes and GPUs; none.
    pub power_budget_w: Option<f64>,
    /// Power budget over time: begins and watts.
    pub budget: Option<Vec<(f64, f64)>>,
    /// What a second in the system costs, in seconds late; 0.
    pub turnaround_share: Option<f64>,
    /// What a miss costs, in seconds late; 0.
    pub late_fixed_s: Option<f64>,
    /// GPU types of the nodes.
    pub gpu_types: Vec<GpuTypeEntry>,
    /// Groups of identical nodes. Node `i` of class `c`, both counted from 0, is called `"c/i"`.
    pub classes: Vec<ClassEntry>,
    /// Tables of jobs that are not known yet, or have changed.
    #[serde(default)]
    pub new_jobs: Vec<JobEntry>,
    /// All jobs that have arrived and are not done.
    pub jobs: Vec<JobEntry>,
    /// Prices of an earlier decision (`_plan.prices`), instead of those of the last line.
    #[schemars(with = "Option<Value>")]
    pub prices: Option<Prices>,
    /// Intended changes of an earlier decision (`_plan.intended`), instead of those of the last line.
    #[schemars(with = "Option<Vec<Value>>")]
    pub intended: Option<Vec<IntendedChange>>,
    /// Memory of an earlier decision (`_plan.memory`), instead of that of the last line.
    #[schemars(with = "Option<Value>")]
    pub memory: Option<Memory>,
}

/// Watts per GPU, time factor, power factor.
pub type LimitRow = (f64, f64, f64);

/// A GPU type.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct GpuTypeEntry {
    /// Its name.
    pub name: String,
    /// Draw of a GPU that no job holds.
    pub idle_w: f64,
    /// Most that a GPU draws.
    pub max_w: f64,
}

/// Identical nodes.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct ClassEntry {
    /// Type of their GPUs.
    pub gpu_type: String,
    /// GPUs in each.
    pub gpus: u32,
    /// How many nodes.
    pub count: u32,
    /// What a first job adds to the draw of a node apart from its GPUs (busy less idle); 0.
    #[serde(default)]
    pub overhead_w: f64,
    /// Draw of a node without a job apart from its GPUs; it counts against the budget alone. 0.
    #[serde(default)]
    pub host_idle_w: f64,
}

/// A job, in `new_jobs` or `jobs`. What it needs is kept from `new_jobs`; the rest is of its line, from `jobs` before `new_jobs`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct JobEntry {
    /// Its name.
    pub id: String,
    /// Epochs left. Required in `jobs`.
    pub epochs_left: Option<f64>,
    /// Required in `new_jobs`.
    pub submit_s: Option<f64>,
    /// None: no deadline.
    pub deadline_s: Option<f64>,
    /// Money per second late. Required in `new_jobs`.
    pub weight: Option<f64>,
    /// What the user asks of a scheduler with fixed requests.
    pub req_gpus: Option<u32>,
    /// Allowed total numbers of GPUs; none: all that the tables have.
    pub allowed: Option<Vec<u32>>,
    /// Seconds per epoch by GPU type, for 1 GPU, 2, ...; null where it is not possible. Required in `new_jobs`.
    pub epoch_s: Option<BTreeMap<String, Vec<Option<f64>>>>,
    /// Draw of all its GPUs together, likewise.
    pub power_w: Option<BTreeMap<String, Vec<Option<f64>>>>,
    /// Standard deviation of the logarithm of the times; 0.
    pub rel_std: Option<f64>,
    /// Nodes of a gang, and how many times longer its epochs take.
    pub spread: Option<BTreeMap<String, f64>>,
    /// By GPU type: watts per GPU, time factor, power factor.
    pub limits: Option<BTreeMap<String, Vec<LimitRow>>>,
    /// Whether it may get another configuration; true.
    pub movable: Option<bool>,
    /// It is left alone until it has run for so long; 0.
    pub min_run_s: Option<f64>,
    /// Since when it runs where it is; none: since the decision that put it there, as far as that is known.
    pub since_s: Option<f64>,
    /// Work since the last checkpoint; 0.
    pub lost_s: Option<f64>,
    /// What a change costs it, instead of the state's `restart_s`.
    pub restart_s: Option<f64>,
    /// Restarts in the last 24 hours; 0. From 8 on it stays where it is.
    pub restarts_last_day: Option<u32>,
    /// What it holds; null: nothing.
    #[serde(default, deserialize_with = "null_too")]
    #[schemars(with = "Option<PlacementEntry>")]
    pub current: Option<Option<PlacementEntry>>,
    /// None: `running` with `current`, else `waiting`.
    pub state: Option<StateName>,
    /// When a stopping job has ended at the latest.
    pub gone_by_s: Option<f64>,
    /// Where a starting or stopping job goes.
    pub target: Option<PlacementEntry>,
    /// Nodes where it just failed to be placed.
    pub forbidden: Option<Vec<String>>,
}

/// A value that is there, though it may be `null`.
fn null_too<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StateName {
    /// It holds nothing.
    Waiting,
    /// Its target is promised.
    Starting,
    /// It trains on `current`.
    Running,
    /// It holds `current` until it is gone.
    Stopping,
}

/// A node, or the nodes of a gang, and the GPUs on each.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct PlacementEntry {
    /// One node.
    pub node: Option<String>,
    /// Several.
    pub nodes: Option<Vec<String>>,
    /// GPUs on each.
    pub gpus: u32,
    /// Power limit per GPU.
    pub limit_w: Option<f64>,
}
