//! The page on jobs of all namespaces, `/snapshot`, on the TLS port.
//!
//! A reader needs a bearer token and the right to `get` the page's path as a non-resource URL. The chart's
//! ClusterRole `andreas-plan-reader` grants it. Few are built at a time, because they are large.

use std::sync::Arc;

use andreas_runtime::access::{Access, guard};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use futures::stream;
use http::{StatusCode, header};
use serde::Serialize;
use tokio::sync::Semaphore;

/// Pages built at a time.
const AT_A_TIME: usize = 2;
/// Chunk size of a page, bytes, so that the server notices a stalled reader.
const PIECE: usize = 64 * 1024;

/// The pages behind authentication and authorization, with limited concurrency.
pub fn protected(pages: Router, access: Arc<Access>) -> Router {
    let permits = Arc::new(Semaphore::new(AT_A_TIME));
    pages.layer(from_fn_with_state(permits, limit_concurrency)).layer(from_fn_with_state(access, guard))
}

async fn limit_concurrency(State(permits): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    let turn = permits.acquire().await;
    let answer = next.run(request).await;
    drop(turn);
    answer
}

/// A value as JSON, serialized on a blocking thread.
pub fn json(value: &impl Serialize) -> Response {
    let text = match tokio::task::block_in_place(|| serde_json::to_vec(value)) {
        Ok(text) => Bytes::from(text),
        Err(error) => {
            tracing::error!(%error, "a page could not be written");
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
    };
    let length = text.len();
    let pieces = stream::unfold(text, |mut rest| async move {
        if rest.is_empty() {
            return None;
        }
        let piece = rest.split_to(rest.len().min(PIECE));
        Some((Ok::<_, std::convert::Infallible>(piece), rest))
    });
    let headers =
        [(header::CONTENT_TYPE, "application/json".to_owned()), (header::CONTENT_LENGTH, length.to_string())];
    (headers, Body::from_stream(pieces)).into_response()
}
