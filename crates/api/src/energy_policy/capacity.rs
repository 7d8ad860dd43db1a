//! Nodes that an autoscaler adds.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration::DurationText;

/// A pool whose nodes an autoscaler adds: plans count with them, and those that a plan uses are asked for by a CapacityBuffer
/// (`autoscaling.x-k8s.io`) in the operator's namespace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodePool {
    /// Its name; that of the CapacityBuffer is `andreas-` and this name.
    #[schemars(length(min = 1, max = 40), regex(pattern = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"))]
    pub name: String,
    /// GPU type of these nodes: the value of their type label.
    #[schemars(length(min = 1, max = 253))]
    pub gpu_type: String,
    /// GPUs of each.
    #[schemars(range(min = 1, max = 64))]
    pub gpus: i32,
    /// What pods can ask for on such a node beside GPUs, less what its DaemonSets take: `cpu`, `memory` and others.
    #[schemars(
        length(min = 1, max = 16),
        inner(
            length(max = 64),
            regex(pattern = r"^[0-9]{1,15}([.][0-9]{1,6})?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$")
        )
    )]
    pub allocatable: BTreeMap<String, String>,
    /// Labels by which the autoscaler finds the pool, for example `cloud.google.com/gke-nodepool: a100`; nodes that have them are of this
    /// pool.
    #[schemars(length(min = 1, max = 16), inner(length(max = 63)))]
    pub node_selector: BTreeMap<String, String>,
    /// Further labels that its nodes get, which jobs may ask for. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 63)))]
    pub labels: BTreeMap<String, String>,
    /// Taints that its nodes keep. Default: none. `nvidia.com/gpu` is tolerated by every worker.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub taints: Vec<NodeTaint>,
    /// How many there may be.
    #[schemars(range(min = 1, max = 1000))]
    pub max_nodes: i32,
    /// How long it takes until one can be used, until starts were seen. Default: `5m`. One that is not there after three times as long
    /// counts as not to be had, at first for 10 min.
    #[serde(default = "start_time")]
    pub start_time: DurationText,
}

/// A taint of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeTaint {
    /// Its key.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// Its value. Default: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    #[schemars(extend("enum" = ["NoSchedule", "PreferNoSchedule", "NoExecute"]), length(max = 16))]
    pub effect: String,
}

fn start_time() -> DurationText {
    DurationText("5m".into())
}
