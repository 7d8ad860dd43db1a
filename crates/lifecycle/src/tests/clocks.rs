use andreas_api::{Outcome, Phase};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::world::*;

const HOUR: i64 = 3_600;

/// The kubelet writes its own time, off by this many seconds, into its pod.
fn kubelet_writes(world: &mut World, pod: &str, off: i64) {
    let now = world.now;
    let pod = world.pods.get_mut(pod).unwrap();
    pod.status.start_time = Some(Time(at(now + off)));
    let state = container(pod);
    if let Some(running) = &mut state.running {
        running.started_at = Some(Time(at(now + off)));
    }
    if let Some(terminated) = &mut state.terminated {
        terminated.finished_at = Some(Time(at(now + off)));
    }
}

#[test]
fn stamps_of_a_clock_that_is_behind_let_nothing_time_out_early() {
    let mut world = World::new(json!({"startTimeout": "5m", "gpus": {"min": 2, "maxNodes": 2}}));
    world.now = 2 * HOUR;
    world.plan_run(&["n1", "n2"], 1);
    for pod in world.members() {
        world.pods.get_mut(&pod).unwrap().metadata.creation_timestamp = Some(Time(at(HOUR)));
    }
    world.wait(119);
    assert_eq!(world.phase(), Phase::Starting, "not bound yet, and in time");
    world.bind_all();
    for pod in world.members() {
        condition(world.pods.get_mut(&pod).unwrap(), "PodScheduled", "True", "", Some(Time(at(HOUR))));
    }
    world.wait(299);
    assert_eq!(world.phase(), Phase::Starting, "not started yet, and in time");
    world.run_all();
    // A node controller with a late clock reports the node unreachable.
    let fact = world.nodes.get_mut("n1").unwrap();
    (fact.ready, fact.ready_changed) = (false, Some(at(HOUR)));
    world.policy.node_loss_restart = true;
    world.step_until_stable();
    world.wait(899);
    assert_eq!((world.phase(), world.status().attempts), (Phase::Running, 1));
    world.wait(1);
    assert_eq!(world.status().stop.unwrap().reason, "NodeNotReady");
}

#[test]
fn stamps_of_a_clock_that_is_ahead_let_nothing_wait_longer() {
    let mut world = World::new(json!({"startTimeout": "5m"}));
    world.plan_run(&["n1"], 1);
    world.pods.get_mut("bert-1-0").unwrap().metadata.creation_timestamp = Some(Time(at(HOUR)));
    world.bind_all();
    condition(world.pods.get_mut("bert-1-0").unwrap(), "PodScheduled", "True", "", Some(Time(at(HOUR))));
    world.wait(300);
    assert_eq!(world.status().stop.unwrap().reason, "StartTimeout");
}

#[test]
fn a_run_begins_when_it_is_seen_where_the_clock_of_its_node_is_off() {
    for off in [-HOUR, HOUR] {
        let mut world = World::new(json!({"maxRunTime": "30m"}));
        world.now = 2 * HOUR;
        world.plan_run(&["n1"], 1).bind_all();
        let pod = world.members().remove(0);
        let now = Some(Time(at(world.now + off)));
        let started = andreas_api::slim::SlimRunning { started_at: now };
        container(world.pods.get_mut(&pod).unwrap()).running = Some(started);
        kubelet_writes(&mut world, &pod, off);
        world.step_until_stable();
        let running = world.status().allocation.unwrap().running_time.unwrap().0;
        assert_eq!((world.phase(), running), (Phase::Running, at(world.now)), "{off}");
        world.wait(1_799);
        assert_eq!(world.phase(), Phase::Running);
    }
}

#[test]
fn an_exit_0_after_a_stop_is_a_stop_though_the_clock_of_the_node_is_behind() {
    let mut world = World::running(json!({"checkpoint": {"claimName": "c"}}), &["n1"], 1);
    kubelet_writes(&mut world, "bert-1-0", -HOUR);
    world.report(40_000);
    world.now = 100;
    world.edit(json!({"suspend": true}));
    world.now = 110;
    world.exit_quietly("bert-1-0", 0, "");
    if let Some((gone, _)) = world.gone.last_mut() {
        let finished = container(gone).terminated.as_mut().unwrap();
        finished.finished_at = Some(Time(at(110 - HOUR)));
    }
    world.step_until_stable();
    assert_eq!((world.phase(), world.last().0), (Phase::Suspended, Outcome::Stopped));
}

/// A run stopped at 100 s that really ends at 104 s. Its node's clock gives `started` and `ended`.
fn stopped_by_a_node_that_says(started: i64, ended: i64) -> (Phase, Outcome) {
    let mut world = World::running(json!({"checkpoint": {"claimName": "c"}}), &["n1"], 1);
    world.now = 10;
    kubelet_writes(&mut world, "bert-1-0", started - 10);
    world.now = 100;
    world.edit(json!({"suspend": true}));
    world.now = 104;
    world.exit_quietly("bert-1-0", 143, "");
    if let Some((gone, _)) = world.gone.last_mut() {
        let terminated = container(gone).terminated.as_mut().unwrap();
        terminated.started_at = Some(Time(at(started)));
        terminated.finished_at = Some(Time(at(ended)));
    }
    world.step_until_stable();
    (world.phase(), world.last().0)
}

#[test]
fn a_stop_is_no_failure_where_a_kubelet_whose_clock_is_behind_took_the_pod_late() {
    // Bound at 0 s, accepted at 10 s: the clock is ten seconds further behind than the pod shows.
    assert_eq!(stopped_by_a_node_that_says(10 - HOUR, 104 - HOUR), (Phase::Suspended, Outcome::Stopped));
}

#[test]
fn a_stop_is_no_failure_where_the_clock_of_the_node_was_set_back_meanwhile() {
    assert_eq!(stopped_by_a_node_that_says(0, 104 - HOUR), (Phase::Suspended, Outcome::Stopped));
}

/// Somebody deletes the pod while its container starts. Its kubelet had accepted it before its clock was set back.
#[test]
fn a_deletion_is_no_failure_where_the_clock_of_the_node_was_set_back_before_the_container_started() {
    for off in [-60, -HOUR] {
        let mut world = World::new(json!({}));
        world.now = 2 * HOUR;
        world.plan_run(&["n1"], 1).bind_all();
        kubelet_writes(&mut world, "bert-1-0", 0);
        world.now += 5;
        let taken = world.now;
        let pod = world.pods.get_mut("bert-1-0").unwrap();
        pod.metadata.deletion_timestamp = Some(Time(at(taken + 30)));
        pod.metadata.deletion_grace_period_seconds = Some(30);
        world.exit_quietly("bert-1-0", 143, "");
        let (gone, _) = world.gone.last_mut().unwrap();
        let terminated = container(gone).terminated.as_mut().unwrap();
        terminated.started_at = Some(Time(at(taken + 1 + off)));
        terminated.finished_at = Some(Time(at(taken + 2 + off)));
        world.step_until_stable();
        assert_eq!(world.last().0, Outcome::ClusterFailure, "{off}");
        assert_eq!(world.status().user_failures, 0, "{off}");
    }
}

#[test]
fn one_member_that_finished_by_a_clock_that_is_behind_does_not_end_the_others_at_once() {
    let mut world = World::running(json!({"gpus": {"min": 2, "maxNodes": 2}}), &["n1", "n2"], 1);
    world.now = 100;
    world.exit_quietly("bert-1-0", 0, "");
    let ended = container(world.pods.get_mut("bert-1-0").unwrap()).terminated.as_mut().unwrap();
    ended.finished_at = Some(Time(at(100 - HOUR)));
    world.step_until_stable();
    world.wait(599);
    assert_eq!(world.phase(), Phase::Running);
    world.wait(1);
    assert_eq!(world.phase(), Phase::Stopping);
}

#[test]
fn a_pod_bound_before_a_boot_and_started_after_it_is_alive() {
    let mut world = World::new(json!({"checkpoint": {"claimName": "c", "exclusive": true}}));
    world.plan_run(&["n1"], 1).bind_all().waits_with("bert-1-0", "ContainerCreating", "");
    world.now = 60;
    world.boot("n1", "boot-2");
    world.step_until_stable();
    assert_eq!(world.phase(), Phase::Starting);
    world.run_all();
    assert_eq!((world.phase(), world.status().attempts), (Phase::Running, 1));
    assert!(crate::pod_in_use(&world.pods["bert-1-0"], &world.nodes));
}
