//! Computes a plan from a snapshot; contains the methods of the product.
//!
//! **Contains** the [`Snapshot`] of a cluster, the [`Plan`], the planning methods ([`MethodName`]), and the
//! door for policies of other crates ([`policy`]).
//!
//! **Data flow**: [`plan`] takes a snapshot and [`Options`] and returns a plan or a [`SnapshotError`]. The
//! same input gives the same plan on every machine.
//!
//! **Not allowed**: I/O, clocks, threads, async, Kubernetes, random numbers without a seed from the caller,
//! dependence on the order of a hash map, policies of other systems (`andreas-baselines` has them).

// Unit tests use the same generators as the integration tests.
#[cfg(test)]
extern crate self as andreas_planner;

mod assemble;
mod budget;
mod candidates;
mod capacity;
mod check;
mod consider;
mod cost;
mod draw;
mod error;
mod explain;
mod fill;
mod in_order;
mod instance;
mod lookahead;
mod method;
pub mod node_sleep;
mod order;
mod outcome;
mod partial;
mod plan;
pub mod policy;
mod reserve;
mod rng;
mod snapshot;

pub use capacity::Obstacle;
pub use check::MAX_JOBS;
pub use consider::{Considered, consider};
pub use error::SnapshotError;
pub use method::{MethodName, Options};
pub use plan::{Decision, JobPlan, Plan, WaitReason};
pub use snapshot::{
    Charges, DEFAULT_WEAR, Estimate, GpuTypeInfo, IntendedChange, Job, JobState, Lateness, LimitEffect,
    LimitsCount, MAX_RESTARTS_PER_DAY, MultiNodeEffect, Namespace, Node, NodePower, NodeSleep, Placement,
    PowerBudget, Preemption, Prices, RefusedWorkers, Resources, Snapshot, UnknownRun, Worker,
};

use instance::Instance;
use outcome::Outcome;
use policy::Policy;

/// Plans all jobs: where they run, which wait and why.
///
/// # Errors
/// [`SnapshotError`] with the field, for a snapshot with invalid numbers or names.
pub fn plan(snapshot: &Snapshot, options: &Options) -> Result<Plan, SnapshotError> {
    policy::plan_with(&mut options.clone(), snapshot)
}

/// The methods of the product; they have no memory.
impl Policy for Options {
    fn name(&self) -> &'static str {
        self.method.as_str()
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn decide(&mut self, instance: &Instance<'_>) -> Outcome {
        let mut cheapest = |job: usize| candidates::cheapest(instance, job);
        match self.method {
            MethodName::RandomizedGreedy => lookahead::decide(instance, self),
            MethodName::Edf => in_order::decide(instance, fill::by_deadline, &mut cheapest),
            MethodName::Fifo => in_order::decide(instance, fill::by_submission, &mut cheapest),
        }
    }
}
