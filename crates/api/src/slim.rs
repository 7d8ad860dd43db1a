//! Slim views of objects for watches.
//!
//! A tenant may patch deeply nested `metadata.managedFields` onto its own objects; a full decode of any such object
//! fails, and with it the list and the watch of all objects of that kind. The views here read only what is used and
//! skip the rest without recursion, so one object cannot stop the others. They implement [`kube::Resource`], so
//! generic list and watch machinery serves them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSelector, Pod, ResourceQuota, Service, Toleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Deserializer, Serialize};

use crate::{energy_policy, gpu_node, node_power, training_job, training_profile};

/// Implements [`kube::Resource`] for a slim view with a field `metadata: ObjectMeta`, as the full type has it:
/// `resource_like!(SlimPod, Pod)`. For views beside those of this module.
#[macro_export]
macro_rules! resource_like {
    ($slim:ty, $full:ty) => {
        impl ::kube::Resource for $slim {
            type DynamicType = ();
            type Scope = <$full as ::kube::Resource>::Scope;
            fn kind(_: &()) -> ::std::borrow::Cow<'_, str> {
                <$full as ::kube::Resource>::kind(&())
            }
            fn group(_: &()) -> ::std::borrow::Cow<'_, str> {
                <$full as ::kube::Resource>::group(&())
            }
            fn version(_: &()) -> ::std::borrow::Cow<'_, str> {
                <$full as ::kube::Resource>::version(&())
            }
            fn plural(_: &()) -> ::std::borrow::Cow<'_, str> {
                <$full as ::kube::Resource>::plural(&())
            }
            fn meta(&self) -> &::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut ::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

mod meta;
mod places;
mod volumes;

pub use meta::{metadata, own_metadata};
pub use places::{SlimAffinity, SlimClaimName, SlimNodeAffinity, SlimVolume};
pub use volumes::{
    SlimPersistentVolume, SlimPersistentVolumeClaim, SlimPersistentVolumeClaimSpec, SlimPersistentVolumeSpec,
};

macro_rules! slim_custom_resource {
    ($(#[$doc:meta])* $slim:ident, $full:ty, $spec:ty, $status:ty) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct $slim {
            /// Name, UID, versions, labels, owners; no `managedFields`.
            #[serde(deserialize_with = "own_metadata")]
            pub metadata: ObjectMeta,
            /// As in the full object.
            pub spec: $spec,
            /// As in the full object; the default where absent.
            #[serde(default)]
            pub status: Option<$status>,
        }
        resource_like!($slim, $full);
    };
}

slim_custom_resource!(
    /// A TrainingJob without `managedFields`.
    SlimTrainingJob,
    training_job::TrainingJob,
    training_job::TrainingJobSpec,
    training_job::TrainingJobStatus
);
slim_custom_resource!(
    /// A TrainingProfile without `managedFields`.
    SlimTrainingProfile,
    training_profile::TrainingProfile,
    training_profile::TrainingProfileSpec,
    training_profile::TrainingProfileStatus
);
slim_custom_resource!(
    /// An EnergyPolicy without `managedFields`.
    SlimEnergyPolicy,
    energy_policy::EnergyPolicy,
    energy_policy::EnergyPolicySpec,
    energy_policy::EnergyPolicyStatus
);
slim_custom_resource!(
    /// A GpuNode without `managedFields`.
    SlimGpuNode,
    gpu_node::GpuNode,
    gpu_node::GpuNodeSpec,
    gpu_node::GpuNodeStatus
);

slim_custom_resource!(
    /// A NodePower without `managedFields`.
    SlimNodePower,
    node_power::NodePower,
    node_power::NodePowerSpec,
    node_power::NodePowerStatus
);

/// A TrainingJob as the extender needs it: its identity and allocation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllocatedJob {
    /// Name, UID, versions.
    #[serde(deserialize_with = "own_metadata")]
    pub metadata: ObjectMeta,
    /// The allocation only.
    #[serde(default)]
    pub status: Option<AllocatedJobStatus>,
}
resource_like!(AllocatedJob, training_job::TrainingJob);

/// The part of a TrainingJob's status that says what it has been given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AllocatedJobStatus {
    /// What the run has been given.
    #[serde(default)]
    pub allocation: Option<AllocatedTo>,
}

/// The part of an allocation that says which pods may be bound where: fields of other releases are not read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatedTo {
    /// Number of the attempt, from 1.
    pub attempt: i64,
    /// Counter of decisions about this run when this one was made.
    pub generation: i64,
    /// Nodes in order of the members' index.
    pub nodes: Vec<String>,
}

/// A pod: what it asks for, where it is, how its containers fare.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlimPod {
    /// Name, UID, versions, labels, owners; no `managedFields`.
    #[serde(deserialize_with = "own_metadata")]
    pub metadata: ObjectMeta,
    /// Node, requests.
    pub spec: SlimPodSpec,
    /// Phase, conditions, containers.
    #[serde(default)]
    pub status: SlimPodStatus,
}
resource_like!(SlimPod, Pod);

impl SlimPod {
    /// Its phase says that all its containers have ended.
    pub fn has_ended(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }
}

/// A scheduling gate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SlimGate {
    /// Its name.
    pub name: String,
}

/// What a pod asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimPodSpec {
    /// Node it is bound to.
    pub node_name: Option<String>,
    /// Scheduler responsible.
    pub scheduler_name: Option<String>,
    /// Its PriorityClass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// What must be taken away before it is scheduled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scheduling_gates: Vec<SlimGate>,
    /// Grace period of its termination, seconds.
    pub termination_grace_period_seconds: Option<i64>,
    /// Its containers.
    pub containers: Vec<SlimContainer>,
    /// Its init containers, native sidecars among them.
    pub init_containers: Vec<SlimContainer>,
    /// Requests and limits of the whole pod, where they are not those of its containers together.
    pub resources: Option<SlimResources>,
    /// Resources beside those of containers.
    pub overhead: BTreeMap<String, Quantity>,
    /// Labels that its node must have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// What its node must be like.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<SlimAffinity>,
    /// Taints that it tolerates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Volumes that are claims; others are skipped.
    #[serde(rename = "volumes", deserialize_with = "places::claims", skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<SlimVolume>,
}

impl SlimPodSpec {
    /// Its required node affinity.
    pub fn required_nodes(&self) -> Option<&NodeSelector> {
        self.affinity.as_ref()?.node_affinity.as_ref()?.required.as_ref()
    }
}

/// A container's name and resources.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimContainer {
    /// Its name.
    pub name: String,
    /// `Always` makes an init container a native sidecar.
    pub restart_policy: Option<String>,
    /// Its requests and limits.
    pub resources: SlimResources,
    /// Ports that it takes of its node; others are skipped.
    #[serde(deserialize_with = "host_ports")]
    pub ports: Vec<SlimPort>,
}

/// A port of the node that a container takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimPort {
    /// Its number; 0: none.
    pub host_port: i32,
    /// `TCP` (also when empty), `UDP`, `SCTP`.
    pub protocol: String,
}

/// Most containers name ports, hardly any takes one of its node: those are not kept.
fn host_ports<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SlimPort>, D::Error> {
    let mut ports = Option::<Vec<SlimPort>>::deserialize(deserializer)?.unwrap_or_default();
    ports.retain(|port| port.host_port > 0);
    ports.shrink_to_fit();
    Ok(ports)
}

/// Requests and limits of a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlimResources {
    /// Requests.
    pub requests: BTreeMap<String, Quantity>,
    /// Limits.
    pub limits: BTreeMap<String, Quantity>,
}

/// How a pod fares.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimPodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed`, `Unknown`.
    pub phase: String,
    /// Why, in a word, where the kubelet says so.
    pub reason: String,
    /// Why, for people.
    pub message: String,
    /// `PodScheduled`, `Ready`, `DisruptionTarget`...
    pub conditions: Vec<SlimPodCondition>,
    /// States of its containers.
    pub container_statuses: Vec<SlimContainerStatus>,
    /// States of its init containers.
    pub init_container_statuses: Vec<SlimContainerStatus>,
    /// When the kubelet saw it first.
    pub start_time: Option<Time>,
}

/// A condition of a pod or node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimPodCondition {
    /// Its type.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False`, `Unknown`.
    pub status: String,
    /// Why, in a word.
    pub reason: String,
    /// Why, for people.
    pub message: String,
    /// Since when.
    pub last_transition_time: Option<Time>,
}

/// State of a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimContainerStatus {
    /// Its name.
    pub name: String,
    /// Passes its readiness probe.
    pub ready: bool,
    /// Has passed its startup probe, if it has one.
    pub started: Option<bool>,
    /// Waiting, running or terminated.
    pub state: SlimContainerState,
    /// What its node has set aside for it, while a resize is under way.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub allocated_resources: BTreeMap<String, Quantity>,
    /// What it has.
    #[serde(deserialize_with = "requests", skip_serializing_if = "Option::is_none")]
    pub resources: Option<SlimResources>,
}

/// Limits are not read.
fn requests<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SlimResources>, D::Error> {
    let resources = Option::<SlimResources>::deserialize(deserializer)?;
    Ok(resources.map(|of| SlimResources { requests: of.requests, limits: BTreeMap::new() }))
}

/// Waiting, running or terminated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimContainerState {
    /// Not started.
    pub waiting: Option<SlimWaiting>,
    /// Runs.
    pub running: Option<SlimRunning>,
    /// Ended.
    pub terminated: Option<SlimTerminated>,
}

/// Why a container waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimWaiting {
    /// In a word: `ContainerCreating`, `ImagePullBackOff`...
    pub reason: String,
    /// For people.
    pub message: String,
}

/// A running container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimRunning {
    /// Since when.
    pub started_at: Option<Time>,
}

/// How a container ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimTerminated {
    /// Its exit code.
    pub exit_code: i32,
    /// Signal that ended it.
    pub signal: Option<i32>,
    /// `Completed`, `Error`, `OOMKilled`, `ContainerStatusUnknown`...
    pub reason: String,
    /// Termination message, or the last lines of its log.
    pub message: String,
    /// When it started; absent where it never did.
    pub started_at: Option<Time>,
    /// When it ended.
    pub finished_at: Option<Time>,
}

/// A node: its labels, taints, resources and health.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlimNode {
    /// Name, UID, versions, labels; no `managedFields`.
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// Taints, cordon.
    #[serde(default)]
    pub spec: SlimNodeSpec,
    /// Allocatable resources, conditions, boot ID.
    #[serde(default)]
    pub status: SlimNodeStatus,
}
resource_like!(SlimNode, Node);

/// Taints and cordon of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimNodeSpec {
    /// Cordoned.
    pub unschedulable: bool,
    /// Taints.
    pub taints: Vec<SlimTaint>,
}

/// A taint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlimTaint {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule`, `NoExecute`.
    pub effect: String,
}

/// Resources and health of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimNodeStatus {
    /// What pods may ask for.
    pub allocatable: BTreeMap<String, Quantity>,
    /// What there is: of GPUs and MIG instances only. The device plug-in takes broken GPUs out of what pods may ask for.
    #[serde(deserialize_with = "gpus_only")]
    pub capacity: BTreeMap<String, Quantity>,
    /// `Ready` and others.
    pub conditions: Vec<SlimPodCondition>,
    /// Boot ID and others.
    pub node_info: SlimNodeInfo,
}

fn gpus_only<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Quantity>, D::Error> {
    let mut capacity = Option::<BTreeMap<String, Quantity>>::deserialize(deserializer)?.unwrap_or_default();
    capacity
        .retain(|name, _| name == crate::names::GPU_RESOURCE || name.starts_with(crate::names::MIG_PREFIX));
    Ok(capacity)
}

/// What identifies a boot of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlimNodeInfo {
    /// Changes with every boot.
    #[serde(rename = "bootID")]
    pub boot_id: String,
}

/// A ResourceQuota: what is allowed and what is used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlimQuota {
    /// Name, versions; no `managedFields`.
    #[serde(deserialize_with = "own_metadata")]
    pub metadata: ObjectMeta,
    /// Scopes.
    #[serde(default)]
    pub spec: SlimQuotaSpec,
    /// Allowed and used.
    #[serde(default)]
    pub status: SlimQuotaStatus,
}
resource_like!(SlimQuota, ResourceQuota);

/// Scopes of a quota.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimQuotaSpec {
    /// `BestEffort`, `NotTerminating`...
    pub scopes: Vec<String>,
    /// Selectors of scopes.
    pub scope_selector: Option<SlimScopeSelector>,
}

/// Selectors of a quota's scopes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimScopeSelector {
    /// All must match.
    pub match_expressions: Vec<SlimScopeExpression>,
}

/// One selector of a quota's scope.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimScopeExpression {
    /// `PriorityClass` and others.
    pub scope_name: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`.
    pub operator: String,
    /// Values for `In` and `NotIn`.
    pub values: Vec<String>,
}

/// Allowed and used amounts of a quota.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlimQuotaStatus {
    /// Allowed.
    pub hard: BTreeMap<String, Quantity>,
    /// Used.
    pub used: BTreeMap<String, Quantity>,
}

/// A Service: its metadata only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlimService {
    /// Name, UID, owners; no `managedFields`.
    #[serde(deserialize_with = "own_metadata")]
    pub metadata: ObjectMeta,
}
resource_like!(SlimService, Service);
