//! The product's methods, for the tests that every method must pass.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]
#![allow(dead_code, reason = "each file of tests uses its part of it")]

use andreas_planner::{Options, Plan, Snapshot, SnapshotError, plan};

pub use andreas_planner::MethodName as Method;

pub fn all() -> Vec<Method> {
    Method::ALL.to_vec()
}

/// One that stops a light job for a heavy one.
pub const PREEMPTS: Method = Method::RandomizedGreedy;

/// Whether it never moves or stops what runs, but for the power budget.
pub fn moves_nothing(method: Method) -> bool {
    matches!(method, Method::Fifo | Method::Edf)
}

/// A method that decides again and again.
pub fn deciding(
    method: Method,
    seed: u64,
    trials: u64,
) -> impl FnMut(&Snapshot) -> Result<Plan, SnapshotError> {
    let options = Options { method, seed, trials, ..Options::default() };
    move |snapshot| plan(snapshot, &options)
}

/// One decision with the defaults.
pub fn decide(snapshot: &Snapshot, method: Method) -> Plan {
    deciding(method, 0, Options::default().trials)(snapshot).unwrap()
}
