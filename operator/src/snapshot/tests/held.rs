//! Nodes that change while jobs hold their GPUs.

use super::*;

fn running(name: &str, nodes: &[&str], gpus_per_worker: i32, gpu_type: &str) -> Value {
    let gpus = gpus_per_worker * i32::try_from(nodes.len()).expect("few nodes");
    json!({"phase": "Running", "decisions": 4, "allocation": {"attempt": 1, "generation": 4, "gpuType": gpu_type, "gpus": gpus,
        "gpusPerWorker": gpus_per_worker, "nodes": nodes, "placement": name, "since": at(10), "runningTime": at(20), "watts": 300}})
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
            .job("runs", json!({}), running("runs", &["n1"], 2, GPU), Claim::Running { since: at(20) })
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
            running("gang", &["n1", "gone"], 4, GPU),
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
        .job("a", json!({}), running("a", &["n1"], 2, "NVIDIA-A100-80GB"), Claim::Running { since: at(20) })
        .pod("a", 1, "n1", 2, "Running")
        .job("b", json!({}), running("b", &["n1"], 4, GPU), Claim::Running { since: at(20) })
        .pod("b", 1, "n1", 4, "Running");
    let snapshot = world.snapshot();
    assert_eq!((free(&snapshot, "n1"), snapshot.jobs.len()), (Some(2), 1));
}
