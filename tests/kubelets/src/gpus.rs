//! Which GPUs a node has: simulated ones, or those of this machine.

use crate::machine::MachineGpus;

/// The GPUs of a node.
#[derive(Clone, Debug)]
pub enum Gpus {
    /// Simulated ones.
    Simulated {
        /// Product, as GPU feature discovery names it: `NVIDIA-A100-SXM4-80GB`.
        product: String,
        /// How many.
        count: usize,
        /// Memory of each, MiB.
        memory_mib: u64,
    },
    /// All that this machine has.
    OfMachine(MachineGpus),
}

impl Gpus {
    /// How many.
    pub fn count(&self) -> usize {
        match self {
            Self::Simulated { count, .. } => *count,
            Self::OfMachine(machine) => machine.uuids().count(),
        }
    }
}

/// UUIDs of a node's simulated GPUs: the same after every power cut.
pub(crate) fn uuids(number: u8, count: usize) -> Vec<String> {
    (0..count).map(|index| format!("GPU-{number:08x}-0000-4000-8000-{index:012x}")).collect()
}
