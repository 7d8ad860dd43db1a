//! The methods of other systems, for the tests that every method must pass.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]
#![allow(dead_code, reason = "each file of tests uses its part of it")]

use andreas_baselines::{Options, Scheduler};
use andreas_planner::{Plan, Snapshot, SnapshotError};

pub use andreas_baselines::Method;

/// Those that only this crate has: the planner's own tests have the others.
pub fn all() -> Vec<Method> {
    Method::ALL.into_iter().filter(|method| method.of_product().is_none()).collect()
}

/// Whether it never moves or stops what runs, but for the power budget.
pub fn moves_nothing(method: Method) -> bool {
    use Method::{Edf, EdfFixed, Fifo, FifoFixed, Priority, PriorityFixed};
    matches!(method, Fifo | FifoFixed | Edf | EdfFixed | Priority | PriorityFixed)
}

/// A method that decides again and again, and remembers what it needs.
pub fn deciding(
    method: Method,
    seed: u64,
    trials: u64,
) -> impl FnMut(&Snapshot) -> Result<Plan, SnapshotError> {
    let mut scheduler = Scheduler::new(Options { method, seed, trials, ..Options::default() });
    move |snapshot| scheduler.plan(snapshot)
}

/// One decision with the defaults.
pub fn decide(snapshot: &Snapshot, method: Method) -> Plan {
    deciding(method, 0, Options::default().trials)(snapshot).unwrap()
}
