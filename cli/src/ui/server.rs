//! The page and its questions by HTTP.
//!
//! Who asks must show the secret of this run in `Authorization`, which no other page can send: a header of its own needs the consent
//! of a preflight request, and none is given. The page itself holds no figure, and takes the secret from the part of its address that
//! browsers never send. `Host` must name this machine, so that a name that is made to lead here (DNS rebinding) gets nothing; neither
//! does a request that its browser says is of another site. Its port may be another: that of a tunnel.

use std::sync::Arc;

use andreas_api::query::{MAX_BODY, WhatIfRequest};
use anyhow::{Error, Result};
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::json;

use super::session::Session;
use crate::cluster::ClusterError;
use crate::exit::{self, Usage};
use crate::name;
use crate::output::plain_lines;

/// Nothing but this program's own files is loaded or asked; no other page frames it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// Files of the page: path, type, text.
const FILES: [(&str, &str, &str); 8] = [
    ("/", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("/page.js", JAVASCRIPT, include_str!("page/page.js")),
    ("/jobs.js", JAVASCRIPT, include_str!("page/jobs.js")),
    ("/detail.js", JAVASCRIPT, include_str!("page/detail.js")),
    ("/cluster.js", JAVASCRIPT, include_str!("page/cluster.js")),
    ("/lib.js", JAVASCRIPT, include_str!("page/lib.js")),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// What all requests are checked against.
struct Guard {
    port: u16,
    secret: String,
}

/// Names that lead to the machine of the browser, and that nobody else can make lead elsewhere.
const LOOPBACK: [&str; 2] = ["127.0.0.1", "localhost"];

/// The routes. `port` is that of the listener on 127.0.0.1.
pub fn router(session: Session, port: u16, secret: String) -> Router {
    let guard = Arc::new(Guard { port, secret: format!("Bearer {secret}") });
    let questions = Router::new()
        .route("/api/timeline", get(async |State(session): Asked| answer(session.timeline().await)))
        .route("/api/nodes", get(async |State(session): Asked| answer(session.nodes().await)))
        .route("/api/power", get(async |State(session): Asked| answer(session.power().await)))
        .route("/api/explain/{job}", get(explain))
        .route("/api/explain/{job}/changes", get(explain_changes))
        .route("/api/whatif", post(what_if))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(Arc::clone(&guard), secret_only))
        .with_state(Arc::new(session));
    let files = FILES.iter().fold(Router::new(), |router, (path, kind, text)| {
        let file = async move || ([(header::CONTENT_TYPE, *kind)], *text);
        router.route(path, get(file))
    });
    files.merge(questions).layer(middleware::from_fn_with_state(guard, of_this_page))
}

type Asked = State<Arc<Session>>;

/// Every request: only by this address, and every answer: with what keeps other pages away.
async fn of_this_page(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let mut answer = if host(request.headers()).is_some_and(is_loopback) {
        next.run(request).await
    } else {
        let message = format!("not the address of this page: it is http://127.0.0.1:{}", guard.port);
        refusal(StatusCode::MISDIRECTED_REQUEST, "host", &message)
    };
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

fn host(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::HOST)?.to_str().ok()
}

/// Whether a `Host` is one of these names, with a port or, for port 80, without.
fn is_loopback(host: &str) -> bool {
    let (name, port) = host.split_once(':').unwrap_or((host, "80"));
    LOOPBACK.contains(&name) && port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok()
}

/// Questions: only by the page itself, with the secret.
async fn secret_only(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let is =
        |name: &HeaderName, value: &[u8]| headers.get(name).is_none_or(|found| found.as_bytes() == value);
    let origin = format!("http://{}", host(headers).unwrap_or_default());
    let same_site = is(&HeaderName::from_static("sec-fetch-site"), b"same-origin");
    if !same_site || !is(&header::ORIGIN, origin.as_bytes()) {
        return refusal(StatusCode::FORBIDDEN, "origin", "not a question of this page");
    }
    if !shows(headers, &guard.secret) {
        let message = "this address lacks the secret, or is of an earlier run: open the one that kubectl andreas ui printed";
        return refusal(StatusCode::UNAUTHORIZED, "secret", message);
    }
    next.run(request).await
}

/// Whether the request has the secret. The time that it takes says nothing of where a guess is wrong.
fn shows(headers: &HeaderMap, secret: &str) -> bool {
    let shown = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    let differ = shown.iter().zip(secret.as_bytes()).fold(0, |differ, (a, b)| differ | (a ^ b));
    shown.len() == secret.len() && differ == 0
}

async fn explain(State(session): Asked, Path(job): Path<String>) -> Response {
    answer(explained(&session, &job, false).await)
}

async fn explain_changes(State(session): Asked, Path(job): Path<String>) -> Response {
    answer(explained(&session, &job, true).await)
}

async fn explained(session: &Session, job: &str, changes: bool) -> Result<impl Serialize> {
    session.explain(&name::job(job).map_err(Usage)?, changes).await
}

async fn what_if(State(session): Asked, body: Bytes) -> Response {
    let asked = async {
        let question: WhatIfRequest =
            serde_json::from_slice(&body).map_err(|error| Usage(format!("body: {error}")))?;
        // A manifest is judged by the API server, which the command asks; the page has none.
        if question.job.is_some() {
            return Err(Usage("job: ask about manifests by kubectl andreas whatif -f".to_owned()).into());
        }
        session.what_if(&question).await
    };
    answer(asked.await)
}

fn answer(result: Result<impl Serialize>) -> Response {
    match result {
        Ok(answer) => Json(answer).into_response(),
        Err(error) => refused(&error),
    }
}

/// What the command would print, and what kind of error it is.
fn refused(error: &Error) -> Response {
    let message = plain_lines(&format!("{error:#}"));
    match exit::code(error) {
        exit::NO_RIGHT => {
            let missing = error.chain().any(|cause| {
                matches!(cause.downcast_ref::<ClusterError>(), Some(ClusterError::Forbidden { .. }))
            });
            let (code, kind) = if missing {
                (StatusCode::FORBIDDEN, "right")
            } else {
                (StatusCode::FORBIDDEN, "credentials")
            };
            refusal(code, kind, &message)
        }
        exit::NOT_FOUND => refusal(StatusCode::NOT_FOUND, "notFound", &message),
        exit::USAGE => refusal(StatusCode::BAD_REQUEST, "usage", &message),
        _ => refusal(StatusCode::BAD_GATEWAY, "failed", &message),
    }
}

fn refusal(code: StatusCode, kind: &str, message: &str) -> Response {
    (code, Json(json!({"kind": kind, "message": message}))).into_response()
}
