//! What an action came to: kept for the next step, tried again, or shown to the user.

use andreas_api::slim::SlimTrainingJob;
use andreas_lifecycle::CreationOutcome;
use andreas_runtime::watch::ObjectKey;

use super::requeue::{Requeue, back_off};
use crate::shared::Shared;
use crate::writes::{Refusal, WriteError};

pub(super) fn uid(job: &SlimTrainingJob) -> &str {
    job.metadata.uid.as_deref().unwrap_or_default()
}

pub(super) fn failed(
    shared: &Shared,
    key: &ObjectKey,
    job: &SlimTrainingJob,
    what: &str,
    error: &WriteError,
) -> Result<(), Requeue> {
    shared.metrics.steps.errors.inc();
    tracing::warn!(job = %key, what, error = error as &dyn std::error::Error, "not done, tried again");
    match error.refusal() {
        Refusal::Busy(Some(after)) => Err(Requeue::After(after)),
        _ => Err(back_off(shared, key, uid(job))),
    }
}

/// Records the result of creating the pods and requeues the job: its next step decides.
pub(super) fn report(
    shared: &Shared,
    key: &ObjectKey,
    job: &SlimTrainingJob,
    generation: i64,
    outcome: CreationOutcome,
) {
    if let Some(memory) = shared.ledger.lock().get_mut(key, uid(job)) {
        memory.creation().record_outcome(generation, outcome);
    }
    shared.index.lock().mark(key.clone());
}

/// The pods, or objects they need, were not created and the API server gave no verdict: keeps its message and
/// retries.
pub(super) fn not_made(
    shared: &Shared,
    key: &ObjectKey,
    job: &SlimTrainingJob,
    generation: i64,
    what: &str,
    error: &WriteError,
) -> Result<(), Requeue> {
    if let Some(memory) = shared.ledger.lock().get_mut(key, uid(job)) {
        memory.creation().record_failure(generation, error.message());
    }
    failed(shared, key, job, what, error)
}

/// The same with an error that may be a verdict: that is for the user.
pub(super) fn refused(
    shared: &Shared,
    key: &ObjectKey,
    job: &SlimTrainingJob,
    generation: i64,
    what: &str,
    error: &WriteError,
) -> Result<(), Requeue> {
    match error.refusal().for_user() {
        Some((reason, message)) => {
            report(shared, key, job, generation, CreationOutcome::Refused { reason, message });
            Err(Requeue::Now)
        }
        None => not_made(shared, key, job, generation, what, error),
    }
}

/// Generation of the allocation that is carried out.
pub(super) fn job_generation(shared: &Shared, key: &ObjectKey) -> i64 {
    let index = shared.index.lock();
    let status = index.jobs().get(key).and_then(|job| job.status.as_ref());
    status.and_then(|status| status.allocation.as_ref()).map_or(0, |allocation| allocation.generation)
}
