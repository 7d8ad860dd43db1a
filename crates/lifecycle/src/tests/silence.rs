//! What nobody saw is neither run time nor energy: an attempt ends with the last sign of its nodes.

use andreas_api::{Outcome, Phase};
use andreas_workloads::adopt::{Kind, Workload};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::world::*;
use crate::*;

const HOUR: i64 = 3_600;

/// A run whose node has given no sign since the first hour; 60 hours have passed.
fn silent(spec: Value, nodes: &[&str]) -> World {
    let mut world = World::running(spec, nodes, 1);
    world.wait(HOUR).silence("n1").wait(59 * HOUR);
    world
}

fn seconds_learned(world: &World) -> Vec<i64> {
    let of = |update: &ProfileUpdate| match update {
        ProfileUpdate::Finished(run) => Some(run.seconds),
        ProfileUpdate::Observation(seen) => Some(seen.millis_per_epoch * 10 / 1_000),
        _ => None,
    };
    world.learned.iter().filter_map(of).collect()
}

#[test]
fn an_attempt_on_a_node_that_boots_days_later_ended_when_the_node_fell_silent() {
    let mut world = silent(json!({}), &["n1"]);
    world.boot("n1", "boot-2");
    world.step_until_stable();
    let record = world.status().history[0].clone();
    assert_eq!((record.outcome, record.ended.0), (Outcome::ClusterFailure, at(HOUR)));
    // Its kubelet dates the end of the container by its own start.
    let mut world = silent(json!({}), &["n1"]);
    world.boot("n1", "boot-2");
    let now = at(world.now);
    end(world.pods.get_mut("bert-1-0").unwrap(), 255, "Unknown", "", now);
    world.step_until_stable();
    assert_eq!(world.status().history[0].ended.0, at(HOUR));
}

#[test]
fn a_run_that_was_done_when_its_node_fell_silent_took_no_longer() {
    let mut world = World::running(json!({"epochs": 10}), &["n1"], 1);
    world.wait(HOUR - 60).report(99_500).wait(60).silence("n1").wait(59 * HOUR);
    world.remove("bert-1-0");
    world.step_until_stable();
    world.wait(60);
    let status = world.status();
    assert_eq!((world.phase(), status.display.duration.as_deref()), (Phase::Succeeded, Some("1h")));
    assert_eq!(status.completion_time.unwrap().0, at(HOUR));
    assert_eq!(seconds_learned(&world), [HOUR, HOUR]);
}

#[test]
fn a_report_is_a_sign_and_a_node_that_comes_back_with_its_pods_was_never_silent() {
    let mut world = silent(json!({}), &["n1"]);
    world.now = HOUR + 20;
    world.report(50_000);
    world.now = 60 * HOUR;
    world.boot("n1", "boot-2");
    world.step_until_stable();
    assert_eq!(world.status().history[0].ended.0, at(HOUR + 20));
    // Only its network was away.
    let mut world = silent(json!({"epochs": 10}), &["n1"]);
    let fact = world.nodes.get_mut("n1").unwrap();
    (fact.ready, fact.ready_changed) = (true, Some(at(60 * HOUR)));
    world.step_until_stable();
    world.wait(HOUR).exit("bert-1-0", 0, "");
    assert_eq!(seconds_learned(&world), [61 * HOUR, 61 * HOUR]);
}

/// The other member waited for it all the time, on GPUs that it held.
#[test]
fn a_gang_stops_to_train_with_its_first_silent_node() {
    let mut world = silent(json!({"gpus": {"min": 2, "maxNodes": 2}}), &["n1", "n2"]);
    world.boot("n1", "boot-2");
    world.step_until_stable();
    let ends = world.ends();
    assert_eq!((ends.members, ends.at, ends.lasts), (vec![at(HOUR), at(60 * HOUR)], at(HOUR), false));
    world.exit("bert-1-1", 143, "");
    assert_eq!(world.status().history[0].ended.0, at(HOUR));
}

#[test]
fn what_vanished_while_the_operator_was_away_ended_with_its_last_report() {
    let mut world = World::running(json!({}), &["n1"], 1);
    world.wait(HOUR).report(40_000).wait(600);
    world.pods.clear();
    world.nodes.remove("n1");
    world.now = 60 * HOUR;
    world.restart_operator().wait(10);
    let record = world.status().history[0].clone();
    assert_eq!((record.reason.as_str(), record.ended.0), ("Vanished", at(HOUR)));
    // Seen by the operator, it ended when it vanished, and not when its grace was over.
    let mut world = World::running(json!({}), &["n1"], 1);
    world.wait(HOUR).remove("bert-1-0");
    world.step_until_stable();
    world.wait(60);
    assert_eq!(world.status().history[0].ended.0, at(HOUR));
}

#[test]
fn an_adopted_run_ended_when_its_controller_says_so() {
    let mut world = World::new(json!({
        "adopts": {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "w1", "pods": 1},
    }));
    let ended = json!({"type": "Complete", "status": "True", "lastTransitionTime": at(HOUR).to_string()});
    for (conditions, phase) in [(json!([]), Phase::Running), (json!([ended]), Phase::Succeeded)] {
        let object = json!({
            "metadata": {"name": "a", "namespace": "team", "uid": "w1", "labels": {"andreas.dev/adopt": "true"}, "annotations":
                {"andreas.dev/adopted-attempt": "1"}},
            "spec": {"suspend": false}, "status": {"conditions": conditions},
        });
        world.workload = Workload::from_object(Kind::Job, &object);
        if phase == Phase::Running {
            world.job.status = serde_json::from_value(json!({"phase": "Running", "attempts": 1, "startTime": at(0).to_string(), "allocation": {
                "attempt": 1, "generation": 1, "gpuType": "A100", "gpus": 1, "gpusPerWorker": 1, "nodes": ["n1"],
                "since": at(0).to_string(), "runningTime": at(0).to_string(), "watts": 300}}))
            .unwrap();
        } else {
            world.now = 60 * HOUR;
            world.step_until_stable();
            world.wait(100).wait(100);
        }
        assert_eq!(world.phase(), phase);
    }
    let status = world.status();
    assert_eq!(status.completion_time, Some(Time(at(HOUR))));
    assert_eq!(status.display.duration.as_deref(), Some("1h"));
}
