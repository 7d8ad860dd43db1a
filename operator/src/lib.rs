//! The controller of ANDREAS: watches, gathers a Snapshot, asks the planner, carries the Plan out.
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
//! # Rooms
//!
//! | module | what |
//! |---|---|
//! | [`index`] | what is known of the cluster, in memory, synchronous, never older than our own last write |
//! | [`lifecycle`] | the pure heart: `step(observed) -> status, actions, events, next, claim` |
//! | [`ledger`] | what this process remembers of each job between steps; all of it can be lost |
//! | [`backoff`] | namespaces whose pods the API server does not make |
//! | [`snapshot`] | index and claims to the planner's `Snapshot`, and predictions for it |
//! | [`planning`] | when to plan, and handing decisions over |
//! | [`executor`] | the workers, writes, refusals |
//! | [`progress`] | the endpoint that training programs report to |
//! | [`certificates`] | those of that endpoint, and the overlap of authorities |
//! | [`learner`] | the fit of the predictor, on a thread of its own |
//! | [`forecast`], [`queue`] | what is expected of each job; when waiting ones may start |
//! | [`bill`] | what each job cost so far |
//! | [`measured`] | what attempts have used, by what nodes' agents tell |
//! | [`profiles`], [`nodes`] | TrainingProfiles and GpuNodes that the operator keeps |
//! | [`budget`] | whether the power budget is met, seen from beside planning |
//! | [`events`] | events for users |
//! | [`metrics`], [`args`], [`server`] | Prometheus, flags, and putting it all together |
//!
//! # What must never be here
//!
//! Planning policy (the planner's), prediction (the predictor's), checks at binding (the extender's), anything that must
//! survive a restart: the API server is the only store.

pub mod args;
pub mod backoff;
pub mod bill;
pub mod budget;
pub mod certificates;
pub mod events;
pub mod executor;
pub mod forecast;
pub mod index;
pub mod learner;
pub mod ledger;
pub mod lifecycle;
pub mod measured;
pub mod metrics;
pub mod nodes;
pub mod planning;
pub mod profiles;
pub mod progress;
pub mod queue;
pub mod server;
pub mod snapshot;

#[cfg(test)]
mod testing;
