//! Objects in, facts out: what the objects of a cluster say.
//!
//! | module | what |
//! |---|---|
//! | [`instants`] | instants as whole seconds, deadlines |
//! | [`policy`] | an EnergyPolicy at an instant: prices, power budget, lateness, power of GPU types and hosts |
//! | [`profiles`] | a TrainingProfile as the predictor's input |
//! | [`index`] | what is seen: the cluster in memory, synchronous, never older than our own last write |
//! | [`energy`] | the policy in force: limits, what nodes and runs draw, whether the budget is met, bills |
//! | `testing` | behind a feature: objects for tests |
//!
//! **In**: objects of the API server, and the instant. **Out**: plain values.
//!
//! **Not allowed**: I/O, waiting, decisions.

pub mod energy;
pub mod index;
pub mod instants;
pub mod policy;
pub mod profiles;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
