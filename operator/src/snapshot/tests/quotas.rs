//! What the quotas of a namespace leave.

use super::*;

fn quota(hard: &Value, used: &Value) -> SlimQuota {
    serde_json::from_value(json!({
        "metadata": {"name": "q", "namespace": "team", "resourceVersion": "1000"},
        "status": {"hard": hard, "used": used},
    }))
    .expect("a quota")
}

#[test]
fn quotas_give_back_what_the_planner_takes_off_itself() {
    let mut world = World::default();
    let quota: SlimQuota = serde_json::from_value(json!({
        "metadata": {"name": "q", "namespace": "team", "resourceVersion": "1000"},
        "status": {"hard": {"requests.nvidia.com/gpu": "8", "pods": "10"}, "used": {"requests.nvidia.com/gpu": "6", "pods": "3"}},
    }))
    .expect("a quota");
    world.index.apply(quota);
    world
        .node("n1", json!({}), json!({}))
        .job("runs", json!({"resourcesPer": "Gpu"}), holds(1, "n1", 2), Claim::Running { since: at(20) })
        .pod("runs", 1, "n1", 2, "Running");
    let snapshot = world.snapshot();
    let left = &snapshot.namespaces[0].quota;
    assert_eq!((left.get("q/requests.nvidia.com/gpu"), left.get("q/pods")), (Some(&4), Some(&8)));
    let worker = &snapshot.jobs[0].worker;
    assert_eq!(worker.quota_per_gpu.get("q/requests.nvidia.com/gpu"), Some(&1));
    assert_eq!(worker.quota_fixed.get("q/pods"), Some(&1));
    assert_eq!((worker.fixed.cpu_milli, worker.per_gpu.cpu_milli), (Some(0), Some(4_000)));
}

#[test]
fn a_quota_that_was_lowered_below_its_use_is_not_whole_again_without_our_pods() {
    let mut world = World::default();
    world
        .index
        .apply(quota(&json!({"requests.nvidia.com/gpu": "4"}), &json!({"requests.nvidia.com/gpu": "8"})));
    world.node("n1", json!({}), json!({}));
    for name in ["a", "b"] {
        world
            .job(name, json!({}), holds(1, "n1", 4), Claim::Running { since: at(20) })
            .pod(name, 1, "n1", 4, "Running");
    }
    let snapshot = world.snapshot();
    assert_eq!(snapshot.namespaces[0].quota.get("q/requests.nvidia.com/gpu"), Some(&4));
}

/// The end of a first attempt on two nodes.
fn gang_before() -> Value {
    json!([{"attempt": 1, "outcome": "Stopped", "reason": "Preempted", "gpuType": GPU, "gpus": 4,
        "placement": "n1, n2", "ended": at(50)}])
}

/// The Service of a gang, made once, stays as long as its job.
#[test]
fn the_service_of_a_gang_is_taken_off_a_quota_once() {
    let gang = |phase: &str, record: bool| {
        let allocation = json!({"attempt": 1, "generation": 4, "gpuType": GPU, "gpus": 4, "gpusPerWorker": 2,
            "nodes": ["n1", "n2"], "since": at(10), "runningTime": at(20), "watts": 300});
        let mut status = json!({"phase": phase, "decisions": 4});
        let (field, value) = if record { ("history", gang_before()) } else { ("allocation", allocation) };
        status[field] = value;
        status
    };
    let left = |spec: Value, status: Value, claim: Claim| {
        let mut world = World::default();
        world.index.apply(quota(&json!({"services": "1"}), &json!({"services": "1"})));
        world
            .node("n1", json!({}), json!({}))
            .node("n2", json!({}), json!({}))
            .job("gang", spec, status, claim);
        let snapshot = world.snapshot();
        let left = snapshot.namespaces[0].quota.get("q/services").copied();
        (left, snapshot.jobs[0].worker.quota_per_gang.get("q/services").copied())
    };
    let running = left(json!({}), gang("Running", false), Claim::Running { since: at(20) });
    assert_eq!(running, (Some(0), None), "while it runs");
    assert_eq!(left(json!({}), gang("Pending", true), waiting()), (Some(0), None), "while it waits again");
    assert_eq!(left(json!({}), json!(null), waiting()), (Some(0), Some(1)), "another's Service");
    let adopts =
        json!({"adopts": {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "w", "pods": 2}});
    assert_eq!(
        left(adopts, gang("Pending", true), waiting()),
        (Some(0), None),
        "its controller makes its own"
    );
}

#[test]
fn a_job_that_was_a_gang_once_lends_its_service_to_no_other() {
    let runs = |services: &str| {
        let mut world = World::default();
        world.index.apply(quota(&json!({"services": services}), &json!({"services": "1"})));
        for name in ["n1", "n2", "n3"] {
            world.node(name, json!({}), json!({}));
        }
        let mut moved = holds(2, "n1", 8);
        moved["history"] = gang_before();
        world
            .job("moved", json!({}), moved, Claim::Running { since: at(20) })
            .pod("moved", 2, "n1", 8, "Running")
            .job("gang", json!({"gpus": {"min": 16, "maxNodes": 2}}), json!(null), waiting());
        let snapshot = world.snapshot();
        let plan = andreas_planner::plan(&snapshot, &andreas_planner::Options::default()).expect("a plan");
        plan.jobs[&job_id(&key("gang"))].decision.placement().is_some()
    };
    assert!(runs("2"), "there is one for it");
    assert!(!runs("1"), "the other job keeps its own");
}

#[test]
fn a_gang_that_starts_takes_its_service_off_a_quota_until_its_pods_are_there() {
    let two_nodes = || json!({"gpus": {"min": 16, "maxNodes": 2}});
    let runs = |services: &str, used: &str, pods: bool| {
        let mut world = World::default();
        world.index.apply(quota(&json!({"services": services}), &json!({"services": used})));
        for name in ["n1", "n2", "n3", "n4"] {
            world.node(name, json!({}), json!({}));
        }
        let allocation = json!({"attempt": 1, "generation": 4, "gpuType": GPU, "gpus": 16, "gpusPerWorker": 8,
            "nodes": ["n1", "n2"], "since": at(10), "watts": 300});
        let status = json!({"phase": "Starting", "decisions": 4, "allocation": allocation});
        world.job("starts", two_nodes(), status, Claim::Starting { since: at(10) });
        if pods {
            world.pod("starts", 1, "n1", 8, "Pending");
        }
        world.job("gang", two_nodes(), json!(null), waiting());
        let snapshot = world.snapshot();
        let plan = andreas_planner::plan(&snapshot, &andreas_planner::Options::default()).expect("a plan");
        let runs = |name: &str| plan.jobs[&job_id(&key(name))].decision.placement().is_some();
        assert!(runs("starts"), "a quota stops nobody");
        runs("gang")
    };
    assert!(!runs("1", "0", false), "the only one is for the gang that starts");
    assert!(runs("2", "0", false), "there is one for each");
    assert!(!runs("1", "1", true), "it was made");
    assert!(runs("2", "1", true), "it was made, and there is another one");
}

#[test]
fn a_gang_whose_service_was_refused_waits_for_one() {
    let takes = |message: &str, more: Vec<Value>| {
        let mut world = World::default();
        world.index.apply(quota(&json!({"services": "1"}), &json!({"services": "1"})));
        world.node("n1", json!({}), json!({})).node("n2", json!({}), json!({}));
        let mut refused = gang_before();
        let record = &mut refused[0];
        record["outcome"] = "Withdrawn".into();
        record["reason"] = "QuotaExceeded".into();
        record["message"] = message.into();
        refused.as_array_mut().expect("records").extend(more);
        let status = json!({"phase": "Pending", "decisions": 4, "history": refused});
        world.job("gang", json!({"gpus": {"min": 16, "maxNodes": 2}}), status, waiting());
        let snapshot = world.snapshot();
        let plan = andreas_planner::plan(&snapshot, &andreas_planner::Options::default()).expect("a plan");
        let takes = snapshot.jobs[0].worker.quota_per_gang.get("q/services").copied();
        assert_eq!(plan.jobs[&job_id(&key("gang"))].decision.placement().is_none(), takes.is_some());
        takes
    };
    let of = |resource: &str, counted: &str| {
        format!(
            "{resource} is forbidden: exceeded quota: q, requested: {counted}=1, used: {counted}=1, limited: {counted}=1"
        )
    };
    let service = of("services \"gang-gang-gang\"", "services");
    assert_eq!(takes(&service, Vec::new()), Some(1));
    assert_eq!(takes(&of("pods \"gang-1-0\"", "pods"), Vec::new()), None, "its pods came after it");
    let later = gang_before().as_array().expect("records").clone();
    assert_eq!(takes(&service, later), None, "a later attempt has made it");
}

#[test]
fn a_gang_that_was_withdrawn_takes_a_service_if_it_cannot_have_made_one() {
    let takes = |history: Value, known: Option<bool>| {
        let mut world = World::default();
        world.index.apply(quota(&json!({"services": "1"}), &json!({"services": "1"})));
        world.node("n1", json!({}), json!({})).node("n2", json!({}), json!({}));
        let status = json!({"phase": "Pending", "decisions": 4, "history": history});
        world.job("gang", json!({"gpus": {"min": 16, "maxNodes": 2}}), status, waiting());
        let ledger = world.ledger.as_mut().expect("a ledger");
        let memory = ledger.entry(&key("gang"), "gang");
        known.into_iter().for_each(|is_there| memory.record_service(is_there));
        world.snapshot().jobs[0].worker.quota_per_gang.get("q/services").copied()
    };
    let withdrawn = |reason: &str, message: &str| {
        let mut history = gang_before();
        let record = &mut history[0];
        record["outcome"] = "Withdrawn".into();
        record["reason"] = reason.into();
        record["message"] = message.into();
        history
    };
    // The Service may be there: these come before the pods are made as well as while the API server makes none.
    for after in [
        withdrawn("ClusterFailure", "node n1 was deleted"),
        withdrawn("WaitingForCapacity", "GPUs of n1 were taken by other pods or have failed"),
        withdrawn("NodeNotReady", "node n1 is not ready"),
    ] {
        assert_eq!(takes(after.clone(), None), None, "{after}");
        assert_eq!(takes(after.clone(), Some(false)), Some(1), "the API server has said that there is none");
    }
    for before in [
        withdrawn(
            "WaitingForRelease",
            "gang-0-0 of an earlier attempt has not ended after more than an hour",
        ),
        withdrawn(
            "NameInUse",
            "Service gang-gang-gang belongs to somebody else; delete it or rename the job",
        ),
    ] {
        assert_eq!(takes(before.clone(), None), Some(1), "{before}");
    }
    let unbound = withdrawn("PlacementTimeout", "1 of 2 workers not bound within 2m: no node fits");
    assert_eq!(takes(unbound, None), None, "its pods came after it");
    let pod = withdrawn("NameInUse", "gang-1-0 belongs to somebody else; delete it or rename the job");
    assert_eq!(takes(pod, None), None, "and those whose names were taken");
    // What the API server has answered is true, whatever attempts say.
    let named = withdrawn("NameInUse", "Service gang-gang-gang belongs to somebody else");
    assert_eq!((takes(named, Some(true)), takes(gang_before(), Some(false))), (None, Some(1)));
}
