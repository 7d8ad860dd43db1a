//! Switches machines off and on, as NodePowers say, and proves it.
//!
//! # What it holds
//!
//! | module | what it does |
//! |---|---|
//! | [`transition`] | the state machine of one machine: pure |
//! | [`node`] | what is remembered of a Node, and restored: pure |
//! | [`obstacles`] | what on a node forbids to go off: pure |
//! | [`conditions`] | conditions of a NodePower: pure |
//! | [`memory`] | what this process has seen of a machine over time |
//! | [`world`] | all NodePowers, and which of them is due |
//! | [`driver`] | power switches: Redfish, Metal3, webhook |
//! | [`secrets`] | their credentials |
//! | [`cluster`] | requests to the API server |
//! | [`reconcile`] | reads, decides, writes, acts |
//!
//! # What flows in and out
//!
//! In: NodePowers and the marks of Nodes by two watches; all that a decision needs by reads at that moment. Out: the status of
//! NodePowers, the cordon of Nodes, what is restored on them, their deletion once their machine is proven off, and requests to
//! power switches.
//!
//! # What must never be here
//!
//! Who should be on: that is the operator's or a person's to say. A forced shutdown. A decision from a cache. A Secret in
//! memory beyond one call.

pub mod args;
pub mod cluster;
pub mod conditions;
pub mod driver;
pub mod memory;
pub mod metrics;
pub mod node;
pub mod obstacles;
pub mod reconcile;
pub mod secrets;
pub mod transition;
pub mod world;

/// User agent, for audit logs and flow schemas.
pub const USER_AGENT: &str = concat!("andreas-node-power/", env!("CARGO_PKG_VERSION"));
