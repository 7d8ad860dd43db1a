//! First come first served, earliest deadline first and highest weight first: with fixed requests, with the
//! cheapest configuration, or in the published accounting.

use std::cmp::Ordering;

use andreas_planner::policy::{self, Assignment, Instance, JobData, Outcome, by_deadline, by_submission};

use crate::andreas;
use crate::candidates;
use crate::method::Method;
use crate::options::{Accounting, Options};

/// Makes one decision.
pub(crate) fn decide(instance: &Instance<'_>, options: &Options) -> Outcome {
    let fixed = matches!(options.method, Method::FifoFixed | Method::EdfFixed | Method::PriorityFixed);
    let mut candidates = |job: usize| match (&options.accounting, fixed) {
        (_, true) => candidates::fixed(instance, job),
        (Accounting::Predicted, false) => policy::cheapest(instance, job),
        (Accounting::Catalogue(_), false) => candidates::published(instance, &options.accounting, job).order,
    };
    let order: fn(&JobData<'_>, &JobData<'_>) -> Ordering = match options.method {
        Method::Edf | Method::EdfFixed => by_deadline,
        Method::Priority | Method::PriorityFixed => by_weight,
        _ => by_submission,
    };
    let outcome = policy::in_order(instance, order, &mut candidates);
    let objective = match &options.accounting {
        Accounting::Predicted => None,
        Accounting::Catalogue(_) => Some(published_cost(instance, options, &outcome.assignments)),
    };
    Outcome { objective, ..outcome }
}

/// Highest weight first.
fn by_weight(a: &JobData<'_>, b: &JobData<'_>) -> Ordering {
    b.weight.total_cmp(&a.weight)
}

/// Cost in money that the published service reports. A started job counts until the first of them
/// ends; a running job counts to its own end, as if alone on its node.
fn published_cost(instance: &Instance<'_>, options: &Options, assignments: &[Option<Assignment>]) -> f64 {
    let (mut started, mut running) = (Vec::new(), 0.0);
    for (job, assignment) in assignments.iter().enumerate() {
        let Some(assignment) = assignment else { continue };
        let data = &instance.jobs[job];
        let config = &data.configs[assignment.config];
        if data.current() == Some(assignment) {
            let rate = candidates::catalogue_rate(instance, &options.accounting, config.kind, config.gpus);
            running +=
                rate * config.time + data.weight * (instance.now + config.time - data.deadline).max(0.0);
        } else {
            started.push((job, assignment.clone()));
        }
    }
    running + andreas::proxy(instance, &options.accounting, &started, |job| assignments[job].is_none())
}
