use andreas_api::{Outcome, Phase};
use serde_json::json;

use super::world::*;

#[test]
fn a_gang_not_wholly_bound_in_time_goes_back_and_the_node_is_left_out_ever_longer() {
    let spec = json!({"gpus": {"min": 2, "maxNodes": 2}});
    let mut world = World::new(spec);
    for (attempt, seconds) in [(1, 60), (2, 120), (3, 240)] {
        world.plan_run(&["n1", "n2"], 1);
        assert_eq!(world.phase(), Phase::Starting);
        let stuck = format!("bert-{attempt}-1");
        world.bind(&format!("bert-{attempt}-0"));
        condition(
            world.pods.get_mut(&stuck).unwrap(),
            "PodScheduled",
            "False",
            "0/4 nodes are available: insufficient memory",
            None,
        );
        world.wait(119);
        assert_eq!((world.phase(), world.next), (Phase::Starting, Some(at(world.now + 1))));
        world.wait(1);
        assert_eq!(world.phase(), Phase::Stopping);
        world.leave(143);
        assert_eq!((world.phase(), world.reason().as_str()), (Phase::Pending, "PlacementTimeout"));
        let words = world.condition("Scheduled").message;
        assert_eq!(words, "1 of 2 workers not bound within 2m: 0/4 nodes are available: insufficient memory");
        let avoid = world.status().avoid;
        assert_eq!((avoid.len(), avoid[0].node.as_str()), (1, "n2"));
        assert_eq!(avoid[0].until.0, at(world.now + seconds));
        // Meanwhile a plan that names the node is not carried out.
        world.plan_run(&["n1", "n2"], 1);
        assert_eq!(world.phase(), Phase::Pending);
        world.wait(seconds);
    }
    let status = world.status();
    assert_eq!((status.user_failures, status.cluster_failures), (0, 0));
    assert!(status.history.iter().all(|r| r.outcome == Outcome::Withdrawn));
    // Having run there clears it.
    world.plan_run(&["n1", "n2"], 1).bind_all().run_all();
    assert!(world.status().avoid.is_empty());
}

#[test]
fn the_time_to_bind_counts_from_the_pods_not_from_the_wait_for_room() {
    let mut world = World::new(json!({}));
    world.nodes.get_mut("n1").unwrap().free_gpus = 0;
    world.plan_run(&["n1"], 1).wait(1000);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Starting, "WaitingForRoom"));
    world.nodes.get_mut("n1").unwrap().free_gpus = 1;
    world.wait(1).wait(60);
    assert_eq!((world.phase(), world.members().len()), (Phase::Starting, 1));
}

#[test]
fn not_starting_is_the_users_failure_by_image_and_configuration_else_the_clusters() {
    for (waiting, outcome) in [
        ("ErrImagePull", Outcome::UserFailure),
        ("ImagePullBackOff", Outcome::UserFailure),
        ("InvalidImageName", Outcome::UserFailure),
        ("CreateContainerConfigError", Outcome::UserFailure),
        ("ContainerCreating", Outcome::ClusterFailure),
        ("CreateContainerError", Outcome::ClusterFailure),
    ] {
        let mut world = World::new(json!({"startTimeout": "5m"}));
        world.plan_run(&["n1"], 1).bind_all().waits_with("bert-1-0", waiting, "Back-off pulling image");
        world.wait(299);
        assert_eq!(world.phase(), Phase::Starting);
        world.wait(1);
        world.leave(137);
        assert_eq!(world.last(), (outcome, "StartTimeout".into()), "{waiting}");
        assert_eq!(world.status().user_failures, i32::from(outcome == Outcome::UserFailure));
        assert_eq!(world.status().avoid.is_empty(), outcome == Outcome::UserFailure);
        assert!(world.condition("Scheduled").message.contains(waiting));
    }
}

#[test]
fn no_progress_in_time_uses_a_retry() {
    let mut world = World::running(json!({"progressTimeout": "10m", "retries": 0}), &["n1"], 1);
    world.wait(500).report(10_000);
    assert_eq!(world.next, Some(at(1100)));
    world.wait(599);
    assert_eq!(world.phase(), Phase::Running);
    world.wait(1);
    assert_eq!(world.status().stop.unwrap().reason, "ProgressTimeout");
    world.leave(0);
    assert_eq!(
        (world.phase(), world.last()),
        (Phase::Failed, (Outcome::UserFailure, "ProgressTimeout".into()))
    );
}

#[test]
fn max_run_time_fails_at_once_whatever_is_left_of_retries() {
    let mut world = World::running(json!({"maxRunTime": "1h", "retries": 3}), &["n1"], 1);
    world.wait(3600);
    assert_eq!(
        (world.phase(), world.status().stop.unwrap().reason.as_str()),
        (Phase::Stopping, "MaxRunTime")
    );
    world.leave(143);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Failed, "MaxRunTime"));
}

#[test]
fn the_object_goes_its_time_after_the_end() {
    let mut world = World::running(json!({"ttlSecondsAfterFinished": 100}), &["n1"], 1);
    world.now = 50;
    world.exit("bert-1-0", 0, "");
    assert_eq!((world.job_deleted, world.next), (false, Some(at(150))));
    world.wait(100);
    assert!(world.job_deleted);
}

#[test]
fn what_the_kubelet_says_of_a_container_that_never_started_does_not_make_it_the_clusters_failure() {
    // given an attempt that cannot have its image and is stopped for its start time-out
    let mut world = World::new(json!({"startTimeout": "5m", "retries": 0}));
    world.plan_run(&["n1"], 1).bind_all().waits_with(
        "bert-1-0",
        "ImagePullBackOff",
        "Back-off pulling image",
    );
    world.wait(300);
    assert_eq!(world.status().stop.map(|s| s.reason).as_deref(), Some("StartTimeout"));
    // when the kubelet reports the end of a container that it never had
    let now = at(world.now);
    end(world.pods.get_mut("bert-1-0").unwrap(), 137, "ContainerStatusUnknown", "", now);
    world.settle();
    // then it stays the user's failure
    assert_eq!(world.last(), (Outcome::UserFailure, "StartTimeout".into()));
}
