//! Rate limits for edits, conflicts, dry runs and events.
//!
//! * A job that is edited repeatedly is stepped for its edits at most once per [`EDITS_APART`].
//! * A conflicting write is retried at once the first time; then the job backs off exponentially, up to four seconds.
//! * Token buckets bound the edits, conflicts, refused templates and notices of each namespace. All namespaces share
//!   one more bucket for conflicts. An overloaded API server empties it; it delays no job for long.
//! * A job that holds GPUs takes no token for its edit, and waits for no conflicts but its own: the same step may end its
//!   attempt or stop it for the plan.
//! * A token bucket of each job bounds its events. What exceeds it is left out: the status shows the present state.
//!
//! The normal course (create, plan, start, end) takes tokens for its few events only, and never waits here.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::time::Duration;

use andreas_runtime::buckets::{Bucket, Rate};
use andreas_runtime::watch::ObjectKey;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Minimum time between two steps for edits of one job.
const EDITS_APART: Duration = Duration::from_secs(1);
/// Wait after the second consecutive conflict; doubles with each further one.
const FIRST_BACKOFF: Duration = Duration::from_millis(250);
/// Maximum of that doubled wait: somebody may edit the job without end, and it must be stopped all the same.
const MAX_OWN_BACKOFF: Duration = Duration::from_secs(4);
/// Maximum wait after consecutive conflicts.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// Minimum wait of a refused template in a namespace with too many recent dry runs.
const DRY_RUNS_APART: Duration = Duration::from_secs(60);
/// Number of namespaces above which full buckets are removed.
const MANY_NAMESPACES: usize = 1_024;

/// Steps for edits, per namespace: a user may release hundreds of suspended jobs at once.
const EDITS: Rate = Rate { burst: 200.0, per_second: 20.0 };
/// Retries after a conflict, per namespace; each costs a read and a write.
const CONFLICTS: Rate = Rate { burst: 10.0, per_second: 2.0 };
/// The same for all namespaces together.
const ALL_CONFLICTS: Rate = Rate { burst: 20.0, per_second: 4.0 };
/// Maximum wait for conflicts of other namespaces.
const MAX_FOR_OTHERS: Duration = Duration::from_secs(15);
/// Dry runs of refused templates, per namespace.
const DRY_RUNS: Rate = Rate { burst: 100.0, per_second: 10.0 };
/// Events about waits and predictions, per namespace: thousands of jobs may begin to wait at once.
const NOTICES: Rate = Rate { burst: 50.0, per_second: 1.0 };
/// Events about starts, stops and ends of one job. Each is an object that the API server keeps for an hour by default. So there are 420
/// of a job at a time, however often it fails and starts again, is suspended or is evicted. An attempt has two or three of them, and a job
/// that fails waits for up to five minutes before the next one.
const EVENTS: Rate = Rate { burst: 60.0, per_second: 0.1 };

#[derive(Clone, Copy, Debug)]
struct Buckets {
    edits: Bucket,
    conflicts: Bucket,
    dry_runs: Bucket,
    notices: Bucket,
}

/// An edit of a job's `spec` that no step has seen yet.
#[derive(Clone, Copy, Debug)]
pub struct Edit {
    /// Generation of the `spec`.
    pub generation: i64,
    /// The job has an allocation. A namespace has no more of such jobs than there are GPUs.
    pub holds_gpus: bool,
}

/// Limits of one job.
#[derive(Clone, Copy, Debug, Default)]
struct JobLimits {
    /// When an edit was last stepped, and the generation of its `spec`.
    edit: Option<(Instant, i64)>,
    /// Consecutive conflicts.
    conflicts: u32,
    /// Earliest next step.
    not_before: Option<Instant>,
    /// Set from the first event on, with a hash of the job's UID.
    events: Option<(u64, Bucket)>,
}

#[derive(Debug, Default)]
struct State {
    jobs: HashMap<ObjectKey, JobLimits>,
    namespaces: HashMap<String, Buckets>,
    /// Conflicts of all namespaces; set from the first one on.
    conflicts: Option<Bucket>,
}

impl State {
    fn buckets(&mut self, namespace: &str, now: Instant) -> &mut Buckets {
        if self.namespaces.len() >= MANY_NAMESPACES && !self.namespaces.contains_key(namespace) {
            self.namespaces.retain(|_, of| {
                ![&mut of.edits, &mut of.conflicts, &mut of.dry_runs, &mut of.notices]
                    .into_iter()
                    .all(|bucket| bucket.is_full(now))
            });
        }
        self.namespaces.entry(namespace.to_owned()).or_insert_with(|| Buckets {
            edits: Bucket::full(EDITS, now),
            conflicts: Bucket::full(CONFLICTS, now),
            dry_runs: Bucket::full(DRY_RUNS, now),
            notices: Bucket::full(NOTICES, now),
        })
    }
}

/// Rate limits of all jobs and namespaces.
#[derive(Debug, Default)]
pub struct RateLimits(Mutex<State>);

impl RateLimits {
    /// How long the job must wait for its step; `None`: step it now. With `None` as the answer the edit counts as seen.
    pub fn delay(&self, job: &ObjectKey, edit: Option<Edit>) -> Option<Duration> {
        let now = Instant::now();
        let mut state = self.0.lock();
        let known = state.jobs.get(job).copied().unwrap_or_default();
        if let Some(until) = known.not_before.filter(|until| *until > now) {
            return Some(until - now);
        }
        let Edit { generation, holds_gpus } = edit?;
        if let Some((last, admitted)) = known.edit {
            // The same edit again after a conflict: it has waited already.
            if admitted == generation {
                return None;
            }
            let next = last + EDITS_APART;
            if next > now {
                return Some(next - now);
            }
        }
        if !holds_gpus && let Err(wait) = state.buckets(&job.namespace, now).edits.take(now) {
            return Some(wait.max(EDITS_APART));
        }
        state.jobs.entry(job.clone()).or_default().edit = Some((now, generation));
        None
    }

    /// A status write conflicted. Returns the wait before the retry; zero the first time. A job that `holds_gpus` takes the
    /// tokens all the same, and waits for none.
    pub fn conflict(&self, job: &ObjectKey, holds_gpus: bool) -> Duration {
        let now = Instant::now();
        let mut state = self.0.lock();
        let own = state.buckets(&job.namespace, now).conflicts.take_in_advance(now, MAX_BACKOFF);
        let all = state.conflicts.get_or_insert_with(|| Bucket::full(ALL_CONFLICTS, now));
        let tokens = all.take_in_advance(now, MAX_FOR_OTHERS).max(own);
        let bucket = if holds_gpus { Duration::ZERO } else { tokens };
        let known = state.jobs.entry(job.clone()).or_default();
        known.conflicts = known.conflicts.saturating_add(1);
        let doubled = known.conflicts.checked_sub(2).map(|times| FIRST_BACKOFF * (1 << times.min(16)));
        let wait = doubled.unwrap_or_default().min(MAX_OWN_BACKOFF).max(bucket).min(MAX_BACKOFF);
        known.not_before = Some(now + wait);
        wait
    }

    /// Consecutive conflicts of the job's status writes.
    pub fn conflicts(&self, job: &ObjectKey) -> u32 {
        self.0.lock().jobs.get(job).map_or(0, |known| known.conflicts)
    }

    /// The job's status was written.
    pub fn written(&self, job: &ObjectKey) {
        if let Some(known) = self.0.lock().jobs.get_mut(job) {
            (known.conflicts, known.not_before) = (0, None);
        }
    }

    /// A refused template is about to be dry-run again in this namespace.
    ///
    /// # Errors
    /// The wait if too many were tried recently.
    pub fn admit_dry_run(&self, namespace: &str) -> Result<(), Duration> {
        let now = Instant::now();
        self.0.lock().buckets(namespace, now).dry_runs.take(now).map_err(|wait| wait.max(DRY_RUNS_APART))
    }

    /// Another size of a refused template is dry-run at once in this namespace: what comes later waits for it.
    pub fn count_dry_run(&self, namespace: &str) {
        let now = Instant::now();
        self.0.lock().buckets(namespace, now).dry_runs.take_in_advance(now, DRY_RUNS_APART);
    }

    /// Whether an event about a wait or a prediction may be sent now for a job of this namespace.
    pub fn may_notify(&self, namespace: &str) -> bool {
        let now = Instant::now();
        self.0.lock().buckets(namespace, now).notices.take(now).is_ok()
    }

    /// Whether an event about a start, a stop or an end of the job may be sent now. A job that was deleted and made again before a
    /// step saw it has a bucket of its own.
    pub fn may_publish(&self, job: &ObjectKey, uid: &str) -> bool {
        let now = Instant::now();
        let mut state = self.0.lock();
        let of = state.jobs.hasher().hash_one(uid);
        let known = state.jobs.entry(job.clone()).or_default();
        let own = known.events.filter(|(owner, _)| *owner == of);
        let (_, bucket) = known.events.insert(own.unwrap_or_else(|| (of, Bucket::full(EVENTS, now))));
        bucket.take(now).is_ok()
    }

    /// The job was deleted.
    pub fn forget(&self, job: &ObjectKey) {
        self.0.lock().jobs.remove(job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::key_in as key;

    /// An edit of a job without GPUs.
    fn edit(generation: i64) -> Option<Edit> {
        Some(Edit { generation, holds_gpus: false })
    }

    async fn pass(time: Duration) {
        tokio::time::advance(time).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_storm_of_edits_of_one_job_is_taken_in_once_a_second() {
        let rate_limits = RateLimits::default();
        let mut admitted = 0;
        for generation in 0..1_000 {
            admitted += u32::from(rate_limits.delay(&key("a", "x"), edit(generation)).is_none());
            pass(Duration::from_millis(10)).await;
        }
        assert_eq!(admitted, 10, "in ten seconds");
        assert_eq!(
            rate_limits.delay(&key("b", "y"), edit(7)),
            None,
            "an edit of another tenant is taken in at once"
        );
        assert_eq!(rate_limits.delay(&key("a", "z"), None), None, "what is no edit does not wait");
    }

    #[tokio::test(start_paused = true)]
    async fn edits_of_many_jobs_of_a_namespace_share_a_bucket() {
        let rate_limits = RateLimits::default();
        let mut admitted = 0;
        for second in 0..10 {
            for job in 0..1_000 {
                admitted += u32::from(rate_limits.delay(&key("a", job), edit(second)).is_none());
            }
            pass(Duration::from_secs(1)).await;
        }
        assert_eq!(admitted, 200 + 9 * 20);
        assert_eq!(rate_limits.delay(&key("b", 0), edit(1)), None);
        // The step of a run that was edited may also end it.
        while rate_limits.delay(&key("a", "waits"), edit(1)).is_none() {
            rate_limits.forget(&key("a", "waits"));
        }
        let edits = [1, 2].map(|generation| Some(Edit { generation, holds_gpus: true }));
        let delays = edits.map(|edit| rate_limits.delay(&key("a", "runs"), edit));
        assert_eq!(delays, [None, Some(EDITS_APART)], "at once, and once a second");
    }

    #[tokio::test(start_paused = true)]
    async fn an_edit_whose_write_conflicted_is_tried_again_at_once_and_then_ever_later() {
        let (rate_limits, job) = (RateLimits::default(), key("a", "x"));
        assert_eq!(rate_limits.delay(&job, edit(2)), None);
        let mut waits = Vec::new();
        for _ in 0..12 {
            let wait = rate_limits.conflict(&job, false);
            // The job waits regardless of other events.
            assert_eq!(rate_limits.delay(&job, None), (!wait.is_zero()).then_some(wait));
            pass(wait).await;
            assert_eq!(rate_limits.delay(&job, edit(2)), None, "the same edit does not wait a second time");
            waits.push(wait.as_millis());
        }
        assert_eq!(waits[..6], [0, 250, 500, 1_000, 2_000, 4_000]);
        assert_eq!(waits[10..], [4_000, 4_000]);
        rate_limits.written(&job);
        assert_eq!(rate_limits.conflict(&job, false), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_holds_gpus_waits_for_no_conflicts_of_other_jobs() {
        let rate_limits = RateLimits::default();
        for other in 0..100 {
            rate_limits.conflict(&key("a", other), false);
        }
        assert_eq!(rate_limits.conflict(&key("a", "waits"), false), MAX_BACKOFF);
        let waits = [(); 6].map(|()| rate_limits.conflict(&key("a", "runs"), true).as_millis());
        assert_eq!(waits, [0, 250, 500, 1_000, 2_000, 4_000]);
    }

    /// Retries in a minute of fifty jobs with a conflict on every second write, as under an overloaded API
    /// server.
    async fn retries_in_a_minute(rate_limits: &RateLimits, namespace: impl Fn(i32) -> String) -> i32 {
        let (mut retries, mut tenths) = (0, 0);
        while tenths < 600 {
            for job in 0..50 {
                let job = key(&namespace(job), job);
                if rate_limits.delay(&job, None).is_some() {
                    continue;
                }
                if (tenths + retries) % 2 == 0 {
                    rate_limits.conflict(&job, false);
                    retries += 1;
                } else {
                    rate_limits.written(&job);
                }
            }
            pass(Duration::from_millis(100)).await;
            tenths += 1;
        }
        retries
    }

    #[tokio::test(start_paused = true)]
    async fn when_half_of_all_writes_conflict_a_namespace_retries_twice_a_second_at_most() {
        let rate_limits = RateLimits::default();
        let retries = retries_in_a_minute(&rate_limits, |_| "a".into()).await;
        assert!(retries <= 60 * 3, "{retries} in a minute");
        assert_eq!(
            rate_limits.conflict(&key("b", "y"), false),
            Duration::ZERO,
            "another tenant's first retry is quick"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn all_namespaces_together_retry_four_times_a_second_at_most_and_none_waits_long_for_others() {
        let rate_limits = RateLimits::default();
        let retries = retries_in_a_minute(&rate_limits, |job| format!("team-{job}")).await;
        // The burst, four a second, and one token taken in advance per job.
        assert!(retries <= 20 + 60 * 4 + 50, "{retries} in a minute");
        for other in 0..1_000 {
            assert!(rate_limits.conflict(&key(&format!("other-{other}"), "y"), false) <= MAX_FOR_OTHERS);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refused_templates_of_a_namespace_are_tried_again_at_a_bounded_rate() {
        let rate_limits = RateLimits::default();
        let mut tried = 0;
        for _ in 0..60 {
            tried += (0..500).filter(|_| rate_limits.admit_dry_run("a").is_ok()).count();
            pass(Duration::from_secs(1)).await;
        }
        assert_eq!(tried, 100 + 59 * 10);
        assert_eq!(rate_limits.admit_dry_run("b"), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn events_about_the_waits_of_ten_thousand_jobs_are_few() {
        let rate_limits = RateLimits::default();
        let mut sent = 0;
        for _ in 0..10 {
            sent += (0..1_000).filter(|_| rate_limits.may_notify("a")).count();
            pass(Duration::from_secs(1)).await;
        }
        assert_eq!(sent, 50 + 9);
        assert!(rate_limits.may_notify("b"), "another tenant's event is sent");
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_starts_and_stops_without_end_makes_a_bounded_number_of_events() {
        let rate_limits = RateLimits::default();
        let mut sent = 0;
        for _ in 0..3_600 {
            sent += (0..2).filter(|_| rate_limits.may_publish(&key("a", "x"), "1")).count();
            pass(Duration::from_secs(1)).await;
        }
        assert!((415..=420).contains(&sent), "{sent} in an hour");
        assert!(rate_limits.may_publish(&key("a", "y"), "2"), "another job's event is sent");
        while rate_limits.may_publish(&key("a", "x"), "1") {}
        assert!(rate_limits.may_publish(&key("a", "x"), "3"), "and that of a later job of the name");
    }

    #[tokio::test(start_paused = true)]
    async fn namespaces_that_are_quiet_are_forgotten() {
        let rate_limits = RateLimits::default();
        for namespace in 0..3 * MANY_NAMESPACES {
            assert_eq!(rate_limits.admit_dry_run(&namespace.to_string()), Ok(()));
            pass(Duration::from_millis(100)).await;
        }
        assert!(rate_limits.0.lock().namespaces.len() <= MANY_NAMESPACES);
    }
}
