use andreas_api::{Outcome, Phase};
use serde_json::json;

use super::world::*;
use crate::Claim;

fn restart(world: &mut World) {
    world.policy.node_loss_restart = true;
}

fn is_back(world: &mut World, node: &str) {
    let now = at(world.now);
    let fact = world.nodes.get_mut(node).unwrap();
    (fact.ready, fact.ready_changed) = (true, Some(now));
    world.step_until_stable();
}

/// A job whose first attempt was given up on the silent node n1 at second 1,000; its pod there may still run.
fn given_up() -> World {
    let mut world = World::running(json!({"checkpoint": {"claimName": "c"}}), &["n1"], 1);
    restart(&mut world);
    world.now = 100;
    world.silence("n1");
    world.wait(900);
    assert_eq!(world.phase(), Phase::Pending);
    world
}

#[test]
fn a_job_whose_pod_was_given_up_holds_no_gpus_while_that_pod_ends_on_its_node() {
    let mut world = given_up();
    world.now = 1_001;
    is_back(&mut world, "n1");
    world.plan_run(&["n2"], 1);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Pending, "WaitingForRelease"));
    assert_eq!(world.condition("Scheduled").message, "bert-1-0 of an earlier attempt has not ended");
    assert_eq!(world.claim, Some(Claim::Nothing));
    world.remove("bert-1-0");
    world.wait(10);
    assert_eq!(world.members(), ["bert-2-0"]);
}

#[test]
fn a_job_whose_pod_was_given_up_holds_no_gpus_while_a_new_leader_waits_for_its_silent_node() {
    let mut world = given_up();
    world.now = 1_100;
    world.first_seen.clear();
    world.plan_run(&["n2"], 1);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Pending, "NodeNotReady"));
    let message = "bert-1-0 of an earlier attempt is on node n1, which is not ready";
    assert_eq!(world.condition("Scheduled").message, message);
    assert_eq!((world.claim.clone(), world.next), (Some(Claim::Nothing), Some(at(1_100 + 900))));
    world.wait(900);
    assert_eq!(world.members(), ["bert-2-0"]);
}

#[test]
fn a_job_waits_without_gpus_for_its_pod_on_a_node_that_falls_silent_again() {
    let mut world = given_up();
    world.now = 1_001;
    is_back(&mut world, "n1");
    world.now = 1_100;
    world.silence("n1");
    // The policy no longer gives pods up.
    world.policy.node_loss_restart = false;
    world.plan_run(&["n2"], 1).wait(10_000);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Pending, "NodeNotReady"));
    assert_eq!((world.claim.clone(), world.status().attempts), (Some(Claim::Nothing), 1));
    world.nodes.remove("n1");
    world.step_until_stable();
    assert_eq!(world.members(), ["bert-2-0"]);
}

#[test]
fn the_time_of_an_earlier_pod_is_not_held_against_others_that_leave_late() {
    // Given an attempt that waits for GPUs, and then for an earlier pod for more than an hour.
    let mut world = given_up();
    world.nodes.get_mut("n2").unwrap().free_gpus = 0;
    world.wait(60).plan_run(&["n2"], 1);
    is_back(&mut world, "n1");
    world.wait(3_600 + 119);
    // When that pod ends while the GPUs are still in use, then they are waited for as long as any others.
    world.remove("bert-1-0");
    world.wait(60);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Starting, "WaitingForRelease"));
    assert_eq!(world.condition("Running").message, "GPUs of n2 are still in use");
    world.nodes.get_mut("n2").unwrap().free_gpus = 8;
    world.wait(10);
    assert_eq!(world.members(), ["bert-2-0"]);
}

#[test]
fn gpus_are_given_back_by_a_start_whose_earlier_pod_cannot_be_ended_by_its_node() {
    // Given an attempt that waits for GPUs when the node of the one that was given up is back.
    let mut world = given_up();
    world.nodes.get_mut("n2").unwrap().free_gpus = 0;
    world.wait(60).plan_run(&["n2"], 1);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Starting, "WaitingForRelease"));
    is_back(&mut world, "n1");
    world.nodes.get_mut("n2").unwrap().free_gpus = 8;
    // When the pod there does not end, then the GPUs go to others after the longest grace and the time to place.
    world.wait(3_600 + 119);
    assert_eq!(world.phase(), Phase::Starting);
    world.wait(1);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Pending, "WaitingForRelease"));
    assert_eq!((world.claim.clone(), world.last().0), (Some(Claim::Nothing), Outcome::Withdrawn));
    assert!(world.status().history.last().unwrap().message.starts_with("bert-1-0 of an earlier attempt"));
    world.remove("bert-1-0");
    world.wait(10).plan_run(&["n2"], 1);
    assert_eq!(world.members(), ["bert-3-0"]);
}

#[test]
fn a_silent_node_is_waited_for_until_its_death_is_proven() {
    // Given a running job whose node becomes unreachable.
    let mut world = World::running(json!({}), &["n1"], 1);
    world.report(10_000);
    world.now = 100;
    world.silence("n1");
    assert_eq!((world.phase(), world.next), (Phase::Running, Some(at(100 + 900))));
    let writes = world.writes;
    world.wait(899);
    assert_eq!(world.writes, writes);
    // When 15 minutes have passed, then the status says so once, and no action follows.
    world.wait(1);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Running, "NodeNotReady"));
    let condition = world.condition("Running");
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("Unknown", "NodeNotReady"));
    world.wait(10_000);
    assert_eq!((world.phase(), world.writes, world.deleted.len()), (Phase::Running, writes + 1, 0));
    // When the Node is deleted, then the attempt has ended.
    world.nodes.remove("n1");
    world.step_until_stable();
    assert_eq!((world.phase(), world.last().0), (Phase::Pending, Outcome::ClusterFailure));
}

#[test]
fn every_proof_of_death_ends_the_attempt() {
    let proofs: [fn(&mut World); 3] = [
        |w| drop(w.nodes.remove("n1")),
        |w| w.nodes.get_mut("n1").unwrap().out_of_service = true,
        |w| w.boot("n1", "boot-2"),
    ];
    for proof in proofs {
        let mut world = World::running(json!({}), &["n1"], 1);
        world.now = 100;
        world.silence("n1");
        world.now = 400;
        proof(&mut world);
        world.step_until_stable();
        assert_eq!((world.phase(), world.last().0), (Phase::Pending, Outcome::ClusterFailure));
        assert_eq!(world.status().user_failures, 0);
        // The pod that is still listed holds nothing; the next attempt may start elsewhere.
        world.wait(60).plan_run(&["n2"], 1);
        assert_eq!(world.members(), ["bert-2-0"]);
    }
}

#[test]
fn a_node_that_comes_back_with_its_pod_loses_nothing() {
    let mut world = World::running(json!({}), &["n1"], 1);
    world.now = 100;
    world.silence("n1");
    world.wait(1000);
    let fact = world.nodes.get_mut("n1").unwrap();
    (fact.ready, fact.ready_changed) = (true, Some(at(1100)));
    world.step_until_stable();
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Running, ""));
    world.wait(50).exit("bert-1-0", 0, "");
    assert_eq!((world.phase(), world.last().0), (Phase::Succeeded, Outcome::Finished));
}

#[test]
fn a_reason_that_an_earlier_release_wrote_is_cleared_when_the_node_is_back() {
    let mut world = World::running(json!({}), &["n1"], 1);
    world.now = 100;
    world.silence("n1");
    world.wait(1000);
    // Given the status as it was before the reason got its present name.
    let status = world.job.status.as_mut().unwrap();
    assert_eq!(status.reason.replace("NodeSilent".into()).as_deref(), Some("NodeNotReady"));
    let writes = world.writes;
    world.wait(1);
    assert_eq!((world.reason().as_str(), world.writes), ("NodeNotReady", writes + 1));
    world.job.status.as_mut().unwrap().reason = Some("NodeSilent".into());
    let fact = world.nodes.get_mut("n1").unwrap();
    (fact.ready, fact.ready_changed) = (true, Some(at(1100)));
    world.step_until_stable();
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Running, ""));
}

#[test]
fn a_failure_during_which_the_node_was_not_ready_is_the_clusters() {
    let mut world = World::running(json!({}), &["n1"], 1);
    world.now = 100;
    world.silence("n1");
    let fact = world.nodes.get_mut("n1").unwrap();
    (fact.ready, fact.ready_changed) = (true, Some(at(160)));
    world.now = 170;
    world.exit("bert-1-0", 1, "");
    assert_eq!((world.last().0, world.status().user_failures), (Outcome::ClusterFailure, 0));
    // A node that became Ready long before the attempt is irrelevant.
    let mut world = World::new(json!({}));
    world.nodes.get_mut("n1").unwrap().ready_changed = Some(at(-500));
    world.plan_run(&["n1"], 1).bind_all().run_all();
    world.exit("bert-1-0", 1, "");
    assert_eq!(world.last().0, Outcome::UserFailure);
}

#[test]
fn with_restart_a_job_goes_on_elsewhere_while_the_silent_node_keeps_its_gpus() {
    let mut world = World::running(json!({"checkpoint": {"claimName": "c"}}), &["n1"], 1);
    restart(&mut world);
    world.now = 100;
    world.silence("n1");
    world.wait(900);
    assert_eq!(
        (world.phase(), world.last()),
        (Phase::Pending, (Outcome::ClusterFailure, "NodeNotReady".into()))
    );
    // The old pod is deleted for when the node returns; until then it counts.
    assert!(world.pods["bert-1-0"].metadata.deletion_timestamp.is_some());
    assert!(crate::pod_in_use(&world.pods["bert-1-0"], &world.nodes));
    world.wait(60).plan_run(&["n2"], 1).bind_all().run_all();
    assert_eq!((world.phase(), world.status().attempts), (Phase::Running, 2));
}

#[test]
fn with_restart_an_exclusive_checkpoint_still_waits_for_proof() {
    let mut world = World::running(json!({"checkpoint": {"claimName": "c", "exclusive": true}}), &["n1"], 1);
    restart(&mut world);
    world.now = 100;
    world.silence("n1");
    world.wait(5000);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Running, "NodeNotReady"));
}

#[test]
fn a_stop_on_a_silent_node_does_not_end_by_itself() {
    let mut world = World::running(json!({}), &["n1"], 1);
    world.now = 100;
    world.silence("n1");
    world.edit(json!({"suspend": true})).wait(5000);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Stopping, "NodeNotReady"));
    assert!(matches!(world.claim, Some(crate::Claim::Stopping { gone_by: None, .. })));
    world.nodes.remove("n1");
    world.step_until_stable();
    assert_eq!((world.phase(), world.last().0), (Phase::Suspended, Outcome::ClusterFailure));
}

#[test]
fn no_progress_from_a_node_that_is_cut_off_is_not_a_hang() {
    let mut world = World::running(json!({"progressTimeout": "5m"}), &["n1"], 1);
    world.now = 100;
    world.silence("n1");
    world.wait(600);
    assert_eq!(world.phase(), Phase::Running);
    // When the node is back, then its program has a whole time-out for the next report.
    is_back(&mut world, "n1");
    assert_eq!((world.phase(), world.next), (Phase::Running, Some(at(700 + 300))));
    world.wait(299);
    assert_eq!(world.phase(), Phase::Running);
    world.wait(1);
    assert_eq!(world.status().stop.unwrap().reason, "ProgressTimeout");
}

#[test]
fn a_start_does_not_wait_for_gpus_of_a_node_that_falls_silent() {
    // Given a job that waits for another one to leave a node.
    let mut world = World::new(json!({}));
    world.policy.node_loss_after = 120;
    world.nodes.get_mut("n1").unwrap().free_gpus = 0;
    world.plan_run(&["n1"], 1).wait(100);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Starting, "WaitingForRelease"));
    // When the node falls silent, so that nobody can tell whether it left.
    world.silence("n1");
    world.step_until_stable();
    assert_eq!((world.phase(), world.next), (Phase::Starting, Some(at(world.now + 120))));
    world.wait(120);
    // Then it is planned again, without it.
    assert_eq!(world.last(), (Outcome::Withdrawn, "NodeNotReady".into()));
    assert_eq!((world.phase(), world.status().excluded_nodes[0].node.as_str()), (Phase::Pending, "n1"));
    assert!(world.members().is_empty());
    world.wait(10).plan_run(&["n2"], 1);
    assert_eq!((world.phase(), world.members().len()), (Phase::Starting, 1));
}

#[test]
fn a_start_that_waits_for_a_pod_on_a_silent_node_goes_on_when_that_pod_is_given_up() {
    // Given a start that waits for GPUs, and a pod of another attempt on an unreachable node.
    let mut world = World::new(json!({}));
    restart(&mut world);
    world.policy.node_loss_after = 120;
    world.nodes.get_mut("n2").unwrap().free_gpus = 0;
    world.plan_run(&["n2"], 1);
    world.now = 100;
    world.admit(json!({"metadata": {"name": "bert-9-0", "namespace": "team",
        "labels": {"andreas.dev/job": "bert", "andreas.dev/job-uid": "12345678-job", "andreas.dev/attempt": "9",
            "andreas.dev/index": "0"},
        "ownerReferences": [{"apiVersion": "andreas.dev/v1alpha1", "kind": "TrainingJob", "name": "bert",
            "uid": "12345678-job", "controller": true}]},
        "spec": {"nodeName": "n4", "containers": [{"name": "train"}]}}));
    world.pods.get_mut("bert-9-0").unwrap().status.phase = "Running".into();
    world.silence("n4");
    world.nodes.get_mut("n2").unwrap().free_gpus = 8;
    world.wait(30);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Starting, "WaitingForRelease"));
    // Then it is requeued for the instant of giving up and creates its pods.
    assert_eq!(world.next, Some(at(220)));
    world.now = 220;
    world.step_until_stable();
    assert_eq!(world.reason(), "PodsStarting");
    assert_eq!(world.members(), ["bert-1-0"]);
}
