//! kube-scheduler extender that restricts each training pod to the node of its allocation.
//!
//! # What it holds
//!
//! | module | what it does |
//! |---|---|
//! | [`wire`] | messages of kube-scheduler, in Go's spelling |
//! | [`decide`] | pod ownership and allowed node: pure, no I/O |
//! | [`jobs`] | cache of all TrainingJobs' allocations, fed by one watch |
//! | [`pod_cache`] | cache of pods seen by filter, so that bind need not read them |
//! | [`cluster`] | requests to the API server: one live read, one Binding |
//! | [`verbs`] | filter, prioritize and bind, built from the modules above |
//! | [`routes`] | HTTP server: limits, timeouts, metrics |
//!
//! # What flows in and out
//!
//! In: calls from kube-scheduler (plain HTTP on loopback), and a watch of TrainingJobs that reads their UID and
//! `status.allocation`. Out: responses from memory, and Bindings that carry the allocation's generation.
//!
//! # What must never be here
//!
//! State that cannot be rebuilt. Reservations: a filter call is not always followed by a bind. A watch of
//! pods or nodes. Any write but the Binding. kube-scheduler makes one filter call at a time for the whole
//! cluster, so a slow response delays every pod.

pub mod cluster;
pub mod decide;
pub mod jobs;
pub mod metrics;
pub mod pod_cache;
pub mod routes;
pub mod verbs;
pub mod wire;

/// User agent, for audit logs and flow schemas.
pub const USER_AGENT: &str = concat!("andreas-extender/", env!("CARGO_PKG_VERSION"));
