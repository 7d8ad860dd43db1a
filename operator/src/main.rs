//! The controller: watches, gathers a Snapshot, asks the planner, carries the Plan out.
fn main() {}
