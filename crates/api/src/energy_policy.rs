//! `EnergyPolicy` (`ep`): what the administrator wants of the cluster; one object named `default`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration::DurationText;

/// Prices, power budget and rules. What is absent has the default stated; without any object all defaults hold.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "andreas.dev",
    version = "v1alpha1",
    kind = "EnergyPolicy",
    plural = "energypolicies",
    shortname = "ep",
    shortname = "epol",
    status = "EnergyPolicyStatus",
    derive = "PartialEq",
    doc = "Power budget, tariff, price of lateness and the rules for idle GPUs; one object named `default`."
)]
#[serde(rename_all = "camelCase", default)]
pub struct EnergyPolicySpec {
    /// Currency of every price, a label for people.
    #[schemars(length(min = 1, max = 16))]
    pub currency: String,
    /// Price of a kWh, millionths of the currency.
    #[serde(rename = "pricePerKWhMicros")]
    #[schemars(range(min = 0, max = 1_000_000_000_i64))]
    pub price_per_kwh_micros: i64,
    /// Price of a kWh by time of day, always in UTC (no daylight saving time): the first window that covers an instant counts, the flat price where none does.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 24))]
    pub tariff: Vec<TariffWindow>,
    /// Power usage effectiveness of the site, thousandths.
    #[schemars(range(min = 1000, max = 5000))]
    pub pue_milli: i32,
    /// Price of an hour late of a job of weight 1, millionths of the currency.
    #[schemars(range(min = 0, max = 1_000_000_000_i64))]
    pub lateness_price_per_hour_micros: i64,
    /// What a miss costs, as seconds of lateness.
    #[schemars(range(min = 0, max = 31_536_000))]
    pub miss_seconds: i32,
    /// What an hour in the system costs, thousandths of an hour late.
    #[schemars(range(min = 0, max = 1000))]
    pub turnaround_share_milli: i32,
    /// Hours of waiting past the deadline (or since submission) that add the weight once more, at most ten times it.
    #[schemars(range(min = 1, max = 8760))]
    pub aging_hours: i32,
    /// Power the cluster may draw, W; no budget when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000_i64))]
    pub power_budget_watts: Option<i64>,
    /// Power budget by time of day, always in UTC (no daylight saving time): the first window that covers an instant counts, the flat budget where none does.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 24))]
    pub windows: Vec<BudgetWindow>,
    /// Whether the budget is of IT power or of the facility (IT power x PUE).
    #[serde(deserialize_with = "crate::known::or_default")]
    pub power_budget_scope: PowerBudgetScope,
    /// Part of the budget that plans leave free, thousandths.
    #[schemars(range(min = 0, max = 900))]
    pub budget_margin_milli: i32,
    /// How long what runs may draw more than the budget before the policy says so (condition `BudgetMet` is False). A lowered
    /// budget is planned with at once: jobs are asked to stop within seconds, count here no longer, and have their
    /// checkpoint's grace period to leave.
    pub enforce_within: DurationText,
    /// A gang not wholly bound in this time is withdrawn.
    pub placement_timeout: DurationText,
    /// Run time assumed when nothing is known.
    pub default_run_time: DurationText,
    /// Seconds that a checkpoint, stop, start and load take together.
    #[schemars(range(min = 0, max = 86_400))]
    pub restart_seconds: i32,
    /// A run is not moved before it has run this long.
    pub min_run_time: DurationText,
    /// Nodes that are planned: those with `nvidia.com/gpu` in their allocatable and with all these labels. Empty: all with GPUs.
    #[schemars(length(max = 16))]
    pub node_selector: BTreeMap<String, String>,
    /// Labels that name the GPU type of a node: the value of the first one that the node has counts.
    #[schemars(length(min = 1, max = 8), inner(length(min = 1, max = 317)))]
    pub type_labels: Vec<String>,
    /// What to do for jobs of a silent node.
    pub node_loss: NodeLoss,
    /// When GPUs that hold no job rest.
    pub rest: Rest,
    /// Power limits of GPUs that train.
    #[serde(deserialize_with = "crate::known::or_default")]
    pub limits: Limits,
    /// Power of GPU types and nodes, where the built-in values do not fit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub gpu_types: Vec<GpuTypePower>,
}

impl Default for EnergyPolicySpec {
    fn default() -> Self {
        Self {
            currency: "EUR".into(),
            price_per_kwh_micros: 200_000,
            tariff: Vec::new(),
            pue_milli: 1300,
            lateness_price_per_hour_micros: 20_000,
            miss_seconds: 900,
            turnaround_share_milli: 100,
            aging_hours: 24,
            power_budget_watts: None,
            windows: Vec::new(),
            power_budget_scope: PowerBudgetScope::IT,
            budget_margin_milli: 50,
            enforce_within: DurationText("120s".into()),
            placement_timeout: DurationText("2m".into()),
            default_run_time: DurationText("4h".into()),
            restart_seconds: 120,
            min_run_time: DurationText("5m".into()),
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
            limits: Limits::default(),
            gpu_types: Vec::new(),
        }
    }
}

/// Price of a kWh between two times of day, UTC. A window whose end is not after its start passes midnight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TariffWindow {
    /// Start, `HH:MM`, UTC.
    #[schemars(regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub from: String,
    /// End, `HH:MM`, UTC, exclusive.
    #[schemars(regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub to: String,
    /// Price of a kWh, millionths of the currency.
    #[serde(rename = "pricePerKWhMicros")]
    #[schemars(range(min = 0, max = 1_000_000_000_i64))]
    pub price_per_kwh_micros: i64,
}

/// Power budget between two times of day, UTC. A window whose end is not after its start passes midnight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BudgetWindow {
    /// Start, `HH:MM`, UTC.
    #[schemars(regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub from: String,
    /// End, `HH:MM`, UTC, exclusive.
    #[schemars(regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub to: String,
    /// Power the cluster may draw, W.
    #[schemars(range(min = 1, max = 1_000_000_000_i64))]
    pub power_budget_watts: i64,
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
    /// How long a node is silent before its jobs are looked at.
    pub after: DurationText,
    /// Wait for proof of death, or start again elsewhere.
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
    /// On or off.
    pub mode: Switch,
    /// How long a GPU is unheld before it rests.
    pub after: DurationText,
}

impl Default for Rest {
    fn default() -> Self {
        Self { mode: Switch::On, after: DurationText("60s".into()) }
    }
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
    /// None are set.
    #[default]
    Off,
    /// Planned and reported, not set.
    Observe,
    /// Planned and set.
    On,
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
    /// Draw of a node with at least one running job beside its GPUs, W.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub node_overhead_watts: i32,
    /// Lowest power limit that may be planned for one GPU, W; the driver's own when absent, and never below four tenths of the highest.
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
    /// `Ready`, `NodesExcluded`, `BudgetMet`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub conditions: Vec<Condition>,
}
