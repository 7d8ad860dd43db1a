//! Policies of other systems behind the planner's door, to compare the product with.
//!
//! **Contains** the names of all methods, the product's and the others' ([`Method`]), and the others themselves:
//! the published ANDREAS greedy with its cost model ([`Accounting`]), methods in a fixed order, Tiresias,
//! ElasticFlow, Gavel, Gandiva_fair, PowerFlow and shortest remaining time first. Each names its source. Those
//! with history have a [`Memory`].
//!
//! **Data flow**: a [`Scheduler`] takes the planner's snapshots and returns its plans. The parts that methods
//! share are in the planner's [`policy`](andreas_planner::policy) module, so every plan keeps the same
//! constraints.
//!
//! **Not allowed**: I/O, clocks, threads, random numbers without a seed from the caller. The operator does
//! not depend on this crate.

mod andreas;
mod candidates;
mod check;
mod in_order;
mod memory;
mod method;
mod options;
mod policies;
mod scheduler;
mod tickets;

pub use memory::{JobMemory, Memory};
pub use method::Method;
pub use options::{Accounting, Options};
pub use scheduler::Scheduler;
pub use tickets::Tickets;

use andreas_planner::{Plan, Snapshot, SnapshotError};

/// Plans all jobs once, with one ticket for every namespace and without memory.
///
/// # Errors
/// [`SnapshotError`] with the field, for a snapshot with invalid numbers or names.
pub fn plan(snapshot: &Snapshot, options: &Options) -> Result<Plan, SnapshotError> {
    Scheduler::new(options.clone()).plan(snapshot)
}
