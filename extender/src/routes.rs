//! HTTP routes of the verbs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use andreas_runtime::server::RequestConnection;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::map_request;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::{StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tower_http::timeout::TimeoutLayer;

use crate::metrics::{Outcome, Verb};
use crate::verbs::Extender;

/// Timeout of a whole call, including a slowly sent body.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// `POST /filter`, `/prioritize` and `/bind`; bodies of at most `max_body` bytes.
pub fn router(extender: Arc<Extender>, max_body: usize) -> Router {
    Router::new()
        .route("/filter", post(filter))
        .route("/prioritize", post(prioritize))
        .route("/bind", post(bind))
        .layer(DefaultBodyLimit::max(max_body))
        .layer(TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, REQUEST_TIMEOUT))
        .layer(map_request(async |request: Request| {
            // Only kube-scheduler reaches the port: no call of it is cut off for a further connection.
            if let Some(connection) = request.extensions().get::<RequestConnection>() {
                connection.authenticated("kube-scheduler");
            }
            request
        }))
        .with_state(extender)
}

async fn filter(State(extender): State<Arc<Extender>>, body: Bytes) -> Response {
    call(&extender, Verb::Filter, &body, async |args| extender.filter(args).await).await
}

async fn prioritize(State(extender): State<Arc<Extender>>, body: Bytes) -> Response {
    call(&extender, Verb::Prioritize, &body, async |args| extender.prioritize(args).await).await
}

async fn bind(State(extender): State<Arc<Extender>>, body: Bytes) -> Response {
    call(&extender, Verb::Bind, &body, async |args| extender.bind(args).await).await
}

/// Parses a call, answers it and counts it. A malformed call gets 400, which kube-scheduler treats as an
/// extender error.
async fn call<A, R>(
    extender: &Extender,
    verb: Verb,
    body: &[u8],
    answer: impl AsyncFnOnce(A) -> (R, Outcome),
) -> Response
where
    A: DeserializeOwned,
    R: Serialize,
{
    let started = Instant::now();
    let args: A = match serde_json::from_slice(body) {
        Ok(args) => args,
        Err(error) => {
            extender.metrics().answered(verb, Outcome::Rejected, started.elapsed());
            return (StatusCode::BAD_REQUEST, format!("not a call of {}: {error}", verb.as_str()))
                .into_response();
        }
    };
    let (result, outcome) = answer(args).await;
    // Serialize to memory first for a Content-Length: chunked responses break kube-scheduler's connection
    // reuse.
    let response = match serde_json::to_vec(&result) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    };
    extender.metrics().answered(verb, outcome, started.elapsed());
    response
}
