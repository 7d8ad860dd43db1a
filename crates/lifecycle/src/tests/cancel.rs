use andreas_api::{Outcome, Phase, Reason};
use serde_json::json;

use super::world::*;
use crate::*;

/// Checks that a deleted job without pods needs no more work.
fn holds_nothing(world: &World) {
    assert_eq!((world.phase(), world.claim.clone()), (Phase::Pending, Some(Claim::Nothing)));
    assert!(world.status().allocation.is_none());
    let step = world.preview();
    assert!(step.actions.is_empty() && step.next.is_none());
}

#[test]
fn pods_of_a_deleted_job_with_a_finalizer_end_with_their_grace_and_their_gpus_are_free() {
    let spec =
        json!({"checkpoint": {"claimName": "ckpt", "graceSeconds": 120}, "gpus": {"min": 2, "maxNodes": 2}});
    let mut world = World::running(spec, &["n1", "n2"], 1);
    world.now = 10;
    world.delete_job(&["x.example/y"]);
    assert_eq!(
        (world.phase(), world.condition("Running").message.as_str()),
        (Phase::Stopping, "the job is being deleted")
    );
    assert_eq!(
        world.deleted,
        [("bert-1-0".into(), DeleteReason::Stop), ("bert-1-1".into(), DeleteReason::Stop)]
    );
    // While its pods save, they hold their GPUs; nothing is planned for the job.
    assert_eq!(world.claim, Some(Claim::Stopping { gone_by: Some(at(130)), goes_on: false }));
    world.plan_run(&["n3"], 1);
    world.now = 60;
    world.leave(0);
    holds_nothing(&world);
    assert_eq!(world.last(), (Outcome::Stopped, "Stopping".into()));
    // No plan restarts it, however long its object stays.
    world.plan_run(&["n1", "n2"], 1).wait(100_000).restart_operator();
    holds_nothing(&world);
    assert!(world.pods.is_empty());
}

#[test]
fn a_deleted_job_that_waits_for_room_gives_its_commitment_back_at_once() {
    let mut world = World::new(json!({}));
    world.nodes.get_mut("n1").unwrap().free_gpus = 0;
    world.plan_run(&["n1"], 1);
    assert_eq!(world.claim, Some(Claim::Starting { since: at(0) }));
    world.delete_job(&["x.example/y"]);
    holds_nothing(&world);
}

#[test]
fn a_deleted_job_whose_pods_were_never_bound_holds_nothing_whatever_keeps_their_objects() {
    for (job, pod) in [("x.example/y", false), ("x.example/y", true), ("foregroundDeletion", true)] {
        let mut world = World::new(json!({"gpus": {"min": 2, "maxNodes": 2}}));
        world.plan_run(&["n1", "n2"], 1);
        if pod {
            world.pin("bert-1-0").pin("bert-1-1");
        }
        world.delete_job(&[job]);
        assert_eq!(world.deleted.len(), 2);
        assert_eq!(world.pods.len(), if pod { 2 } else { 0 });
        holds_nothing(&world);
    }
}

#[test]
fn a_pod_made_while_its_job_is_deleted_ends_too() {
    let mut world = World::new(json!({}));
    world.plan_run(&["n1"], 1);
    let late = serde_json::to_value(&world.pods["bert-1-0"]).unwrap();
    world.delete_job(&["x.example/y"]);
    // The response to its creation arrives after the job's deletion was seen.
    world.admit(late);
    world.step_until_stable();
    assert_eq!((world.deleted.len(), world.pods.len()), (2, 0));
    holds_nothing(&world);
}

#[test]
fn an_orphaning_delete_leaves_the_pods_and_holds_what_they_hold() {
    let mut world = World::running(json!({}), &["n1"], 1);
    world.delete_job(&["orphan"]);
    assert_eq!((world.deleted.len(), world.phase()), (0, Phase::Running));
    assert!(matches!(world.claim, Some(Claim::Stopping { goes_on: false, .. })));
    // The garbage collector removes the owner reference; another finalizer may keep the object.
    world.pods.get_mut("bert-1-0").unwrap().metadata.owner_references = None;
    world.delete_job(&["x.example/y"]);
    world.wait(100);
    assert!(world.deleted.is_empty());
    holds_nothing(&world);
}

#[test]
fn a_deleted_job_on_a_silent_node_is_waited_for() {
    let mut world = World::running(json!({}), &["n1"], 1);
    world.silence("n1").delete_job(&["x.example/y"]);
    world.wait(10_000);
    assert_eq!(world.claim, Some(Claim::Stopping { gone_by: None, goes_on: false }));
    world.nodes.remove("n1");
    world.step_until_stable();
    holds_nothing(&world);
}

#[test]
fn jobs_that_wait_or_have_ended_are_deleted_without_a_word() {
    let mut world = World::new(json!({}));
    world.plan_wait(Reason::WaitingForCapacity, "");
    let writes = world.writes;
    world.delete_job(&["x.example/y"]);
    world.plan_run(&["n1"], 1);
    assert_eq!((world.writes, world.claim.clone()), (writes, Some(Claim::Nothing)));

    let mut world = World::running(json!({}), &["n1"], 1);
    world.exit("bert-1-0", 0, "");
    let writes = world.writes;
    world.delete_job(&["x.example/y"]);
    assert_eq!((world.phase(), world.writes, world.deleted.len()), (Phase::Succeeded, writes, 0));
    assert_eq!(world.claim, Some(Claim::Nothing));
}

#[test]
fn an_unbound_pod_that_is_being_deleted_has_ended_whatever_keeps_its_object() {
    // Given a gang that cannot be bound and pods kept by foreign finalizers.
    let mut world = World::new(json!({"gpus": {"min": 2, "maxNodes": 2}}));
    world.plan_run(&["n1", "n2"], 1);
    world.pin("bert-1-0").pin("bert-1-1");
    // When it is withdrawn.
    world.wait(120);
    // Then its GPUs are released at once, and the next attempt starts beside the old pods.
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Pending, "PlacementTimeout"));
    assert_eq!((world.pods.len(), world.claim.clone()), (2, Some(Claim::Waiting { not_before: None })));
    world.plan_run(&["n3", "n4"], 1);
    assert_eq!(world.members(), ["bert-2-0", "bert-2-1"]);
}
