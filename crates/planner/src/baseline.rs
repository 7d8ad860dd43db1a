//! Simple methods: a fixed order of jobs and of configurations. Running jobs are not moved.

use crate::budget;
use crate::candidates;
use crate::instance::{Assignment, Instance};
use crate::method::{Accounting, MethodName, Options};
use crate::partial::PartialPlan;
use crate::reserve::{self, Reservation};

/// A decision by indices.
pub(crate) struct Outcome {
    pub assignments: Vec<Option<Assignment>>,
    /// The minimised objective, if the method has one.
    pub objective: Option<f64>,
    pub trials: u64,
    /// The job with a reservation.
    pub reserved_for: Option<usize>,
    /// Jobs stopped to meet the power budget.
    pub stopped: Vec<usize>,
    /// Proven lower bound of the objective.
    pub bound: Option<f64>,
    /// Shadow prices for the next decision.
    pub prices: Option<crate::plan::Prices>,
    /// Memory for the next decision, of policies with history.
    pub memory: Option<crate::memory::Memory>,
    /// Seconds until the method needs another decision.
    pub wake: Option<f64>,
}

/// Unassigned jobs in the order of a method; overdue jobs come first under every method.
pub(crate) fn queue(instance: &Instance<'_>, method: MethodName, partial: &PartialPlan) -> Vec<usize> {
    let mut queue: Vec<usize> =
        (0..instance.jobs.len()).filter(|j| partial.assignments[*j].is_none()).collect();
    queue.sort_by(|&a, &b| {
        let (x, y) = (&instance.jobs[a], &instance.jobs[b]);
        let by_submit = x.job.submit.total_cmp(&y.job.submit);
        let by_method = match method {
            MethodName::Edf | MethodName::EdfFixed => x.deadline.total_cmp(&y.deadline),
            MethodName::Priority | MethodName::PriorityFixed => y.weight.total_cmp(&x.weight),
            _ => by_submit,
        };
        let by_method = if x.aged_out && y.aged_out { by_submit } else { by_method };
        y.aged_out.cmp(&x.aged_out).then(by_method).then(by_submit).then(a.cmp(&b))
    });
    queue
}

/// Places jobs in order until none fits. The first overdue job that does not fit gets a reservation; others
/// may use that capacity only until it is expected to be free.
///
/// Further rounds matter where a later job opened a node whose overhead had exceeded the budget.
pub(crate) fn fill(
    instance: &Instance<'_>,
    partial: &mut PartialPlan,
    queue: &[usize],
    candidates: &mut dyn FnMut(usize) -> Vec<usize>,
    reserved: &mut Option<Reservation>,
) {
    let asked: Vec<Vec<usize>> = queue.iter().map(|&job| candidates(job)).collect();
    for _ in 0..ROUNDS {
        let mut placed = false;
        for (&job, configs) in queue.iter().zip(&asked) {
            if partial.assignments[job].is_some() {
                continue;
            }
            if let Some(own) = reserved.take_if(|r| r.job == job) {
                // A job's own reservation does not block it.
                partial.ledger.release(instance, job, &own.assignment);
            }
            if partial.ledger.any_open() && partial.place_first(instance, job, configs) {
                placed = true;
            } else if let Some(kept) = reserved {
                placed |= backfill(instance, partial, job, configs, kept);
            } else if instance.jobs[job].aged_out {
                *reserved = reserve::reserve(instance, partial, job, configs);
            }
        }
        if !placed {
            break;
        }
    }
}

/// Places a job on reserved capacity if it is expected to end before the reservation starts.
fn backfill(
    instance: &Instance<'_>,
    partial: &mut PartialPlan,
    job: usize,
    configs: &[usize],
    kept: &Reservation,
) -> bool {
    let in_time = |c: &usize| candidates::run(instance, job, *c) <= kept.ready;
    let short: Vec<usize> = configs.iter().copied().filter(in_time).collect();
    if short.is_empty() {
        return false;
    }
    partial.ledger.release(instance, kept.job, &kept.assignment);
    let placed = partial.place_first(instance, job, &short);
    partial.ledger.take(instance, kept.job, &kept.assignment);
    placed
}

/// Maximum rounds of filling. Each places at least one job; two are nearly always enough.
const ROUNDS: usize = 16;

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
