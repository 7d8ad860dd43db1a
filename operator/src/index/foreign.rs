//! Slim views of objects that only the operator watches.

use std::borrow::Cow;

use andreas_api::slim::{SlimPodSpec, metadata};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Resource;
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

macro_rules! resource_like {
    ($slim:ty, $full:ty) => {
        impl Resource for $slim {
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

resource_like!(ForeignPod, Pod);
resource_like!(SlimNamespace, Namespace);
