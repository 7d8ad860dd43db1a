//! Given a token and the API server's answer; when a report comes; then it is accepted, written or refused.

mod replicas;

use std::net::SocketAddr;

use andreas_api::names::HEADER_ENERGY;
use andreas_api::slim::{SlimGpuNode, SlimPod};
use andreas_runtime::watch::Index;
use axum::body::Body;
use axum::extract::ConnectInfo;
use http::{Method, Request, StatusCode, header};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::*;
use crate::testing::{self, Answer, ApiServer, failure};

struct World {
    server: ApiServer,
    progress: Arc<Progress>,
}

fn running(attempt: i64) -> Value {
    json!({"phase": "Running", "attempts": attempt, "allocation": {"attempt": attempt, "generation": 1, "gpuType": "A", "gpus": 1,
        "gpusPerWorker": 1, "nodes": ["n"], "since": "2026-01-01T00:00:00Z", "runningTime": "2026-01-01T00:00:00Z"}})
}

fn review(pod: &str, uid: &str) -> Value {
    json!({"spec": {}, "status": {"authenticated": true, "audiences": ["andreas.dev/progress/j1"],
        "user": {"username": "system:serviceaccount:team:default",
                 "extra": {"authentication.kubernetes.io/pod-name": [pod], "authentication.kubernetes.io/pod-uid": [uid]}}}})
}

impl World {
    fn new(status: Value, answers: Vec<Answer>) -> Self {
        let server = ApiServer::new(answers);
        let index: Arc<Mutex<ClusterIndex>> = Arc::default();
        let job = serde_json::from_value::<SlimTrainingJob>(testing::job(10, &status)).expect("a job");
        index.lock().apply(job);
        index.lock().apply(serde_json::from_value::<SlimPod>(testing::pod(0, 11, "j1")).expect("a pod"));
        let metrics = Metrics::register(&mut Registry::default());
        let progress = Progress::new(server.client(), index, metrics, LastReports::default(), Arc::default());
        Self { server, progress }
    }

    async fn post(&self, token: Option<&str>, body: Value) -> StatusCode {
        self.answer(token, body).await.status()
    }

    async fn answer(&self, token: Option<&str>, body: Value) -> http::Response<Body> {
        let path = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/bert/status";
        let mut request = Request::post(path);
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let mut request = request.body(Body::from(body.to_string())).expect("a request");
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([10, 0, 0, 1], 1))));
        router(Arc::clone(&self.progress)).oneshot(request).await.expect("an answer")
    }
}

fn percent(percent: i32) -> Value {
    json!({"trainerStatus": {"progressPercentage": percent}})
}

#[tokio::test]
async fn a_members_report_is_written_with_the_version_it_was_judged_by() {
    let answer = testing::job(12, &running(1));
    let world = World::new(
        running(1),
        vec![
            (Method::POST, "/tokenreviews", 201, review("bert-1-0", "p0")),
            (Method::PATCH, "/bert/status", 200, answer),
        ],
    );
    assert_eq!(world.post(Some("t"), percent(42)).await, StatusCode::OK);
    let asked = &world.server.sent(&Method::POST)[0].body["spec"];
    assert_eq!(asked["audiences"], json!(["andreas.dev/progress/j1"]));
    let patch = &world.server.sent(&Method::PATCH)[0].body;
    assert_eq!(patch["metadata"], json!({"uid": "j1", "resourceVersion": "10"}));
    assert_eq!(patch["status"]["progress"]["milliPercent"], 42_000);
    assert_eq!(patch["status"]["display"], json!({"progress": "42%"}));
    assert_eq!(patch["status"].as_object().map(serde_json::Map::len), Some(2), "nothing but progress");

    // The token is cached: a second report needs no review and is too soon to be written.
    assert_eq!(world.post(Some("t"), percent(0)).await, StatusCode::OK);
    assert_eq!(world.server.sent(&Method::POST).len(), 1);
    assert_eq!(world.server.sent(&Method::PATCH).len(), 1);
}

#[tokio::test]
async fn an_answer_tells_the_energy_of_all_attempts_so_far() {
    let mut status = running(1);
    status["consumption"] = json!({"joules": 500, "source": "Measured"});
    let answers = vec![
        (Method::POST, "/tokenreviews", 201, review("bert-1-0", "p0")),
        (Method::PATCH, "/bert/status", 200, testing::job(12, &status)),
    ];
    let world = World::new(status, answers);
    let mut pod = testing::pod(0, 12, "j1");
    pod["spec"]["nodeName"] = json!("n");
    world.progress.index.lock().apply(serde_json::from_value::<SlimPod>(pod).expect("a pod"));
    let gpu = |holder: &str| {
        json!({"metadata": {"name": "n", "resourceVersion": "5"}, "spec": {}, "status": {"gpus": [
            {"uuid": "a", "state": "Held", "holder": holder, "joules": 5_000, "heldFrom": 1_000},
            {"uuid": "b", "state": "Free", "joules": 70_000}]}})
    };
    let node = serde_json::from_value::<SlimGpuNode>(gpu("team/bert-1-0")).expect("a GpuNode");
    world.progress.index.lock().apply(node);
    let answer = world.answer(Some("t"), percent(42)).await;
    let said = answer.headers().get(HEADER_ENERGY).and_then(|joules| joules.to_str().ok());
    assert_eq!((answer.status(), said), (StatusCode::OK, Some("4500")));
}

#[tokio::test]
async fn who_is_not_a_member_of_the_present_attempt_is_refused() {
    let unauthenticated = json!({"spec": {}, "status": {"authenticated": false}});
    for (attempt, review, code) in [
        (1, unauthenticated, StatusCode::FORBIDDEN),
        // A deleted pod of the same name.
        (1, review("bert-1-0", "older"), StatusCode::FORBIDDEN),
        // A foreign pod of the namespace.
        (1, review("other", "o"), StatusCode::FORBIDDEN),
        // The previous attempt.
        (2, review("bert-1-0", "p0"), StatusCode::FORBIDDEN),
    ] {
        let world = World::new(running(attempt), vec![(Method::POST, "/tokenreviews", 201, review)]);
        assert_eq!(world.post(Some("t"), percent(42)).await, code);
        assert!(world.server.sent(&Method::PATCH).is_empty());
    }
    let world = World::new(running(1), Vec::new());
    assert_eq!(world.post(None, percent(42)).await, StatusCode::UNAUTHORIZED);
    assert!(world.server.calls.lock().is_empty(), "nobody is asked for a report without token");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_no_member_is_read_once_a_minute_however_much_it_posts() {
    // given a pod of the namespace that is no member, with a token for the job
    let bystander = json!({"metadata": {"name": "other", "namespace": "team", "uid": "o", "resourceVersion": "9"},
        "spec": {"containers": []}, "status": {"phase": "Running"}});
    let mut answers: Vec<Answer> =
        (0..2_000).map(|_| (Method::POST, "/tokenreviews", 201, review("other", "o"))).collect();
    answers.extend((0..5).map(|_| (Method::GET, "/pods/other", 200, bystander.clone())));
    let world = World::new(running(1), answers);
    // when it posts a thousand times, with one token and with many
    for n in 0..1_000 {
        let token = if n % 4 == 0 { format!("t{n}") } else { "t".to_owned() };
        let code = world.post(Some(&token), percent(42)).await;
        assert!(matches!(code, StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS), "{code}");
    }
    // then it was read once,
    assert_eq!(world.server.sent(&Method::GET).len(), 1);
    // and again a minute later
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(world.post(Some("t"), percent(42)).await, StatusCode::FORBIDDEN);
    assert_eq!(world.server.sent(&Method::GET).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_cannot_cause_live_reads_without_bound() {
    // given as many pods as it likes, none of them a member
    let world = World::new(running(1), Vec::new());
    let mut refused = 0;
    for n in 0..200 {
        let pod =
            token::PodIdentity { namespace: "team".into(), name: format!("o{n}"), uid: format!("u{n}") };
        let key = ObjectKey { namespace: "team".into(), name: "bert".into() };
        refused += usize::from(world.progress.members.attempt(&key, "j1", &pod).await.is_err());
    }
    assert_eq!((world.server.sent(&Method::GET).len(), refused), (32, 168));
}

#[tokio::test]
async fn a_report_that_could_not_be_checked_is_remembered_as_turned_away_if_it_names_its_job() {
    let of = |uid: &str| testing::token(&json!({"aud": [format!("andreas.dev/progress/{uid}")]}));
    for (token, counts) in [(of("j1"), true), (of("j2"), false), ("t".to_owned(), false)] {
        // given an API server whose token reviews fail
        let world = World::new(running(1), vec![(Method::POST, "/tokenreviews", 500, failure(500, "etcd"))]);
        let lost = |world: &World, uid: &str| world.progress.rejected_reports.last_possible_loss(uid);
        let before = lost(&world, "j1");
        assert_eq!(world.post(Some(&token), percent(42)).await, StatusCode::SERVICE_UNAVAILABLE);
        // then that job's time-out, and no other job's, counts from now, if the sender knows the job's UID
        assert_eq!((lost(&world, "j1") > before, lost(&world, "j2")), (counts, before), "{token}");
        // and the same where its sender waits no longer for the answer
        let reviewed = (Method::POST, "/tokenreviews", 201, review("bert-1-0", "p0"));
        let world = World::new(running(1), vec![reviewed]);
        let before = lost(&world, "j1");
        tokio::select! {
            biased;
            _ = world.post(Some(&token), percent(42)) => panic!("nothing is answered at once"),
            () = std::future::ready(()) => {}
        }
        assert_eq!(lost(&world, "j1") > before, counts, "{token}");
        // and a pod that cannot be read gives no verdict on its report
        let unreadable = vec![
            (Method::POST, "/tokenreviews", 201, review("other", "o")),
            (Method::GET, "/pods/other", 500, failure(500, "etcd")),
        ];
        let world = World::new(running(1), unreadable);
        let before = lost(&world, "j1");
        assert_eq!(world.post(Some(&token), percent(42)).await, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(lost(&world, "j1") > before, counts, "{token}");
    }
}

#[tokio::test]
async fn deleted_jobs_are_forgotten_also_where_their_reports_were_turned_away_only() {
    let world = World::new(running(1), Vec::new());
    let reports = &world.progress.rejected_reports;
    reports.note("j1", clock::now());
    for deleted in 0..TIDY_ABOVE {
        reports.note(&deleted.to_string(), clock::now());
    }
    world.progress.tidy();
    assert_eq!(reports.remembered(), 1);
}

#[tokio::test]
async fn a_conflict_with_the_leader_is_judged_again_from_what_is_true_now() {
    let mut ahead = running(1);
    ahead["progress"] =
        json!({"milliPercent": 50_000, "attempt": 1, "at": "2026-01-01T00:00:10Z", "attemptStart": 0});
    let world = World::new(
        running(1),
        vec![
            (Method::POST, "/tokenreviews", 201, review("bert-1-0", "p0")),
            (Method::PATCH, "/bert/status", 409, failure(409, "the object has been modified")),
            (Method::GET, "/bert", 200, testing::job(20, &ahead)),
        ],
    );
    // 42 % is below the 50 % written by another replica: progress never goes back.
    assert_eq!(world.post(Some("t"), percent(42)).await, StatusCode::OK);
    assert_eq!(world.server.sent(&Method::PATCH).len(), 1);
}

/// Somebody may edit the job all the time.
#[tokio::test]
async fn after_a_conflict_a_report_is_written_whatever_else_of_the_job_changes() {
    let mut behind = running(1);
    behind["progress"] =
        json!({"milliPercent": 10_000, "attempt": 1, "at": "2026-01-01T00:00:10Z", "attemptStart": 0});
    let refused = failure(422, "testing value /status/progress/milliPercent failed");
    let world = World::new(
        running(1),
        vec![
            (Method::POST, "/tokenreviews", 201, review("bert-1-0", "p0")),
            (Method::PATCH, "/bert/status", 409, failure(409, "the object has been modified")),
            (Method::GET, "/bert", 200, testing::job(20, &behind)),
            (Method::PATCH, "/bert/status", 422, refused),
            (Method::GET, "/bert", 200, testing::job(21, &behind)),
            (Method::PATCH, "/bert/status", 200, testing::job(22, &behind)),
        ],
    );
    assert_eq!(world.post(Some("t"), percent(42)).await, StatusCode::OK);
    let sent = world.server.sent(&Method::PATCH);
    let last = sent[2].body.as_array().expect("operations");
    let tested: Vec<&str> =
        last.iter().filter(|one| one["op"] == "test").filter_map(|one| one["path"].as_str()).collect();
    let expected = [
        "/metadata/uid",
        "/status/allocation/attempt",
        "/status/progress/attempt",
        "/status/progress/milliPercent",
        "/status/display",
    ];
    assert_eq!(tested, expected);
    let set = last.iter().find(|one| one["op"] == "add").expect("an operation");
    assert_eq!((&set["path"], &set["value"]["milliPercent"]), (&json!("/status/progress"), &json!(42_000)));
}

#[tokio::test]
async fn bodies_are_small_and_well_formed() {
    let reviewed = || vec![(Method::POST, "/tokenreviews", 201, review("bert-1-0", "p0"))];
    let world = World::new(running(1), reviewed());
    assert_eq!(world.post(Some("t"), json!({"trainerStatus": 7})).await, StatusCode::BAD_REQUEST);
    let world = World::new(running(1), reviewed());
    let large = json!({"trainerStatus": {"lastUpdatedTime": "x".repeat(100_000)}});
    assert_eq!(world.post(Some("t"), large).await, StatusCode::PAYLOAD_TOO_LARGE);
}

/// Impossible values: negative, beyond the end, not a number, infinite; and a clock that runs backwards.
#[tokio::test]
async fn what_cannot_be_true_is_taken_for_nothing_said() {
    let metric = |name: &str, value: &str| json!({"name": name, "value": value});
    let steps = |done: &str, all: &str| json!({"metrics": [metric("current_step", done), metric("total_steps", all)]});
    let answers = vec![
        (Method::POST, "/tokenreviews", 201, review("bert-1-0", "p0")),
        (Method::PATCH, "/bert/status", 200, testing::job(12, &running(1))),
    ];
    let world = World::new(running(1), answers);
    for said in [
        json!({"progressPercentage": -5}),
        json!({"progressPercentage": 100.001}),
        json!({"progressPercentage": 1e12}),
        json!({"progressPercentage": -1e300}),
        steps("NaN", "10"),
        steps("-1", "10"),
        steps("1", "0"),
        steps("1", "-10"),
        steps("inf", "inf"),
        steps("1e400", "1"),
        json!({"metrics": [metric("current_epoch", "-1e12")]}),
        json!({"metrics": vec![metric("loss", "nan"); 300]}),
        json!({"estimatedRemainingSeconds": -1e12, "lastUpdatedTime": "1970-01-01T00:00:00Z"}),
    ] {
        assert_eq!(world.post(Some("t"), json!({"trainerStatus": said})).await, StatusCode::OK, "{said}");
        assert!(world.server.sent(&Method::PATCH).is_empty(), "{said}");
    }
    // After all that a valid report counts, whatever its own clock shows.
    let mut honest = steps("3", "10");
    honest["lastUpdatedTime"] = "0001-01-01T00:00:00Z".into();
    assert_eq!(world.post(Some("t"), json!({"trainerStatus": honest})).await, StatusCode::OK);
    let written = world.server.sent(&Method::PATCH);
    assert_eq!(written[0].body["status"]["progress"]["milliPercent"], 30_000);
}
