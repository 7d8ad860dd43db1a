//! Fills free capacity in a given order of jobs and of their configurations; methods share it.

use std::cmp::Ordering;

use crate::candidates;
use crate::instance::{Instance, JobData};
use crate::partial::PartialPlan;
use crate::reserve::{self, Reservation};

/// Maximum rounds of filling. Each places at least one job; two are nearly always enough.
const ROUNDS: usize = 16;

/// Unassigned jobs in the order of a method, ties by submission; fully aged jobs come first under every method.
pub(crate) fn queue(
    instance: &Instance<'_>,
    partial: &PartialPlan,
    by_method: impl Fn(&JobData<'_>, &JobData<'_>) -> Ordering,
) -> Vec<usize> {
    let mut queue: Vec<usize> =
        (0..instance.jobs.len()).filter(|j| partial.assignments[*j].is_none()).collect();
    queue.sort_by(|&a, &b| {
        let (x, y) = (&instance.jobs[a], &instance.jobs[b]);
        let by_submit = by_submission(x, y);
        let by_method = if x.fully_aged && y.fully_aged { by_submit } else { by_method(x, y) };
        y.fully_aged.cmp(&x.fully_aged).then(by_method).then(by_submit).then(a.cmp(&b))
    });
    queue
}

/// Earliest submission first.
pub fn by_submission(a: &JobData<'_>, b: &JobData<'_>) -> Ordering {
    a.job.submit.total_cmp(&b.job.submit)
}

/// Earliest deadline first.
pub fn by_deadline(a: &JobData<'_>, b: &JobData<'_>) -> Ordering {
    a.deadline.total_cmp(&b.deadline)
}

/// Places jobs in order until none fits. The first fully aged job that does not fit gets a reservation; others
/// may use that capacity only until it is expected to be free.
///
/// Further rounds matter where a later job opened a node whose overhead had exceeded the budget.
pub fn fill(
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
            if partial.ledger.has_free_gpu() && partial.place_first(instance, job, configs) {
                placed = true;
            } else if let Some(kept) = reserved {
                placed |= backfill(instance, partial, job, configs, kept);
            } else if instance.jobs[job].fully_aged {
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
