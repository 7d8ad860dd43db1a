//! The controller of ANDREAS: watches, builds a Snapshot, calls the planner and carries the Plan out.
//!
//! ```text
//!  watches --> index ---> snapshot ---> planner ---> decisions        (planning: one at a time, off the async threads)
//!                |            ^                          |
//!                |          claims                       v
//!                +--> observe --> lifecycle::step --> status, then actions   (executor: one worker per dirty job)
//!                |                                       |
//!                ^------- answers to our own writes -----+
//!
//!  training container --> progress (HTTPS, every replica) --> status.progress
//! ```
//!
//! The index is of the crate `cluster`, the step of the crate `lifecycle`: neither calls or waits.
//!
//! # Modules, in order
//!
//! Each module imports only modules above it in this table. A test reads the imports.
//!
//! | module | what |
//! |---|---|
//! | [`predict`] | the fit of the predictor on its own thread, tables of predictions, forecasts of each job |
//! | [`ledger`] | per-job memory between steps, where the two loops meet; all of it can be lost |
//! | [`snapshot`] | index, claims and predictions to the planner's `Snapshot` |
//! | [`metrics`] | Prometheus: it is given values |
//! | [`writes`] | the client for writes: leadership, refusals, patches |
//! | [`progress`] | the endpoint for training programs' reports |
//! | [`shared`] | what the leader's loops share |
//! | [`objects`] | TrainingProfiles, GpuNodes and the policy's status, maintained by the operator |
//! | [`planning`] | one loop: when to plan, and delivery of decisions |
//! | [`query`] | answers of the query API: when, why, what would help |
//! | [`executor`] | the other loop: workers, actions, events |
//! | [`notify`] | tells people of their runs by webhook, Slack and mail |
//! | [`adoption`] | TrainingJobs that stand for adopted jobs of other kinds |
//! | [`args`] | flags |
//! | [`server`] | process setup: caches, endpoints, certificates, leader election, loops |
//!
//! # Never here
//!
//! Planning policy (planner), prediction (predictor), checks at binding (extender), or state that must
//! survive a restart: the API server is the only store.

pub mod adoption;
pub mod args;
pub mod executor;
pub mod ledger;
pub mod metrics;
pub mod notify;
pub mod objects;
pub mod planning;
pub mod predict;
pub mod progress;
pub mod query;
pub mod server;
pub mod shared;
pub mod snapshot;
pub mod writes;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
