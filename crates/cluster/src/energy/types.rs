//! GPU types of the cluster.

use std::collections::BTreeMap;

use andreas_model::{GpuType, TypeDraw};

/// A GPU type of the cluster: number of GPUs and memory of each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TypeFacts {
    /// GPUs on managed nodes.
    pub gpus: u64,
    /// Memory of one GPU of the node with the largest ones, MiB; 0 without a label.
    pub memory_mib: i64,
    /// GPUs of the largest node.
    pub per_node: u64,
    /// Lowest and highest power limit that every GPU supports, W; `None` where one supports none or the policy has none.
    pub limits: Option<(i32, i32)>,
    /// Power limits on offer, besides none, W, lowest first.
    pub levels: Vec<i32>,
    /// Draw of a GPU for the power budget.
    pub draw: Option<TypeDraw>,
}

/// Types of the cluster, by name.
pub type Types = BTreeMap<GpuType, TypeFacts>;
