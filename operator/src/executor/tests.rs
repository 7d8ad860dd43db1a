//! Given scripted API server answers; when a job is stepped or its actions run; then the expected calls are
//! made and state kept.

use andreas_api::Reason;
use andreas_api::slim::{SlimPodSpec, SlimTrainingJob};
use andreas_cluster::index::ClusterIndex;
use andreas_lifecycle::{Action, Admitted, CreationOutcome, DeleteReason, DryRunResult};
use andreas_runtime::watch::Index;
use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::events::Reporter;
use serde_json::{Value, json};

use super::*;
use crate::ledger::Ledger;
use crate::objects::profiles;
use crate::testing::{self, Answer, ApiServer, Call, failure, key, pod, slim_job};

mod edits;
mod memory;
mod room;
mod services;
mod tried;

struct World {
    shared: Arc<Shared>,
    executor: Arc<Executor>,
    server: ApiServer,
}

fn exists(pod: &str) -> Value {
    let mut status = failure(409, &format!("pods \"{pod}\" already exists"));
    status["reason"] = json!("AlreadyExists");
    status
}

/// A conflict on a quota's use.
fn contended() -> Value {
    let mut status =
        failure(409, "Operation cannot be fulfilled on resourcequotas \"q\": the object has been modified");
    status["reason"] = json!("Conflict");
    status
}

impl World {
    fn new(answers: Vec<Answer>) -> Self {
        let server = ApiServer::new(answers);
        let client = server.client();
        let reporter = Reporter { controller: "test".into(), instance: None };
        let shared = testing::shared(Arc::default(), &client, Timestamp::UNIX_EPOCH);
        let executor = Arc::new(Executor {
            shared: Arc::clone(&shared),
            events: Events::new(client, reporter).0,
            profile_updates: Arc::default(),
            reports: Arc::default(),
            rejected_reports: Arc::default(),
            dry_runs: dry_runs::DryRunCache::default(),
            rate_limits: rate_limits::RateLimits::default(),
        });
        shared.ledger.lock().entry(&key("bert"), "j1");
        Self { shared, executor, server }
    }

    fn given(self, status: Value) -> Self {
        self.shared.index.lock().apply(slim_job(10, &status));
        self
    }

    async fn do_all(&self, actions: Vec<Action>) -> Result<(), Requeue> {
        actions::carry_out(&self.executor, &key("bert"), &slim_job(10, &json!(null)), actions).await
    }

    async fn create_two(&self) -> Result<(), Requeue> {
        let pods = [0, 1].map(|index| serde_json::from_value::<Pod>(pod(index, 1, "j1")).expect("a pod"));
        self.do_all(vec![Action::CreatePods { generation: 7, pods: pods.into() }]).await
    }

    fn outcome(&self) -> CreationOutcome {
        let ledger = self.shared.ledger.lock();
        ledger
            .get(&key("bert"))
            .map(|memory| memory.admission().creation.outcome().clone())
            .expect("remembered")
    }

    fn sent(&self, method: Method) -> Vec<Call> {
        self.server.sent(&method)
    }
}

#[tokio::test]
async fn a_gang_is_made_whole_and_seen_at_once() {
    let world = World::new(vec![
        (Method::POST, "/pods", 201, pod(0, 20, "j1")),
        (Method::POST, "/pods", 201, pod(1, 21, "j1")),
    ]);
    assert_eq!(world.create_two().await, Ok(()));
    assert_eq!(world.outcome(), CreationOutcome::Made);
    assert_eq!(world.shared.index.lock().members(&key("bert")).len(), 2, "before any watch shows them");
}

#[tokio::test]
async fn half_a_gang_is_taken_back_with_the_servers_words() {
    let words =
        "pods \"bert-1-1\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1";
    let world = World::new(vec![
        (Method::POST, "/pods", 201, pod(0, 20, "j1")),
        (Method::POST, "/pods", 403, failure(403, words)),
        (Method::DELETE, "/bert-1-0", 200, json!({"kind": "Status", "status": "Success"})),
    ]);
    assert_eq!(world.create_two().await, Err(Requeue::Now));
    let deleted = world.sent(Method::DELETE);
    assert_eq!(deleted.len(), 1);
    assert_eq!(deleted[0].body["preconditions"]["uid"], "p0");
    assert_eq!(
        world.outcome(),
        CreationOutcome::Refused { reason: Reason::QuotaExceeded, message: words.to_owned() }
    );
    assert!(world.shared.index.lock().members(&key("bert")).is_empty());
}

#[tokio::test]
async fn a_pod_that_is_there_is_ours_or_in_the_way() {
    for (owner, outcome) in
        [("j1", CreationOutcome::Made), ("j0", CreationOutcome::NameInUse { name: "bert-1-1".into() })]
    {
        let world = World::new(vec![
            (Method::POST, "/pods", 201, pod(0, 20, "j1")),
            (Method::POST, "/pods", 409, exists("bert-1-1")),
            (Method::GET, "/bert-1-1", 200, pod(1, 15, owner)),
            (Method::DELETE, "/bert-1-0", 200, json!({"kind": "Status", "status": "Success"})),
        ]);
        let _ = world.create_two().await;
        assert_eq!(world.outcome(), outcome);
        assert_eq!(world.sent(Method::DELETE).len(), usize::from(owner == "j0"));
    }
}

#[tokio::test]
async fn contention_for_a_quota_is_no_verdict_and_is_tried_again_later() {
    let dry = || Action::DryRun {
        gpus: 1,
        pod: Box::new(serde_json::from_value(pod(0, 1, "j1")).expect("a pod")),
        smaller: Vec::new(),
    };
    let dry_run = |world: &World| {
        world
            .shared
            .ledger
            .lock()
            .get(&key("bert"))
            .and_then(|memory| memory.admission().dry_run.clone())
            .map(|v| v.refusal)
    };
    // A dry run with a conflict gives no verdict; an existing name means it was accepted before.
    let world = World::new(vec![(Method::POST, "/pods", 409, contended())]);
    assert!(matches!(world.do_all(vec![dry()]).await, Err(Requeue::After(_))));
    assert_eq!(dry_run(&world), None);
    let world = World::new(vec![(Method::POST, "/pods", 409, exists("bert-1-0"))]);
    let known = Arc::new(Admitted { sent: SlimPodSpec::default(), kept: SlimPodSpec::default() });
    let earlier = DryRunResult {
        gpus: 1,
        smaller: None,
        at: Timestamp::UNIX_EPOCH,
        refusal: None,
        admitted: Some(known),
    };
    let memory = |world: &World, result: DryRunResult| {
        world.shared.ledger.lock().entry(&key("bert"), "j1").record_dry_run(result);
    };
    memory(&world, earlier.clone());
    assert_eq!(world.do_all(vec![dry()]).await, Ok(()));
    assert_eq!(dry_run(&world), Some(None));
    // What admission added before stays known.
    let after = || {
        let ledger = world.shared.ledger.lock();
        ledger.get(&key("bert")).and_then(|memory| memory.admission().dry_run.clone())
    };
    assert_eq!(after().expect("a result").admitted, earlier.admitted);

    // Pods that were not created are not looked up, and each failure waits longer.
    let twice = |code: u16, body: Value| {
        vec![(Method::POST, "/pods", code, body.clone()), (Method::POST, "/pods", code, body)]
    };
    let world = World::new([twice(409, contended()), twice(409, contended())].concat());
    let (Err(Requeue::After(first)), Err(Requeue::After(second))) =
        (world.create_two().await, world.create_two().await)
    else {
        panic!("not waited");
    };
    assert!(second > first);
    assert!(world.sent(Method::GET).is_empty());
    let world = World::new(vec![(Method::DELETE, "/bert", 409, failure(409, "Precondition failed: UID"))]);
    let gone = world.do_all(vec![Action::DeleteJob { uid: "j1".into(), version: Some("7".into()) }]).await;
    assert!(matches!(gone, Err(Requeue::After(_))));
    let of = json!({"uid": "j1", "resourceVersion": "7"});
    assert_eq!(world.sent(Method::DELETE)[0].body["preconditions"], of);
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_is_waited_for_without_telling_anybody() {
    let mut busy = failure(429, "too many requests");
    busy["details"] = json!({"retryAfterSeconds": 2});
    let world = World::new(vec![
        (Method::POST, "/pods", 429, busy),
        (Method::POST, "/pods", 201, pod(0, 20, "j1")),
        (Method::POST, "/pods", 201, pod(1, 21, "j1")),
    ]);
    let started = Instant::now();
    assert_eq!(world.create_two().await, Ok(()));
    assert!(started.elapsed() >= Duration::from_secs(2));
    assert_eq!(world.outcome(), CreationOutcome::Made);
}

#[tokio::test]
async fn nothing_is_deleted_without_a_look() {
    let delete = |uid: &str| Action::DeletePod {
        name: "bert-1-0".into(),
        uid: uid.into(),
        grace: None,
        why: DeleteReason::Stop,
    };
    // Another object has the name by now.
    let world = World::new(vec![(Method::GET, "/bert-1-0", 200, pod(0, 20, "j1"))]);
    assert_eq!(world.do_all(vec![delete("older")]).await, Ok(()));
    assert!(world.sent(Method::DELETE).is_empty());

    // It ended meanwhile: the next step uses the new state.
    let mut ended = pod(0, 30, "j1");
    ended["status"]["phase"] = json!("Succeeded");
    let world = World::new(vec![(Method::GET, "/bert-1-0", 200, ended)]);
    assert_eq!(world.do_all(vec![delete("p0")]).await, Err(Requeue::Now));
    assert!(world.sent(Method::DELETE).is_empty());
    assert_eq!(world.shared.index.lock().members(&key("bert"))[0].status.phase, "Succeeded");
}

#[tokio::test]
async fn a_status_is_written_with_what_it_was_made_from_and_nothing_follows_a_conflict() {
    let answer = serde_json::to_value(slim_job(20, &json!({"phase": "Pending"}))).expect("json");
    let world = World::new(vec![
        (Method::PATCH, "/bert/status", 409, failure(409, "the object has been modified")),
        (Method::GET, "/bert", 200, answer),
    ])
    .given(json!({"phase": "Pending", "reason": "NotPlannedYet", "attempts": 0}));
    // A suspended job needs a status change.
    let mut suspended = slim_job(11, &json!({"phase": "Pending", "reason": "NotPlannedYet"}));
    suspended.spec.suspend = true;
    world.shared.index.lock().apply(suspended);
    assert_eq!(work::step(&world.executor, &key("bert")).await, Requeue::Now);
    let patches = world.sent(Method::PATCH);
    assert_eq!(patches[0].body["metadata"], json!({"uid": "j1", "resourceVersion": "11"}));
    assert_eq!(patches[0].body["status"]["phase"], "Suspended");
    assert!(patches[0].body["status"].get("progress").is_none());
    assert!(world.sent(Method::POST).is_empty());
    // The live read is in the index.
    let index = world.shared.index.lock();
    assert_eq!(
        index.jobs().get(&key("bert")).and_then(|job| job.metadata.resource_version.clone()).as_deref(),
        Some("20")
    );
    assert!(world.server.answers.lock().is_empty());
}

#[tokio::test]
async fn a_status_whose_answer_was_lost_counts_as_written_until_the_job_has_been_read() {
    let suspended = |version: u64, status: Value| {
        let mut job = testing::job(version, &status);
        job["spec"]["suspend"] = true.into();
        job
    };
    let pending = |world: &World| {
        world
            .shared
            .ledger
            .lock()
            .get(&key("bert"))
            .and_then(|memory| memory.pending().cloned())
            .map(|s| s.phase)
    };
    let before = json!({"phase": "Pending", "reason": "NotPlannedYet"});
    let given = |answers: Vec<Answer>| {
        let world = World::new(answers);
        let job = serde_json::from_value::<SlimTrainingJob>(suspended(10, before.clone())).expect("a job");
        world.shared.index.lock().apply(job);
        world
    };
    // Given a write with neither answer nor readable result; then it stays pending.
    let world = given(vec![
        (Method::PATCH, "/bert/status", 504, failure(504, "time-out")),
        (Method::GET, "/bert", 503, failure(503, "away")),
        (Method::GET, "/bert", 200, suspended(20, json!({"phase": "Suspended", "reason": "Suspended"}))),
        (
            Method::PATCH,
            "/bert/status",
            200,
            suspended(21, json!({"phase": "Suspended", "reason": "Suspended"})),
        ),
    ]);
    assert!(matches!(work::step(&world.executor, &key("bert")).await, Requeue::After(_)));
    assert_eq!(pending(&world), Some(andreas_api::Phase::Suspended));
    // The next step reads the job first and finds it written.
    work::step(&world.executor, &key("bert")).await;
    assert_eq!(pending(&world), None);
    let versions: Vec<Value> = world
        .sent(Method::PATCH)
        .into_iter()
        .map(|call| call.body["metadata"]["resourceVersion"].clone())
        .collect();
    assert!(versions == ["10"] || versions == ["10", "20"], "{versions:?}");

    // Given a client that repeats the write after a lost answer and conflicts with itself.
    let world = given(vec![
        (Method::PATCH, "/bert/status", 409, failure(409, "the object has been modified")),
        (Method::GET, "/bert", 503, failure(503, "away")),
    ]);
    assert!(matches!(work::step(&world.executor, &key("bert")).await, Requeue::After(_)));
    assert_eq!(pending(&world), Some(andreas_api::Phase::Suspended));

    // Given a readable result: if written, the job continues at once; if not, it is retried later.
    let written = suspended(20, json!({"phase": "Suspended", "reason": "Suspended"}));
    for (live, again) in [(written, true), (suspended(10, before.clone()), false)] {
        let world = given(vec![
            (Method::PATCH, "/bert/status", 504, failure(504, "time-out")),
            (Method::GET, "/bert", 200, live),
        ]);
        assert_eq!(work::step(&world.executor, &key("bert")).await == Requeue::Now, again);
        assert_eq!(pending(&world), None);
    }
}

#[tokio::test]
async fn what_jobs_of_one_profile_teach_is_one_write_and_takes_nothing_from_who_wrote_before() {
    let row = |run: &str| {
        json!({"run": run, "gpuType": "A", "gpus": 1, "nodes": 1, "millisPerEpoch": 5_000, "milliEpochs": 3_000,
            "at": "2026-01-02T03:04:05Z"})
    };
    let profile = |version: u64, runs: &[&str]| {
        let rows: Vec<Value> = runs.iter().map(|run| row(run)).collect();
        json!({"metadata": {"name": "family", "namespace": "team", "uid": "p", "resourceVersion": version.to_string()},
            "spec": {}, "status": {"observations": rows}})
    };
    // Given a profile that another client writes between our read and our write.
    let world = World::new(vec![
        (Method::GET, "/family", 200, profile(1, &["old-1"])),
        (Method::PATCH, "/family/status", 409, contended()),
        (Method::GET, "/family", 200, profile(2, &["old-1", "theirs-1"])),
        (Method::PATCH, "/family/status", 200, profile(3, &[])),
    ]);
    for run in ["a-1", "b-1"] {
        let seen = serde_json::from_value(row(run)).expect("an observation");
        let update = andreas_lifecycle::ProfileUpdate::Observation(seen);
        world.executor.profile_updates.add(key("family"), vec![update]);
    }
    // When updates of two jobs are written, and the refused write is repeated.
    profiles::write(&world.shared, &world.executor.profile_updates).await;
    profiles::write(&world.shared, &world.executor.profile_updates).await;
    profiles::write(&world.shared, &world.executor.profile_updates).await;
    // Then all four are stored.
    let writes = world.sent(Method::PATCH);
    let versions: Vec<_> = writes.iter().map(|call| &call.body["metadata"]["resourceVersion"]).collect();
    assert_eq!(versions, ["1", "2"]);
    let rows = writes[1].body["status"]["observations"].as_array().expect("rows");
    let runs: Vec<_> = rows.iter().map(|row| row["run"].as_str().unwrap_or_default()).collect();
    assert_eq!(runs, ["old-1", "theirs-1", "a-1", "b-1"]);
}

#[tokio::test]
async fn a_profile_that_no_job_has_used_for_long_is_deleted_as_it_was_seen_and_a_users_own_stays() {
    let world =
        World::new(vec![(Method::DELETE, "/ours", 200, json!({"kind": "Status", "status": "Success"}))]);
    for (name, labels) in [("ours", json!({"andreas.dev/made-by": "andreas-operator"})), ("users", json!({}))]
    {
        let profile = json!({"metadata": {"name": name, "namespace": "team", "uid": name, "resourceVersion": "7",
            "labels": labels, "creationTimestamp": "2020-01-01T00:00:00Z"}, "spec": {}});
        let profile: andreas_api::slim::SlimTrainingProfile =
            serde_json::from_value(profile).expect("a profile");
        world.shared.index.lock().apply(profile);
    }
    profiles::remove_unused(&world.shared).await;
    let deleted = world.sent(Method::DELETE);
    assert_eq!(deleted.len(), 1, "{deleted:?}");
    assert!(deleted[0].path.ends_with("/trainingprofiles/ours"), "{}", deleted[0].path);
    assert_eq!(deleted[0].body["preconditions"], json!({"uid": "ours", "resourceVersion": "7"}));
}

#[tokio::test]
async fn pods_of_a_deleted_job_end_though_its_status_cannot_be_written() {
    let live = |phase: &str| {
        let mut live = pod(0, 20, "j1");
        live["spec"]["nodeName"] = "n1".into();
        live["metadata"]["labels"]["andreas.dev/index"] = "0".into();
        live["status"]["phase"] = phase.into();
        live
    };
    let world = World::new(vec![
        (Method::PATCH, "/bert/status", 500, failure(500, "etcdserver: request is too large")),
        (Method::GET, "/bert-1-0", 200, live("Running")),
        (Method::DELETE, "/bert-1-0", 200, json!({"kind": "Status", "status": "Success"})),
    ]);
    let mut job = testing::job(
        10,
        &json!({"phase": "Running", "decisions": 1, "allocation": {"attempt": 1, "generation": 1,
        "gpuType": "A", "gpus": 1, "gpusPerWorker": 1, "nodes": ["n1"], "since": "2026-01-01T00:00:00Z",
        "runningTime": "2026-01-01T00:00:00Z", "watts": 0}}),
    );
    job["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z".into();
    job["metadata"]["finalizers"] = json!(["x.example/y"]);
    {
        let mut index = world.shared.index.lock();
        index.apply(serde_json::from_value::<SlimTrainingJob>(job).expect("a job"));
        index.apply(serde_json::from_value::<andreas_api::slim::SlimPod>(live("Running")).expect("a pod"));
        let node = json!({"metadata": {"name": "n1", "resourceVersion": "1"}});
        index.apply(serde_json::from_value::<andreas_api::slim::SlimNode>(node).expect("a node"));
    }
    assert!(matches!(work::step(&world.executor, &key("bert")).await, Requeue::After(_)));
    assert_eq!(world.sent(Method::DELETE)[0].body["preconditions"]["uid"], "p0");
    let ledger = world.shared.ledger.lock();
    let claim = ledger.get(&key("bert")).and_then(|memory| memory.claim().cloned());
    assert!(matches!(claim, Some(andreas_lifecycle::Claim::Stopping { goes_on: false, .. })), "{claim:?}");
}

#[tokio::test]
async fn what_the_api_server_gives_no_verdict_on_is_remembered_in_its_words_and_holds_the_namespace() {
    let words = "Internal error occurred: failed calling webhook \"w\": connection refused";
    // A pod of a gang: retried, the other stays; the step that withdraws the gang reports it.
    let world = World::new(vec![
        (Method::POST, "/pods", 201, pod(0, 20, "j1")),
        (Method::POST, "/pods", 500, failure(500, words)),
    ]);
    assert!(matches!(world.create_two().await, Err(Requeue::After(_))));
    let creation = world
        .shared
        .ledger
        .lock()
        .get(&key("bert"))
        .map(|memory| memory.admission().creation.clone())
        .expect("kept");
    assert!(creation.is_for(7));
    assert_eq!((creation.error_message(), creation.outcome()), (Some(words), &CreationOutcome::NotTried));
    assert!(world.sent(Method::DELETE).is_empty());
    let held = |world: &World| world.shared.ledger.lock().backoff("team").map(|held| held.message);
    assert_eq!(held(&world), None);
    assert_eq!(world.do_all(vec![Action::BackOff { message: words.into() }]).await, Ok(()));
    assert_eq!(held(&world).as_deref(), Some(words));

    // It is kept also where the deletion of the part that was made fails.
    let world = World::new(vec![(Method::GET, "/bert-1-0", 500, failure(500, "etcd"))]);
    let delete =
        Action::DeletePod { name: "bert-1-0".into(), uid: "p0".into(), grace: None, why: DeleteReason::Stop };
    let done = world.do_all(vec![delete, Action::BackOff { message: words.into() }]).await;
    assert!(done.is_err(), "{done:?}");
    assert_eq!(held(&world).as_deref(), Some(words));

    // A dry run; an answered one ends the backoff.
    let dry = || {
        let pod = serde_json::from_value::<Pod>(pod(0, 1, "j1")).expect("a pod");
        vec![Action::DryRun { gpus: 1, pod: Box::new(pod), smaller: Vec::new() }]
    };
    let world = World::new(vec![
        (Method::POST, "/pods", 500, failure(500, words)),
        (Method::POST, "/pods", 201, pod(0, 20, "j1")),
    ]);
    assert!(matches!(world.do_all(dry()).await, Err(Requeue::After(_))));
    assert_eq!(held(&world).as_deref(), Some(words));
    assert_eq!(world.do_all(dry()).await, Ok(()));
    assert_eq!(held(&world), None);
}
