//! Why GPU nodes are not planned.

use andreas_api::EnergyPolicySpec;
use andreas_api::names::GPU_RESOURCE;

use crate::index::MOST_GPUS;

/// Maximum GPU types that are planned, those with the most GPUs; fewer than a plan may have, since jobs keep the types that they
/// run on.
pub(super) const MAX_TYPES: usize = 100;

/// Why a GPU node is excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exclusion {
    /// MIG instances are offered instead of or besides whole GPUs.
    MigInUse,
    /// Several pods share a GPU, by its labels: time slicing or MPS.
    SharedGpus,
    /// It offers more GPUs than it has boards: several pods share one, without labels that say so.
    MoreThanBoards {
        /// GPUs in `allocatable`.
        offered: u64,
        /// Boards of the node.
        boards: u64,
    },
    /// It offers boards of several models under the one type that its labels name: a worker may get any of them.
    MixedBoards {
        /// Highest power limits of the least and the largest, W.
        watts: (i32, i32),
    },
    /// No `nvidia.com/gpu`: no device plug-in, or GPUs offered by dynamic resource allocation only.
    NoWholeGpus,
    /// It has none of the policy's type labels.
    NoTypeLabel,
    /// A power budget is set, and the draw of its boards is unknown.
    UnknownBoard,
    /// More GPUs than a machine has: the kubelet is mistaken or not to be trusted.
    TooManyGpus,
    /// The cluster has more GPU types than a plan may have, and more GPUs of each of the others.
    TooManyTypes,
    /// The policy's node selector does not match.
    NotSelected,
}

impl Exclusion {
    /// Names of all reasons.
    pub const ALL: [&str; 9] = [
        Self::MigInUse.as_str(),
        Self::SharedGpus.as_str(),
        Self::MixedBoards { watts: (0, 0) }.as_str(),
        Self::NoWholeGpus.as_str(),
        Self::NoTypeLabel.as_str(),
        Self::UnknownBoard.as_str(),
        Self::TooManyGpus.as_str(),
        Self::TooManyTypes.as_str(),
        Self::NotSelected.as_str(),
    ];

    /// Name for objects and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MigInUse => "MigInUse",
            Self::SharedGpus | Self::MoreThanBoards { .. } => "SharedGpus",
            Self::MixedBoards { .. } => "MixedBoards",
            Self::NoWholeGpus => "NoWholeGpus",
            Self::NoTypeLabel => "NoTypeLabel",
            Self::UnknownBoard => "UnknownBoard",
            Self::TooManyGpus => "TooManyGpus",
            Self::TooManyTypes => "TooManyTypes",
            Self::NotSelected => "NotSelected",
        }
    }

    /// Human-readable text: the problem and its fix.
    pub fn message(self, policy: &EnergyPolicySpec) -> String {
        match self {
            Self::MigInUse => "MIG is in use; only whole GPUs are planned".into(),
            Self::SharedGpus => "GPUs are shared by time slicing or MPS; only whole GPUs are planned".into(),
            Self::MoreThanBoards { offered, boards } => format!(
                "{offered} {GPU_RESOURCE} in allocatable, and {boards} boards: GPUs are shared; only whole GPUs are planned"
            ),
            Self::MixedBoards { watts: (least, largest) } => format!(
                "its boards are of several models, of {least} W and of {largest} W: let the device plug-in offer those of one alone"
            ),
            Self::NoWholeGpus => format!(
                "no {GPU_RESOURCE} in allocatable: is the device plug-in running? GPUs of DRA alone are not planned"
            ),
            Self::NoTypeLabel => {
                let labels: Vec<&str> = policy.type_labels.iter().map(String::as_str).collect();
                format!("the node has none of the type labels {}", labels.join(", "))
            }
            Self::UnknownBoard => "a power budget is set and the draw of this GPU type is not known: run the node agent there, or \
                                   describe the type in EnergyPolicy.spec.gpuTypes"
                .into(),
            Self::TooManyGpus => format!(
                "more than {MOST_GPUS} GPUs in allocatable: are they shared without the labels that say so?"
            ),
            Self::TooManyTypes => format!(
                "the cluster has more than {MAX_TYPES} GPU types: does a label in EnergyPolicy.spec.typeLabels name nodes?"
            ),
            Self::NotSelected => "EnergyPolicy.spec.nodeSelector does not select the node".into(),
        }
    }
}
