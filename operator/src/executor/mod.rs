//! Carries steps out: one worker per dirty job, a bounded number at a time.
//!
//! **In**: the index's dirty set, timers of earlier steps. **Out**: writes, in the order that LIFECYCLE promises: the
//! status first, and nothing of a step whose status could not be written; then its actions in their order.
//!
//! A job is never stepped twice at a time, and never from a cache older than our own last write: answers to writes go
//! into the index before the job is stepped again.
//!
//! | file | what |
//! |---|---|
//! | [`observe`] | index and ledger to `Observed` |
//! | [`work`] | one step of one job |
//! | [`actions`] | pods, services, deletes, wakes, dry runs |
//! | [`writer`] | writes in flight, patience, leadership |
//! | [`refusal`] | what an API server's no means |
//! | [`patch`] | merge patches of what changed |
//! | [`dry_runs`] | one dry run for workers that are alike |
//! | [`start_burst`] | starts go first, records wait |
//! | [`fair`] | namespaces take turns |
//! | [`brakes`] | edits and conflicts are slowed down |
//!
//! **Must never be here**: decisions about jobs (lifecycle's) or plans (planner's).

pub mod actions;
pub mod brakes;
pub mod dry_runs;
pub mod fair;
pub mod observe;
pub mod patch;
pub mod refusal;
pub mod start_burst;
#[cfg(test)]
mod tests;
pub mod work;
pub mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use andreas_runtime::clock;
use andreas_runtime::health::Heartbeat;
use andreas_runtime::watch::ObjectKey;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::events::Events;
use crate::index::ClusterIndex;
use crate::ledger::Ledger;
use crate::lifecycle::Settings;
use crate::metrics::Metrics;
use crate::profiles::ProfileUpdates;
use fair::FairQueue;
use writer::Writer;

/// Jobs in hand at a time. More than writes in flight: while one waits for its write, others think.
const WORKERS: usize = 64;
/// Of these, jobs of one namespace: what makes its steps slow (a webhook, a quota) holds nobody else up.
const OF_ONE_NAMESPACE: usize = WORKERS * 3 / 4;
/// An own creation that no watch has shown for this long is looked up.
const CONFIRM_AFTER: Duration = Duration::from_secs(15);
/// How often such are looked for.
const CONFIRM_EVERY: Duration = Duration::from_secs(5);

/// What the leader's loops share.
pub struct Shared {
    /// What is known.
    pub index: Arc<Mutex<ClusterIndex>>,
    /// What is remembered. Locked after the index, never before.
    pub ledger: Mutex<Ledger>,
    /// The door for writes.
    pub writer: Writer,
    /// Events for users.
    pub events: Events,
    /// How pods are made.
    pub settings: Mutex<Arc<Settings>>,
    /// Counters.
    pub metrics: Metrics,
    /// What was learned for TrainingProfiles and not written yet.
    pub profile_updates: ProfileUpdates,
    /// When reports last moved each job's progress.
    pub reports: crate::progress::LastReports,
    /// Until when reports may not have got through.
    pub turned_away: Arc<crate::progress::TurnedAway>,
    /// Dry runs that hold for other jobs too.
    pub dry_runs: dry_runs::DryRunCache,
    /// Whether many jobs are being started.
    pub start_burst: start_burst::StartBurst,
    /// What slows edits and conflicts down.
    pub brakes: brakes::Brakes,
}

/// When to look at a job again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Requeue {
    /// When something happens.
    OnEvent,
    /// At once: what was looked at is old.
    Now,
    /// At that instant.
    At(Timestamp),
    /// After so long: something failed.
    After(Duration),
}

/// Timers by job; one each, the earliest wins until it fires.
#[derive(Default)]
struct Timers {
    by_time: BTreeSet<(Instant, ObjectKey)>,
    by_job: BTreeMap<ObjectKey, Instant>,
}

impl Timers {
    fn set(&mut self, job: ObjectKey, at: Option<Instant>) {
        if let Some(old) = self.by_job.remove(&job) {
            self.by_time.remove(&(old, job.clone()));
        }
        if let Some(at) = at {
            self.by_job.insert(job.clone(), at);
            self.by_time.insert((at, job));
        }
    }

    fn next(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    fn due(&mut self, now: Instant) -> Vec<ObjectKey> {
        let mut due = Vec::new();
        while self.by_time.first().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, job)) = self.by_time.pop_first() {
                self.by_job.remove(&job);
                due.push(job);
            }
        }
        due
    }
}

/// Steps dirty jobs until `shutdown`, then lets the steps in hand end.
pub async fn run(shared: Arc<Shared>, heart: Heartbeat, shutdown: CancellationToken) {
    let signals = shared.index.lock().signals();
    let mut queue = FairQueue::new(OF_ONE_NAMESPACE);
    let mut timers = Timers::default();
    let mut workers: JoinSet<(ObjectKey, Requeue)> = JoinSet::new();
    let mut confirm = Instant::now() + CONFIRM_EVERY;
    let mut confirming = tokio::spawn(async {});
    loop {
        heart.beat();
        let changed = {
            let mut index = shared.index.lock();
            queue.extend(index.take_dirty());
            index.take_changed_namespaces()
        };
        for namespace in changed {
            shared.dry_runs.forget(&namespace);
            shared.ledger.lock().forget_refusals(&namespace, clock::now());
        }
        while queue.in_hand() < WORKERS {
            let Some(job) = queue.take() else { break };
            timers.set(job.clone(), None);
            let shared = Arc::clone(&shared);
            workers.spawn(async move {
                let again = work::step(&shared, &job).await;
                (job, again)
            });
        }
        shared.metrics.queue.set(i64::try_from(queue.waiting()).unwrap_or(i64::MAX));
        shared.metrics.in_hand.set(i64::try_from(queue.in_hand()).unwrap_or(i64::MAX));
        let next = timers.next().unwrap_or(confirm).min(confirm);
        tokio::select! {
            () = signals.dirty.notified() => {}
            () = sleep_until(next) => queue.extend(timers.due(Instant::now())),
            Some(done) = workers.join_next() => match done {
                Ok((job, again)) => {
                    queue.done(&job);
                    settle(&mut queue, &mut timers, job, again);
                }
                Err(error) => {
                    // A worker never panics on input; if one did, nobody knows which job it had in hand.
                    tracing::error!(%error, "a worker ended abnormally");
                    shutdown.cancel();
                }
            },
            () = shutdown.cancelled() => break,
        }
        if Instant::now() >= confirm {
            confirm = Instant::now() + CONFIRM_EVERY;
            if confirming.is_finished() {
                let shared = Arc::clone(&shared);
                confirming = tokio::spawn(async move { work::confirm_pods(&shared, CONFIRM_AFTER).await });
            }
        }
    }
    let drained =
        tokio::time::timeout(Duration::from_secs(10), async { while workers.join_next().await.is_some() {} });
    let _ = drained.await;
}

fn settle(queue: &mut FairQueue, timers: &mut Timers, job: ObjectKey, again: Requeue) {
    match again {
        Requeue::OnEvent => {}
        Requeue::Now => queue.push(job),
        Requeue::At(at) => {
            let wait = at.duration_since(clock::now());
            let wait = Duration::try_from(wait).unwrap_or(Duration::ZERO).min(Duration::from_secs(86_400));
            timers.set(job, Some(Instant::now() + wait.max(Duration::from_millis(10))));
        }
        Requeue::After(wait) => timers.set(job, Some(Instant::now() + wait)),
    }
}
