//! Simple methods: a fixed order of jobs and of configurations. Running jobs are not moved.

use crate::budget;
use crate::candidates;
use crate::fill::{fill, queue};
use crate::instance::Instance;
use crate::method::{Accounting, MethodName, Options};
use crate::outcome::Outcome;
use crate::partial::PartialPlan;

/// Makes one decision.
pub(crate) fn decide(instance: &Instance<'_>, options: &Options) -> Outcome {
    let mut partial = PartialPlan::new(instance, |_, _| true);
    let stopped = budget::enforce(instance, &mut partial);
    let queue = queue(instance, options.method, &partial);
    let fixed =
        matches!(options.method, MethodName::FifoFixed | MethodName::EdfFixed | MethodName::PriorityFixed);
    let mut candidates = |job: usize| match (&options.accounting, fixed) {
        (_, true) => candidates::fixed(instance, job),
        (Accounting::Predicted, false) => candidates::cheapest(instance, job),
        (Accounting::Catalogue(_), false) => candidates::published(instance, &options.accounting, job).order,
    };
    let mut reserved = None;
    fill(instance, &mut partial, &queue, &mut candidates, &mut reserved);
    let objective = match &options.accounting {
        Accounting::Predicted => None,
        Accounting::Catalogue(_) => Some(published_cost(instance, options, &partial)),
    };
    Outcome {
        assignments: partial.assignments,
        objective,
        trials: 1,
        reserved_for: reserved.map(|r| r.job),
        stopped,
        bound: None,
        prices: None,
        memory: None,
        wake: None,
    }
}

/// The cost that the published service reports for these methods. Started jobs count up to the first end
/// among *them*. Running jobs count to their own end, as if alone on their node.
fn published_cost(instance: &Instance<'_>, options: &Options, partial: &PartialPlan) -> f64 {
    let (mut started, mut running) = (Vec::new(), 0.0);
    for (job, assignment) in partial.assignments.iter().enumerate() {
        let Some(assignment) = assignment else { continue };
        let data = &instance.jobs[job];
        let config = &data.configs[assignment.config];
        if data.present() == Some(assignment) {
            let rate = candidates::catalogue_rate(instance, &options.accounting, config.kind, config.gpus);
            running +=
                rate * config.time + data.weight * (instance.now + config.time - data.deadline).max(0.0);
        } else {
            started.push((job, assignment.clone()));
        }
    }
    running
        + crate::andreas::proxy(instance, &options.accounting, &started, |job| {
            partial.assignments[job].is_none()
        })
}
