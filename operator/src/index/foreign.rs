//! Slim views of objects that only the operator watches.

use andreas_api::slim::{SlimPodSpec, metadata};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::ObjectMeta;
use serde::Deserialize;

/// A pod that is not ours: where it is and what it takes there. Watched without the ended ones.
#[derive(Clone, Debug, Deserialize)]
pub struct ForeignPod {
    /// Name and versions.
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// Node and requests.
    #[serde(default)]
    pub spec: SlimPodSpec,
}

/// A namespace: its labels and annotations (pod security, largest weight).
#[derive(Clone, Debug, Deserialize)]
pub struct SlimNamespace {
    /// Name, versions, labels, annotations.
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
}

andreas_api::resource_like!(ForeignPod, Pod);
andreas_api::resource_like!(SlimNamespace, Namespace);
