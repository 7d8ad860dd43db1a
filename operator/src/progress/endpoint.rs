//! The HTTP route: authenticates the sender, finds the job, handles the report, and answers with the energy of the job's GPUs so far.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use andreas_api::EnergyPolicySpec;
use andreas_api::names::{HEADER_ENERGY, LABEL_ATTEMPT, progress_audience, progress_path};
use andreas_api::slim::SlimTrainingJob;
use andreas_cluster::energy::{bill, measured};
use andreas_cluster::index::{ClusterIndex, number, pods_of};
use andreas_runtime::access::bearer;
use andreas_runtime::clock;
use andreas_runtime::server::RequestConnection;
use andreas_runtime::watch::ObjectKey;
use axum::Router;
use axum::extract::{ConnectInfo, Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::{StatusCode, header};
use serde_json::json;

use super::token::{ReviewError, names_audience};
use super::wire::ReportBody;
use super::{Progress, RejectedReports};

/// Maximum body: 256 metrics of some hundred bytes.
const MAX_BODY: usize = 64 * 1024;
/// One answer for a missing job, token or right, so that clients cannot learn other tenants' job names.
const DENIED: &str = "the token does not belong to a pod of this job's present attempt";

/// The routes.
pub fn router(progress: Arc<Progress>) -> Router {
    Router::new().route(&progress_path("{namespace}", "{name}"), post(report)).with_state(progress)
}

fn refuse(progress: &Progress, code: StatusCode, message: &'static str) -> Response {
    progress.metrics.reported("refused");
    (
        code,
        axum::Json(
            json!({ "kind": "Status", "status": "Failure", "code": code.as_u16(), "message": message }),
        ),
    )
        .into_response()
}

fn review_failed(progress: &Progress, error: &ReviewError) -> Response {
    match error {
        ReviewError::TooMany => {
            tracing::debug!(%error, "a report is refused");
            let mut answer = refuse(progress, StatusCode::TOO_MANY_REQUESTS, "too many reports: try again");
            answer.headers_mut().insert(header::RETRY_AFTER, http::HeaderValue::from_static("1"));
            answer
        }
        ReviewError::Api(error) => {
            tracing::warn!(%error, "a token could not be reviewed");
            refuse(progress, StatusCode::SERVICE_UNAVAILABLE, "try again")
        }
    }
}

/// A report that may be valid. Dropped unchecked, also because its sender or the server waited no longer, it is remembered as lost.
struct Unchecked<'a> {
    reports: &'a RejectedReports,
    uid: &'a str,
    checked: bool,
}

impl Drop for Unchecked<'_> {
    fn drop(&mut self) {
        if !self.checked {
            self.reports.note(self.uid, clock::now());
        }
    }
}

async fn report(
    State(progress): State<Arc<Progress>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Path((namespace, name)): Path<(String, String)>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let Some(token) = parts.headers.get(header::AUTHORIZATION).and_then(bearer) else {
        return refuse(&progress, StatusCode::UNAUTHORIZED, "a bearer token is needed");
    };
    let key = ObjectKey { namespace, name };
    let job = progress.index.lock().jobs().get(&key).cloned();
    let Some((job, uid)) = job.and_then(|job| job.metadata.uid.clone().map(|uid| (job, uid))) else {
        return match progress.tokens.refuse(token, &key.to_string(), peer.ip()) {
            Ok(()) => refuse(&progress, StatusCode::FORBIDDEN, DENIED),
            Err(error) => review_failed(&progress, &error),
        };
    };
    // A token that does not name the job's audience is not a member's. Other namespaces cannot name it, because it has the job's UID:
    // they cannot hold off the job's time-out.
    let checked = !names_audience(token, &progress_audience(&uid));
    let mut unchecked = Unchecked { reports: &progress.rejected_reports, uid: &uid, checked };
    let attempt = match attempt(&progress, token, &key, &uid, peer.ip()).await {
        Ok(attempt) => attempt,
        Err(error) => return review_failed(&progress, &error),
    };
    unchecked.checked = true;
    let present = job.status.as_ref().and_then(|status| status.allocation.as_ref()).map(|a| a.attempt);
    let Some(attempt) = attempt.filter(|attempt| Some(*attempt) == present) else {
        return refuse(&progress, StatusCode::FORBIDDEN, DENIED);
    };
    if let Some(via) = parts.extensions.get::<RequestConnection>() {
        via.authenticated(&key.namespace);
    }
    // Bodies of unauthenticated senders are dropped.
    let Ok(body) = axum::body::to_bytes(body, MAX_BODY).await else {
        return refuse(&progress, StatusCode::PAYLOAD_TOO_LARGE, "the body is too large or was cut off");
    };
    let Ok(body) = serde_json::from_slice::<ReportBody>(&body) else {
        return refuse(&progress, StatusCode::BAD_REQUEST, "the body is not a status report");
    };
    let claim = body.trainer_status.as_ref().and_then(|status| status.reported_progress(job.spec.epochs));
    match progress.handle_report(&key, &job, attempt, claim, clock::now()).await {
        Ok(became) => progress.metrics.reported(became),
        Err(error) => {
            tracing::warn!(job = %key, %error, "progress not written");
            return refuse(&progress, StatusCode::SERVICE_UNAVAILABLE, "try again");
        }
    }
    let joules = energy_so_far(&progress.index.lock(), &key, &job, attempt);
    ([(HEADER_ENERGY, joules.to_string())], axum::Json(body)).into_response()
}

/// Energy of the GPUs of all attempts of a job, J: the present one by the agents' counters, where those of all its GPUs are known, else by the
/// power model.
fn energy_so_far(index: &ClusterIndex, key: &ObjectKey, job: &SlimTrainingJob, attempt: i64) -> i64 {
    let Some(status) = &job.status else { return 0 };
    let ended = status.consumption.as_ref().map_or(0, |total| total.joules);
    let mut pods = index.members(key);
    pods.retain(|pod| number(&pod.metadata, LABEL_ATTEMPT) == Some(attempt));
    let gpus_of_each = status.allocation.as_ref().map_or(0, |allocation| pods_of(job, allocation).1);
    let predicted = || {
        let default = EnergyPolicySpec::default();
        let policy = index.policy().map_or(&default, |policy| &policy.spec);
        bill::energy_so_far(index, job, policy, clock::now()).joules
    };
    ended.saturating_add(measured::so_far(index, &pods, gpus_of_each).unwrap_or_else(predicted))
}

/// The job's attempt that the token's pod belongs to; `None` if there is none or the token is invalid.
async fn attempt(
    progress: &Progress,
    token: &str,
    job: &ObjectKey,
    uid: &str,
    peer: IpAddr,
) -> Result<Option<i64>, ReviewError> {
    let pod = progress.tokens.review(token, &progress_audience(uid), peer).await?;
    match pod.filter(|pod| pod.namespace == job.namespace) {
        Some(pod) => progress.members.attempt(job, uid, &pod).await,
        None => Ok(None),
    }
}
