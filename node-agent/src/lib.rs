//! The node agent: one pair of processes on every GPU node.
//!
//! # What it holds
//!
//! | module | what it does |
//! |---|---|
//! | [`gpu`] | one GPU as a trait, NVML behind it, one thread per GPU with a bounded mailbox |
//! | [`setting`] | what can be set on a GPU, and how it is asked for over the socket |
//! | [`setter`] | the process with CAP_SYS_ADMIN: sets, remembers what was before, restores |
//! | [`brain`] | the process with a token: sees, decides, reports |
//! | [`process`] | what both begin and end with |
//!
//! # What flows in and out
//!
//! ```text
//!  API server --- GpuNode.spec, EnergyPolicy, the operator's Lease ---> brain --- wanted settings ---> setter --- NVML
//!       ^                                                               | ^  (Unix socket, every second)
//!       +--- GpuNode.status of this node, on changes -------------------+ |
//!                                          kubelet (PodResources), NVML --+
//! ```
//!
//! # What it promises
//!
//! * **Every setting ends.** It holds while the operator's leader Lease is seen to move and the brain is heard by the setter. Then
//!   the GPU gets back the limit it had, and free clocks. So it does at the setter's SIGTERM, and at its next start after a
//!   SIGKILL, by the record it wrote before the first change.
//! * **A GPU is awake before its pod needs it.** A raised `spec.wake` is acknowledged only after every unheld GPU was seen awake.
//! * **One GPU stops no other.** Each has a thread of its own; a call that takes longer than two seconds is given up.
//! * **It writes only on changes**, and only the status of its own GpuNode.
//!
//! # What must never be here
//!
//! A way in from the network beside `/metrics` and the probes; a choice of which pod gets which GPU; savings that no meter shows.

pub mod brain;
pub mod gpu;
pub mod process;
pub mod setter;
pub mod setting;

/// What audit logs and flow schemas see.
pub const USER_AGENT: &str = concat!("andreas-node-agent/", env!("CARGO_PKG_VERSION"));
