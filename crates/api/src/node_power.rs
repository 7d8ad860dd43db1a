//! `NodePower` (`np`): a machine that may be switched off, how to reach its power switch, and what is remembered of its Node
//! while it is off.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A machine's power switch, and whether the machine should be on.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "andreas.dev",
    version = "v1alpha1",
    kind = "NodePower",
    plural = "nodepowers",
    shortname = "np",
    status = "NodePowerStatus",
    derive = "PartialEq",
    doc = "Made by the administrator, named like the node: its machine may be switched off while it is empty. A node without one is never switched off."
)]
#[serde(rename_all = "camelCase", default)]
pub struct NodePowerSpec {
    /// Who decides. Default: `Auto`, `wanted` counts. `On`: the machine stays on, or is started; it also ends a quarantine. `Off`: the
    /// machine goes off as soon as its node is empty, even if the operator is away, and stays off.
    pub mode: PowerMode,
    /// What is wanted with `mode: Auto`. Default: `On`.
    pub wanted: WantedPower,
    /// The machine has a BMC with Redfish. Default: none; exactly one of `redfish`, `bareMetalHost` and `webhook` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redfish: Option<RedfishSpec>,
    /// The machine is a BareMetalHost of Metal3. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bare_metal_host: Option<BareMetalHostSpec>,
    /// A server of the site switches the machine. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookSpec>,
}

/// Who decides whether a machine is on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PowerMode {
    /// `wanted`.
    #[default]
    Auto,
    /// It is on.
    On,
    /// It is off as soon as it is empty.
    Off,
}

/// Whether a machine should be on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WantedPower {
    /// On.
    #[default]
    On,
    /// Off, as soon as its node is empty.
    Off,
}

/// A BMC that speaks Redfish.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RedfishSpec {
    /// Address of the BMC, for example `https://bmc-7.example.com`.
    #[schemars(length(min = 9, max = 300), regex(pattern = r"^https://[A-Za-z0-9.:\[\]-]+$"))]
    pub endpoint: String,
    /// Member of `/redfish/v1/Systems`, for example `System.Embedded.1`. Default: the only one; needed where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._~-]*$"))]
    pub system: Option<String>,
    /// Secret with the keys `username` and `password`, in the namespace of node-power.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"))]
    pub credentials: String,
    /// Secret with the certificate authority of the BMC, key `ca.crt`. Default: the authorities of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"))]
    pub ca_secret: Option<String>,
    /// SHA-256 of the BMC's certificate, in hexadecimal, for a self-signed one: no other is accepted. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 64, max = 64), regex(pattern = r"^[0-9a-f]{64}$"))]
    pub fingerprint: Option<String>,
}

/// A BareMetalHost of Metal3.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BareMetalHostSpec {
    /// Its namespace.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"))]
    pub namespace: String,
    /// Its name.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"))]
    pub name: String,
}

/// A server of the site that switches machines: `GET {url}/{node}` gives `{"power":"On"}`, `POST` of the same sets it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebhookSpec {
    /// Its address; the name of the node is appended.
    #[schemars(
        length(min = 9, max = 512),
        regex(pattern = r"^https://[A-Za-z0-9.:\[\]-]+(/[A-Za-z0-9._~-]+)*$")
    )]
    pub url: String,
    /// Secret with the bearer token, key `token`, in the namespace of node-power.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"))]
    pub credentials: String,
    /// Secret with its certificate authority, key `ca.crt`. Default: the authorities of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"))]
    pub ca_secret: Option<String>,
}

/// What node-power has done and seen. It is written before each act, so a new node-power goes on where the last one ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodePowerStatus {
    /// Where the machine is on its way.
    pub state: PowerState,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Since when the machine is asked to shut down. Absent: it was not asked since it was last on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<Time>,
    /// Last reading of the power.
    pub power: PowerReading,
    /// When that was read; renewed each 5 minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_time: Option<Time>,
    /// What is remembered of the Node, to be restored when the machine is back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<RememberedMachine>,
    /// How long the last 20 starts took, s.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20), inner(range(min = 0, max = 1_000_000)))]
    pub boots: Vec<i32>,
    /// The 90th percentile of `boots`, s.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub boot_seconds: Option<i32>,
    /// When it went off, in the last 24 h; the last 16.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub off_times: Vec<Time>,
    /// Starts in a row that failed.
    #[schemars(range(min = 0, max = 1000))]
    pub failed_starts: i32,
    /// Attempts in a row to switch it off that failed. Each doubles the time until the next, from 1 h to 24 h.
    #[schemars(range(min = 0, max = 1000))]
    pub failed_offs: i32,
    /// Why it is on though it should be off; empty where it should not.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub kept_on_by: String,
    /// `Reachable`: its power can be read. `Quarantined`: a person must look at it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub conditions: Vec<Condition>,
}

/// The 90th percentile of starts, s; `None` before the first.
pub fn boot_seconds(boots: &[i32]) -> Option<i32> {
    let mut sorted = boots.to_vec();
    sorted.sort_unstable();
    sorted.get((sorted.len() * 9).div_ceil(10).checked_sub(1)?).copied()
}

/// Where a machine is on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PowerState {
    /// It is on, or its Node was lost for another reason.
    #[default]
    On,
    /// Its Node is cordoned and it is to shut down.
    GoingOff,
    /// It is proven off, and its Node is deleted.
    Off,
    /// It is started, and not yet ready.
    Starting,
    /// It did not do what it was asked; nothing is done until a person sets `mode: On`.
    Quarantined,
}

/// What the power switch says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PowerReading {
    /// On.
    On,
    /// Off.
    Off,
    /// On its way to on or off.
    Changing,
    /// It was not read, or could not be.
    #[default]
    Unknown,
}

/// What is remembered of a Node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RememberedMachine {
    /// UID of the Node.
    #[schemars(length(max = 64))]
    pub node_uid: String,
    /// Identity of its last boot.
    #[schemars(length(max = 64))]
    pub boot_id: String,
    /// `spec.providerID`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub provider_id: Option<String>,
    /// Whether a person had cordoned it before.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cordoned: bool,
    /// All its labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 128), inner(length(max = 253)))]
    pub labels: BTreeMap<String, String>,
    /// Its annotations that are restored.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(inner(length(max = 4096)))]
    pub annotations: BTreeMap<String, String>,
    /// Its taints but those of Kubernetes' own controllers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub taints: Vec<RememberedTaint>,
    /// What pods may ask for.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(inner(length(max = 64)))]
    pub allocatable: BTreeMap<String, String>,
    /// What the pods of its DaemonSets ask for of it, by resource; `pods` is their number.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(inner(length(max = 64)))]
    pub daemon_set_requests: BTreeMap<String, String>,
    /// Whole GPUs.
    #[schemars(range(min = 0, max = 64))]
    pub gpus: i32,
}

/// A taint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RememberedTaint {
    /// Its key.
    #[schemars(length(max = 317))]
    pub key: String,
    /// Its value.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule`, `NoExecute`.
    #[schemars(length(max = 32))]
    pub effect: String,
}
