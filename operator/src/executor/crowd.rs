//! Starts go first: while many jobs are being started, what only records something for people waits, for a bounded time.
//!
//! A status of a TrainingJob costs the API server several times what a pod or its Binding costs. When hundreds of jobs start at
//! once, records that earlier ones run would take the time in which the others could be bound. Nothing that anybody waits for
//! is ever put off: allocations, pods, ends and stops are written at once, and without a crowd so is everything.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use andreas_api::slim::SlimTrainingJob;
use andreas_api::{Phase, TrainingJobStatus};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::lifecycle::Step;

/// So many jobs being started at a time are a crowd. One alone is started in some tens of milliseconds.
const MANY: usize = 8;
/// Longest that a record waits.
const LONGEST: Duration = Duration::from_secs(10);
/// How often it is looked whether the crowd has gone.
const LOOK: Duration = Duration::from_secs(1);
/// For so long nothing came after a crowd before it has gone: between two plans of a burst nobody starts, and the next are many.
const LULL: Duration = Duration::from_secs(2);

/// How many jobs are being started. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Crowd {
    starting: Arc<AtomicUsize>,
    last: Arc<Mutex<Option<Instant>>>,
}

/// A job is being started for as long as this lives.
#[derive(Debug)]
pub struct Starting {
    starting: Arc<AtomicUsize>,
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.starting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Crowd {
    /// Counts a job while it is being started: its allocation is written, its pods are made.
    pub fn enter(&self) -> Starting {
        if self.starting.fetch_add(1, Ordering::Relaxed) + 1 >= MANY {
            *self.last.lock() = Some(Instant::now());
        }
        Starting { starting: Arc::clone(&self.starting) }
    }

    fn is_here(&self) -> bool {
        let just_now = || self.last.lock().is_some_and(|last| last.elapsed() < LULL);
        self.starting.load(Ordering::Relaxed) >= MANY || just_now()
    }

    /// When to look again, where the step does nothing but record that a job runs, and others wait to be started.
    pub fn puts_off(&self, job: &SlimTrainingJob, step: &Step, now: Timestamp) -> Option<Duration> {
        let before = job.status.as_ref().map(|status| status.phase).unwrap_or_default();
        let only_records =
            before == Phase::Starting && step.status.phase == Phase::Running && step.actions.is_empty();
        (only_records && self.is_here() && now < due(&step.status)?).then_some(LOOK)
    }

    /// Waits until the crowd has gone, [`LONGEST`] after `since` at the latest.
    pub async fn has_gone(&self, since: Instant) {
        while self.is_here() && since.elapsed() < LONGEST {
            sleep(LOOK / 10).await;
        }
    }
}

/// When it is recorded, whoever waits.
fn due(status: &TrainingJobStatus) -> Option<Timestamp> {
    let running = status.allocation.as_ref()?.running_time.as_ref()?;
    running.0.checked_add(SignedDuration::try_from(LONGEST).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::lifecycle::{Action, Claim};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("an instant")
    }

    fn job(status: &serde_json::Value) -> SlimTrainingJob {
        serde_json::from_value(crate::testing::job(1, status)).expect("a job")
    }

    /// The job, and the step that finds at second 100 that all members run.
    fn begins() -> (SlimTrainingJob, Step) {
        let allocation = json!({"attempt": 1, "generation": 1, "gpuType": "A", "gpus": 1, "gpusPerWorker": 1, "placement": "n", "nodes": ["n"], "since": at(90), "watts": 1});
        let mut status: TrainingJobStatus =
            serde_json::from_value(json!({"phase": "Starting", "allocation": allocation})).expect("a status");
        let job = job(&serde_json::to_value(&status).expect("JSON"));
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
                sights: std::collections::BTreeSet::new(),
                events: Vec::new(),
                learned: Vec::new(),
                next: None,
            },
        )
    }

    #[tokio::test(start_paused = true)]
    async fn that_a_job_runs_is_recorded_at_once_unless_many_are_being_started() {
        let (job, step) = begins();
        let crowd = Crowd::default();
        assert_eq!(crowd.puts_off(&job, &step, at(101)), None, "nobody waits");
        let mut here: Vec<Starting> = (0..MANY).map(|_| crowd.enter()).collect();
        assert_eq!(crowd.puts_off(&job, &step, at(101)), Some(LOOK));
        assert_eq!(crowd.puts_off(&job, &step, at(110)), None, "it has waited for long enough");
        here.pop();
        assert_eq!(crowd.puts_off(&job, &step, at(101)), Some(LOOK), "more may come");
        sleep(LULL).await;
        assert_eq!(crowd.puts_off(&job, &step, at(101)), None, "the crowd has gone");
    }

    #[test]
    fn what_somebody_waits_for_is_never_put_off() {
        let (job, step) = begins();
        let crowd = Crowd::default();
        let _here: Vec<Starting> = (0..MANY).map(|_| crowd.enter()).collect();
        let mut acts = step.clone();
        acts.actions.push(Action::DeleteJob { uid: "j1".into() });
        assert_eq!(crowd.puts_off(&job, &acts, at(101)), None, "it also does something");
        let mut ends = step;
        ends.status.phase = Phase::Succeeded;
        assert_eq!(crowd.puts_off(&job, &ends, at(101)), None, "it frees GPUs");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_for_the_crowd_to_go_waits_for_a_bounded_time() {
        let crowd = Crowd::default();
        let began = Instant::now();
        crowd.has_gone(began).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
        let here: Vec<Starting> = (0..MANY).map(|_| crowd.enter()).collect();
        crowd.has_gone(began).await;
        assert_eq!(began.elapsed(), LONGEST);
        drop(here);
    }
}
