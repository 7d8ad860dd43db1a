//! Candidate and leader of an election.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{LeaseConfig, LeaseError, LeaseRecord, LeaseStore};
use crate::jitter::spread;

/// The current leadership, as far as this process can know. Clones share it.
#[derive(Clone, Debug)]
pub struct Leadership {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    base: Instant,
    /// End of the leadership in milliseconds after `base`; 0 once lost.
    until: AtomicU64,
    /// Minimum time from that end until another process can take over.
    slack: Duration,
    lost: CancellationToken,
    transitions: i32,
}

impl Leadership {
    pub(crate) fn new(until: Instant, slack: Duration, transitions: i32) -> Self {
        let shared = Shared {
            base: Instant::now(),
            until: AtomicU64::new(0),
            slack,
            lost: CancellationToken::new(),
            transitions,
        };
        let this = Self { shared: Arc::new(shared) };
        this.extend(until);
        this
    }

    /// Whether this process is the leader now. Check before every write.
    #[must_use]
    pub fn is_current(&self) -> bool {
        let now = self.shared.base.elapsed().as_millis();
        !self.shared.lost.is_cancelled() && now < u128::from(self.shared.until.load(Ordering::Acquire))
    }

    /// Latest time at which a write sent now may take effect: before another process takes over, less a
    /// margin of a fifth of the slack. `None` if not the leader. A write that misses it must not be waited
    /// for or carried out late.
    #[must_use]
    pub fn write_deadline(&self) -> Option<Instant> {
        if !self.is_current() {
            return None;
        }
        let until = Duration::from_millis(self.shared.until.load(Ordering::Acquire));
        Some(self.shared.base + until + self.shared.slack * 4 / 5)
    }

    /// Completes when leadership is lost or released.
    pub async fn lost(&self) {
        self.shared.lost.cancelled().await;
    }

    /// `leaseTransitions` at our takeover. It grows with every leader (a fencing token).
    #[must_use]
    pub fn transitions(&self) -> i32 {
        self.shared.transitions
    }

    fn extend(&self, until: Instant) {
        let millis = until.saturating_duration_since(self.shared.base).as_millis();
        self.shared.until.store(u64::try_from(millis).unwrap_or(u64::MAX), Ordering::Release);
    }

    fn end(&self) {
        self.shared.until.store(0, Ordering::Release);
        self.shared.lost.cancel();
    }
}

/// The reason why a leadership ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Released at shutdown; `true` if the Lease was updated.
    Released(bool),
    /// Another process holds the Lease.
    TakenBy(String),
    /// The Lease was deleted.
    Deleted,
    /// It could not be renewed in time.
    Expired,
}

/// A won election.
pub struct Held {
    /// For all writers.
    pub leadership: Leadership,
    /// Renews until shutdown or loss, then returns the reason.
    pub renewing: JoinHandle<Ended>,
    /// Whether every observed holder had our identity: an earlier process that ended before this one started.
    /// All its writes are then older than the reads of this process.
    pub succeeds_itself: bool,
}

/// Waits until this process holds the Lease, then keeps renewing it in the background. `None` if `shutdown`
/// came first.
///
/// # Errors
/// [`LeaseError::Config`] for inconsistent times. API server failures are retried.
pub async fn campaign<S: LeaseStore>(
    store: S,
    config: LeaseConfig,
    shutdown: CancellationToken,
) -> Result<Option<Held>, LeaseError> {
    campaign_at(store, config, shutdown, Timestamp::now).await
}

/// [`campaign`] with the wall clock as an argument.
pub(super) async fn campaign_at<S: LeaseStore>(
    store: S,
    config: LeaseConfig,
    shutdown: CancellationToken,
    wall: fn() -> Timestamp,
) -> Result<Option<Held>, LeaseError> {
    config.validate()?;
    let mut candidate = Candidate { store, config, wall, observed: None, others: false };
    loop {
        let started = Instant::now();
        // A claim in flight at shutdown completes or times out, so that it is released.
        let attempt = timeout(candidate.config.renew_deadline / 2, candidate.attempt()).await;
        match attempt {
            Ok(Ok(Some(record))) => {
                let transitions = record.spec.lease_transitions.unwrap_or(0);
                tracing::info!(identity = candidate.config.identity, transitions, "leading");
                let slack = candidate.config.duration - candidate.config.renew_deadline;
                let leadership =
                    Leadership::new(started + candidate.config.renew_deadline, slack, transitions);
                let succeeds_itself = !candidate.others;
                let leader = Leader { candidate, record, renewed: started, leadership: leadership.clone() };
                let renewing = tokio::spawn(leader.keep(shutdown));
                return Ok(Some(Held { leadership, renewing, succeeds_itself }));
            }
            Ok(Ok(None) | Err(LeaseError::Conflict | LeaseError::NotFound)) => {}
            Ok(Err(error)) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the lease could not be read or claimed"
                );
            }
            Err(_) => tracing::warn!("the lease could not be read or claimed in time"),
        }
        tokio::select! {
            () = sleep(spread(candidate.config.retry, 0.2)) => {}
            () = shutdown.cancelled() => return Ok(None),
        }
    }
}

struct Candidate<S> {
    store: S,
    config: LeaseConfig,
    wall: fn() -> Timestamp,
    /// The last record and the time when it was first seen, on our own clock.
    observed: Option<(LeaseSpec, Instant)>,
    /// Whether any read showed no holder or another one. A lost answer to our own claim does not hide that.
    others: bool,
}

impl<S: LeaseStore> Candidate<S> {
    /// One read, and one claim if the Lease is free. `None`: another process holds it.
    async fn attempt(&mut self) -> Result<Option<LeaseRecord>, LeaseError> {
        let found = self.store.get().await;
        let holder = found.as_ref().ok().and_then(|record| record.spec.holder_identity.as_deref());
        self.others |= holder != Some(&self.config.identity) && !matches!(found, Err(LeaseError::Api(_)));
        let mut record = match found {
            Ok(record) => record,
            Err(LeaseError::NotFound) => return self.store.create(self.claim(None)).await.map(Some),
            Err(error) => return Err(error),
        };
        if !self.is_free(&record.spec) {
            return Ok(None);
        }
        record.spec = self.claim(Some(&record.spec));
        self.store.replace(&record).await.map(Some)
    }

    fn is_free(&mut self, spec: &LeaseSpec) -> bool {
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        if holder.is_empty() || holder == self.config.identity {
            return true;
        }
        let now = Instant::now();
        let since = match &self.observed {
            Some((seen, since)) if seen == spec => *since,
            _ => {
                tracing::debug!(holder, "another leads");
                self.observed = Some((spec.clone(), now));
                now
            }
        };
        // The holder's own duration counts; it may be longer than ours.
        let theirs = u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0);
        now >= since + self.config.duration.max(Duration::from_secs(theirs))
    }

    /// The record that we write as a (new) holder.
    fn claim(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime((self.wall)());
        let mut spec = before.cloned().unwrap_or_default();
        if spec.holder_identity.as_deref() != Some(&self.config.identity) {
            spec.lease_transitions = Some(spec.lease_transitions.map_or(0, |n| n.saturating_add(1)));
            spec.acquire_time = Some(now.clone());
            spec.holder_identity = Some(self.config.identity.clone());
        }
        spec.lease_duration_seconds = Some(i32::try_from(self.config.duration.as_secs()).unwrap_or(i32::MAX));
        spec.renew_time = Some(now);
        spec
    }
}

struct Leader<S> {
    candidate: Candidate<S>,
    record: LeaseRecord,
    /// Start of the last successful renewal.
    renewed: Instant,
    leadership: Leadership,
}

impl<S: LeaseStore> Leader<S> {
    async fn keep(mut self, shutdown: CancellationToken) -> Ended {
        let retry = self.candidate.config.retry;
        let ended = loop {
            tokio::select! {
                () = sleep(retry) => {}
                () = shutdown.cancelled() => {
                    self.leadership.end();
                    break Ended::Released(self.release().await);
                }
            }
            if let Err(ended) = self.renew().await {
                break ended;
            }
        };
        self.leadership.end();
        match &ended {
            Ended::Released(_) => tracing::info!(?ended, "gave leadership up"),
            _ => tracing::error!(?ended, "lost leadership"),
        }
        ended
    }

    /// Renews once, with retries until the deadline.
    async fn renew(&mut self) -> Result<(), Ended> {
        let deadline = self.renewed + self.candidate.config.renew_deadline;
        loop {
            let started = Instant::now();
            if started >= deadline {
                return Err(Ended::Expired);
            }
            // Several tries fit before the deadline, so one lost packet does not cost the leadership.
            let patience = (started + self.candidate.config.renew_deadline / 3).min(deadline);
            let mut next = self.record.clone();
            next.spec = self.candidate.claim(Some(&self.record.spec));
            match timeout_at(patience, self.candidate.store.replace(&next)).await {
                Ok(Ok(record)) => {
                    self.record = record;
                    self.renewed = started;
                    self.leadership.extend(started + self.candidate.config.renew_deadline);
                    return Ok(());
                }
                Ok(Err(LeaseError::NotFound)) => return Err(Ended::Deleted),
                Ok(Err(LeaseError::Conflict)) => self.observe(patience).await?,
                Ok(Err(error)) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "the lease could not be renewed"
                    );
                }
                Err(_) => tracing::warn!("the lease could not be renewed in time"),
            }
            let pause = spread(self.candidate.config.retry / 4, 0.2);
            let _ = timeout_at(deadline, sleep(pause)).await;
        }
    }

    /// Reads the holder after a conflict. Our own renewal with a lost answer, or a label set by a user, is no
    /// loss.
    async fn observe(&mut self, until: Instant) -> Result<(), Ended> {
        match timeout_at(until, self.candidate.store.get()).await {
            Ok(Ok(record)) => {
                let holder = record.spec.holder_identity.clone().unwrap_or_default();
                if holder != self.candidate.config.identity {
                    return Err(Ended::TakenBy(holder));
                }
                self.record = record;
                Ok(())
            }
            Ok(Err(LeaseError::NotFound)) => Err(Ended::Deleted),
            Ok(Err(_)) | Err(_) => Ok(()),
        }
    }

    /// Releases the Lease so that others can take over at once. Only while it is certainly ours.
    async fn release(&self) -> bool {
        let mut free = self.record.clone();
        free.spec.holder_identity = Some(String::new());
        free.spec.lease_duration_seconds = Some(1);
        free.spec.renew_time = Some(MicroTime((self.candidate.wall)()));
        let patience = (Instant::now() + Duration::from_secs(3))
            .min(self.renewed + self.candidate.config.renew_deadline);
        matches!(timeout_at(patience, self.candidate.store.replace(&free)).await, Ok(Ok(_)))
    }
}
