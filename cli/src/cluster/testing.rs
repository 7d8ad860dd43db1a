//! An API server for unit tests: a function from a request to an answer.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use super::connect::Cluster;

/// A cluster whose API server answers by `answer`: `GET /path?query` and the body in, status and body out.
pub fn cluster(answer: impl Fn(&str, Value) -> (u16, Value) + Clone + Send + 'static) -> Cluster {
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = answer.clone();
        async move {
            let line = format!("{} {}", request.method(), request.uri());
            let body = request.into_body().collect().await.map(|all| all.to_bytes()).unwrap_or_default();
            let (status, body) = answer(&line, serde_json::from_slice(&body).unwrap_or(Value::Null));
            let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
            *response.status_mut() = http::StatusCode::from_u16(status).unwrap();
            Ok::<_, Infallible>(response)
        }
    });
    Cluster::from_client(Client::new(service, "default"), "default")
}

/// The API server's refusal.
pub fn refusal(code: u16, reason: &str, message: &str, name: &str) -> (u16, Value) {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code, "details": {"name": name},
    });
    (code, body)
}
