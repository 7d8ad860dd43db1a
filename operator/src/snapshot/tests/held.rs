//! Nodes that change while jobs hold their GPUs.

use super::*;

fn running(nodes: &[&str], gpus_per_worker: i32, gpu_type: &str) -> Value {
    let gpus = gpus_per_worker * i32::try_from(nodes.len()).expect("few nodes");
    json!({"phase": "Running", "decisions": 4, "allocation": {"attempt": 1, "generation": 4, "gpuType": gpu_type, "gpus": gpus,
        "gpusPerWorker": gpus_per_worker, "nodes": nodes, "since": at(10), "runningTime": at(20), "watts": 300}})
}

fn free(snapshot: &Snapshot, node: &str) -> Option<u32> {
    snapshot.nodes.iter().find(|n| n.name.as_str() == node).map(|n| n.free_gpus.0)
}

#[test]
fn a_relabelled_node_stays_of_its_type_for_the_job_that_holds_it_and_takes_no_others() {
    for labels in
        [json!({"nvidia.com/gpu.product": "NVIDIA-A100-80GB"}), json!({"nvidia.com/gpu.product": ""})]
    {
        let mut world = World::default();
        world
            .node("n1", labels, json!({}))
            .node("n2", json!({}), json!({}))
            .job("runs", json!({}), running(&["n1"], 2, GPU), Claim::Running { since: at(20) })
            .pod("runs", 1, "n1", 2, "Running")
            .job("waits", json!({}), json!(null), waiting());
        let snapshot = world.snapshot();
        let job = |name: &str| snapshot.jobs.iter().find(|job| job.id.as_str() == name).expect("planned");
        assert!(matches!(&job("team/runs").state, JobState::Running { placement, .. }
            if placement.gpu_type.as_str() == GPU && placement.gpus_per_node == GpuCount(2)));
        assert_eq!(free(&snapshot, "n1"), Some(2), "as large as what it holds");
        let candidates = job("team/waits").candidates.as_ref().expect("not every node");
        assert_eq!(candidates.iter().map(|n| n.as_str()).collect::<Vec<_>>(), ["n2"]);
    }
}

#[test]
fn the_rest_of_a_gang_whose_node_is_gone_counts_until_its_pods_have_ended() {
    let mut world = World::default();
    world
        .node("n1", json!({}), json!({}))
        .job(
            "gang",
            json!({}),
            running(&["n1", "gone"], 4, GPU),
            Claim::Stopping { gone_by: Some(at(200)), goes_on: true },
        )
        .pod("gang", 1, "n1", 4, "Running")
        .job("waits", json!({}), json!(null), waiting());
    let snapshot = world.snapshot();
    assert_eq!(free(&snapshot, "n1"), Some(4), "four of eight are in use");
    assert_eq!(
        snapshot.nodes[0].foreign_power, None,
        "what they draw is not measured: the boards' maximum counts"
    );
    // Its watts count in the budget as measured by the agent.
    let busy =
        |n: i32| json!({"uuid": format!("u{n}"), "state": "Busy", "holder": "team/gang-1-0", "watts": 350});
    world.agent("n1", (0..4).map(busy).collect());
    assert_eq!(world.snapshot().nodes[0].foreign_power, Some(Watts(1_400.0)));
    assert_eq!(snapshot.jobs.iter().map(|job| job.id.as_str()).collect::<Vec<_>>(), ["team/waits"]);
}

#[test]
fn two_jobs_that_hold_a_node_as_different_types_are_both_counted() {
    let mut world = World::default();
    world
        .node("n1", json!({}), json!({}))
        .job("a", json!({}), running(&["n1"], 2, "NVIDIA-A100-80GB"), Claim::Running { since: at(20) })
        .pod("a", 1, "n1", 2, "Running")
        .job("b", json!({}), running(&["n1"], 4, GPU), Claim::Running { since: at(20) })
        .pod("b", 1, "n1", 4, "Running");
    let snapshot = world.snapshot();
    assert_eq!((free(&snapshot, "n1"), snapshot.jobs.len()), (Some(2), 1));
}

#[test]
fn a_cordoned_node_without_jobs_counts_in_the_power_budget_and_takes_none() {
    let mut world = World::default();
    world
        .node("n1", json!({}), json!({}))
        .node("n2", json!({}), json!({"spec": {"unschedulable": true}}))
        .node(
            "off",
            json!({}),
            json!({"status": {"allocatable": {"nvidia.com/gpu": "8"},
            "conditions": [{"type": "Ready", "status": "Unknown"}]}}),
        )
        .job("waits", json!({}), json!(null), waiting());
    let names = |snapshot: &Snapshot| {
        snapshot.nodes.iter().map(|node| node.name.as_str().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&world.snapshot()), ["n1"], "power is not limited");
    world.policy(json!({"powerBudget": {"watts": 10_000}}));
    let snapshot = world.snapshot();
    assert_eq!(names(&snapshot), ["n1", "n2"], "a node whose kubelet is silent may be off");
    let closed = &snapshot.nodes[1];
    let idle = snapshot.gpu_types[0].idle;
    assert_eq!((closed.free_gpus, closed.foreign_power), (GpuCount(0), Some(Watts(8.0 * idle.0))));
    assert!(closed.host_idle.0 > 0.0);
    let candidates = snapshot.jobs[0].candidates.as_ref().expect("not every node");
    assert_eq!(candidates.iter().map(|node| node.as_str()).collect::<Vec<_>>(), ["n1"]);
    // It has no agent, and says nothing of the limits that jobs get elsewhere.
    world.policy(json!({"powerBudget": {"watts": 10_000}, "limits": "On"}));
    let gpu = |n: i32| json!({"uuid": format!("u{n}"), "state": "Free", "watts": 50, "minLimitWatts": 100, "maxLimitWatts": 400});
    world.agent("n1", (0..8).map(gpu).collect());
    world.profile("bert", json!(null)).job(
        "known",
        json!({"profileRef": {"name": "bert"}}),
        json!(null),
        waiting(),
    );
    let snapshot = world.snapshot();
    let known = snapshot.jobs.iter().find(|job| job.id.as_str() == "team/known").expect("planned");
    assert!(!known.limits.is_empty());
}

#[test]
fn a_job_on_a_closed_node_stays_as_it_is_and_the_gpus_beside_it_count_as_idle() {
    let mut world = World::default();
    world
        .node("n1", json!({}), json!({"spec": {"unschedulable": true}}))
        .profile("known", json!({}))
        .job(
            "stays",
            json!({"profileRef": {"name": "known"}}),
            running(&["n1"], 2, GPU),
            Claim::Running { since: at(20) },
        )
        .pod("stays", 1, "n1", 2, "Running");
    let snapshot = world.snapshot();
    assert!(!snapshot.jobs[0].movable, "it could not start there again");
    let idle = snapshot.gpu_types[0].idle;
    assert_eq!(snapshot.nodes[0].foreign_power, Some(Watts(6.0 * idle.0)), "nobody uses the other six");
    // An open node is as before.
    world.node("n1", json!({}), json!({}));
    let snapshot = world.snapshot();
    assert!(snapshot.jobs[0].movable && snapshot.nodes[0].foreign_power.is_none());
}

/// The job that was to leave its target has stayed: a write failed, and the next plan kept it.
#[test]
fn a_target_whose_gpus_nobody_gives_up_is_no_commitment_any_more() {
    let target = |per_worker: i32| {
        let mut world = World::default();
        world
            .node("n1", json!({}), json!({}))
            .job("stays", json!({}), running(&["n1"], 6, GPU), Claim::Running { since: at(20) })
            .job("waits", json!({}), json!({"phase": "Pending", "decisions": 4}), waiting());
        let mut ledger = world.ledger.take().expect("a ledger");
        let planned = andreas_lifecycle::Planned::Run {
            gpu_type: GPU.into(),
            nodes: vec!["n1".into()],
            gpus_per_worker: per_worker,
            limit_watts: None,
            watts: 1_000,
            guard: andreas_lifecycle::Guard::default(),
        };
        let after = vec![(key("stays"), 4)];
        ledger.decide(&key("waits"), "waits", andreas_lifecycle::DecisionFor { basis: 4, planned }, after);
        world.ledger = Some(ledger);
        let snapshot = world.snapshot();
        snapshot.jobs.iter().find(|job| job.id.as_str() == "team/waits").expect("planned").state.clone()
    };
    assert!(matches!(target(2), JobState::Starting { .. }), "there is room for both");
    assert!(matches!(target(4), JobState::Waiting), "there is not");
}

/// A pod that says it works for an adopted job, as whoever may create pods in the namespace can.
fn claims_to_work(world: &mut World, name: &str, uid: &str, node: &str, gpus: u32, created: &str) {
    let pod: SlimPod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "team", "uid": name, "resourceVersion": world.version(),
            "creationTimestamp": created,
            "labels": {"andreas.dev/job": "adopted", "andreas.dev/adopted": uid, "andreas.dev/adopted-attempt": "1"}},
        "spec": {"nodeName": node, "containers": [{"name": "t", "resources": {"requests": {"nvidia.com/gpu": gpus.to_string()}}}]},
        "status": {"phase": "Running"},
    }))
    .expect("a pod");
    world.index.apply(pod);
}

#[test]
fn pods_that_claim_to_work_for_an_adopted_job_hide_no_gpus() {
    let adopts =
        json!({"adopts": {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "w", "pods": 2}});
    let world = || {
        let mut world = World::default();
        world.node("n1", json!({}), json!({})).node("n2", json!({}), json!({}));
        world.job("adopted", adopts.clone(), running(&["n1"], 4, GPU), Claim::Running { since: at(20) });
        claims_to_work(&mut world, "first", "adopted", "n1", 2, "2026-01-01T00:00:00Z");
        claims_to_work(&mut world, "second", "adopted", "n1", 2, "2026-01-01T00:00:01Z");
        world
    };
    let offered = |world: &mut World| {
        let snapshot = world.snapshot();
        (free(&snapshot, "n1"), free(&snapshot, "n2"))
    };
    assert_eq!(offered(&mut world()), (Some(8), Some(8)), "the planner accounts for its four itself");
    // When another pod has the labels of it, on a node that it has or not, it takes what it holds.
    for (uid, node, wanted) in [
        ("adopted", "n1", (Some(5), Some(8))),
        ("adopted", "n2", (Some(8), Some(5))),
        ("another", "n1", (Some(5), Some(8))),
    ] {
        let mut world = world();
        claims_to_work(&mut world, "a-more", uid, node, 3, "2026-01-01T00:00:02Z");
        assert_eq!(offered(&mut world), wanted, "{uid} on {node}");
    }
}
