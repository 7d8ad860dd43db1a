//! Comparisons that need a real cluster: it is the demo's, with the demo's jobs.
//!
//! **In**: the programs of the product, built before; flags. **Out**: [`fidelity`] compares runs with replays and writes a page,
//! [`answers`] compares what `whatif` said with what then happened.

pub mod answers;
pub mod fidelity;
