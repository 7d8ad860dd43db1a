//! The door for policies of other crates, with the parts of the planner that they need.
//!
//! The comparison systems live in a crate of their own, but they must keep the same constraints as the
//! product and get their plans priced and explained in the same way. So they decide on the same [`Instance`]
//! and take capacity only through [`PartialPlan`] and [`Capacity`]. They meet a lowered power budget by
//! [`enforce`] and keep room for the longest-waiting job by [`reserve`]. Everything else of the planner stays
//! private: the look-ahead prices, the search, the bound and the forecasts.
//!
//! Jobs, nodes, GPU types and configurations are indices into the instance's lists. Times are seconds from
//! now (deadlines: seconds since the snapshot's origin), power is in watts or whole milliwatts (`_mw`), costs
//! are money.

use crate::assemble;
use crate::error::SnapshotError;
use crate::plan::Plan;
use crate::snapshot::Snapshot;

pub use crate::budget::{enforce, prepared};
pub use crate::candidates::{cheapest, run, run_energy, start_delay};
pub use crate::capacity::{Capacity, Obstacle};
pub use crate::fill::{by_deadline, by_submission, fill};
pub use crate::in_order::decide as in_order;
pub use crate::instance::{Assignment, Config, Holding, Instance, JobData, NodeData, Nodes, TypeData};
pub use crate::outcome::Outcome;
pub use crate::partial::PartialPlan;
pub use crate::reserve::{Reservation, reserve};
pub use crate::rng::Random;

/// A scheduling policy: it decides which jobs run, in which configuration and on which nodes.
pub trait Policy {
    /// Its name on command lines and in plans.
    fn name(&self) -> &'static str;

    /// The seed of its random numbers.
    fn seed(&self) -> u64;

    /// Makes one decision. Policies with history update their own memory.
    fn decide(&mut self, instance: &Instance<'_>) -> Outcome;
}

/// Plans all jobs with a policy.
///
/// # Errors
/// [`SnapshotError`] with the field, for a snapshot with invalid numbers or names.
pub fn plan_with(policy: &mut dyn Policy, snapshot: &Snapshot) -> Result<Plan, SnapshotError> {
    snapshot.check()?;
    let instance = prepared(snapshot);
    let outcome = policy.decide(&instance);
    Ok(assemble::assemble(&instance, (policy.name(), policy.seed()), outcome))
}
