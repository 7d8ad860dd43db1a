//! The progress endpoint for training programs: Kubeflow Trainer's wire format (KEP-2779) over HTTPS.
//!
//! `POST /apis/trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/trainjobs/{name}/status` with a bearer
//! token. **In**: reports ([`endpoint`]). **Out**: `status.progress`, written by the replica that received
//! the report, with the version it read, or after conflicts with tests of what it read. Every replica serves,
//! leader or not. Also [`LastReports`], the base of `progressTimeout`, set by reports only and never by writes
//! or reads. The answer's header `andreas-energy-joules` tells the program the energy of its job so far.
//!
//! A sender needs a token of the job's own audience ([`token`]), issued to a pod of the job's current attempt
//! ([`members`]). Reported progress is not trusted: it is bounded, never goes back within an attempt ([`rules`]), and
//! it is compared with earlier reports ([`history`]). [`RejectedReports`] says when reports may have been lost, also
//! because the endpoint's name was not found (`name`).
//!
//! **Never here**: trust in anything a container reports beyond its own progress.

pub mod endpoint;
pub mod history;
mod members;
mod rejected_reports;
pub mod rules;
#[cfg(test)]
mod tests;
pub mod token;
pub mod wire;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use andreas_api::Phase;
use andreas_api::names::FIELD_MANAGER;
use andreas_api::slim::SlimTrainingJob;
use andreas_cluster::index::ClusterIndex;
use andreas_runtime::clock;
use andreas_runtime::watch::ObjectKey;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::core::Request;
use kube::{Client, Resource};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::writes::patch::{by_operations, progress_fields, progress_operations, status_body};
use crate::writes::refusal::is_failed_test;
use crate::writes::writer::get;
use history::ReportHistory;
use members::Members;
use rules::{Report, ReportAction};
use token::Tokens;
use wire::ReportedProgress;

pub use endpoint::router;
pub use rejected_reports::RejectedReports;

/// Maximum concurrent progress writes.
const WRITES: usize = 8;
/// Interval for writing deferred reports.
const FLUSH: Duration = Duration::from_secs(1);
/// Delay before a failed write is retried.
const AGAIN: Duration = Duration::from_secs(10);
/// Number of remembered jobs above which deleted ones are dropped.
const TIDY_ABOVE: usize = 4_096;
/// Attempts on conflict: the leader writes the same object, and somebody may edit it all the time.
const TRIES: usize = 6;

/// When a report last moved each job's progress in this process, by the job's UID.
pub type LastReports = Arc<Mutex<HashMap<String, Timestamp>>>;

/// State of the endpoint.
pub struct Progress {
    client: Client,
    index: Arc<Mutex<ClusterIndex>>,
    tokens: Tokens,
    members: Members,
    rejected_reports: Arc<RejectedReports>,
    metrics: Metrics,
    last: LastReports,
    /// Reports of each job's newest attempt, by UID.
    histories: Mutex<HashMap<String, ReportHistory>>,
    /// Valid reports that are not worth a write yet, by job.
    later: Mutex<HashMap<ObjectKey, Deferred>>,
    writes: Semaphore,
}

#[derive(Clone)]
struct Deferred {
    uid: String,
    report: Report,
    due: Timestamp,
}

impl Deferred {
    fn exceeds(&self, uid: &str, report: &Report) -> bool {
        self.uid == uid
            && self.report.attempt == report.attempt
            && self.report.claim.milli_percent > report.claim.milli_percent
    }
}

impl Progress {
    /// An endpoint on this index.
    pub fn new(
        client: Client,
        index: Arc<Mutex<ClusterIndex>>,
        metrics: Metrics,
        last: LastReports,
        rejected_reports: Arc<RejectedReports>,
    ) -> Arc<Self> {
        Arc::new(Self {
            tokens: Tokens::new(client.clone()),
            members: Members::new(client.clone(), Arc::clone(&index)),
            rejected_reports,
            client,
            index,
            metrics,
            last,
            histories: Mutex::default(),
            later: Mutex::default(),
            writes: Semaphore::new(WRITES),
        })
    }

    /// Writes deferred reports when they are due, until `shutdown`.
    pub async fn flush(self: Arc<Self>, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(FLUSH) => {}
                () = shutdown.cancelled() => return,
            }
            self.tidy();
            self.write_due(clock::now()).await;
        }
    }

    /// Writes the deferred reports that are due.
    async fn write_due(&self, now: Timestamp) {
        let due: Vec<(ObjectKey, Deferred)> = self.later.lock().extract_if(|_, d| d.due <= now).collect();
        let writes = due.into_iter().map(|(key, d)| async move {
            if let Err(error) = self.write(&key, &d.uid, d.report, now).await {
                tracing::debug!(job = %key, %error, "deferred progress not written");
            }
        });
        futures::future::join_all(writes).await;
    }

    /// Handles a report of a member of `attempt`, with its claim if any. Returns the result's label.
    ///
    /// # Errors
    /// If the write failed; it is retried later.
    async fn handle_report(
        &self,
        key: &ObjectKey,
        job: &SlimTrainingJob,
        attempt: i64,
        claim: Option<ReportedProgress>,
        now: Timestamp,
    ) -> Result<&'static str, kube::Error> {
        let uid = job.metadata.uid.clone().unwrap_or_default();
        let held = job.status.as_ref().and_then(|status| status.progress.as_ref());
        let moved = {
            let mut history = self.histories.lock();
            let history =
                history.entry(uid.clone()).or_insert_with(|| ReportHistory::new(attempt, claim, held, now));
            if history.attempt() != attempt {
                *history = ReportHistory::new(attempt, claim, held, now);
            }
            claim.is_some_and(|claim| history.record(claim, now))
        };
        match claim {
            Some(claim) if moved => {
                self.last.lock().insert(uid.clone(), now);
                self.write(key, &uid, Report { attempt, claim, at: now }, now).await
            }
            // Earlier claims are written or deferred.
            _ => Ok("nothing"),
        }
    }

    /// Judges a report against the job's status and writes it if it is worth a write. Conflicts are retried
    /// from a live read.
    async fn write(
        &self,
        key: &ObjectKey,
        uid: &str,
        report: Report,
        now: Timestamp,
    ) -> Result<&'static str, kube::Error> {
        for round in 1.. {
            let (job, running) = {
                let index = self.index.lock();
                (index.jobs().get(key).cloned(), running(&index))
            };
            let Some(job) = job.filter(|job| job.metadata.uid.as_deref() == Some(uid)) else { break };
            let status = job.status.clone().unwrap_or_default();
            let history =
                self.histories.lock().get(uid).filter(|history| history.attempt() == report.attempt).cloned();
            let history = history.unwrap_or_else(|| {
                ReportHistory::new(report.attempt, Some(report.claim), status.progress.as_ref(), report.at)
            });
            let progress = match rules::judge(&status, &job.spec, &report, &history, now, running) {
                ReportAction::Nothing => break,
                ReportAction::Later(wait) => {
                    self.defer(key, uid, report, now, wait);
                    return Ok("later");
                }
                ReportAction::Write(progress) => progress,
            };
            let url = SlimTrainingJob::url_path(&(), Some(&key.namespace));
            let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
            let request = if round == 1 {
                let version = job.metadata.resource_version.as_deref();
                let body = status_body(uid, version, progress_fields(&progress));
                Request::new(url.as_str()).patch_subresource(
                    "status",
                    &key.name,
                    &params,
                    &Patch::Merge(&body),
                )
            } else {
                // Somebody may edit the job all the time.
                let operations = progress_operations(uid, &status, &progress);
                by_operations(&url, &key.name, &params, &operations)
            };
            let request = request.map_err(kube::Error::BuildRequest)?;
            let permit = self.writes.acquire().await;
            let result = self.client.request::<SlimTrainingJob>(request).await;
            drop(permit);
            match result {
                Ok(answer) => {
                    self.metrics.wrote("progress", "ok");
                    if let Some(history) = self.histories.lock().get_mut(uid) {
                        history.record_write(now);
                    }
                    self.forget(key, uid, &report);
                    self.index.lock().wrote_job(answer);
                    return Ok("written");
                }
                Err(kube::Error::Api(answer))
                    if round < TRIES && (answer.code == 409 || is_failed_test(&answer)) =>
                {
                    self.metrics.wrote("progress", "conflict");
                    match get::<SlimTrainingJob>(&self.client, &url, &key.name).await {
                        Ok(Some(live)) => self.index.lock().wrote_job(live),
                        Ok(None) => break,
                        Err(error) => {
                            self.defer(key, uid, report, now, AGAIN);
                            return Err(error);
                        }
                    }
                }
                Err(error) => {
                    self.metrics.wrote("progress", "failed");
                    self.defer(key, uid, report, now, AGAIN);
                    return Err(error);
                }
            }
        }
        Ok("nothing")
    }

    /// Defers a report unless one with more progress is deferred already.
    fn defer(&self, key: &ObjectKey, uid: &str, report: Report, now: Timestamp, wait: Duration) {
        let due = now.checked_add(wait).unwrap_or(now);
        let deferred = Deferred { uid: uid.to_owned(), report, due };
        let mut later = self.later.lock();
        if !later.get(key).is_some_and(|held| held.exceeds(uid, &report)) {
            later.insert(key.clone(), deferred);
        }
    }

    /// After a write, drops a deferred report that adds nothing.
    fn forget(&self, key: &ObjectKey, uid: &str, written: &Report) {
        let mut later = self.later.lock();
        if later.get(key).is_some_and(|held| !held.exceeds(uid, written)) {
            later.remove(key);
        }
    }

    /// Drops deleted jobs.
    fn tidy(&self) {
        let reported = self.last.lock().len().max(self.histories.lock().len()).max(self.later.lock().len());
        if reported.max(self.rejected_reports.remembered()) <= TIDY_ABOVE {
            return;
        }
        let index = self.index.lock();
        let known: std::collections::HashSet<String> =
            index.jobs().iter().filter_map(|(_, job)| job.metadata.uid.clone()).collect();
        drop(index);
        self.last.lock().retain(|uid, _| known.contains(uid));
        self.histories.lock().retain(|uid, _| known.contains(uid));
        self.later.lock().retain(|_, deferred| known.contains(&deferred.uid));
        self.rejected_reports.keep(&known);
    }
}

/// Number of running jobs.
fn running(index: &ClusterIndex) -> usize {
    index
        .jobs()
        .iter()
        .filter(|(_, job)| job.status.as_ref().is_some_and(|s| s.phase == Phase::Running))
        .count()
}
