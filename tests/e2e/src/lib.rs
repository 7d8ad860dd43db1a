//! Scenarios on the real control plane, and the demo.

pub mod workload;
