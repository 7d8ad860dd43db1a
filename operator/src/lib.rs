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
//! # Modules
//!
//! | module | what |
//! |---|---|
//! | [`index`] | in-memory cluster state, synchronous, never older than our own last write |
//! | [`instants`] | instants as whole seconds, deadlines |
//! | [`lifecycle`] | the pure core: `step(observed) -> status, actions, events, next, claim` |
//! | [`ledger`] | per-job memory between steps; all of it can be lost |
//! | [`backoff`] | namespaces whose pods the API server does not create |
//! | [`snapshot`] | index and claims to the planner's `Snapshot`, and its predictions |
//! | [`planning`] | when to plan, and delivery of decisions |
//! | [`executor`] | workers, writes, refusals |
//! | [`progress`] | the endpoint for training programs' reports |
//! | [`certificates`] | the endpoint's certificates, with overlapping authorities |
//! | [`predict`] | the fit of the predictor, tables of predictions, forecasts of each job |
//! | [`queue`] | expected starts of waiting jobs |
//! | [`energy`] | the policy in force, what nodes and runs draw, the budget, cost of each job so far |
//! | [`profiles`], [`nodes`] | TrainingProfiles and GpuNodes maintained by the operator |
//! | [`events`] | events for users |
//! | [`metrics`], [`args`], [`server`] | Prometheus, flags, process setup |
//!
//! # Never here
//!
//! Planning policy (planner), prediction (predictor), checks at binding (extender), or state that must
//! survive a restart: the API server is the only store.

pub mod args;
pub mod backoff;
pub mod certificates;
pub mod energy;
pub mod events;
pub mod executor;
pub mod index;
pub mod instants;
pub mod ledger;
pub mod lifecycle;
pub mod metrics;
pub mod nodes;
pub mod planning;
pub mod predict;
pub mod profiles;
pub mod progress;
pub mod queue;
pub mod server;
pub mod snapshot;

#[cfg(test)]
mod testing;
