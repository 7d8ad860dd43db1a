//! `EnergyPolicy` (`epol`): what the administrator wants of the cluster; one object named `default`.

mod capacity;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decimal::Decimal;
use crate::duration::DurationText;

pub use capacity::{NodePool, NodeTaint};

/// Prices, power budget and rules. What is absent has the default stated; without any object all defaults hold.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "andreas.dev",
    version = "v1alpha1",
    kind = "EnergyPolicy",
    plural = "energypolicies",
    shortname = "epol",
    status = "EnergyPolicyStatus",
    derive = "PartialEq",
    doc = "Power budget, prices of energy and lateness, and the rules for idle GPUs; one object named `default`."
)]
#[serde(rename_all = "camelCase", default)]
pub struct EnergyPolicySpec {
    /// Currency of every price, for example `EUR`: a label for people, no conversion. Default: `EUR`.
    #[schemars(length(min = 1, max = 16))]
    pub currency: String,
    /// Prices of energy and of lateness. Default: that of each of its fields.
    pub prices: Prices,
    /// Power usage effectiveness of the site: power of the facility per power of IT, a decimal from 1 to 5. Default: `1.3`. Multiplies the
    /// price of energy.
    pub pue: Decimal,
    /// Power that the cluster may draw. Default: no limit.
    pub power_budget: PowerBudget,
    /// Assumptions for jobs without estimates or earlier runs. Default: that of each of its fields.
    pub unknown_jobs: UnknownJobs,
    /// What it costs to stop a run and go on later. Default: that of each of its fields.
    pub preemption: PreemptionRules,
    /// Longest time from the creation of a gang's pods until all are bound to their nodes. Default: `2m`. Then the gang is withdrawn and
    /// planned again; after three eighths of it if the scheduler says meanwhile that no node can take one of them.
    pub placement_timeout: DurationText,
    /// Labels of the nodes that are planned, at most 16: a node needs all of them, and `nvidia.com/gpu` in its allocatable. Default: none,
    /// all nodes with GPUs are planned.
    #[schemars(length(max = 16))]
    pub node_selector: BTreeMap<String, String>,
    /// Labels that name the GPU type of a node: the value of the first one that the node has counts. Default: `nvidia.com/gpu.product`,
    /// `cloud.google.com/gke-accelerator`, `node.kubernetes.io/instance-type`. A node without any of them is not planned.
    #[schemars(length(min = 1, max = 8), inner(length(min = 1, max = 317)))]
    pub type_labels: Vec<String>,
    /// What to do for jobs of a node that is not ready. Default: that of each of its fields.
    pub node_loss: NodeLoss,
    /// When GPUs that hold no job rest. Default: that of each of its fields.
    pub rest: Rest,
    /// When machines with a NodePower that no job needs are switched off. Default: that of each of its fields.
    pub node_sleep: NodeSleep,
    /// Pools whose nodes an autoscaler adds once they are asked for, at most 16. Default: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub capacity: Vec<NodePool>,
    /// Power limits of GPUs that train. `Off`: none. `Guard`: where there is a power budget, each run has one until its draw is measured.
    /// `On`: as `Guard`, and lower ones are planned and set. Default: `Guard`.
    pub limits: Limits,
    /// Power of GPU types and nodes, where the built-in values do not fit. Default: none. A type that neither this list nor the built-in
    /// table has counts with the highest power limit that its driver reports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub gpu_types: Vec<GpuTypePower>,
}

impl Default for EnergyPolicySpec {
    fn default() -> Self {
        Self {
            currency: "EUR".into(),
            prices: Prices::default(),
            pue: "1.3".into(),
            power_budget: PowerBudget::default(),
            unknown_jobs: UnknownJobs::default(),
            preemption: PreemptionRules::default(),
            placement_timeout: DurationText("2m".into()),
            node_selector: BTreeMap::new(),
            type_labels: [
                crate::names::LABEL_GPU_PRODUCT,
                crate::names::LABEL_GKE_ACCELERATOR,
                crate::names::LABEL_INSTANCE_TYPE,
            ]
            .map(String::from)
            .into(),
            node_loss: NodeLoss::default(),
            rest: Rest::default(),
            node_sleep: NodeSleep::default(),
            capacity: Vec::new(),
            limits: Limits::default(),
            gpu_types: Vec::new(),
        }
    }
}

impl EnergyPolicySpec {
    /// Seconds of one of its durations, at least 0; of the default where the text cannot be read.
    pub fn seconds(&self, duration: fn(&Self) -> &DurationText) -> i64 {
        duration(self).seconds().or_else(|| duration(&Self::default()).seconds()).unwrap_or(0)
    }
}

/// Prices of energy and of lateness, in the policy's currency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Prices {
    /// Price of a kWh outside the tariff's windows, a decimal. Default: `0.2`.
    #[serde(rename = "energyPerKWh")]
    pub energy_per_kwh: Decimal,
    /// Price of a kWh by time of day. Default: none, `energyPerKWh` at all times.
    pub tariff: Tariff,
    /// Price of an hour late of a job of weight 1, a decimal. Default: `0.02`. A job of weight 10 costs ten times as much.
    pub lateness_per_hour: Decimal,
    /// A missed deadline costs as much as this time late, beside the time that it is late. Default: `15m`.
    pub missed_deadline_as: DurationText,
    /// What an hour from creation to end costs, as a part of the price of an hour late: a decimal from 0 to 1. Default: `0.1`.
    pub turnaround_share: Decimal,
    /// Waiting this long past the deadline (without one, since the creation) adds the job's weight once more, up to ten times. Default: `24h`.
    pub aging_period: DurationText,
}

impl Default for Prices {
    fn default() -> Self {
        Self {
            energy_per_kwh: "0.2".into(),
            tariff: Tariff::default(),
            lateness_per_hour: "0.02".into(),
            missed_deadline_as: DurationText("15m".into()),
            turnaround_share: "0.1".into(),
            aging_period: DurationText("24h".into()),
        }
    }
}

/// Price of a kWh by time of day: the first window that covers an instant counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Tariff {
    /// Time zone of the windows, a name of the IANA database, for example `Europe/Rome`. Windows follow its daylight saving time. Default:
    /// `UTC`.
    #[schemars(regex(pattern = r"^[A-Za-z0-9_+/-]+$"), length(min = 1, max = 64))]
    pub time_zone: String,
    /// Windows with a price of their own, at most 24. Default: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 24))]
    pub windows: Vec<TariffWindow>,
}

impl Default for Tariff {
    fn default() -> Self {
        Self { time_zone: UTC.into(), windows: Vec::new() }
    }
}

/// The time zone where none is named.
pub const UTC: &str = "UTC";

/// Price of a kWh between two times of day. A window whose end is not after its start passes midnight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TariffWindow {
    /// Start, `HH:MM`.
    #[schemars(regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub from: String,
    /// End, `HH:MM`, exclusive.
    #[schemars(regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub to: String,
    /// Price of a kWh in the window, a decimal.
    #[serde(rename = "energyPerKWh")]
    pub energy_per_kwh: Decimal,
}

/// Power the cluster may draw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PowerBudget {
    /// Budget outside the windows, W. Default: no budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000_i64))]
    pub watts: Option<i64>,
    /// Time zone of the windows, a name of the IANA database, for example `Europe/Rome`. Windows follow its daylight saving time. Default:
    /// `UTC`.
    #[schemars(regex(pattern = r"^[A-Za-z0-9_+/-]+$"), length(min = 1, max = 64))]
    pub time_zone: String,
    /// Budget by time of day, at most 24 windows: the first one that covers an instant counts. Default: none, `watts` at all times.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 24))]
    pub windows: Vec<BudgetWindow>,
    /// `IT`: the budget limits the power of GPUs and nodes. `Facility`: it limits that power times `pue`. Default: `IT`.
    #[serde(deserialize_with = "crate::known::or_default")]
    pub scope: PowerBudgetScope,
    /// Part of the budget that plans leave free, per cent, 0 to 90. Default: 5.
    #[schemars(range(min = 0, max = 90))]
    pub margin_percent: i32,
    /// How long what runs may draw more than the budget before the policy says so (condition `BudgetMet` is False). Default: `120s`. A
    /// lowered budget is planned with at once: jobs are asked to stop within seconds, count here no longer, and have their
    /// checkpoint's grace period to leave.
    pub enforce_within: DurationText,
}

impl Default for PowerBudget {
    fn default() -> Self {
        Self {
            watts: None,
            time_zone: UTC.into(),
            windows: Vec::new(),
            scope: PowerBudgetScope::IT,
            margin_percent: 5,
            enforce_within: DurationText("120s".into()),
        }
    }
}

impl PowerBudget {
    /// Whether power is limited at any time.
    pub fn limits_power(&self) -> bool {
        self.watts.is_some() || !self.windows.is_empty()
    }
}

/// Power budget between two times of day. A window whose end is not after its start passes midnight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BudgetWindow {
    /// Start, `HH:MM`.
    #[schemars(regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub from: String,
    /// End, `HH:MM`, exclusive.
    #[schemars(regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub to: String,
    /// Power the cluster may draw, W.
    #[schemars(range(min = 1, max = 1_000_000_000_i64))]
    pub watts: i64,
}

/// Assumptions for jobs without estimates or earlier runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UnknownJobs {
    /// Assumed run time of such a job while no run of its namespace has finished. Default: `4h`.
    pub run_time: DurationText,
    /// `On`: a job that names no profile shares that of earlier runs of the same program. `Off`: each has one of its own name, whatever
    /// its `profileMatching`. Default: `On`. Holds for jobs that have not been planned yet.
    pub match_profiles: Switch,
}

impl Default for UnknownJobs {
    fn default() -> Self {
        Self { run_time: DurationText("4h".into()), match_profiles: Switch::On }
    }
}

/// What it costs to stop a run and go on later.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PreemptionRules {
    /// Time that saving, stop, start and loading take together. Plans count it as a cost of each stop. Default: `2m`.
    pub restart_time: DurationText,
    /// What a restart must be worth besides, in time of the job's weight and draw, once more for each restart of the job in the
    /// last 24 hours: prices change, and plans that move jobs for small gains move them back. Default: `10m`. Shorter where runs
    /// take minutes.
    pub restart_wear: DurationText,
    /// A run is not moved before it has run this long. Default: `5m`.
    pub min_run_time: DurationText,
}

impl Default for PreemptionRules {
    fn default() -> Self {
        Self {
            restart_time: DurationText("2m".into()),
            restart_wear: DurationText("10m".into()),
            min_run_time: DurationText("5m".into()),
        }
    }
}

/// What the power budget counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PowerBudgetScope {
    /// Power of GPUs and nodes.
    #[default]
    IT,
    /// IT power times PUE.
    Facility,
}

/// What to do for jobs of a silent node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeLoss {
    /// How long a node must be not ready before `action` applies to its jobs. Default: `15m`.
    pub after: DurationText,
    /// `Wait`: its jobs wait until the node is proven dead or comes back. `Restart`: they start again elsewhere, unless their checkpoint is
    /// `exclusive`. Default: `Wait`.
    #[serde(deserialize_with = "crate::known::or_default")]
    pub action: NodeLossAction,
}

impl Default for NodeLoss {
    fn default() -> Self {
        Self { after: DurationText("15m".into()), action: NodeLossAction::Wait }
    }
}

/// Wait for proof of death, or start again elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NodeLossAction {
    /// Until the node is proven dead.
    #[default]
    Wait,
    /// Start again elsewhere, unless the checkpoint is exclusive.
    Restart,
}

/// When GPUs that hold no job rest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Rest {
    /// `On`: idle GPUs are put into their state of lowest power. `Off`: they are left alone. Default: `On`.
    pub mode: Switch,
    /// How long no pod must hold a GPU before it rests. Default: `60s`.
    pub after: DurationText,
}

impl Default for Rest {
    fn default() -> Self {
        Self { mode: Switch::On, after: DurationText("60s".into()) }
    }
}

/// When machines that no job needs are switched off. Each needs a NodePower with `mode: Auto`, and node-power must run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSleep {
    /// `Off`: they are on. `Observe`: they are on, and what sleep would have saved is counted. `On`: the plan decides. Default: `Off`.
    pub mode: SleepMode,
    /// How long a node must be empty at least; where its start costs more than it draws in that time, until it has drawn that much.
    /// Default: `10m`. The operator must have run six times as long before the first node goes off.
    pub idle_after: DurationText,
    /// Empty nodes that stay on beside the demand to be expected. Default: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub ready_nodes: Vec<ReadyNodes>,
}

impl Default for NodeSleep {
    fn default() -> Self {
        Self { mode: SleepMode::Off, idle_after: DurationText("10m".into()), ready_nodes: Vec::new() }
    }
}

/// Whether machines are switched off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SleepMode {
    /// The plan decides.
    On,
    /// They are on; what sleep would have saved is counted.
    Observe,
    /// They are on. A word of another release counts as this one.
    #[default]
    #[serde(other)]
    Off,
}

/// Empty nodes of a GPU type that stay on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReadyNodes {
    /// GPU type: the value of the node's type label.
    #[schemars(length(min = 1, max = 253))]
    pub gpu_type: String,
    /// How many of each size.
    #[schemars(range(min = 0, max = 1000))]
    pub nodes: i32,
}

/// On or off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Switch {
    /// On.
    #[default]
    On,
    /// Off. A word of another release counts as this one.
    #[serde(other)]
    Off,
}

/// Power limits of GPUs that train.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Limits {
    /// Where power is limited, a run has one until its draw is measured: its guard.
    #[default]
    Guard,
    /// As `Guard`, and lower ones are planned where they pay.
    On,
    /// None are set. A word of another release counts as this one.
    #[serde(other)]
    Off,
}

/// Power of a GPU type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuTypePower {
    /// GPU type: the value of the node's type label.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Draw of one GPU without a job, W.
    #[schemars(range(min = 0, max = 100_000))]
    pub idle_watts: i32,
    /// Largest draw of one GPU, W.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_watts: i32,
    /// Draw of a node without a job beside its GPUs, W. Default: from a table by number of GPUs and generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub host_idle_watts: Option<i32>,
    /// The same with at least one running job, W; at least `hostIdleWatts`. Default: from the same table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub host_busy_watts: Option<i32>,
    /// Draw of a node that is switched off, W: its BMC and power supplies. Default: 15.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000))]
    pub host_off_watts: Option<i32>,
    /// Lowest power limit that may be planned for one GPU, W. Default: the driver's own, and never below four tenths of the highest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub min_limit_watts: Option<i32>,
}

/// What the operator says of the policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EnergyPolicyStatus {
    /// Generation of `spec` that is in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What is drawn against the power budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power: Option<PowerState>,
    /// `Ready`, `NodesExcluded`, `BudgetMet`, `PowerKnown`, `CapacityAvailable`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub conditions: Vec<Condition>,
}

/// What is drawn against the power budget, and what energy costs. Powers are in the budget's scope.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PowerState {
    /// When it was seen. A change of the draw alone is written once a minute at most.
    pub time: Time,
    /// Power the cluster may draw now, W; absent where it is not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub budget_watts: Option<i64>,
    /// Draw as plans, `BudgetMet` and the metric `andreas_power_watts` count it, W.
    #[schemars(range(min = 0))]
    pub drawn_watts: i64,
    /// The part that remains when every job has stopped, W.
    #[schemars(range(min = 0))]
    pub idle_watts: i64,
    /// When the budget changes next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_change: Option<Time>,
    /// The budget then, W; absent where power is not limited then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub next_budget_watts: Option<i64>,
    /// Price of a kWh now, PUE included, millionths of the currency.
    #[schemars(range(min = 0))]
    pub kwh_cost_micros: i64,
}
