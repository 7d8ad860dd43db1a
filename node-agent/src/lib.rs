//! The node agent: two processes on every GPU node.
//!
//! # What it holds
//!
//! | module | what it does |
//! |---|---|
//! | [`gpu`] | trait of one GPU, its NVML implementation, one thread per GPU with a bounded mailbox |
//! | [`setting`] | settings of a GPU, and the socket protocol that requests them |
//! | [`setter`] | privileged helper (CAP_SYS_ADMIN): sets, records original values, restores |
//! | [`agent`] | unprivileged agent (service account token): observes, decides, reports |
//! | [`podresources`] | the kubelet's PodResources API: which pod holds which device |
//! | [`process`] | start and shutdown of both processes |
//!
//! # What flows in and out
//!
//! ```text
//!  API server --- GpuNode.spec, EnergyPolicy, the operator's Lease ---> agent --- desired settings ---> setter --- NVML
//!       ^                                                               | ^  (Unix socket, every second)
//!       +--- GpuNode.status of this node, on changes -------------------+ |
//!                                          kubelet (PodResources), NVML --+
//! ```
//!
//! # What it promises
//!
//! * **Every setting ends.** It holds while the operator's leader Lease is renewed and the setter receives
//!   requests. Then the GPU gets back its original power limit and unlocked clocks. The same happens at the
//!   setter's SIGTERM. After a SIGKILL it happens at its next start, from the record written before the first
//!   change.
//! * **A GPU is awake before its pod needs it.** A raised `spec.wake` is acknowledged only after every unheld
//!   GPU was observed awake.
//! * **GPUs do not block each other.** Each has its own thread; a call times out after two seconds.
//! * **It writes only on changes**, and only the status of its own GpuNode.
//!
//! # What must never be here
//!
//! Network endpoints other than `/metrics` and the probes; assigning GPUs to pods; savings that no meter
//! shows.

pub mod agent;
pub mod gpu;
pub mod podresources;
pub mod process;
pub mod setter;
pub mod setting;

/// User agent, for audit logs and flow schemas.
pub const USER_AGENT: &str = concat!("andreas-node-agent/", env!("CARGO_PKG_VERSION"));
