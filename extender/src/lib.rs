//! The scheduler's second opinion: a kube-scheduler extender that lets a training pod go only where its allocation says.
//!
//! # What it holds
//!
//! | module | what it does |
//! |---|---|
//! | [`wire`] | the scheduler's messages, spelled as Go spells them |
//! | [`decide`] | whose pod is it, and where may it go: pure, no I/O |
//! | [`jobs`] | the allocations of all TrainingJobs, fed by one watch |
//! | [`seen`] | pods that a filter call has shown us, so that bind need not read them |
//! | [`cluster`] | the few calls to the API server: one live look, one binding |
//! | [`certificates`] | of the pod: ours and the scheduler's, with an overlap when they change |
//! | [`verbs`] | filter, prioritize and bind: the above put together |
//! | [`routes`] | the HTTP around them: limits, deadlines, metrics |
//!
//! # What flows in and out
//!
//! In: the scheduler's calls (mutual TLS, HTTP/2) and a watch of TrainingJobs that reads their UID and `status.allocation`. Out:
//! answers from memory, and Bindings that carry the allocation's generation.
//!
//! # What must never be here
//!
//! State that cannot be rebuilt, reservations (a filter call may never be followed by a bind, and nobody says so), a watch of
//! pods or nodes, and any write but the Binding. The scheduler makes one filter call at a time for the whole cluster: what
//! is slow here is slow for everybody.

pub mod certificates;
pub mod cluster;
pub mod decide;
pub mod jobs;
pub mod metrics;
pub mod routes;
pub mod seen;
pub mod verbs;
pub mod wire;

/// What audit logs and flow schemas see of our calls.
pub const USER_AGENT: &str = concat!("andreas-extender/", env!("CARGO_PKG_VERSION"));
