//! List scheduling: jobs in a fixed order, each on its first configuration that fits. Running jobs are not
//! moved.

use std::cmp::Ordering;

use crate::budget;
use crate::fill::{fill, queue};
use crate::instance::{Instance, JobData};
use crate::outcome::Outcome;
use crate::partial::PartialPlan;

/// Makes one decision. `candidates` gives the configurations of a job in the order of trial.
pub fn decide(
    instance: &Instance<'_>,
    order: impl Fn(&JobData<'_>, &JobData<'_>) -> Ordering,
    candidates: &mut dyn FnMut(usize) -> Vec<usize>,
) -> Outcome {
    let mut partial = PartialPlan::new(instance, |_, _| true);
    let stopped = budget::enforce(instance, &mut partial);
    let queue = queue(instance, &partial, order);
    let mut reserved = None;
    fill(instance, &mut partial, &queue, candidates, &mut reserved);
    Outcome {
        assignments: partial.assignments,
        trials: 1,
        reserved_for: reserved.map(|r| r.job),
        stopped,
        ..Outcome::default()
    }
}
