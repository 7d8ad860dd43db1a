//! The endpoint that training programs report to: Kubeflow Trainer's wire format (KEP-2779) over HTTPS.
//!
//! `POST /apis/trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/trainjobs/{name}/status` with a bearer token. **In**:
//! reports. **Out**: `status.progress`, written by the replica that got the report, with the version it read; every
//! replica serves, leader or not.
//!
//! Who may report: a token of the job's own audience ([`token`]), issued to a pod that is a member of the job's present
//! attempt. What a program says is a claim: bounded, never taken back within an attempt ([`rules`]).
//!
//! **Must never be here**: trust in anything a container says beyond its own progress.

pub mod rules;
#[cfg(test)]
mod tests;
pub mod token;
pub mod wire;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use andreas_api::Phase;
use andreas_api::names::{FIELD_MANAGER, LABEL_ATTEMPT, progress_audience};
use andreas_api::slim::{SlimPod, SlimTrainingJob};
use andreas_runtime::watch::ObjectKey;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::{HeaderMap, StatusCode, header};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::core::Request;
use kube::{Client, Resource};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::executor::patch::status_body;
use crate::executor::writer::get;
use crate::index::{ClusterIndex, number, owner};
use crate::metrics::Metrics;
use rules::Verdict;
use token::{Tokens, bearer};
use wire::{Claim, ReportBody};

/// Largest body: 256 metrics of some hundred bytes.
const MAX_BODY: usize = 64 * 1024;
/// Progress writes in flight.
const WRITES: usize = 8;
/// How often reports that were worth waiting are looked through.
const FLUSH: Duration = Duration::from_secs(1);
/// Jobs that may be remembered before those that are no more are looked for.
const TIDY_ABOVE: usize = 4_096;
/// Tries against conflicts: the leader writes the same object.
const TRIES: usize = 4;

/// When reports of each job (by UID) last moved its progress, as this process knows it.
pub type LastReports = Arc<Mutex<HashMap<String, Timestamp>>>;

/// What the endpoint needs.
pub struct Progress {
    client: Client,
    index: Arc<Mutex<ClusterIndex>>,
    tokens: Tokens,
    metrics: Metrics,
    last: LastReports,
    /// Claims that are good but not worth a write yet, by job: UID, attempt, claim, when it will be.
    later: Mutex<HashMap<ObjectKey, Deferred>>,
    writes: Semaphore,
}

#[derive(Clone)]
struct Deferred {
    uid: String,
    attempt: i64,
    claim: Claim,
    due: Timestamp,
}

impl Progress {
    /// An endpoint over what is known.
    pub fn new(
        client: Client,
        index: Arc<Mutex<ClusterIndex>>,
        metrics: Metrics,
        last: LastReports,
    ) -> Arc<Self> {
        Arc::new(Self {
            tokens: Tokens::new(client.clone()),
            client,
            index,
            metrics,
            last,
            later: Mutex::new(HashMap::new()),
            writes: Semaphore::new(WRITES),
        })
    }

    /// Writes deferred claims when they are due, until `shutdown`.
    pub async fn flush(self: Arc<Self>, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(FLUSH) => {}
                () = shutdown.cancelled() => return,
            }
            self.tidy();
            let now = Timestamp::now();
            let due: Vec<(ObjectKey, Deferred)> = {
                let mut later = self.later.lock();
                let keys: Vec<_> =
                    later.iter().filter(|(_, d)| d.due <= now).map(|(key, _)| key.clone()).collect();
                keys.into_iter()
                    .filter_map(|key| later.remove(&key).map(|deferred| (key, deferred)))
                    .collect()
            };
            let writes = due.into_iter().map(|(key, d)| {
                let this = Arc::clone(&self);
                async move {
                    if let Err(error) = this.write(&key, &d.uid, d.attempt, d.claim).await {
                        tracing::debug!(job = %key, %error, "deferred progress not written");
                    }
                }
            });
            futures::future::join_all(writes).await;
        }
    }

    /// Judges a claim against the job as it is, and writes it if it is worth it. Conflicts are tried again from a live read.
    async fn write(
        &self,
        key: &ObjectKey,
        uid: &str,
        attempt: i64,
        claim: Claim,
    ) -> Result<&'static str, kube::Error> {
        for round in 0..TRIES {
            let (job, running) = {
                let index = self.index.lock();
                (index.jobs.get(key).cloned(), running(&index))
            };
            let Some(job) = job.filter(|job| job.metadata.uid.as_deref() == Some(uid)) else {
                return Ok("nothing");
            };
            let now = Timestamp::now();
            let status = job.status.clone().unwrap_or_default();
            let progress = match rules::judge(&status, attempt, job.spec.epochs, claim, now, running) {
                Verdict::Nothing => return Ok("nothing"),
                Verdict::Later(wait, progress) => {
                    if status.progress.as_ref().is_none_or(|held| progress.milli_percent > held.milli_percent)
                    {
                        self.last.lock().insert(uid.to_owned(), now);
                    }
                    let due = now.checked_add(wait).unwrap_or(now);
                    let deferred = Deferred { uid: uid.to_owned(), attempt, claim, due };
                    self.later.lock().insert(key.clone(), deferred);
                    return Ok("later");
                }
                Verdict::Write(progress) => progress,
            };
            let body =
                status_body(uid, job.metadata.resource_version.as_deref(), json!({ "progress": progress }));
            let url = SlimTrainingJob::url_path(&(), Some(&key.namespace));
            let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
            let request = Request::new(url.as_str())
                .patch_subresource("status", &key.name, &params, &Patch::Merge(&body))
                .map_err(kube::Error::BuildRequest)?;
            let permit = self.writes.acquire().await;
            let result = self.client.request::<SlimTrainingJob>(request).await;
            drop(permit);
            match result {
                Ok(answer) => {
                    self.metrics.wrote("progress", "ok");
                    self.last.lock().insert(uid.to_owned(), now);
                    self.later.lock().remove(key);
                    self.index.lock().wrote_job(answer);
                    return Ok("written");
                }
                Err(kube::Error::Api(answer)) if answer.code == 409 && round + 1 < TRIES => {
                    self.metrics.wrote("progress", "conflict");
                    if let Some(live) = get::<SlimTrainingJob>(&self.client, &url, &key.name).await? {
                        self.index.lock().wrote_job(live);
                    }
                }
                Err(error) => {
                    self.metrics.wrote("progress", "failed");
                    return Err(error);
                }
            }
        }
        Ok("later")
    }

    /// Forgets jobs that are no more.
    fn tidy(&self) {
        if self.last.lock().len() + self.later.lock().len() <= TIDY_ABOVE {
            return;
        }
        let index = self.index.lock();
        let known: std::collections::HashSet<String> =
            index.jobs.iter().filter_map(|(_, job)| job.metadata.uid.clone()).collect();
        drop(index);
        self.last.lock().retain(|uid, _| known.contains(uid));
        self.later.lock().retain(|_, deferred| known.contains(&deferred.uid));
    }
}

/// Jobs that run now.
fn running(index: &ClusterIndex) -> usize {
    index
        .jobs
        .iter()
        .filter(|(_, job)| job.status.as_ref().is_some_and(|s| s.phase == Phase::Running))
        .count()
}

/// The routes.
pub fn router(progress: Arc<Progress>) -> Router {
    const PATH: &str = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/trainjobs/{name}/status";
    Router::new().route(PATH, post(report)).layer(DefaultBodyLimit::max(MAX_BODY)).with_state(progress)
}

fn refuse(progress: &Progress, code: StatusCode, message: &'static str) -> Response {
    Metrics::count(&progress.metrics.reports, "refused");
    (
        code,
        axum::Json(
            json!({ "kind": "Status", "status": "Failure", "code": code.as_u16(), "message": message }),
        ),
    )
        .into_response()
}

async fn report(
    State(progress): State<Arc<Progress>>,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let Some(token) = headers.get(header::AUTHORIZATION).and_then(bearer) else {
        return refuse(&progress, StatusCode::UNAUTHORIZED, "a bearer token is needed");
    };
    let key = ObjectKey { namespace, name };
    let job = progress.index.lock().jobs.get(&key).cloned();
    // The same answer whether the job or the right is missing: nobody learns names of others' jobs here.
    let denied = "the token does not belong to a pod of this job's present attempt";
    let Some((job, uid)) = job.and_then(|job| job.metadata.uid.clone().map(|uid| (job, uid))) else {
        return refuse(&progress, StatusCode::FORBIDDEN, denied);
    };
    let pod = match progress.tokens.review(token, &progress_audience(&uid)).await {
        Ok(Some(pod)) if pod.namespace == key.namespace => pod,
        Ok(Some(_)) => return refuse(&progress, StatusCode::FORBIDDEN, denied),
        Ok(None) => {
            return refuse(&progress, StatusCode::UNAUTHORIZED, "the token is not valid for this job");
        }
        Err(error) => {
            tracing::warn!(%error, "a token could not be reviewed");
            return refuse(&progress, StatusCode::SERVICE_UNAVAILABLE, "try again");
        }
    };
    let present = job.status.as_ref().and_then(|status| status.allocation.as_ref()).map(|a| a.attempt);
    let Some(attempt) = member(&progress, &key, &uid, &pod).await.filter(|attempt| Some(*attempt) == present)
    else {
        return refuse(&progress, StatusCode::FORBIDDEN, denied);
    };
    let Ok(body) = serde_json::from_slice::<ReportBody>(&body) else {
        return refuse(&progress, StatusCode::BAD_REQUEST, "the body is not a status report");
    };
    let claim = body.trainer_status.as_ref().and_then(|status| status.claim(job.spec.epochs));
    let became = match claim {
        None => "nothing",
        Some(claim) => match progress.write(&key, &uid, attempt, claim).await {
            Ok(became) => became,
            Err(error) => {
                tracing::warn!(job = %key, %error, "progress not written");
                return refuse(&progress, StatusCode::SERVICE_UNAVAILABLE, "try again");
            }
        },
    };
    Metrics::count(&progress.metrics.reports, became);
    (StatusCode::OK, axum::Json(body)).into_response()
}

/// The attempt that a pod is a member of; looked up live where the cache does not know the pod yet.
async fn member(progress: &Progress, job: &ObjectKey, uid: &str, pod: &token::PodIdentity) -> Option<i64> {
    let key = ObjectKey { namespace: pod.namespace.clone(), name: pod.name.clone() };
    let held = progress.index.lock().pods.get(&key).cloned();
    let found = match held.filter(|held| held.metadata.uid.as_deref() == Some(&pod.uid)) {
        Some(found) => found,
        None => {
            let url = SlimPod::url_path(&(), Some(&key.namespace));
            Arc::new(get::<SlimPod>(&progress.client, &url, &key.name).await.ok().flatten()?)
        }
    };
    let same = found.metadata.uid.as_deref() == Some(&pod.uid);
    let ours = owner(&found.metadata).is_some_and(|(name, owner)| owner == uid && name == *job);
    if same && ours { number(&found.metadata, LABEL_ATTEMPT) } else { None }
}
