//! Snapshot to plan: every scheduling policy lives here.
//!
//! **Holds** the [`Snapshot`] of a cluster, the [`Plan`] made of it, and the methods that make it ([`MethodName`]).
//!
//! **Flows**: a snapshot and [`Options`] in, a plan or a [`SnapshotError`] out, through [`plan`]. The same input
//! gives the same plan on every machine.
//!
//! **Must never be here**: I/O, a clock, threads, async, Kubernetes, a random number that is not seeded by the
//! caller, the order of a hash map.

mod error;
mod method;
mod plan;
mod snapshot;

pub use error::SnapshotError;
pub use method::{MethodName, Options, UnknownMethod};
pub use plan::{Decision, JobPlan, Plan, Prices, WaitReason};
pub use snapshot::{
    Estimate, GpuTypeInfo, Job, JobState, Lateness, LimitEffect, Namespace, Node, Placement, PowerBudget,
    Preemption, Resources, Snapshot, Spread, Worker,
};

use std::collections::BTreeMap;

use andreas_core::{Joules, Money, Watts};

/// Decides: who runs where, who waits and why.
///
/// # Errors
/// [`SnapshotError`], naming the field, for a snapshot whose numbers or names make no sense.
pub fn plan(snapshot: &Snapshot, options: &Options) -> Result<Plan, SnapshotError> {
    snapshot.tariff.check().map_err(|e| SnapshotError::new("tariff", e.to_string()))?;
    let mut jobs = BTreeMap::new();
    for job in &snapshot.jobs {
        let decision = match &job.state {
            JobState::Starting { target: place, .. }
            | JobState::Running { placement: place, .. }
            | JobState::Stopping { target: Some(place), .. } => Decision::Run(place.clone()),
            JobState::Waiting | JobState::Stopping { target: None, .. } => Decision::Wait {
                reason: WaitReason::WaitingForCapacity,
                blockers: Vec::new(),
                message: "nothing was started".to_owned(),
            },
        };
        let plan = JobPlan { decision, finish: None, energy: Joules::ZERO, on_time: 1.0, cost: Money::ZERO };
        jobs.insert(job.id.clone(), plan);
    }
    Ok(Plan {
        now: snapshot.now,
        method: options.method,
        seed: options.seed,
        trials: 0,
        cost: Money::ZERO,
        bound: None,
        gap: None,
        budgeted_power: Watts::ZERO,
        allowed_power: None,
        next_event: None,
        jobs,
        prices: None,
    })
}
