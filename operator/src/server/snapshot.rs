//! `GET /snapshot`: the last plan's input, to reproduce the plan anywhere.
//!
//! It names jobs of all namespaces, so it is behind [`super::pages`]. Only the leader plans; a follower
//! answers 503.

use std::sync::Arc;

use andreas_planner::{Options, Snapshot};
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use parking_lot::Mutex;
use serde::Serialize;

/// Access to the last plan's snapshot, available after the first plan.
#[derive(Clone, Default)]
pub struct Snapshots {
    last: Arc<Mutex<Option<Arc<Saved>>>>,
}

/// A snapshot and its planner options, the input of `kubectl andreas plan --snapshot`.
#[derive(Debug, Serialize)]
struct Saved {
    #[serde(flatten)]
    snapshot: Snapshot,
    #[serde(rename = "_options")]
    options: Options,
}

impl Snapshots {
    /// Stores a plan's input.
    pub fn keep(&self, snapshot: Snapshot, options: Options) {
        *self.last.lock() = Some(Arc::new(Saved { snapshot, options }));
    }

    /// The route.
    pub fn router(&self) -> Router {
        Router::new().route("/snapshot", get(snapshot)).with_state(self.clone())
    }
}

async fn snapshot(State(door): State<Snapshots>) -> Response {
    // Not under the lock: it may be large.
    let last = door.last.lock().clone();
    match last {
        Some(saved) => super::pages::json(&*saved),
        None => (StatusCode::SERVICE_UNAVAILABLE, "this replica has made no plan\n").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use andreas_planner::MethodName;
    use axum::body::Body;
    use http::Request;
    use http_body_util::BodyExt;
    use serde_json::json;
    use tower::ServiceExt;

    use super::*;

    async fn ask(door: &Snapshots) -> (StatusCode, Vec<u8>) {
        let request = Request::get("/snapshot").body(Body::empty()).unwrap();
        let response = door.router().oneshot(request).await.unwrap();
        (response.status(), response.into_body().collect().await.unwrap().to_bytes().to_vec())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_served_plans_as_the_operator_planned() {
        let door = Snapshots::default();
        assert_eq!(ask(&door).await.0, StatusCode::SERVICE_UNAVAILABLE);
        // Numbers without short decimals, and a third of a second.
        let snapshot: Snapshot = serde_json::from_value(json!({
            "now": 1_000.0 / 3.0, "tariff": [[0, 0.2 / 3.6e6]],
            "gpu_types": [{"name": "T4", "idle": 10, "max": 70}],
            "nodes": [{"name": "n1", "gpu_type": "T4", "gpus": 4, "free_gpus": 4, "overhead": 100.1}],
            "jobs": [{
                "id": "a/one", "namespace": "a", "submit": 0.1, "deadline": 9000, "weight": 0.001, "epochs_left": 10.7,
                "estimates": [
                    {"gpu_type": "T4", "gpus": 1, "epoch": 110.3, "power": 61.7},
                    {"gpu_type": "T4", "gpus": 2, "epoch": 60.1, "power": 130.9},
                ],
                "state": "Waiting"}],
        }))
        .unwrap();
        let options =
            Options { method: MethodName::RandomizedGreedy, seed: 7, trials: 50, ..Options::default() };
        let live = andreas_planner::plan(&snapshot, &options).unwrap();
        door.keep(snapshot.clone(), options.clone());

        let (status, body) = ask(&door).await;
        assert_eq!(status, StatusCode::OK);
        let read: Snapshot = serde_json::from_slice(&body).unwrap();
        let how: Options = serde_json::from_value(
            serde_json::from_slice::<serde_json::Value>(&body).unwrap()["_options"].clone(),
        )
        .unwrap();
        assert_eq!((&read, &how), (&snapshot, &options));
        assert_eq!(andreas_planner::plan(&read, &how).unwrap(), live);
    }
}
