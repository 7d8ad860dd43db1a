use andreas_api::{Outcome, Phase};
use andreas_cluster::index::is_member;
use andreas_cluster::testing;
use serde_json::{Value, json};

use super::world::*;
use crate::*;

fn owner(uid: &str) -> Value {
    json!([testing::owner("bert", uid)])
}

fn pod(name: &str, label_uid: &str, owners: Value) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "team", "ownerReferences": owners, "labels": {
            "andreas.dev/job": "bert", "andreas.dev/job-uid": label_uid, "andreas.dev/attempt": "1", "andreas.dev/index": "0"}},
        "spec": {"nodeName": "n1", "containers": [{"name": "train"}], "terminationGracePeriodSeconds": 60},
    })
}

#[test]
fn a_job_made_again_under_its_name_waits_for_the_pods_of_the_old_one() {
    // Given a job deleted and applied again at once: the old pod saves during its grace period.
    let mut world = World::new(json!({"checkpoint": {"claimName": "ckpt"}}));
    world.admit(pod("bert-1-0", "older", owner("older")));
    world.pods.get_mut("bert-1-0").unwrap().status.phase = "Running".into();
    world.plan_run(&["n2"], 1);
    // Then it waits without holding any GPU.
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Pending, "WaitingForRelease"));
    assert_eq!(world.condition("Scheduled").message, "bert-1-0 of a deleted job of this name has not ended");
    assert_eq!(world.claim, Some(Claim::Nothing));
    // After its end the name stays taken until the garbage collector removes the pod.
    world.pods.get_mut("bert-1-0").unwrap().status.phase = "Succeeded".into();
    world.wait(61);
    assert!(world.members().is_empty());
    // Pods of the old job are not deleted by us, and their end is not ours.
    assert!(world.deleted.is_empty());
    world.remove("bert-1-0");
    world.step_until_stable();
    assert_eq!(world.members(), ["bert-1-0"]);
    assert_eq!(
        world.pods["bert-1-0"].metadata.labels.as_ref().unwrap()["andreas.dev/job-uid"],
        "12345678-job"
    );
}

#[test]
fn an_old_pod_that_was_deleted_by_force_counts_for_its_grace_period() {
    let made_again = |exclusive: bool| {
        let checkpoint = json!({"claimName": "ckpt", "exclusive": exclusive});
        let mut world = World::new(json!({"checkpoint": checkpoint}));
        world.admit(pod("bert-1-0", "older", owner("older")));
        world.pods.get_mut("bert-1-0").unwrap().status.phase = "Running".into();
        world.remove("bert-1-0");
        world
    };
    let mut world = made_again(true);
    // The agent sees only processes with a GPU; another may still write the checkpoint.
    let answered = AgentFact { holders_observed: 1, ..AgentFact::default() };
    world.nodes.get_mut("n1").unwrap().agent = Some(answered.clone());
    world.plan_run(&["n2"], 1);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Pending, "WaitingForRelease"));
    let words = "bert-1-0 of a deleted job of this name is gone, and nobody saw it end: it may still run";
    assert_eq!(world.condition("Scheduled").message, words);
    assert_eq!((&world.claim, world.next), (&Some(Claim::Nothing), Some(at(60))));
    world.wait(59);
    assert!(world.members().is_empty());
    world.wait(1);
    assert_eq!(world.members(), ["bert-1-0"]);

    // Where two may write at once, it is over with the agent's answer to a request after the deletion.
    let mut world = made_again(false);
    world.plan_run(&["n2"], 1);
    assert!(world.members().is_empty());
    world.nodes.get_mut("n1").unwrap().agent = Some(answered);
    world.wait(1);
    assert_eq!(world.members(), ["bert-1-0"]);

    // It is deleted when the new job has its allocation and waits for its GPUs.
    let mut world = World::new(json!({}));
    world.nodes.get_mut("n2").unwrap().free_gpus = 0;
    world.plan_run(&["n2"], 1);
    world.admit(pod("bert-1-0", "older", owner("older")));
    world.pods.get_mut("bert-1-0").unwrap().status.phase = "Running".into();
    world.remove("bert-1-0");
    world.nodes.get_mut("n2").unwrap().free_gpus = 1;
    world.wait(1);
    assert_eq!((world.phase(), world.members().len()), (Phase::Starting, 0));
    world.wait(59);
    assert_eq!(world.members(), ["bert-1-0"]);
}

#[test]
fn a_job_made_again_holds_no_gpus_while_the_old_ones_pod_is_on_a_silent_node() {
    let mut world = World::new(json!({}));
    world.admit(pod("bert-1-0", "older", owner("older")));
    world.pods.get_mut("bert-1-0").unwrap().status.phase = "Running".into();
    world.silence("n1").plan_run(&["n2"], 1).wait(100_000);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Pending, "NodeNotReady"));
    assert_eq!(
        world.condition("Scheduled").message,
        "bert-1-0 of a deleted job of this name is on node n1, which is not ready"
    );
    assert_eq!(world.claim, Some(Claim::Nothing));
    // Proof of death, and the object is gone: planned, and pods created.
    world.nodes.remove("n1");
    world.remove("bert-1-0");
    world.step_until_stable();
    assert_eq!(world.members(), ["bert-1-0"]);

    // If the policy restarts jobs of unreachable nodes, it continues after that time.
    let mut world = World::new(json!({}));
    world.policy.node_loss_restart = true;
    let mut old = pod("bert-3-0", "older", owner("older"));
    old["metadata"]["labels"]["andreas.dev/attempt"] = "3".into();
    world.admit(old);
    world.pods.get_mut("bert-3-0").unwrap().status.phase = "Running".into();
    world.silence("n1").plan_run(&["n2"], 1);
    assert_eq!((world.phase(), world.next), (Phase::Pending, Some(at(900))));
    world.wait(900);
    assert_eq!(world.members(), ["bert-1-0"]);
}

#[test]
fn a_name_that_belongs_to_somebody_else_is_named_and_waited_for() {
    let mut world = World::new(json!({}));
    world.create = Some(CreationOutcome::NameInUse { name: "bert-1-0".into() });
    world.plan_run(&["n1"], 1);
    assert_eq!(
        (world.phase(), world.reason().as_str(), world.last().0),
        (Phase::Pending, "NameInUse", Outcome::Withdrawn)
    );
    assert_eq!(
        world.condition("Scheduled").message,
        "bert-1-0 belongs to somebody else; delete it or rename the job"
    );
    world.create = None;
    world.wait(10).plan_run(&["n1"], 1);
    assert_eq!(world.members(), ["bert-2-0"]);
}

#[test]
fn a_pod_with_our_label_and_no_owner_of_ours_is_not_a_member() {
    let mut world = World::new(json!({}));
    world.plan_run(&["n1"], 1);
    // Forged, relabelled or orphaned pods never end this job.
    for owners in [
        json!([]),
        owner("somebody"),
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "bert", "uid": "12345678-job", "controller": true}]),
    ] {
        world.pods.clear();
        let mut forged = pod("bert-1-0", "12345678-job", owners);
        forged["metadata"]["labels"]["andreas.dev/job"] = "other".into();
        world.admit(forged);
        world.pods.get_mut("bert-1-0").unwrap().status.phase = "Succeeded".into();
        world.wait(1);
        assert_eq!(world.phase(), Phase::Starting);
        assert!(!is_member(&world.pods["bert-1-0"], &world.job));
    }
    assert!(world.deleted.is_empty());
}

#[test]
fn an_owner_without_our_label_is_not_a_member_either() {
    let mut world = World::new(json!({}));
    world.step_until_stable();
    world.admit(pod("bert-1-0", "relabelled", owner("12345678-job")));
    assert!(!is_member(&world.pods["bert-1-0"], &world.job));
}

#[test]
fn orphans_of_a_deleted_job_do_not_hold_up_the_new_one() {
    let mut world = World::new(json!({}));
    world.admit(pod("bert-9-0", "older", json!([])));
    world.pods.get_mut("bert-9-0").unwrap().status.phase = "Running".into();
    world.plan_run(&["n2"], 1);
    assert_eq!(world.members(), ["bert-1-0"]);
}

#[test]
fn a_stray_pod_of_ours_is_ended_before_the_next_attempt() {
    let mut world = World::new(json!({}));
    world.admit({
        let mut stray = pod("bert-7-0", "12345678-job", owner("12345678-job"));
        stray["metadata"]["labels"]["andreas.dev/attempt"] = "7".into();
        stray
    });
    world.pods.get_mut("bert-7-0").unwrap().status.phase = "Running".into();
    world.plan_run(&["n2"], 1);
    assert_eq!((world.reason().as_str(), world.deleted[0].0.as_str()), ("WaitingForRelease", "bert-7-0"));
    world.now += 5;
    world.leave(143);
    assert_eq!(world.members(), ["bert-1-0"]);
}
