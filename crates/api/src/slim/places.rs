//! What a pod says of the nodes that it may be on.

use k8s_openapi::api::core::v1::NodeSelector;
use serde::{Deserialize, Deserializer, Serialize};

/// The affinity of a pod to nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimAffinity {
    /// To nodes.
    pub node_affinity: Option<SlimNodeAffinity>,
}

/// What a pod's node must be like.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlimNodeAffinity {
    /// Alternatives, of which one must hold.
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub required: Option<NodeSelector>,
}

/// A volume that is a claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimVolume {
    /// The claim.
    pub persistent_volume_claim: Option<SlimClaimName>,
}

/// The name of a claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimClaimName {
    /// Its name.
    pub claim_name: String,
}

pub(super) fn claims<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SlimVolume>, D::Error> {
    let mut volumes = Option::<Vec<SlimVolume>>::deserialize(deserializer)?.unwrap_or_default();
    volumes.retain(|volume| volume.persistent_volume_claim.is_some());
    volumes.shrink_to_fit();
    Ok(volumes)
}
