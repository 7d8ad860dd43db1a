use andreas_api::{Outcome, Phase};
use serde_json::json;

use super::world::*;
use crate::*;

fn gang() -> serde_json::Value {
    json!({"gpus": {"min": 4, "max": 8, "maxNodes": 2}, "checkpoint": {"claimName": "ckpt", "graceSeconds": 60}})
}

#[test]
fn a_gang_is_made_at_once_with_its_service_and_runs_when_all_run() {
    let mut world = World::new(gang());
    world.plan_run(&["n2", "n1"], 2);
    assert_eq!(world.members(), ["bert-1-0", "bert-1-1"]);
    assert_eq!(world.services, ["bert-gang-12345"]);
    world.bind_all();
    assert_eq!(world.phase(), Phase::Starting);
    let now = world.now;
    world.now = now + 3;
    let only = world.pods["bert-1-0"].clone();
    world.run_all();
    assert_eq!(world.phase(), Phase::Running);
    // One running member of two is not a running gang.
    let mut world = World::new(gang());
    world.plan_run(&["n2", "n1"], 2).bind_all();
    world.pods.get_mut("bert-1-0").unwrap().status = only.status;
    *container(world.pods.get_mut("bert-1-0").unwrap()) =
        serde_json::from_value(json!({"running": {}})).unwrap();
    world.wait(5);
    assert_eq!(world.phase(), Phase::Starting);
}

#[test]
fn a_member_that_fails_because_its_peers_node_lost_power_costs_its_user_nothing() {
    for (code, reason) in [(255, "Unknown"), (137, "ContainerStatusUnknown")] {
        // Given a running gang, when the node of one member loses its power, then the other fails first.
        let mut world = World::running(gang(), &["n1", "n2"], 2);
        world.wait(100).exit("bert-1-1", 1, "lost peer: rank 0: Connection reset by peer");
        assert_eq!(world.status().stop.and_then(|stop| stop.outcome), Some(Outcome::UserFailure));
        // Its runtime finds the container when the node is back, and says that it ended then.
        world.now += 30;
        let now = at(world.now);
        end(world.pods.get_mut("bert-1-0").unwrap(), code, reason, "", now);
        world.remove("bert-1-0");
        world.step_until_stable();
        assert_eq!(world.last(), (Outcome::ClusterFailure, "ClusterFailure".into()), "{reason}");
        assert_eq!((world.status().user_failures, world.status().excluded_nodes[0].node.as_str()), (0, "n1"));
    }
}

#[test]
fn a_drained_member_ends_the_gang_as_the_clusters_failure() {
    // Given a running gang, when one member is evicted, then the others are deleted as well.
    let mut world = World::running(gang(), &["n1", "n2"], 2);
    world.wait(100).evict("bert-1-1");
    assert_eq!(world.phase(), Phase::Stopping);
    assert!(world.pods["bert-1-0"].metadata.deletion_timestamp.is_some());
    assert!(matches!(world.claim, Some(Claim::Stopping { gone_by: Some(_), goes_on: true })));
    // Even if all of them save and exit 0, the run is not done.
    world.now += 20;
    world.leave(0);
    assert_eq!(
        (world.phase(), world.last()),
        (Phase::Pending, (Outcome::ClusterFailure, "ClusterFailure".into()))
    );
    let status = world.status();
    assert_eq!((status.cluster_failures, status.user_failures, status.restarts), (1, 0, 0));
    // Another node after a backoff, without using a retry.
    assert_eq!(status.excluded_nodes[0].node, "n2");
    assert!(status.not_before.is_some());
    world.plan_run(&["n1", "n3"], 2);
    assert_eq!(world.phase(), Phase::Pending);
    world.wait(10);
    assert_eq!((world.phase(), world.status().attempts), (Phase::Starting, 2));
    assert_eq!(world.members(), ["bert-2-0", "bert-2-1"]);
}

#[test]
fn a_drain_after_the_gang_has_finished_changes_nothing() {
    let mut world = World::running(gang(), &["n1", "n2"], 2);
    world.now = 100;
    world.exit_quietly("bert-1-0", 0, "");
    world.exit_quietly("bert-1-1", 0, "");
    world.now = 130;
    world.evict("bert-1-1");
    assert_eq!((world.phase(), world.last().0), (Phase::Succeeded, Outcome::Finished));
}

#[test]
fn an_exit_0_at_the_same_time_as_a_drain_is_done_only_with_99_percent() {
    for (milli_percent, outcome) in [(99_500, Outcome::Finished), (50_000, Outcome::ClusterFailure)] {
        let mut world = World::running(gang(), &["n1", "n2"], 2);
        world.report(milli_percent);
        world.now = 100;
        world.exit_quietly("bert-1-0", 0, "");
        world.exit_quietly("bert-1-1", 0, "");
        world.now = 102;
        world.evict("bert-1-1");
        assert_eq!(world.last().0, outcome, "{milli_percent}");
    }
}

#[test]
fn a_failed_member_takes_the_others_with_it_and_its_pod_is_kept() {
    let mut world = World::running(gang(), &["n1", "n2"], 2);
    world.now = 50;
    world.exit("bert-1-1", 3, "Traceback\nValueError: bad batch");
    assert_eq!(world.phase(), Phase::Stopping);
    assert_eq!(world.deleted, [("bert-1-0".to_owned(), DeleteReason::Stop)]);
    // No pod of the next attempt while a member can run.
    world.plan_run(&["n3", "n4"], 2).wait(20);
    assert_eq!(world.status().attempts, 1);
    world.leave(143);
    let record = world.status().history[0].clone();
    assert_eq!((record.outcome, record.exit_code), (Outcome::UserFailure, Some(3)));
    assert_eq!(record.message, "worker 1 exited with 3: ValueError: bad batch");
    assert!(world.pods.contains_key("bert-1-1"));
    assert_eq!(world.status().user_failures, 1);
}

#[test]
fn members_that_finish_apart_for_ten_minutes_are_the_users_failure() {
    let mut world = World::running(gang(), &["n1", "n2"], 2);
    world.now = 100;
    world.exit("bert-1-0", 0, "");
    assert_eq!((world.phase(), world.next), (Phase::Running, Some(at(600))));
    world.wait(599);
    assert_eq!(world.phase(), Phase::Running);
    world.wait(1);
    assert_eq!(world.phase(), Phase::Stopping);
    world.leave(0);
    assert_eq!(world.last(), (Outcome::UserFailure, "ContainerFailed".into()));
}

#[test]
fn a_member_whose_end_cannot_be_seen_does_not_run_on_after_the_others() {
    // Given a gang that ends while the network of n2 is away.
    let cut_off = || {
        let mut world = World::running(gang(), &["n1", "n2"], 2);
        world.now = 100;
        world.exit("bert-1-0", 0, "");
        world.now = 101;
        world.silence("n2");
        world.wait(700);
        assert_eq!(world.phase(), Phase::Running);
        world
    };
    let is_back = |world: &mut World| {
        let fact = world.nodes.get_mut("n2").unwrap();
        (fact.ready, fact.ready_changed) = (true, Some(at(801)));
        world.step_until_stable();
        assert_eq!(world.phase(), Phase::Running);
    };
    // When n2 is back and says that its worker has ended too, then the job is done.
    let mut world = cut_off();
    is_back(&mut world);
    world.exit("bert-1-1", 0, "");
    assert_eq!((world.phase(), world.status().user_failures), (Phase::Succeeded, 0));
    // When its worker still runs, then it has ten minutes more.
    let mut world = cut_off();
    is_back(&mut world);
    world.wait(599);
    assert_eq!(world.phase(), Phase::Running);
    world.wait(1);
    assert_eq!(world.status().stop.unwrap().reason, "ContainerFailed");
    // When it does not come back, then the loss of the node is the cluster's.
    let mut world = cut_off();
    world.policy.node_loss_restart = true;
    world.wait(200);
    assert_eq!(world.last(), (Outcome::ClusterFailure, "NodeNotReady".into()));
    assert_eq!(world.status().user_failures, 0);
}

#[test]
fn a_member_lost_with_its_node_explains_the_failure_of_the_others() {
    // Given a gang whose node n2 dies: the peer on n1 fails at once, the node is noticed 50 s later.
    let mut world = World::running(gang(), &["n1", "n2"], 2);
    world.now = 100;
    world.exit("bert-1-0", 1, "NCCL error: connection closed by remote peer");
    assert_eq!(world.phase(), Phase::Stopping);
    world.now = 150;
    world.silence("n2");
    world.now = 200;
    world.nodes.get_mut("n2").unwrap().out_of_service = true;
    world.step_until_stable();
    assert_eq!((world.phase(), world.last().0), (Phase::Pending, Outcome::ClusterFailure));
    assert_eq!(world.status().user_failures, 0);
}

#[test]
fn a_member_whose_containers_its_node_forgot_explains_the_failure_of_the_others() {
    // Given a gang whose node n2 loses its power: the peer on n1 fails at once.
    let mut world = World::running(gang(), &["n1", "n2"], 2);
    world.now = 100;
    world.exit("bert-1-0", 1, "lost peer: connection closed");
    assert_eq!(world.phase(), Phase::Stopping);
    // When the kubelet of n2 is back, its runtime knows no container of the pod that is being deleted, and what it said of the
    // init container stays. Its new boot ID comes later.
    let pod = world.pods.get_mut("bert-1-1").unwrap();
    let init = json!([{"name": "data", "state": {"terminated": {"exitCode": 0, "reason": "Completed",
        "startedAt": at(1).to_string(), "finishedAt": at(2).to_string()}}}]);
    pod.status.init_container_statuses = serde_json::from_value(init).unwrap();
    pod.status.container_statuses.clear();
    pod.status.phase = "Failed".into();
    world.step_until_stable();
    assert_eq!((world.phase(), world.last().0), (Phase::Pending, Outcome::ClusterFailure));
    assert_eq!(world.status().user_failures, 0);
    assert_eq!(world.status().excluded_nodes[0].node, "n2");
}

#[test]
fn a_pod_whose_containers_have_all_ended_is_left_to_its_kubelet_so_that_its_logs_stay() {
    for (code, ended) in [(0, Phase::Succeeded), (3, Phase::Failed)] {
        // Given a worker that has ended, while its kubelet still unmounts its volumes.
        let unmounting = || {
            let mut world = World::running(json!({"retries": 0}), &["n1"], 1);
            world.now = 60;
            let pod = world.pods.get_mut("bert-1-0").unwrap();
            end(pod, code, "x", "", at(60));
            pod.status.phase = "Running".into();
            world.step_until_stable();
            world.wait(9);
            assert_eq!((world.phase(), world.deleted.len()), (Phase::Stopping, 0));
            world
        };
        // When its last phase comes, then the job has ended and the pod stays.
        let mut world = unmounting();
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        world.pods.get_mut("bert-1-0").unwrap().status.phase = phase.into();
        world.step_until_stable();
        assert_eq!((world.phase(), world.pods.len(), world.deleted.len()), (ended, 1, 0));
        // When it does not come, then the pod is deleted after 10 s.
        let mut world = unmounting();
        world.wait(1);
        assert_eq!(world.deleted, [("bert-1-0".to_owned(), DeleteReason::Leftover)]);
    }
}

#[test]
fn containers_beside_the_training_one_do_not_keep_the_gpus() {
    let spec = json!({"container": "train", "template": {"spec": {"containers": [
        {"name": "train", "image": "train:1"}, {"name": "logs", "image": "logs:1"}]}}});
    let mut world = World::running(spec, &["n1"], 1);
    world.now = 60;
    let pod = world.pods.get_mut("bert-1-0").unwrap();
    end(pod, 0, "Completed", "", at(60));
    pod.status.phase = "Running".into();
    world.step_until_stable();
    assert_eq!((world.phase(), &world.deleted[0].1), (Phase::Stopping, &DeleteReason::Leftover));
    // The verdict is in the status before the pod goes, so an operator restart does not lose it.
    world.restart_operator().wait(5);
    world.pods.clear();
    world.wait(40);
    assert_eq!((world.phase(), world.last().0), (Phase::Succeeded, Outcome::Finished));
}

#[test]
fn a_plan_that_lists_the_nodes_of_a_gang_in_another_order_stops_nothing() {
    let mut world = World::running(json!({"gpus": {"min": 2, "maxNodes": 2}}), &["n1", "n2"], 1);
    let writes = world.writes;
    world.plan_run(&["n2", "n1"], 1);
    assert_eq!((world.phase(), world.writes), (Phase::Running, writes));
    assert_eq!(world.status().allocation.unwrap().nodes, ["n1", "n2"]);
}
