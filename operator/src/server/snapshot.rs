//! `GET /snapshot`: the last plan and its input, to reproduce the plan anywhere.
//!
//! It names jobs of all namespaces, so it is behind [`super::pages`]. Only the leader plans; a follower
//! answers 503.

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;

use crate::planning::last::LatestPlan;

/// The route.
pub fn router(latest: &LatestPlan) -> Router {
    Router::new().route("/snapshot", get(snapshot)).with_state(latest.clone())
}

async fn snapshot(State(latest): State<LatestPlan>) -> Response {
    match latest.last() {
        Some(latest) => super::pages::json(&latest.saved()),
        None => (StatusCode::SERVICE_UNAVAILABLE, "this replica has made no plan\n").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use andreas_cluster::index::ClusterIndex;
    use andreas_planner::{MethodName, Options, Snapshot};
    use axum::body::Body;
    use http::Request;
    use http_body_util::BodyExt;
    use jiff::Timestamp;
    use serde_json::json;
    use tower::ServiceExt;

    use super::*;
    use crate::ledger::Ledger;
    use crate::planning::last::Latest;

    async fn ask(state: &LatestPlan) -> (StatusCode, Vec<u8>) {
        let request = Request::get("/snapshot").body(Body::empty()).unwrap();
        let response = router(state).oneshot(request).await.unwrap();
        (response.status(), response.into_body().collect().await.unwrap().to_bytes().to_vec())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_served_plans_as_the_operator_planned() {
        let state = LatestPlan::default();
        assert_eq!(ask(&state).await.0, StatusCode::SERVICE_UNAVAILABLE);
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
        state.keep(Latest {
            at: Timestamp::UNIX_EPOCH,
            index: ClusterIndex::new(),
            ledger: Ledger::new(Timestamp::UNIX_EPOCH),
            snapshot: snapshot.clone(),
            options: options.clone(),
            plan: live.clone(),
            draws: Default::default(),
        });

        let (status, body) = ask(&state).await;
        assert_eq!(status, StatusCode::OK);
        let read: Snapshot = serde_json::from_slice(&body).unwrap();
        let mut saved: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let how: Options = serde_json::from_value(saved["_options"].take()).unwrap();
        assert_eq!((&read, &how), (&snapshot, &options));
        let again = andreas_planner::plan(&read, &how).unwrap();
        assert_eq!(again, live);
        // The plan that the operator made is beside it, as `plan --json` prints it.
        assert_eq!(saved["_plan"].take(), serde_json::to_value(&again).unwrap());
    }
}
