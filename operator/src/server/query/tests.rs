//! Given the query API; when callers of several kinds ask; then each gets what its rights allow, and none stops another.

use andreas_api::slim::{SlimNode, SlimTrainingJob};
use andreas_cluster::index::ClusterIndex;
use andreas_planner::Options;
use andreas_runtime::watch::Index;
use axum::body::Body;
use http::Method;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::{ServiceExt, service_fn};

use super::*;
use crate::planning::last::LatestPlan;
use crate::predict::sampled::Forecasts;
use crate::query::background::Sources;
use crate::shared::{Leader, Shared};
use crate::snapshot::Caches;
use crate::testing::{self, at, gpu_node, planned};

/// Knows the tokens `tenant` and `other`; the first may list and get in `team`.
fn reviewer() -> kube::Client {
    let service = service_fn(|request: http::Request<kube::client::Body>| async move {
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let spec = serde_json::from_slice::<Value>(&body).unwrap_or_default()["spec"].clone();
        let status = if path.ends_with("/tokenreviews") {
            let known = matches!(spec["token"].as_str(), Some("tenant" | "other"));
            json!({"authenticated": known, "user": {"username": spec["token"]}})
        } else {
            let asked = &spec["resourceAttributes"];
            assert_eq!(
                (asked["group"].as_str(), asked["resource"].as_str()),
                (Some("andreas.dev"), Some("trainingjobs"))
            );
            json!({"allowed": spec["user"] == "tenant" && asked["namespace"] == "team"})
        };
        let answer = json!({"spec": spec, "status": status}).to_string();
        Ok::<_, std::convert::Infallible>(http::Response::new(Body::from(answer)))
    });
    kube::Client::new(service, "default")
}

/// The routes, and what a process that leads shares.
fn api() -> (Router, Arc<Shared>) {
    let (api, shared) = state();
    (router(api), shared)
}

fn job(namespace: &str, name: &str) -> SlimTrainingJob {
    let job = json!({"metadata": {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1", "creationTimestamp": at(0)},
        "spec": {"epochs": 3, "template": {"spec": {"containers": [{"name": "t", "image": "x"}]}}}});
    serde_json::from_value(job).expect("a job")
}

/// The API of a process that leads once [`Leader::lead`] says so, and what it then shares.
fn following() -> (Arc<QueryApi>, Leader, Arc<Shared>) {
    let mut index = ClusterIndex::new();
    index.apply(serde_json::from_value::<SlimNode>(gpu_node("n", "A", 8)).expect("a node"));
    for (namespace, name) in [("team", "mine"), ("rival", "secret")] {
        index.apply(job(namespace, name));
    }
    let index = Arc::new(Mutex::new(index));
    let shared = testing::shared(Arc::clone(&index), &reviewer(), clock::now());
    let (latest, metrics) = (LatestPlan::default(), shared.metrics.clone());
    let options = Options { trials: 10, ..Options::default() };
    latest.keep(planned(&index.lock(), &options, clock::now()));
    let sources = Sources { latest, forecasts: Forecasts::default() };
    let background = Background::start(sources).expect("a thread");
    let hypothetical = Hypothetical::new(Caches::default());
    let leader = Leader::default();
    let live = Live::new(index, leader.clone());
    (QueryApi::new(Access::new(reviewer()), live, background, hypothetical, metrics), leader, shared)
}

fn state() -> (Arc<QueryApi>, Arc<Shared>) {
    let (api, leader, shared) = following();
    leader.lead(&shared);
    (api, shared)
}

async fn ask(
    api: &Router,
    method: Method,
    path: &str,
    header: Option<(&str, &str)>,
    body: &str,
) -> (u16, Value) {
    let mut request = http::Request::builder().method(method).uri(path);
    if let Some((name, value)) = header {
        request = request.header(name, value);
    }
    let request = request.body(Body::from(body.to_owned())).expect("a request");
    let answer = api.clone().oneshot(request).await.expect("an answer");
    let code = answer.status().as_u16();
    let text = answer.into_body().collect().await.expect("a body").to_bytes();
    (code, serde_json::from_slice(&text).unwrap_or(Value::Null))
}

const TENANT: Option<(&str, &str)> = Some(("authorization", "Bearer tenant"));

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_does_not_lead_says_so_to_whoever_has_the_right_until_it_leads() {
    let (api, leader, shared) = following();
    let api = router(api);
    let question = || http::Request::get(path::queue("team"));
    let request = question().header("authorization", "Bearer tenant").body(Body::empty()).expect("a request");
    let answer = api.clone().oneshot(request).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.headers().get(header::RETRY_AFTER), Some(&HeaderValue::from_static("1")));
    let text = answer.into_body().collect().await.expect("a body").to_bytes();
    let failure: Failure = serde_json::from_slice(&text).expect("a failure");
    assert_eq!(failure.reason, NOT_LEADING);
    let forged = Some(("authorization", "Bearer forged"));
    assert_eq!(ask(&api, Method::GET, &path::queue("team"), forged, "").await.0, 401);
    leader.lead(&shared);
    let (code, queue) = ask(&api, Method::GET, &path::queue("team"), TENANT, "").await;
    assert_eq!(code, 200, "{queue}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_answers_whoever_has_the_right() {
    let (api, _shared) = api();
    let path = path::queue("team");
    let (code, queue) = ask(&api, Method::GET, &path, TENANT, "").await;
    assert_eq!((code, queue["jobs"][0]["name"].as_str()), (200, Some("mine")), "{queue}");
    assert!(!queue.to_string().contains("secret"), "{queue}");
    // The header that the API server's proxy leaves alone.
    let (code, _) = ask(&api, Method::GET, &path, Some((TOKEN_HEADER, "Bearer tenant")), "").await;
    assert_eq!(code, 200);
    let (code, shown) = ask(&api, Method::GET, &path::explain("team", "mine"), TENANT, "").await;
    assert_eq!((code, shown["job"]["name"].as_str()), (200, Some("mine")), "{shown}");

    for (changes, expected) in [("Always", 200), ("Auto", 200), ("all", 400)] {
        let path = format!("{}?changes={changes}", path::explain("team", "mine"));
        let (code, answer) = ask(&api, Method::GET, &path, TENANT, "").await;
        assert_eq!(code, expected, "{answer}");
    }

    for (limit, expected) in [("1", 200), ("0", 400), ("20001", 400), ("all", 400)] {
        let (code, answer) = ask(&api, Method::GET, &format!("{path}?limit={limit}"), TENANT, "").await;
        assert_eq!(code, expected, "{answer}");
    }

    for (header, expected) in [
        (None, 401),
        (Some(("authorization", "Bearer forged")), 401),
        (Some(("authorization", "Bearer other")), 403),
    ] {
        let (code, failure) = ask(&api, Method::GET, &path, header, "").await;
        assert_eq!((code, failure["kind"].as_str()), (expected, Some("Status")), "{failure}");
    }
    let (code, _) = ask(&api, Method::GET, &path::queue("rival"), TENANT, "").await;
    assert_eq!(code, 403);
    // A job of others and one that nobody has look the same.
    for name in ["secret", "none"] {
        let (code, failure) = ask(&api, Method::GET, &path::explain("team", name), TENANT, "").await;
        assert_eq!(
            (code, failure["message"].as_str().map(|text| text.replace(name, "x"))),
            (404, Some("there is no TrainingJob x in this namespace".into()))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_made_to_the_cluster_as_it_is_when_it_is_asked_about() {
    let (api, shared) = api();
    let what_if = path::what_if("team");
    let without = json!({"without": "late"}).to_string();
    let (code, failure) = ask(&api, Method::POST, &what_if, TENANT, &without).await;
    assert_eq!(code, 404, "{failure}");
    // A view is there, and is not made again for seconds.
    shared.index.lock().apply(job("team", "late"));
    let (code, answer) = ask(&api, Method::POST, &what_if, TENANT, &without).await;
    assert_eq!(code, 200, "{answer}");
    assert!(!answer.to_string().contains("secret"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_are_bounded() {
    let (api, _shared) = api();
    let what_if = path::what_if("team");
    let job = json!({"job": {"spec": {"epochs": 3, "template": {"spec": {"containers": [{"name": "t", "image": "x"}]}}}}}).to_string();
    let (code, answer) = ask(&api, Method::POST, &what_if, TENANT, &job).await;
    assert_eq!(code, 200, "{answer}");
    let (code, failure) = ask(&api, Method::POST, &what_if, TENANT, "{\"nodes\": 3}").await;
    assert_eq!((code, failure["reason"].as_str()), (400, Some("Invalid")), "{failure}");
    let large = format!("{{\"job\": \"{}\"}}", "x".repeat(MAX_BODY));
    assert_eq!(ask(&api, Method::POST, &what_if, TENANT, &large).await.0, 413);
    let many = futures::future::join_all((0..60).map(|_| {
        let api = api.clone();
        async move { ask(&api, Method::GET, &path::queue("team"), TENANT, "").await.0 }
    }));
    let refused = many.await.into_iter().filter(|code| *code == 429).count();
    assert!((10..60).contains(&refused), "{refused} of 60 at once");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_takes_too_long_is_refused_as_the_command_knows_it() {
    let answer = response(&state().0, "whatif", std::future::pending()).await;
    assert_eq!(answer.status(), StatusCode::GATEWAY_TIMEOUT);
    let text = answer.into_body().collect().await.expect("a body").to_bytes();
    let failure: Failure = serde_json::from_slice(&text).expect("a failure");
    assert_eq!((failure.code, failure.reason.as_str()), (504, "Timeout"));
}

/// Given twenty questions about one namespace, by as many users; then one of them is computed, and another namespace has its turn at once.
#[tokio::test(start_paused = true)]
async fn questions_about_one_namespace_keep_no_other_from_its_turn() {
    let turns = Arc::new(Turns::new(2));
    let first = turns.take("loud").await.expect("nobody else asks");
    let ask = |_| {
        let turns = Arc::clone(&turns);
        tokio::spawn(async move { turns.take("loud").await.is_some() })
    };
    let asked: Vec<_> = (0..20).map(ask).collect();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let refused = asked.iter().filter(|question| question.is_finished()).count();
    assert_eq!(refused, 20 - (OF_NAMESPACE - 1));
    let quiet = tokio::time::timeout(Duration::from_millis(1), turns.take("quiet")).await;
    let _quiet = quiet.expect("at once").expect("its first question");
    drop(first);
    tokio::time::sleep(Duration::from_millis(1)).await;
    // Each answer makes place for the next one of its namespace.
    let answered =
        futures::future::join_all(asked).await.into_iter().filter(|answer| matches!(answer, Ok(true)));
    assert_eq!(answered.count(), OF_NAMESPACE - 1);
    assert!(turns.of.lock().len() <= 2);
}
