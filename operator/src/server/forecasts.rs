//! `GET /forecasts`: current forecasts of all jobs, for the command line and dashboards.
//!
//! It names jobs of all namespaces, so it is behind [`super::pages`]. Only the leader has the data; a
//! follower answers 503.

use andreas_api::training_job::Prediction;
use andreas_runtime::clock;
use andreas_runtime::watch::ObjectKey;
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;

use crate::lifecycle::Planned;
use crate::shared::{Leader, Shared};

/// Jobs read under one lock.
const AT_ONCE: usize = 64;

/// Forecast of one job.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Forecast {
    namespace: String,
    name: String,
    phase: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prediction: Option<Prediction>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waits: Option<WaitInfo>,
}

#[derive(Debug, Serialize)]
struct WaitInfo {
    reason: &'static str,
    message: String,
}

/// The route.
pub fn router(leader: Leader) -> Router {
    Router::new().route("/forecasts", get(forecasts)).with_state(leader)
}

async fn forecasts(State(leader): State<Leader>) -> Response {
    let Some(shared) = leader.shared() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "this replica does not lead\n").into_response();
    };
    let keys: Vec<ObjectKey> = shared.index.lock().jobs().iter().map(|(key, _)| key.clone()).collect();
    let mut all = Vec::with_capacity(keys.len());
    for some in keys.chunks(AT_ONCE) {
        all.extend(forecasts_of(&shared, some));
        tokio::task::yield_now().await;
    }
    super::pages::json(&all)
}

/// Forecasts of a few jobs. The locks are held only for these, because the loops need them.
fn forecasts_of(shared: &Shared, keys: &[ObjectKey]) -> Vec<Forecast> {
    let now = clock::now();
    let index = shared.index.lock();
    let ledger = shared.ledger.lock();
    let expected = keys.iter().filter_map(|key| {
        let job = index.jobs().get(key)?;
        let memory = ledger.get(key);
        let status = job.status.as_ref();
        let waits =
            memory.and_then(|memory| memory.plan().decision.as_ref()).and_then(|d| match &d.planned {
                Planned::Wait { reason, message } => {
                    Some(WaitInfo { reason: reason.as_str(), message: message.clone() })
                }
                Planned::Run { .. } => None,
            });
        Some(Forecast {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            phase: status.map(|status| status.phase).unwrap_or_default().as_str(),
            deadline: status.and_then(|status| status.deadline.as_ref()).map(|deadline| deadline.0),
            prediction: memory.and_then(|memory| memory.forecast(job, now)),
            waits,
        })
    });
    expected.collect()
}
