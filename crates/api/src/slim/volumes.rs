//! Volumes and claims, as far as they say where a pod can be: nothing of their contents or drivers.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, VolumeNodeAffinity};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::{metadata, own_metadata};

/// A PersistentVolumeClaim: which volume it is bound to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlimPersistentVolumeClaim {
    /// Name, UID, versions; no `managedFields`.
    #[serde(deserialize_with = "own_metadata")]
    pub metadata: ObjectMeta,
    /// Its volume.
    #[serde(default)]
    pub spec: SlimPersistentVolumeClaimSpec,
}
resource_like!(SlimPersistentVolumeClaim, PersistentVolumeClaim);

/// Which volume a claim is bound to, and from how many nodes it can be mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimPersistentVolumeClaimSpec {
    /// The PersistentVolume; empty until it is bound.
    pub volume_name: String,
    /// How it may be mounted: `ReadWriteOnce` (one node), `ReadWriteMany`, ...
    pub access_modes: Vec<String>,
}

/// A PersistentVolume: which nodes can reach it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlimPersistentVolume {
    /// Name, UID, versions, labels (zone and region of older drivers); no `managedFields`.
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// Its nodes.
    #[serde(default)]
    pub spec: SlimPersistentVolumeSpec,
}
resource_like!(SlimPersistentVolume, PersistentVolume);

/// Which nodes can reach a volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimPersistentVolumeSpec {
    /// None: all.
    pub node_affinity: Option<VolumeNodeAffinity>,
}
