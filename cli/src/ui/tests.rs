//! The routes, and who gets no answer of them.

use std::path::Path;
use std::time::Duration;

use axum::Router;
use clap::Parser;
use http::{Request, StatusCode, header};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::server::router;
use super::session::Session;
use super::{folders, opened};
use crate::ask::AskArgs;
use crate::ask::transport::Operator;
use crate::cluster::testing;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    ask: AskArgs,
}

const AT: &str = "2026-11-24T12:00:00Z";

fn queue() -> Value {
    let job = json!({"name": "bert", "phase": "Pending", "weight": 10, "gpus": "1-8", "created": AT});
    json!({"namespace": "team-a", "at": AT, "waiting": 1, "open": 1, "jobs": [job]})
}

/// The routes, and what they run on.
struct Page(tokio::runtime::Runtime, Router);

/// The routes on a cluster that answers so.
fn page(answer: impl Fn(&str, Value) -> (u16, Value) + Clone + Send + 'static) -> Page {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let inside = runtime.enter();
    let ask = Line::try_parse_from(["ui", "--request-timeout", "1"]).unwrap().ask;
    let cluster = testing::cluster(answer);
    let operator = Operator::with_token(&ask, cluster, "t".to_owned(), "team-a".to_owned());
    let router = router(Session::new(ask, operator, 100), 4242, "secret".to_owned());
    drop(inside);
    Page(runtime, router)
}

fn request(path: &str) -> http::request::Builder {
    let method = if path.ends_with("whatif") { "POST" } else { "GET" };
    let request = Request::builder().method(method).uri(path).header(header::HOST, "127.0.0.1:4242");
    request.header(header::AUTHORIZATION, "Bearer secret")
}

/// Status, headers and body of an answer.
fn sent(page: &Page, request: Request<axum::body::Body>) -> (StatusCode, http::HeaderMap, String) {
    page.0.block_on(async {
        let (parts, body) = page.1.clone().oneshot(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (parts.status, parts.headers, String::from_utf8(body.to_vec()).unwrap())
    })
}

fn asked(page: &Page, path: &str, body: &str) -> (StatusCode, Value) {
    let (status, _, text) = sent(page, request(path).body(body.to_owned().into()).unwrap());
    (status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}")))
}

fn healthy() -> Page {
    page(|line, _| match line {
        line if line.contains("/queue?limit=100") => (200, queue()),
        line if line.contains("/trainingjobs") => {
            testing::refusal(403, "Forbidden", "User \"x\" cannot list resource", "")
        }
        line => testing::refusal(404, "NotFound", &format!("not served: {line}"), ""),
    })
}

/// A request by this name, from a page of this origin.
fn by_host(path: &str, host: &str, origin: Option<&str>) -> Request<axum::body::Body> {
    let mut request = request(path).body(axum::body::Body::empty()).unwrap();
    request.headers_mut().insert(header::HOST, host.parse().unwrap());
    if let Some(origin) = origin {
        request.headers_mut().insert(header::ORIGIN, origin.parse().unwrap());
    }
    request
}

#[test]
fn the_page_is_reached_through_a_tunnel_from_another_port_and_as_localhost() {
    let page = healthy();
    for host in ["127.0.0.1:4242", "localhost:4242", "localhost:8001", "127.0.0.1", "localhost"] {
        let status = |path, origin: Option<&str>| sent(&page, by_host(path, host, origin)).0;
        assert_eq!(status("/", None), StatusCode::OK, "{host}");
        let own = format!("http://{host}");
        assert_eq!(status("/api/timeline", Some(own.as_str())), StatusCode::OK, "{host}");
        for other in ["http://127.0.0.1:4243", "http://localhost:4243", "http://evil.example", "null"] {
            assert_eq!(status("/api/timeline", Some(other)), StatusCode::FORBIDDEN, "{host} {other}");
        }
    }
}

#[test]
fn the_file_for_the_browser_is_where_one_in_a_sandbox_may_read_it() {
    let of = |home: &str, runtime: &str| {
        let (home, runtime) = (home.to_owned(), runtime.to_owned());
        folders(move |name| Some(if name == "HOME" { &home } else { &runtime }.into()))
    };
    assert_eq!(of("/home/ada", "/run/user/1")[..2], [Path::new("/home/ada"), Path::new("/run/user/1")]);
    assert_eq!(of("", "/run/user/1")[0], Path::new("/run/user/1"));
    assert_eq!(of("", ""), [std::env::temp_dir()]);
}

#[cfg(unix)]
#[tokio::test]
async fn a_program_that_fails_has_opened_no_browser() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pipe");
    let long = Duration::from_secs(60);
    assert!(!opened(&["no-such-program", "false"], &file, long).await);
    assert!(opened(&["false", "true"], &file, long).await);
    // One that runs on: it reads until another writes.
    assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    assert!(opened(&["cat"], &file, Duration::from_millis(50)).await);
    std::fs::write(&file, "").unwrap();
}

#[test]
fn a_question_needs_the_secret_and_comes_from_this_page() {
    let page = healthy();
    let status = |change: fn(http::request::Builder) -> http::request::Builder| {
        sent(&page, change(request("/api/timeline")).body(axum::body::Body::empty()).unwrap()).0
    };
    assert_eq!(status(|r| r), StatusCode::OK);
    assert_eq!(
        status(|r| r.header("sec-fetch-site", "same-origin").header("origin", "http://127.0.0.1:4242")),
        200
    );
    for site in ["cross-site", "same-site", "none"] {
        let r =
            request("/api/timeline").header("sec-fetch-site", site).body(axum::body::Body::empty()).unwrap();
        assert_eq!(sent(&page, r).0, StatusCode::FORBIDDEN, "{site}");
    }
    assert_eq!(status(|r| r.header("origin", "http://evil.example")), StatusCode::FORBIDDEN);
    assert_eq!(status(|r| r.header("origin", "http://127.0.0.1:4243")), StatusCode::FORBIDDEN);
    // Names that are made to lead here, and what is no address.
    for host in [
        "evil.example:4242",
        "localhost.evil.example:4242",
        "127.0.0.1.evil.example",
        "10.0.0.1:4242",
        "localhost@evil.example:4242",
        "127.0.0.1:4242@evil.example",
        "127.0.0.1:",
        "127.0.0.1:+80",
        "127.0.0.1:99999",
        "",
    ] {
        for path in ["/", "/api/timeline"] {
            let (status, _, text) = sent(&page, by_host(path, host, None));
            assert_eq!(status, StatusCode::MISDIRECTED_REQUEST, "{host} {path}");
            assert!(text.contains("it is http://127.0.0.1:4242"), "{text}");
        }
    }
    for wrong in ["", "Bearer ", "Bearer secre", "Bearer secreT", "Bearer secrets", "secret"] {
        for path in [
            "/api/timeline",
            "/api/nodes",
            "/api/power",
            "/api/explain/a",
            "/api/explain/a/changes",
            "/api/whatif",
        ] {
            let mut request = request(path).body(axum::body::Body::empty()).unwrap();
            request.headers_mut().insert(header::AUTHORIZATION, wrong.parse().unwrap());
            let (status, _, text) = sent(&page, request);
            assert!(
                status == StatusCode::UNAUTHORIZED && text.contains("lacks the secret"),
                "{wrong} {path}"
            );
        }
    }
}

#[test]
fn no_page_loads_anything_else_or_is_framed() {
    let page = healthy();
    for (path, kind) in [
        ("/", "text/html"),
        ("/page.css", "text/css"),
        ("/page.js", "text/javascript"),
        ("/api/timeline", "application/json"),
    ] {
        let (status, headers, text) = sent(&page, request(path).body(axum::body::Body::empty()).unwrap());
        let of = |name: &str| {
            headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
        };
        assert!(status == StatusCode::OK && of("content-type").starts_with(kind), "{path}: {status}");
        assert!(
            of("content-security-policy").starts_with("default-src 'none'; script-src 'self';"),
            "{path}"
        );
        assert_eq!(
            (of("x-content-type-options").as_str(), of("cache-control").as_str()),
            ("nosniff", "no-store")
        );
        assert_eq!(
            (of("referrer-policy").as_str(), headers.get("access-control-allow-origin")),
            ("no-referrer", None)
        );
        assert!(
            !text.contains("<script>") && !text.contains("style=\"") && !text.contains("innerHTML"),
            "{path}"
        );
        assert!(!text.contains("http://") || path.ends_with(".js"), "{path} names another host");
    }
    assert_eq!(
        sent(&page, request("/api/other").body(axum::body::Body::empty()).unwrap()).0,
        StatusCode::NOT_FOUND
    );
    let deleted = request("/api/timeline").method("DELETE").body(axum::body::Body::empty()).unwrap();
    assert_eq!(sent(&page, deleted).0, StatusCode::METHOD_NOT_ALLOWED);
}

#[test]
fn the_timeline_goes_without_what_may_not_be_read() {
    let (status, timeline) = asked(&healthy(), "/api/timeline", "");
    assert_eq!((status, &timeline["rows"][0]["name"]), (StatusCode::OK, &json!("bert")));
    let note = timeline["notes"][0].as_str().unwrap();
    assert!(
        note.starts_with("without past attempts: missing right: list trainingjobs.andreas.dev"),
        "{note}"
    );
}

#[test]
fn a_refusal_says_which_right_is_missing() {
    let page = page(|line, _| match line {
        line if line.contains("/proxy/") => {
            let failure = andreas_api::query::Failure::new(403, "Forbidden", "x may not list trainingjobs");
            (403, serde_json::to_value(failure).unwrap())
        }
        line if line.contains("energypolicies") => testing::refusal(401, "Unauthorized", "Unauthorized", ""),
        _ => testing::refusal(503, "ServiceUnavailable", "shutting down", ""),
    });
    let (status, refusal) = asked(&page, "/api/timeline", "");
    assert_eq!((status, &refusal["kind"]), (StatusCode::FORBIDDEN, &json!("right")));
    let message = refusal["message"].as_str().unwrap();
    assert!(
        message.starts_with("missing right: list trainingjobs.andreas.dev in namespace team-a\n"),
        "{message}"
    );
    assert!(
        message.contains("check with: kubectl auth can-i list trainingjobs.andreas.dev -n team-a"),
        "{message}"
    );
    let (status, refusal) = asked(&page, "/api/nodes", "");
    assert_eq!((status, &refusal["message"]), (StatusCode::BAD_GATEWAY, &json!("shutting down")));
    let (status, refusal) = asked(&page, "/api/power", "");
    assert_eq!((status, &refusal["kind"]), (StatusCode::FORBIDDEN, &json!("credentials")));
}

#[test]
fn a_change_is_asked_as_the_command_asks_it_and_nothing_else_passes() {
    let page = page(|line, body| {
        assert!(
            line.starts_with("POST ")
                && line.ends_with("/proxy/apis/query.andreas.dev/v1alpha1/namespaces/team-a/whatif"),
            "{line}"
        );
        assert_eq!(
            body,
            json!({"changed": {"name": "bert", "patch": {"weight": 40}}, "budgetWatts": 12_000})
        );
        let others = json!({"later": 0, "sooner": 0, "meanLaterSeconds": 0});
        (
            200,
            json!({"namespace": "team-a", "at": AT, "affected": [], "own": 0, "others": others, "addedCostMicros": 7, "currency": "EUR"}),
        )
    });
    let question = r#"{"changed": {"name": "bert", "patch": {"weight": 40}}, "budgetWatts": 12000}"#;
    let (status, answer) = asked(&page, "/api/whatif", question);
    assert_eq!((status, &answer["addedCostMicros"]), (StatusCode::OK, &json!(7)));
    let (status, refusal) = asked(&page, "/api/whatif", r#"{"job": {"spec": {}}}"#);
    assert_eq!((status, &refusal["kind"]), (StatusCode::BAD_REQUEST, &json!("usage")));
    assert_eq!(asked(&page, "/api/whatif", r#"{"else": 1}"#).0, StatusCode::BAD_REQUEST);
    let (status, _) = asked(&page, "/api/explain/a%3Fb", "");
    assert_eq!(status, StatusCode::BAD_REQUEST, "nothing but a name becomes part of a path");
    let large = format!("{{\"without\": \"{}\"}}", "x".repeat(andreas_api::query::MAX_BODY));
    let (status, ..) = sent(&page, request("/api/whatif").body(large.into()).unwrap());
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
}
