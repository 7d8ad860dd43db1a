//! What holds of every plan of other systems' methods, whatever the cluster.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

#[path = "../../../crates/planner/tests/every_method/properties.rs"]
mod every_method;
mod methods;
#[path = "../../../crates/planner/tests/world/mod.rs"]
mod world;
