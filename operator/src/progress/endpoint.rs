//! The one route: who asks, for which job, and what became of the report.

use std::net::SocketAddr;
use std::sync::Arc;

use andreas_api::names::{LABEL_ATTEMPT, progress_audience};
use andreas_api::slim::SlimPod;
use andreas_runtime::watch::ObjectKey;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::{HeaderMap, StatusCode, header};
use jiff::Timestamp;
use kube::Resource;
use serde_json::json;

use super::Progress;
use super::token::{self, ReviewError, bearer};
use super::wire::ReportBody;
use crate::executor::writer::get;
use crate::index::{number, owner};

/// Largest body: 256 metrics of some hundred bytes.
const MAX_BODY: usize = 64 * 1024;
/// The same answer whether the job, the token or the right is missing: nobody learns names of others' jobs here.
const DENIED: &str = "the token does not belong to a pod of this job's present attempt";

/// The routes.
pub fn router(progress: Arc<Progress>) -> Router {
    const PATH: &str = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/trainjobs/{name}/status";
    Router::new().route(PATH, post(report)).layer(DefaultBodyLimit::max(MAX_BODY)).with_state(progress)
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

fn unreviewed(progress: &Progress, error: &ReviewError) -> Response {
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

async fn report(
    State(progress): State<Arc<Progress>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let Some(token) = headers.get(header::AUTHORIZATION).and_then(bearer) else {
        return refuse(&progress, StatusCode::UNAUTHORIZED, "a bearer token is needed");
    };
    let key = ObjectKey { namespace, name };
    let job = progress.index.lock().jobs.get(&key).cloned();
    let Some((job, uid)) = job.and_then(|job| job.metadata.uid.clone().map(|uid| (job, uid))) else {
        return match progress.tokens.refuse(token, &key.to_string(), peer.ip()) {
            Ok(()) => refuse(&progress, StatusCode::FORBIDDEN, DENIED),
            Err(error) => unreviewed(&progress, &error),
        };
    };
    let pod = match progress.tokens.review(token, &progress_audience(&uid), peer.ip()).await {
        Ok(Some(pod)) if pod.namespace == key.namespace => pod,
        Ok(_) => return refuse(&progress, StatusCode::FORBIDDEN, DENIED),
        Err(error) => return unreviewed(&progress, &error),
    };
    let present = job.status.as_ref().and_then(|status| status.allocation.as_ref()).map(|a| a.attempt);
    let Some(attempt) = member(&progress, &key, &uid, &pod).await.filter(|attempt| Some(*attempt) == present)
    else {
        return refuse(&progress, StatusCode::FORBIDDEN, DENIED);
    };
    let Ok(body) = serde_json::from_slice::<ReportBody>(&body) else {
        return refuse(&progress, StatusCode::BAD_REQUEST, "the body is not a status report");
    };
    let claim = body.trainer_status.as_ref().and_then(|status| status.claim(job.spec.epochs));
    match progress.take(&key, &job, attempt, claim, Timestamp::now()).await {
        Ok(became) => progress.metrics.reported(became),
        Err(error) => {
            tracing::warn!(job = %key, %error, "progress not written");
            return refuse(&progress, StatusCode::SERVICE_UNAVAILABLE, "try again");
        }
    }
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
