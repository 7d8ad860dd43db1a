//! Objects in, facts out: what the objects of a cluster say.
//!
//! | module | what |
//! |---|---|
//! | [`policy`] | an EnergyPolicy at an instant: prices, power budget, lateness, power of GPU types and hosts |
//! | [`profiles`] | a TrainingProfile as the predictor's input |
//!
//! **In**: objects of the API server, and the instant. **Out**: plain values.
//!
//! **Not allowed**: I/O, a clock, decisions.

pub mod policy;
pub mod profiles;
