//! What is read of pods, Services, EndpointSlices, ConfigMaps and Secrets: slim metadata and no more than is used, so
//! that one hostile object stops no watch.

use std::borrow::Cow;
use std::collections::BTreeMap;

use andreas_api::slim::metadata;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Container, Volume};
use k8s_openapi::api::{core, discovery};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};

macro_rules! view_of {
    ($view:ty, $full:ty) => {
        impl Resource for $view {
            type DynamicType = ();
            type Scope = <$full as Resource>::Scope;
            fn kind(_: &()) -> Cow<'_, str> {
                <$full as Resource>::kind(&())
            }
            fn group(_: &()) -> Cow<'_, str> {
                <$full as Resource>::group(&())
            }
            fn version(_: &()) -> Cow<'_, str> {
                <$full as Resource>::version(&())
            }
            fn plural(_: &()) -> Cow<'_, str> {
                <$full as Resource>::plural(&())
            }
            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

/// Prefix of the annotations that tell pretend kubelets what shall happen to a pod.
pub const ANNOTATIONS: &str = "testbed.andreas.dev";

/// A pod as a kubelet reads it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PodView {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    pub spec: PodSpecView,
    #[serde(default)]
    pub status: PodStatusView,
}
view_of!(PodView, core::v1::Pod);

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSpecView {
    pub node_name: String,
    pub containers: Vec<Container>,
    pub init_containers: Vec<Container>,
    pub volumes: Vec<Volume>,
    pub restart_policy: String,
    pub termination_grace_period_seconds: Option<i64>,
    pub service_account_name: String,
    pub hostname: Option<String>,
    pub subdomain: Option<String>,
    pub node_selector: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodStatusView {
    pub phase: String,
    #[serde(rename = "podIP")]
    pub pod_ip: String,
    pub start_time: Option<String>,
}

impl PodView {
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
    pub fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(name).map(String::as_str)
    }
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
    pub fn is_terminal(&self) -> bool {
        ["Succeeded", "Failed"].contains(&self.status.phase.as_str())
    }
    /// Seconds between SIGTERM and SIGKILL: of the deletion, else of the pod.
    pub fn grace_seconds(&self) -> i64 {
        let of_pod = self.spec.termination_grace_period_seconds.unwrap_or(30);
        // A tenant may ask for any number; instants cannot carry it.
        self.metadata.deletion_grace_period_seconds.unwrap_or(of_pod).clamp(1, 1 << 30)
    }
    /// The pod's host name, cut as a kubelet cuts it.
    pub fn hostname(&self) -> String {
        let mut name = self.spec.hostname.clone().unwrap_or_else(|| self.name().to_owned());
        name.truncate(63);
        name.trim_end_matches(['-', '.']).to_owned()
    }
}

/// A Service: its address and ports.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ServiceView {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: ServiceSpecView,
}
view_of!(ServiceView, core::v1::Service);

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServiceSpecView {
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    pub ports: Vec<ServicePortView>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServicePortView {
    pub name: String,
    pub port: u16,
    pub protocol: String,
}

/// An EndpointSlice: who serves.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SliceView {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub endpoints: Option<Vec<EndpointView>>,
    #[serde(default)]
    pub ports: Option<Vec<EndpointPortView>>,
}
view_of!(SliceView, discovery::v1::EndpointSlice);

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct EndpointView {
    pub addresses: Vec<String>,
    pub hostname: Option<String>,
    pub conditions: EndpointConditionsView,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct EndpointConditionsView {
    pub ready: Option<bool>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct EndpointPortView {
    pub name: Option<String>,
    pub port: Option<u16>,
}

/// A ConfigMap's data.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConfigMapView {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub data: BTreeMap<String, String>,
    #[serde(default)]
    pub binary_data: BTreeMap<String, ByteString>,
}
view_of!(ConfigMapView, core::v1::ConfigMap);

/// A Secret's data.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SecretView {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub data: BTreeMap<String, ByteString>,
}
view_of!(SecretView, core::v1::Secret);

/// A Node: whether the cluster believes that it is alive.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct NodeView {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub status: NodeStatusView,
}
view_of!(NodeView, core::v1::Node);

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NodeStatusView {
    pub conditions: Vec<NodeConditionView>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NodeConditionView {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
}

impl NodeView {
    /// False once the node controller has given it up.
    pub fn is_ready(&self) -> bool {
        self.status.conditions.iter().any(|one| one.kind == "Ready" && one.status == "True")
    }
}

/// A claim: only who it is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ClaimView {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
}
view_of!(ClaimView, core::v1::PersistentVolumeClaim);
