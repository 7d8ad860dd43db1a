//! A simulated `libnvidia-ml.so.1`: what a node's GPUs do, seen through NVML's own C functions.
//!
//! # What it holds
//!
//! | module | what it does |
//! |---|---|
//! | [`board`] | NVIDIA's boards: compute capability, PCI device ID, MIG |
//! | [`spec`] | the file that says which GPUs a node has |
//! | [`power`] | the law: draw and SM clock by what runs, clocks and limit. Pure |
//! | [`curve`] | measured power over time, in place of the law. Pure |
//! | [`pci`] | where the GPUs are on the PCI bus, and the kernel's files about them |
//! | [`state`] | the GPUs as they lie in the shared file, and how time passes for them |
//! | [`shared`] | the mapped file and its lock |
//! | [`control`] | the other side: who runs where, which faults there are, what was set |
//! | `abi` | the exported C functions |
//!
//! # What flows in and out
//!
//! A program loads `libnvidia_ml.so` as if it were NVIDIA's. [`ENV_SPEC`] names the spec; the state lies beside it, as
//! `<spec>.state`, mapped by every process that uses the library. So limits and clocks outlive a process that is killed, as
//! they do in a real driver, and a test or a pretend kubelet on the [`control`] side sees them and says which processes run
//! on which UUID. A kernel lock on the file, released by the kernel when its holder dies, keeps the state whole.
//!
//! NVIDIA's device plug-in and GPU feature discovery run on it. They also read the kernel's files about PCI devices, which
//! [`Spec::write_pci_devices`] writes for a mount over `/sys/bus/pci/devices`.
//!
//! # What it does not pretend
//!
//! Savings that hardware does not give. Without a context a GPU draws its bare idle power, whatever its limit or its clocks: a
//! limit below that saves nothing. A context alone raises the draw, because clocks go to boost; clocks locked low take that
//! back (NVML's documentation of power and clocks; idle figures: arXiv 2605.23918 and nvidia-pstated's issue 6).
//!
//! # What must never be here
//!
//! Knowledge of Kubernetes, or of ANDREAS. It stands for a library of another house.

mod abi;
pub mod board;
pub mod control;
pub mod curve;
pub mod pci;
pub mod power;
pub mod shared;
pub mod spec;
pub mod state;

pub use board::Board;
pub use control::{Fault, GpuView, MemoryErrors, Process, Sim};
pub use curve::Curve;
pub use spec::{GpuSpec, Spec};

/// Name of the environment variable with the path of the spec.
pub const ENV_SPEC: &str = "ANDREAS_NVML_SIM";

/// Most GPUs of one node.
pub const MAX_GPUS: usize = 64;
/// Bytes of a text, the final 0 included (`NVML_DEVICE_UUID_V2_BUFFER_SIZE`).
pub const TEXT: usize = 96;

/// Most processes on one GPU.
pub const MAX_PROCESSES: usize = 16;

/// Why the simulated node cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The environment variable is not set.
    #[error("{ENV_SPEC} names no spec")]
    NoSpec,
    /// A file cannot be opened, locked or mapped.
    #[error("{path}: {source}")]
    Io {
        /// Which.
        path: std::path::PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The spec is not JSON of the right shape, or has wrong figures.
    #[error("spec: {0}")]
    Spec(String),
    /// No GPU has this UUID.
    #[error("no GPU {0}")]
    NoGpu(String),
}
