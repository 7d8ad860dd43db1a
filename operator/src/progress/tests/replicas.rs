//! Given a job and a replica with reports, leader or not; when reports, time and other writers interact; then
//! the right state is written and kept, and nothing leaks between tenants.

use std::net::SocketAddr;

use andreas_runtime::watch::Index;
use axum::body::Body;
use axum::extract::ConnectInfo;
use http::{Method, Request as HttpRequest, StatusCode};
use http_body_util::BodyExt;
use jiff::ToSpan;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::super::*;
use crate::testing::{self, Answer, ApiServer, at, failure, key};

/// The job in attempt `attempt`, with progress (attempt, thousandths of a percent) reported at second 0.
fn job(version: u64, attempt: i64, progress: (i64, i32)) -> SlimTrainingJob {
    job_at(version, attempt, progress, 0)
}

fn job_at(version: u64, attempt: i64, progress: (i64, i32), second: i64) -> SlimTrainingJob {
    let mut job = testing::job(
        version,
        &json!({
            "phase": "Running",
            "allocation": {"attempt": attempt, "generation": 3, "gpuType": "A", "gpus": 1, "gpusPerWorker": 1, "nodes": ["n"],
                "since": at(-100), "runningTime": at(-100)},
            "progress": {"milliPercent": progress.1, "attempt": progress.0, "at": at(second)},
        }),
    );
    job["spec"]["progressTimeout"] = "90s".into();
    serde_json::from_value(job).expect("a job")
}

fn steps(milli_percent: i32) -> Option<ReportedProgress> {
    Some(ReportedProgress { milli_percent, stepwise: true, forced_end: false })
}

struct World {
    progress: Arc<Progress>,
    server: ApiServer,
}

impl World {
    fn new(given: &SlimTrainingJob, answers: Vec<Answer>) -> Self {
        let server = ApiServer::new(answers);
        let metrics = Metrics::register(&mut Registry::default());
        let progress =
            Progress::new(server.client(), Arc::default(), metrics, Arc::default(), Arc::default());
        progress.index.lock().apply(given.clone());
        Self { progress, server }
    }

    async fn report(&self, attempt: i64, claim: Option<ReportedProgress>, second: i64) -> &'static str {
        let job = self.progress.index.lock().jobs().get(&key("bert")).cloned().expect("a job");
        self.progress.handle_report(&key("bert"), &job, attempt, claim, at(second)).await.expect("taken")
    }

    /// Runs this replica's loop from one second to another.
    async fn run(&self, from: i64, to: i64) {
        for second in from..to {
            self.progress.write_due(at(second)).await;
        }
    }

    fn last(&self) -> Option<Timestamp> {
        self.progress.last.lock().get("j1").copied()
    }

    fn written(&self) -> Vec<i64> {
        let patches = self.server.sent(&Method::PATCH);
        patches.iter().map(|call| call.body["status"]["progress"]["milliPercent"].as_i64().unwrap()).collect()
    }

    async fn post(&self, job: &str, token: &str, from: [u8; 4]) -> (StatusCode, Value) {
        let path = format!("/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/{job}/status");
        let mut request = HttpRequest::post(path)
            .header("authorization", format!("Bearer {token}"))
            .body(Body::from(r#"{"trainerStatus":{"progressPercentage":50}}"#))
            .expect("a request");
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from((from, 1))));
        let answer = router(Arc::clone(&self.progress)).oneshot(request).await.expect("an answer");
        let code = answer.status();
        let body = answer.into_body().collect().await.expect("a body").to_bytes();
        (code, serde_json::from_slice(&body).expect("json"))
    }
}

/// The response to a write of the report at `second`.
fn wrote(milli_percent: i32, second: u64) -> Answer {
    let at = i64::try_from(second).expect("small");
    let answer = serde_json::to_value(job_at(11 + second, 2, (2, milli_percent), at)).expect("json");
    (Method::PATCH, "/bert/status", 200, answer)
}

/// The API server's answer to an invalid token.
fn not_authenticated() -> Answer {
    (Method::POST, "/tokenreviews", 201, json!({"spec": {}, "status": {"authenticated": false}}))
}

#[tokio::test]
async fn a_program_that_hangs_between_whole_percents_is_not_taken_for_one_that_moves() {
    // Given a job at 40 % that reached 40.5 % and hangs while it repeats its report.
    let world = World::new(&job(10, 2, (2, 40_000)), vec![wrote(40_500, 10)]);
    assert_eq!(world.report(2, steps(40_500), 10).await, "later");
    for second in 11..300 {
        world.report(2, steps(40_500), second).await;
        world.run(second, second + 1).await;
    }
    // Then that one move is written once, and counts from when it was received.
    assert_eq!(world.last(), Some(at(10)));
    assert_eq!(world.written(), [40_500]);
    let at_ = world.server.sent(&Method::PATCH)[0].body["status"]["progress"]["at"].clone();
    assert_eq!(serde_json::from_value::<Timestamp>(at_).expect("a time"), at(10));
}

#[tokio::test]
async fn what_a_follower_hears_reaches_the_status_before_the_time_out() {
    // Given a slow healthy run, 0.1 % every 20 s with a time-out of 90 s, on a replica that is not the
    // leader.
    let world = World::new(&job(10, 2, (2, 40_000)), Vec::new());
    let mut since = 0;
    for second in (20..400).step_by(20) {
        let milli = 40_000 + i32::try_from(second).expect("small") * 5;
        world.server.answers.lock().push_back(wrote(milli, u64::try_from(second).expect("small")));
        world.report(2, steps(milli), second).await;
        world.run(second, second + 20).await;
        if world.server.answers.lock().is_empty() {
            since = second;
        } else {
            world.server.answers.lock().clear();
        }
        assert!(second - since < 60, "nothing written from {since} to {second}");
    }
    assert!(world.written().len() <= 14, "one write in 30 s at most: {:?}", world.written());
}

#[tokio::test]
async fn a_deferred_claim_of_an_attempt_that_is_over_overwrites_nothing() {
    // Given a deferred claim of attempt 2 here, while another replica gets reports of attempt 3.
    let world = World::new(&job(10, 2, (2, 40_000)), Vec::new());
    assert_eq!(world.report(2, steps(45_000), 5).await, "later");
    world.progress.index.lock().apply(job(20, 3, (3, 12_000)));
    world.run(5, 100).await;
    assert!(world.written().is_empty());
    // Also if this replica learns of it only by the conflict.
    let live = serde_json::to_value(job(20, 3, (3, 12_000))).expect("json");
    let world = World::new(
        &job(10, 2, (2, 40_000)),
        vec![
            (Method::PATCH, "/bert/status", 409, failure(409, "the object has been modified")),
            (Method::GET, "/bert", 200, live),
        ],
    );
    world.report(2, steps(45_000), 5).await;
    world.run(5, 100).await;
    assert_eq!(world.written(), [45_000], "the one that was refused");
}

#[tokio::test]
async fn a_write_that_fails_is_made_up_for() {
    let world = World::new(
        &job(10, 2, (2, 40_000)),
        vec![(Method::PATCH, "/bert/status", 503, failure(503, "busy")), wrote(50_000, 20)],
    );
    let job = world.progress.index.lock().jobs().get(&key("bert")).cloned().expect("a job");
    assert!(world.progress.handle_report(&key("bert"), &job, 2, steps(50_000), at(20)).await.is_err());
    world.run(20, 60).await;
    assert_eq!(world.written(), [50_000, 50_000]);
}

#[tokio::test]
async fn nobody_learns_which_jobs_there_are() {
    let world = World::new(&job(10, 2, (2, 40_000)), (0..2_000).map(|_| not_authenticated()).collect());
    let there = world.post("bert", "x", [10, 0, 0, 1]).await;
    let not_there = world.post("gpt", "x", [10, 0, 0, 2]).await;
    assert_eq!(there.0, StatusCode::FORBIDDEN);
    assert_eq!(there, not_there);
    // Nor by too many requests: with one token, and with many.
    for (token, code) in [("same", StatusCode::FORBIDDEN), ("many", StatusCode::TOO_MANY_REQUESTS)] {
        for (job, host) in [("bert", 3), ("gpt", 4)] {
            let mut last = StatusCode::OK;
            for n in 0..600 {
                let token = if token == "many" { format!("{token}{n}") } else { token.to_owned() };
                last = world.post(job, &token, [10, 0, 1, host]).await.0;
            }
            assert_eq!(last, code, "{token} {job}");
        }
    }
}

#[tokio::test]
async fn an_address_that_asks_too_much_costs_no_reviews_and_others_none_of_theirs() {
    let world = World::new(&job(10, 2, (2, 40_000)), (0..2_000).map(|_| not_authenticated()).collect());
    for n in 0..1_000 {
        world.post("bert", &format!("guess-{n}"), [10, 0, 0, 1]).await;
    }
    let reviews = world.server.sent(&Method::POST).len();
    assert!((256..600).contains(&reviews), "{reviews}");
    assert_eq!(world.post("bert", "mine", [10, 0, 0, 2]).await.0, StatusCode::FORBIDDEN);
    assert_eq!(world.server.sent(&Method::POST).len(), reviews + 1);
}

#[tokio::test]
async fn reports_of_members_of_the_current_attempt_are_accepted() {
    let review = json!({"spec": {}, "status": {"authenticated": true, "audiences": ["andreas.dev/progress/j1"],
        "user": {"username": "system:serviceaccount:team:default", "extra": {
            "authentication.kubernetes.io/pod-name": ["bert-1-0"], "authentication.kubernetes.io/pod-uid": ["p0"]}}}});
    let world = World::new(
        &job(10, 1, (1, 40_000)),
        vec![
            (Method::POST, "/tokenreviews", 201, review),
            (Method::GET, "/bert-1-0", 200, testing::pod(0, 5, "j1")),
            (
                Method::PATCH,
                "/bert/status",
                200,
                serde_json::to_value(job(11, 1, (1, 50_000))).expect("json"),
            ),
        ],
    );
    let (code, body) = world.post("bert", "t", [10, 0, 0, 1]).await;
    assert_eq!((code, &body["trainerStatus"]["progressPercentage"]), (StatusCode::OK, &json!(50.0)));
    assert_eq!(world.written(), [50_000]);
    let moved = world.last().expect("a move");
    assert!(moved >= Timestamp::now() - 1.minute());
}
