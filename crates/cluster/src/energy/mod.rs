//! What the energy policy in force says of the cluster: power, use so far. Its [rules](crate::policy::rules) are applied here.
//!
//! **In**: the [`ClusterIndex`](crate::index::ClusterIndex) (nodes, agents' reports, jobs' allocations), the
//! policy, the instant. **Out**: plain values for all that come later.
//!
//! | file | what |
//! |---|---|
//! | [`weight`] | the weight of a job within its namespace's bound |
//! | [`inventory`] | which nodes are planned, as which GPU type, and why others are excluded |
//! | [`types`] | facts of the cluster's GPU types; what one GPU counts for against the budget |
//! | [`limits`] | the power limits that a type's GPUs support and the policy allows |
//! | [`draws`] | measured draw of runs and of others' GPUs; whether a power limit is in force |
//! | [`budget`] | whether the budget is met, checked independently of planning |
//! | [`bill`] | energy and cost of a job so far, by the power model |
//! | [`measured`] | measured energy of attempts, from agents' counters |
//!
//! **Never here**: predictions of a run (predict), decisions (planner, lifecycle), I/O.

pub mod bill;
pub mod budget;
pub mod draws;
mod exclusion;
pub mod inventory;
pub mod limits;
pub mod measured;
pub mod types;
pub mod weight;

pub use exclusion::Exclusion;
pub use inventory::{Inventory, NodeUse};
pub use measured::LateEnergy;
pub use types::{TypeFacts, Types};
