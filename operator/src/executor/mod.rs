//! Runs steps: one worker per dirty job, with bounded concurrency.
//!
//! **In**: the index's dirty set, timers of earlier steps. **Out**: writes, status first. If the status
//! cannot be written, the step's actions are dropped; else they run in order.
//!
//! A job is never stepped concurrently, and never from a cache older than the operator's last write:
//! responses go into the index before the next step.
//!
//! | file | what |
//! |---|---|
//! | [`observe`] | index and ledger to `Observed` |
//! | [`work`] | one step of one job |
//! | [`actions`] | pods, services, deletes, wakes, dry runs |
//! | [`adopted`] | jobs of other kinds: released, stopped |
//! | [`outcomes`] | what an action came to |
//! | [`children`] | the Jobs of a JobSet that keep an earlier attempt's node |
//! | [`requeue`] | when a job is stepped again |
//! | [`dry_runs`] | one dry run for equal workers |
//! | [`kubelet_events`] | what kubelets say of pods that ended or do not start |
//! | [`fair`] | workers shared by the namespaces |
//! | [`rate_limits`] | rate limits for edits and conflicts |
//! | [`events`] | events for users |
//!
//! **Never here**: decisions about jobs (lifecycle) or plans (planner).

pub mod actions;
pub mod adopted;
pub mod children;
pub mod dry_runs;
pub mod events;
pub mod fair;
pub mod kubelet_events;
pub mod observe;
pub mod outcomes;
pub mod rate_limits;
pub mod requeue;
#[cfg(test)]
mod tests;
pub mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use andreas_runtime::clock;
use andreas_runtime::health::Heartbeat;
use andreas_runtime::watch::ObjectKey;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::objects::profiles::ProfileUpdates;
use crate::progress::{LastReports, RejectedReports};
use crate::shared::Shared;
use events::Events;
use fair::FairQueue;
pub use requeue::Requeue;

/// Jobs in progress at a time. More than writes in flight: steps compute while others wait for writes.
const WORKERS: usize = 64;
/// A pod that we created and no watch has shown for this long is read live.
const CONFIRM_AFTER: Duration = Duration::from_secs(15);
/// Interval of that check.
const CONFIRM_EVERY: Duration = Duration::from_secs(5);

/// State of the executor.
pub struct Executor {
    /// What it shares with the leader's other loops.
    pub shared: Arc<Shared>,
    /// Events for users.
    pub events: Events,
    /// Updates of TrainingProfiles that are not written yet.
    pub profile_updates: Arc<ProfileUpdates>,
    /// When reports last moved each job's progress.
    pub reports: LastReports,
    /// Reports up to this instant may be lost.
    pub rejected_reports: Arc<RejectedReports>,
    /// Cache of accepted dry runs.
    pub dry_runs: dry_runs::DryRunCache,
    /// Rate limits for edits and conflicts.
    pub rate_limits: rate_limits::RateLimits,
}

/// One timer per job; the earliest wins until it fires.
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

/// Steps dirty jobs until `shutdown`, then waits for the steps in progress.
pub async fn run(executor: Arc<Executor>, heartbeat: Heartbeat, shutdown: CancellationToken) {
    let shared = &executor.shared;
    let signals = shared.index.lock().signals();
    let mut queue = FairQueue::new(WORKERS);
    let mut timers = Timers::default();
    let mut workers: JoinSet<(ObjectKey, Requeue)> = JoinSet::new();
    let mut confirm = Instant::now() + CONFIRM_EVERY;
    let mut confirming = tokio::spawn(async {});
    loop {
        heartbeat.beat();
        let changed = {
            let mut index = shared.index.lock();
            queue.extend(index.take_dirty());
            index.take_changed_namespaces()
        };
        for namespace in changed {
            executor.dry_runs.forget(&namespace);
            shared.ledger.lock().forget_refusals(&namespace, clock::now());
        }
        while let Some(job) = queue.take() {
            timers.set(job.clone(), None);
            let executor = Arc::clone(&executor);
            workers.spawn(async move {
                let again = work::step(&executor, &job).await;
                (job, again)
            });
        }
        if queue.waiting() == 0 {
            signals.stepped.notify_one();
        }
        let next = timers.next().unwrap_or(confirm).min(confirm);
        tokio::select! {
            () = signals.dirty.notified() => {}
            () = sleep_until(next) => queue.extend(timers.due(Instant::now())),
            Some(done) = workers.join_next() => match done {
                Ok((job, again)) => {
                    queue.done(&job);
                    apply_requeue(&mut queue, &mut timers, job, again);
                }
                Err(error) => {
                    // A worker never panics on input; if one did, its job would be unknown here.
                    tracing::error!(%error, "a worker ended abnormally");
                    shutdown.cancel();
                }
            },
            () = shutdown.cancelled() => break,
        }
        if Instant::now() >= confirm {
            confirm = Instant::now() + CONFIRM_EVERY;
            if confirming.is_finished() {
                let shared = Arc::clone(shared);
                confirming = tokio::spawn(async move { work::confirm_pods(&shared, CONFIRM_AFTER).await });
            }
        }
    }
    let drained =
        tokio::time::timeout(Duration::from_secs(10), async { while workers.join_next().await.is_some() {} });
    let _ = drained.await;
}

fn apply_requeue(queue: &mut FairQueue, timers: &mut Timers, job: ObjectKey, again: Requeue) {
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
