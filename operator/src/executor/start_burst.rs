//! Start bursts: while many jobs start, status writes that only record a running job are deferred by at most
//! ten seconds.
//!
//! A status write costs the API server several times as much as a pod or its Binding. In a burst these
//! records would delay the binding of other jobs. Allocations, pods, ends and stops are never deferred.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use andreas_api::slim::SlimTrainingJob;
use andreas_api::{Phase, TrainingJobStatus};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::lifecycle::Step;

/// Concurrently starting jobs that make a burst. A single job starts within tens of milliseconds.
const MANY: usize = 8;
/// Maximum delay of a record.
const MAX_RECORD_DELAY: Duration = Duration::from_secs(10);
/// After this time a deferred record is looked at again.
const RETRY: Duration = Duration::from_secs(1);
/// A burst ends if no job started for this long; between two plans of a burst none starts.
const QUIET_PERIOD: Duration = Duration::from_secs(2);

/// Number of starting jobs. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct StartBurst {
    starting: Arc<AtomicUsize>,
    last: Arc<Mutex<Option<Instant>>>,
    fewer: Arc<Notify>,
}

/// Guard: one job is starting while this lives.
#[derive(Debug)]
pub struct Starting {
    burst: StartBurst,
}

impl Drop for Starting {
    fn drop(&mut self) {
        if self.burst.starting.fetch_sub(1, Ordering::Relaxed) == MANY {
            self.burst.fewer.notify_waiters();
        }
    }
}

impl StartBurst {
    /// Counts a job while its allocation is written and its pods are created.
    pub fn enter(&self) -> Starting {
        if self.starting.fetch_add(1, Ordering::Relaxed) + 1 >= MANY {
            *self.last.lock() = Some(Instant::now());
        }
        Starting { burst: self.clone() }
    }

    fn are_many(&self) -> bool {
        self.starting.load(Ordering::Relaxed) >= MANY
    }

    fn is_active(&self) -> bool {
        let just_now = || self.last.lock().is_some_and(|last| last.elapsed() < QUIET_PERIOD);
        self.are_many() || just_now()
    }

    /// Delay before a retry, if the step only records that a job runs and a burst is active.
    pub fn defers(&self, job: &SlimTrainingJob, step: &Step, now: Timestamp) -> Option<Duration> {
        let before = job.status.as_ref().map(|status| status.phase).unwrap_or_default();
        let only_records =
            before == Phase::Starting && step.status.phase == Phase::Running && step.actions.is_empty();
        (only_records && self.is_active() && now < due(&step.status)?).then_some(RETRY)
    }

    /// Waits for the end of the burst, at most until [`MAX_RECORD_DELAY`] after `since`.
    pub async fn ended(&self, since: Instant) {
        let limit = since + MAX_RECORD_DELAY;
        while self.is_active() && Instant::now() < limit {
            // Registered before the count is read, so that no end is missed.
            let fewer = self.fewer.notified();
            if self.are_many() {
                let _at_the_limit = timeout_at(limit, fewer).await;
            } else {
                let quiet = self.last.lock().map_or(limit, |last| last + QUIET_PERIOD);
                sleep_until(quiet.min(limit)).await;
            }
        }
    }
}

/// Latest time of the record.
fn due(status: &TrainingJobStatus) -> Option<Timestamp> {
    let running = status.allocation.as_ref()?.running_time.as_ref()?;
    running.0.checked_add(SignedDuration::try_from(MAX_RECORD_DELAY).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::lifecycle::{Action, Claim};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("an instant")
    }

    /// The job, and the step at second 100 that finds all members running.
    fn begins() -> (SlimTrainingJob, Step) {
        let allocation = json!({"attempt": 1, "generation": 1, "gpuType": "A", "gpus": 1, "gpusPerWorker": 1, "placement": "n", "nodes": ["n"], "since": at(90), "watts": 1});
        let mut status: TrainingJobStatus =
            serde_json::from_value(json!({"phase": "Starting", "allocation": allocation})).expect("a status");
        let job = crate::testing::slim_job(1, &serde_json::to_value(&status).expect("JSON"));
        status.phase = Phase::Running;
        if let Some(allocation) = &mut status.allocation {
            allocation.running_time = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(100)));
        }
        (
            job,
            Step {
                status,
                actions: Vec::new(),
                claim: Claim::Nothing,
                facts: std::collections::BTreeSet::new(),
                events: Vec::new(),
                learned: Vec::new(),
                next: None,
                waking: false,
            },
        )
    }

    #[tokio::test(start_paused = true)]
    async fn that_a_job_runs_is_recorded_at_once_unless_many_are_being_started() {
        let (job, step) = begins();
        let start_burst = StartBurst::default();
        assert_eq!(start_burst.defers(&job, &step, at(101)), None, "nobody waits");
        let mut here: Vec<Starting> = (0..MANY).map(|_| start_burst.enter()).collect();
        assert_eq!(start_burst.defers(&job, &step, at(101)), Some(RETRY));
        assert_eq!(start_burst.defers(&job, &step, at(110)), None, "it has waited for long enough");
        here.pop();
        assert_eq!(start_burst.defers(&job, &step, at(101)), Some(RETRY), "more may come");
        tokio::time::sleep(QUIET_PERIOD).await;
        assert_eq!(start_burst.defers(&job, &step, at(101)), None, "the start_burst has gone");
    }

    #[test]
    fn what_somebody_waits_for_is_never_put_off() {
        let (job, step) = begins();
        let start_burst = StartBurst::default();
        let _here: Vec<Starting> = (0..MANY).map(|_| start_burst.enter()).collect();
        let mut acts = step.clone();
        acts.actions.push(Action::DeleteJob { uid: "j1".into(), version: None });
        assert_eq!(start_burst.defers(&job, &acts, at(101)), None, "it also does something");
        let mut ends = step;
        ends.status.phase = Phase::Succeeded;
        assert_eq!(start_burst.defers(&job, &ends, at(101)), None, "it frees GPUs");
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_the_end_of_a_burst_is_bounded() {
        let start_burst = StartBurst::default();
        let began = Instant::now();
        start_burst.ended(began).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
        let here: Vec<Starting> = (0..MANY).map(|_| start_burst.enter()).collect();
        start_burst.ended(began).await;
        assert_eq!(began.elapsed(), MAX_RECORD_DELAY);
        // and it ends as soon as the last of many has started and no other follows
        let again = Instant::now();
        let ended = tokio::spawn(async move {
            start_burst.ended(again).await;
            again.elapsed()
        });
        tokio::time::sleep(Duration::from_secs(3)).await;
        drop(here);
        assert_eq!(ended.await.expect("it ends"), Duration::from_secs(3));
    }
}
