//! When a job is stepped again.

use std::time::Duration;

use andreas_runtime::clock;
use andreas_runtime::watch::ObjectKey;
use jiff::{SignedDuration, Timestamp};

use crate::shared::Shared;

/// Maximum backoff after consecutive failures.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// When to step a job again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Requeue {
    /// At the next event.
    OnEvent,
    /// At once: the state was stale.
    Now,
    /// At this instant.
    At(Timestamp),
    /// After this delay: an action failed.
    After(Duration),
}

/// The next backoff after a failure: from a quarter of a second, doubling.
pub(super) fn back_off(shared: &Shared, key: &ObjectKey, uid: &str) -> Requeue {
    let mut ledger = shared.ledger.lock();
    let Some(memory) = ledger.get_mut(key, uid) else { return Requeue::Now };
    let wait = Duration::from_millis(250).saturating_mul(1 << memory.not_carried_out().min(10));
    Requeue::After(wait.min(MAX_BACKOFF))
}

/// A failed action is retried, but not later than the step's own requeue time.
pub(super) fn earlier(again: Requeue, next: Option<Timestamp>) -> Requeue {
    let Some(next) = next else { return again };
    match again {
        Requeue::After(wait) => {
            let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
            let then = clock::now().checked_add(wait).unwrap_or(Timestamp::MAX);
            if next < then { Requeue::At(next) } else { again }
        }
        Requeue::At(at) => Requeue::At(at.min(next)),
        Requeue::OnEvent => Requeue::At(next),
        Requeue::Now => again,
    }
}
