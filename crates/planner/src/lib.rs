//! Computes a plan from a snapshot; contains every scheduling policy.
//!
//! **Contains** the [`Snapshot`] of a cluster, the [`Plan`], and the planning methods ([`MethodName`]).
//!
//! **Data flow**: [`plan`] takes a snapshot and [`Options`] and returns a plan or a [`SnapshotError`]. The
//! same input gives the same plan on every machine.
//!
//! **Not allowed**: I/O, clocks, threads, async, Kubernetes, random numbers without a seed from the caller,
//! dependence on the order of a hash map.

// Unit tests use the same generators as the integration tests.
#[cfg(test)]
extern crate self as andreas_planner;

mod andreas;
mod assemble;
mod baseline;
mod budget;
mod candidates;
mod capacity;
mod check;
mod cost;
mod error;
mod explain;
mod fill;
mod instance;
mod lookahead;
mod memory;
mod method;
mod outcome;
mod partial;
mod plan;
mod policies;
mod reserve;
mod rng;
mod snapshot;

pub use error::SnapshotError;
pub use memory::{JobMemory, Memory};
pub use method::{Accounting, MethodName, Options, UnknownMethod};
pub use plan::{Decision, JobPlan, Plan, WaitReason};
pub use snapshot::{
    Estimate, GpuTypeInfo, Job, JobState, Lateness, LimitEffect, LimitsCount, Namespace, Node, Placement,
    PowerBudget, Preemption, Prices, Resources, Snapshot, Spread, Worker,
};

/// Plans all jobs: where they run, which wait and why.
///
/// # Errors
/// [`SnapshotError`] with the field, for a snapshot with invalid numbers or names.
pub fn plan(snapshot: &Snapshot, options: &Options) -> Result<Plan, SnapshotError> {
    snapshot.check()?;
    let instance = budget::prepared(snapshot);
    let outcome = match options.method {
        MethodName::Andreas | MethodName::AndreasLs | MethodName::AndreasPr => {
            andreas::decide(&instance, options)
        }
        MethodName::RandomizedGreedy | MethodName::Exact => lookahead::decide(&instance, options),
        MethodName::Fifo
        | MethodName::FifoFixed
        | MethodName::Edf
        | MethodName::EdfFixed
        | MethodName::Priority
        | MethodName::PriorityFixed => baseline::decide(&instance, options),
        MethodName::Tiresias
        | MethodName::Elasticflow
        | MethodName::Gavel
        | MethodName::GandivaFair
        | MethodName::Powerflow
        | MethodName::Srtf => policies::decide(&instance, options.method),
    };
    Ok(assemble::assemble(&instance, options, outcome))
}
