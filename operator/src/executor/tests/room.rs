//! Given jobs with the same GPUs allocated; when each checks for free GPUs; then exactly one finds them.

use andreas_api::slim::{SlimNode, SlimPod, SlimQuota};
use andreas_runtime::clock;
use jiff::SignedDuration;

use super::*;
use crate::executor::observe::JobInput;

struct Room {
    index: ClusterIndex,
    ledger: Ledger,
}

impl Room {
    /// One node with four GPUs.
    fn new() -> Self {
        let mut index = ClusterIndex::new();
        let node: SlimNode = serde_json::from_value(json!({
            "metadata": {"name": "n1", "resourceVersion": "1"},
            "status": {"allocatable": {"nvidia.com/gpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}}))
        .expect("a node");
        index.apply(node);
        Self { index, ledger: Ledger::new(Timestamp::UNIX_EPOCH) }
    }

    /// A job that was allocated all of it at second `since` and was created at `created`.
    fn starts(&mut self, name: &str, created: &str, since: &str, metadata: Value) -> &mut Self {
        let allocation = json!({"attempt": 1, "generation": 1, "gpuType": "A", "gpus": 4, "gpusPerWorker": 4, "nodes": ["n1"],
            "since": since, "watts": 0});
        let mut job =
            testing::job(10, &json!({"phase": "Starting", "decisions": 1, "allocation": allocation}));
        job["spec"]["gpus"] = json!({"min": 4});
        job["metadata"]["name"] = name.into();
        job["metadata"]["uid"] = format!("uid-of-{name}").into();
        job["metadata"]["creationTimestamp"] = created.into();
        for (field, value) in metadata.as_object().into_iter().flatten() {
            job["metadata"][field] = value.clone();
        }
        self.index.apply(serde_json::from_value::<SlimTrainingJob>(job).expect("a job"));
        self
    }

    fn finds_room(&mut self, name: &str) -> bool {
        let memory = self.ledger.entry(&key(name), &format!("uid-of-{name}"));
        memory.record_dry_run(DryRunResult {
            smaller: None,
            gpus: 1,
            at: Timestamp::UNIX_EPOCH,
            refusal: None,
            admitted: None,
        });
        let memory = memory.clone();
        let seen = JobInput::gather(&self.index, |_| memory, &key(name), Arc::default(), Timestamp::now());
        let step = seen.expect("the job").step();
        step.actions.iter().any(|action| matches!(action, Action::CreatePods { .. }))
    }
}

const EARLY: &str = "2026-01-01T00:00:00Z";
const LATE: &str = "2026-01-01T00:00:01Z";

#[test]
fn of_two_allocations_the_earlier_has_the_gpus() {
    let mut room = Room::new();
    room.starts("a", EARLY, LATE, json!({})).starts("b", LATE, EARLY, json!({}));
    assert_eq!((room.finds_room("a"), room.finds_room("b")), (false, true));
}

#[test]
fn of_two_allocations_of_the_same_second_the_older_job_has_the_gpus_whatever_its_name() {
    for (older, younger) in [("a", "b"), ("b", "a")] {
        let mut room = Room::new();
        room.starts(older, EARLY, LATE, json!({})).starts(younger, LATE, LATE, json!({}));
        assert_eq!((room.finds_room(older), room.finds_room(younger)), (true, false));
    }
}

#[test]
fn pods_that_ask_for_more_gpus_than_a_sum_can_hold_leave_no_room() {
    let mut room = Room::new();
    room.starts("a", EARLY, EARLY, json!({}));
    assert!(room.finds_room("a"));
    for n in 0..3 {
        let mut pod = testing::pod(n, 5, "other");
        pod["spec"]["nodeName"] = "n1".into();
        let requests = json!({"requests": {"nvidia.com/gpu": "9223372036854775807"}});
        pod["spec"]["containers"] = json!([{"name": "t", "resources": requests}]);
        room.index.apply(serde_json::from_value::<SlimPod>(pod).expect("a pod"));
    }
    assert!(!room.finds_room("a"));
}

#[test]
fn a_job_that_is_being_deleted_keeps_no_gpus_without_pods_there() {
    let mut room = Room::new();
    let deleted = json!({"deletionTimestamp": LATE, "finalizers": ["x.example/y"]});
    room.starts("deleted", EARLY, EARLY, deleted).starts("next", LATE, LATE, json!({}));
    assert!(room.finds_room("next"));
    // Its pod bound there keeps them until it has ended.
    let mut bound = pod(0, 20, "uid-of-deleted");
    bound["metadata"]["labels"]["andreas.dev/job"] = "deleted".into();
    bound["metadata"]["ownerReferences"][0]["name"] = "deleted".into();
    bound["spec"] = json!({"nodeName": "n1", "containers": [{"name": "t", "resources": {"requests": {"nvidia.com/gpu": "4"}}}]});
    room.index.apply(serde_json::from_value::<andreas_api::slim::SlimPod>(bound).expect("a pod"));
    assert!(!room.finds_room("next"));
}

#[test]
fn a_gang_with_a_claim_that_one_node_can_mount_is_given_no_gpus() {
    let step = |max_nodes: i32, modes: &[&str]| {
        let mut room = Room::new();
        let claim = json!({"metadata": {"name": "ckpt", "namespace": "team", "resourceVersion": "1"},
            "spec": {"accessModes": modes}, "status": {"phase": "Bound"}});
        room.index.apply(
            serde_json::from_value::<andreas_api::slim::SlimPersistentVolumeClaim>(claim).expect("a claim"),
        );
        let mut job = testing::job(10, &json!(null));
        job["spec"]["gpus"] = json!({"max": 8, "maxNodes": max_nodes});
        job["spec"]["checkpoint"] = json!({"claimName": "ckpt"});
        room.index.apply(serde_json::from_value::<SlimTrainingJob>(job).expect("a job"));
        let memory = room.ledger.entry(&key("bert"), "j1").clone();
        let seen = JobInput::gather(&room.index, |_| memory, &key("bert"), Arc::default(), Timestamp::now());
        seen.expect("the job").step()
    };
    let said = |max_nodes, modes: &[&str]| step(max_nodes, modes).status.reason.unwrap_or_default();
    assert_eq!(said(2, &["ReadWriteOnce"]), "TemplateRejected");
    assert_ne!(said(1, &["ReadWriteOnce"]), "TemplateRejected");
    assert_ne!(said(2, &["ReadWriteOnce", "ReadWriteMany"]), "TemplateRejected");
}

/// A quota of two pods, of which so many are used.
fn quota(world: &World, version: u64, used: u32) {
    let quota: SlimQuota = serde_json::from_value(json!({
        "metadata": {"name": "q", "namespace": "team", "resourceVersion": version.to_string()}, "spec": {},
        "status": {"hard": {"pods": "2"}, "used": {"pods": used.to_string()}}}))
    .expect("a quota");
    world.shared.index.lock().apply(quota);
}

fn room_since(world: &World, ago: SignedDuration) {
    let since = clock::now().checked_sub(ago).expect("a time");
    let mut ledger = world.shared.ledger.lock();
    ledger.entry(&key("bert"), "j1").creation().record_room(7, since);
}

#[tokio::test]
async fn pods_wait_until_the_quota_of_ended_pods_is_given_back() {
    let made = || {
        vec![(Method::POST, "/pods", 201, pod(0, 20, "j1")), (Method::POST, "/pods", 201, pod(1, 21, "j1"))]
    };
    let world = World::new(made());
    room_since(&world, SignedDuration::ZERO);
    // The quota controller has not seen the end of a pod yet.
    quota(&world, 30, 1);
    assert!(matches!(world.create_two().await, Err(Requeue::After(_))));
    assert!(world.sent(Method::POST).is_empty());
    quota(&world, 31, 0);
    assert_eq!(world.create_two().await, Ok(()));
    // What stays used is for the API server to say.
    let world = World::new(made());
    room_since(&world, SignedDuration::from_secs(16));
    quota(&world, 30, 1);
    assert_eq!(world.create_two().await, Ok(()));
}
