//! Scenarios: what other systems' methods do where watts are scarce.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

#[path = "../../../crates/planner/tests/every_method/budget.rs"]
mod every_method;
mod methods;
#[path = "../../../crates/planner/tests/scenarios/mod.rs"]
mod scenarios;
