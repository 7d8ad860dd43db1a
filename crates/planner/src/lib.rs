//! Snapshot to plan: every scheduling policy lives here.
//!
//! **Holds** the [`Snapshot`] of a cluster, the [`Plan`] made of it, and the methods that make it ([`MethodName`]).
//!
//! **Flows**: a snapshot and [`Options`] in, a plan or a [`SnapshotError`] out, through [`plan`]. The same input
//! gives the same plan on every machine.
//!
//! **Must never be here**: I/O, a clock, threads, async, Kubernetes, a random number that is not seeded by the
//! caller, the order of a hash map.

// Tests inside use the same generators as those outside.
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
mod instance;
mod lookahead;
mod memory;
mod method;
mod partial;
mod plan;
mod policies;
mod reserve;
mod rng;
mod snapshot;

pub use error::SnapshotError;
pub use memory::{JobMemory, Memory};
pub use method::{Accounting, MethodName, Options, UnknownMethod};
pub use plan::{Decision, JobPlan, Plan, Prices, WaitReason};
pub use snapshot::{
    Estimate, GpuTypeInfo, Job, JobState, Lateness, LimitEffect, LimitsCount, Namespace, Node, Placement,
    PowerBudget, Preemption, Resources, Snapshot, Spread, Worker,
};

/// Decides: who runs where, who waits and why.
///
/// # Errors
/// [`SnapshotError`], naming the field, for a snapshot whose numbers or names make no sense.
pub fn plan(snapshot: &Snapshot, options: &Options) -> Result<Plan, SnapshotError> {
    snapshot.check()?;
    let instance = instance::Instance::new(snapshot);
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
