//! Jobs that stand for a workload of another kind, whose pods its own controller makes.

use andreas_api::names::{GATE_NODE, LABEL_ADOPTED, LABEL_ATTEMPT, LABEL_JOB, LABEL_JOB_UID};
use andreas_api::{Outcome, Phase, Reason};
use andreas_workloads::adopt::{End, Kind, Workload};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::world::*;
use crate::*;

/// A suspended Job with so many pods of one GPU, and the TrainingJob that stands for it.
pub fn adopted(pods: i32) -> World {
    let mut world = World::new(json!({
        "gpus": {"min": pods, "maxNodes": pods},
        "adopts": {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "w1", "pods": pods},
    }));
    let object = json!({
        "metadata": {"name": "a", "namespace": "team", "uid": "w1", "labels": {"andreas.dev/adopt": "true"}},
        "spec": {"suspend": true},
    });
    world.workload = Workload::from_object(Kind::Job, &object);
    world
}

impl World {
    /// The Job's controller makes pods for the attempt in force, as the index reads them.
    pub fn controller_makes(&mut self, names: &[&str], gated: bool) {
        let workload = self.workload.as_ref().unwrap();
        let attempt = workload.attempt().unwrap().to_string();
        for name in names {
            let mut pod: Value = json!({
                "metadata": {
                    "name": name, "namespace": "team",
                    "labels": {
                        LABEL_JOB: "bert", LABEL_ADOPTED: "12345678-job", LABEL_JOB_UID: "12345678-job",
                        LABEL_ATTEMPT: attempt,
                    },
                    "ownerReferences": [{
                        "apiVersion": "andreas.dev/v1alpha1", "kind": "TrainingJob", "name": "bert",
                        "uid": "12345678-job", "controller": true,
                    }],
                },
                "spec": {"containers": [{"name": "train"}]},
            });
            if gated {
                pod["spec"]["schedulingGates"] = json!([{"name": GATE_NODE}]);
            }
            self.admit(pod);
        }
    }

    pub fn run_on(&mut self, nodes: &[(&str, &str)]) {
        for (name, node) in nodes {
            let now = at(self.now);
            let pod = self.pods.get_mut(*name).unwrap();
            pod.spec.node_name = Some((*node).to_owned());
            pod.status.phase = "Running".into();
            container(pod).running =
                Some(serde_json::from_value(json!({"startedAt": now.to_string()})).unwrap());
        }
        self.step_until_stable();
    }
}

#[test]
fn a_workload_is_released_once_runs_and_ends_with_its_own_end() {
    let mut world = adopted(1);
    world.now = 1;
    world.plan_run(&["n1"], 1);
    // Then it is released, and no pod is made by us.
    assert_eq!((world.phase(), world.workload.as_ref().unwrap().suspended), (Phase::Starting, false));
    assert!(world.pods.is_empty() && world.dry_runs == 0 && world.services.is_empty());
    world.controller_makes(&["a-0"], false);
    world.run_on(&[("a-0", "n1")]);
    assert_eq!((world.phase(), world.writes), (Phase::Running, 2));
    // A pod that fails and is replaced is its controller's affair.
    let now = at(world.now);
    end(world.pods.get_mut("a-0").unwrap(), 1, "Error", "", now);
    world.step_until_stable();
    world.controller_makes(&["a-1"], false);
    world.run_on(&[("a-1", "n1")]);
    assert_eq!((world.phase(), world.status().user_failures), (Phase::Running, 0));
    // The end is that of the workload.
    let now = at(world.now);
    end(world.pods.get_mut("a-1").unwrap(), 0, "Completed", "", now);
    world.workload.as_mut().unwrap().end = Some(End { succeeded: true, message: "done".into(), at: None });
    world.step_until_stable();
    assert_eq!(world.phase(), Phase::Succeeded);
    assert!(world.deleted.is_empty());
}

/// As KubeRay does, which says the end of a RayJob and then deletes its cluster.
#[test]
fn pods_that_end_soon_after_their_workload_cost_no_write_of_a_stop() {
    for (pod_ends_after, writes) in [(3, 3), (20, 4)] {
        let mut world = adopted(1);
        world.plan_run(&["n1"], 1);
        world.controller_makes(&["a-0"], false);
        world.run_on(&[("a-0", "n1")]);
        assert_eq!(world.writes, 2);
        world.workload.as_mut().unwrap().end =
            Some(End { succeeded: true, message: "done".into(), at: None });
        world.step_until_stable();
        world.wait(pod_ends_after);
        let waits = if writes == 3 { Phase::Running } else { Phase::Stopping };
        assert_eq!((world.phase(), world.status().allocation.is_some()), (waits, true));
        let now = at(world.now);
        end(world.pods.get_mut("a-0").unwrap(), 0, "Completed", "", now);
        world.step_until_stable();
        assert_eq!((world.phase(), world.writes), (Phase::Succeeded, writes));
    }
}

#[test]
fn a_workload_whose_pods_follow_the_plan_runs_when_as_many_run_as_it_was_given() {
    let mut world = World::new(json!({
        "gpus": {"min": 1, "max": 4},
        "adopts": {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "w1", "pods": 4, "gpusPerPod": 1},
    }));
    world.workload = adopted(1).workload;
    // Given two of four GPUs, two pods are all of them.
    world.plan_run(&["n1"], 2);
    world.controller_makes(&["a-0", "a-1"], false);
    world.run_on(&[("a-0", "n1")]);
    assert_eq!(world.phase(), Phase::Starting);
    world.run_on(&[("a-1", "n1")]);
    assert_eq!(world.phase(), Phase::Running);
}

#[test]
fn a_failed_workload_is_not_tried_again() {
    let mut world = adopted(1);
    world.plan_run(&["n1"], 1);
    world.controller_makes(&["a-0"], false);
    world.run_on(&[("a-0", "n1")]);
    let now = at(world.now);
    end(world.pods.get_mut("a-0").unwrap(), 1, "Error", "", now);
    let failed = End { succeeded: false, message: "BackoffLimitExceeded".into(), at: None };
    world.workload.as_mut().unwrap().end = Some(failed);
    world.step_until_stable();
    assert_eq!(world.phase(), Phase::Failed);
    assert_eq!(world.condition("Failed").message, "BackoffLimitExceeded");
}

/// The operator died after the release, and came back when all was over.
#[test]
fn a_workload_that_ended_before_its_start_was_written_has_lasted() {
    let mut world = adopted(1);
    world.plan_run(&["n1"], 1);
    world.controller_makes(&["a-0"], false);
    let started = at(world.now);
    world.now += 90;
    let now = at(world.now);
    let pod = world.pods.get_mut("a-0").unwrap();
    pod.spec.node_name = Some("n1".into());
    end(pod, 0, "Completed", "", now);
    container(pod).terminated.as_mut().unwrap().started_at = Some(Time(started));
    world.workload.as_mut().unwrap().end = Some(End { succeeded: true, message: "done".into(), at: None });
    world.restart_operator();
    world.step_until_stable();
    let status = world.status();
    assert_eq!((world.phase(), status.display.duration.as_deref()), (Phase::Succeeded, Some("1m30s")));
    assert_eq!(status.history[0].outcome, Outcome::Finished);
}

#[test]
fn an_image_that_cannot_be_pulled_makes_it_wait_and_ends_it_not() {
    let mut world = adopted(1);
    world.plan_run(&["n1"], 1);
    world.controller_makes(&["a-0"], false);
    let now = Some(Time(at(world.now)));
    let pod = world.pods.get_mut("a-0").unwrap();
    pod.spec.node_name = Some("n1".to_owned());
    condition(pod, "PodScheduled", "True", "", now);
    world.waits_with("a-0", "ImagePullBackOff", "not found");
    world.wait(901);
    world.step_until_stable();
    assert!(world.workload.as_ref().unwrap().suspended);
    world.remove("a-0");
    world.wait(100);
    world.step_until_stable();
    assert_eq!((world.phase(), world.last()), (Phase::Pending, (Outcome::Withdrawn, "StartTimeout".into())));
    assert!(world.status().not_before.is_some() && world.status().user_failures == 0);
}

#[test]
fn a_plan_stops_it_by_its_switch_and_starts_it_again() {
    let mut world = adopted(1);
    world.plan_run(&["n1"], 1);
    world.controller_makes(&["a-0"], false);
    world.run_on(&[("a-0", "n1")]);
    world.plan_wait(Reason::Preempted, "another is worth more");
    assert_eq!(world.phase(), Phase::Stopping);
    assert!(world.workload.as_ref().unwrap().suspended && world.deleted.is_empty());
    // Its GPUs are in use until its controller has removed the pod.
    world.remove("a-0");
    world.wait(100);
    world.step_until_stable();
    assert_eq!((world.phase(), world.last().0), (Phase::Pending, Outcome::Stopped));
    world.plan_run(&["n2"], 1);
    let workload = world.workload.as_ref().unwrap();
    assert_eq!((workload.suspended, workload.attempt()), (false, Some(2)));
}

/// Its controller makes again only what has not succeeded.
#[test]
fn a_job_of_which_a_part_has_succeeded_goes_on_with_the_rest() {
    let mut world = adopted(2);
    world.plan_run(&["n1"], 2);
    world.controller_makes(&["a-0", "a-1"], false);
    world.run_on(&[("a-0", "n1"), ("a-1", "n1")]);
    let now = at(world.now);
    end(world.pods.get_mut("a-0").unwrap(), 0, "Completed", "", now);
    world.workload.as_mut().unwrap().pods_left = Some(1);
    world.step_until_stable();
    assert_eq!(world.phase(), Phase::Running);
    world.plan_wait(Reason::Preempted, "another is worth more");
    world.remove("a-1");
    world.wait(100);
    assert_eq!((world.phase(), world.last().0), (Phase::Pending, Outcome::Stopped));
    world.plan_run(&["n1"], 2);
    world.controller_makes(&["a-2"], false);
    world.run_on(&[("a-2", "n1")]);
    assert_eq!(world.phase(), Phase::Running);
    world.wait(1_000);
    assert_eq!((world.phase(), world.status().attempts), (Phase::Running, 2));
}

#[test]
fn pods_on_several_nodes_are_let_onto_them_evenly() {
    let mut world = adopted(4);
    world.plan_run(&["n1", "n2"], 2);
    world.controller_makes(&["a-0", "a-1", "a-2", "a-3"], true);
    world.step_until_stable();
    let node = |name: &str| world.pods[name].metadata.annotations.as_ref().unwrap()[GATE_NODE].clone();
    let mut nodes = ["a-0", "a-1", "a-2", "a-3"].map(node);
    nodes.sort();
    assert_eq!(nodes, ["n1", "n1", "n2", "n2"]);
}

#[test]
fn what_others_start_or_stop_is_left_alone_for_a_while() {
    // Suspended by somebody else while it runs: the attempt is withdrawn, and tried again later.
    let mut world = adopted(1);
    world.plan_run(&["n1"], 1);
    world.controller_makes(&["a-0"], false);
    world.run_on(&[("a-0", "n1")]);
    world.workload.as_mut().unwrap().suspended = true;
    world.remove("a-0");
    world.wait(100);
    world.step_until_stable();
    assert_eq!((world.phase(), world.last()), (Phase::Pending, (Outcome::Withdrawn, "NotAdopted".into())));
    assert!(world.status().not_before.is_some());
    // Started by somebody else while it waits: not planned.
    let mut world = adopted(1);
    world.workload.as_mut().unwrap().suspended = false;
    world.step_until_stable();
    assert_eq!((world.reason(), world.claim.clone()), ("NotAdopted".into(), Some(Claim::Nothing)));
}

#[test]
fn what_people_stop_or_start_themselves_is_not_counted_as_undone_by_a_field_manager() {
    let mut world = adopted(1);
    let argo = Some("argocd-controller".to_owned());
    // One release is stopped by hand, the next is started by hand before us, and one is undone by a manager.
    for (attempt, manager, by_hand) in [(1, None, true), (2, None, false), (3, argo, true)] {
        world.wait(400).plan_run(&["n1"], 1);
        assert_eq!(world.phase(), Phase::Starting, "{attempt}");
        let workload = world.workload.as_mut().unwrap();
        workload.switched_by = manager;
        workload.suspended = by_hand;
        if !by_hand {
            workload.metadata.annotations.as_mut().unwrap().clear();
        }
        world.step_until_stable();
        assert_eq!(world.last(), (Outcome::Withdrawn, "NotAdopted".into()), "{attempt}");
        world.workload.as_mut().unwrap().suspended = true;
    }
    world.wait(400).plan_run(&["n1"], 1);
    assert_eq!(world.phase(), Phase::Starting);
}

#[test]
fn a_field_manager_that_undoes_each_release_is_named_and_gpus_are_not_taken_for_it_again_and_again() {
    let mut world = adopted(1);
    world.workload.as_mut().unwrap().switched_by = Some("argocd-controller".into());
    for attempt in 1..=2 {
        world.wait(400).plan_run(&["n1"], 1);
        assert_eq!(world.phase(), Phase::Starting, "{attempt}");
        world.workload.as_mut().unwrap().suspended = true;
        world.step_until_stable();
        assert_eq!(world.last(), (Outcome::Withdrawn, "NotAdopted".into()));
    }
    world.wait(400).plan_run(&["n1"], 1);
    let words = world.condition("Scheduled").message;
    assert!(
        words.contains("suspended by argocd-controller, which owns the field suspend of this Job"),
        "{words}"
    );
    assert_eq!((world.phase(), world.claim.clone()), (Phase::Pending, Some(Claim::Nothing)));
    // An hour later it is tried once more; at once where the manager gives the field up.
    for given_up in [false, true] {
        if given_up {
            world.workload.as_mut().unwrap().switched_by = None;
            world.wait(400);
        } else {
            world.wait(3_600);
        }
        world.plan_run(&["n1"], 1);
        assert_eq!(world.phase(), Phase::Starting, "{given_up}");
        world.workload.as_mut().unwrap().suspended = true;
        world.step_until_stable();
    }
}

/// The Job of one pod runs on n1, which is drained; its controller makes another pod, which its selector holds to n1.
fn drained() -> World {
    let mut world = adopted(1);
    world.plan_run(&["n1"], 1);
    world.controller_makes(&["a-0"], false);
    world.run_on(&[("a-0", "n1")]);
    world.nodes.get_mut("n1").unwrap().leaving = true;
    world.evict("a-0");
    let now = at(world.now);
    end(world.pods.get_mut("a-0").unwrap(), 143, "Error", "", now);
    world.remove("a-0");
    world
}

#[test]
fn a_drained_workload_is_stopped_and_goes_on_elsewhere() {
    let mut world = drained();
    world.controller_makes(&["a-1"], false);
    world.step_until_stable();
    assert_eq!(world.phase(), Phase::Running, "its end may be written any moment");
    let next = world.next.expect("it is looked at again");
    world.now = next.as_second() - at(0).as_second();
    world.step_until_stable();
    assert!(world.workload.as_ref().unwrap().suspended);
    world.remove("a-1");
    world.wait(100);
    assert_eq!(
        (world.phase(), world.last()),
        (Phase::Pending, (Outcome::ClusterFailure, "ClusterFailure".into()))
    );
    let status = world.status();
    assert_eq!((status.user_failures, status.unexplained_failures), (0, 0));
    assert_eq!(status.excluded_nodes[0].node, "n1");
    assert!(status.history[0].message.contains("1 of 1 pods are missing: node n1 is being taken out of use"));
    world.wait(10).plan_run(&["n2"], 1);
    let workload = world.workload.as_ref().unwrap();
    assert_eq!((workload.suspended, workload.attempt()), (false, Some(2)));
}

#[test]
fn a_workload_that_ends_with_its_pod_on_a_drained_node_has_ended() {
    let mut world = drained();
    world.wait(3);
    world.workload.as_mut().unwrap().end = Some(End { succeeded: false, message: "failed".into(), at: None });
    world.step_until_stable();
    world.wait(100);
    assert_eq!(world.phase(), Phase::Failed);
}

/// A quota or a webhook refuses the pod, its node has no room, or its controller has stopped.
#[test]
fn a_workload_without_a_living_pod_is_stopped_when_its_controller_could_have_made_one() {
    for (replaced, failures, stopped_after) in
        [(false, 0, 120), (true, 1, 130), (false, 4, 200), (false, 20, 720)]
    {
        let mut world = adopted(2);
        world.plan_run(&["n1"], 2);
        world.controller_makes(&["a-0", "a-1"], false);
        world.run_on(&[("a-0", "n1"), ("a-1", "n1")]);
        world.wait(10_000);
        world.workload.as_mut().unwrap().pods_failed = failures;
        world.remove("a-1");
        if replaced {
            world.controller_makes(&["a-2"], false);
            condition(world.pods.get_mut("a-2").unwrap(), "PodScheduled", "False", "no node fits", None);
        }
        world.step_until_stable();
        world.wait(stopped_after - 1);
        assert_eq!(
            (world.phase(), world.next),
            (Phase::Running, Some(at(world.now + 1))),
            "{failures} failures"
        );
        world.wait(1);
        assert_eq!(world.phase(), Phase::Stopping, "{failures} failures");
        assert!(world.workload.as_ref().unwrap().suspended);
        world.remove("a-0");
        if replaced {
            world.remove("a-2");
        }
        world.wait(100);
        assert_eq!(world.last().0, Outcome::ClusterFailure);
        let excluded = world.status().excluded_nodes.len();
        assert_eq!(excluded, usize::from(replaced), "a node is at fault only if the scheduler says so");
    }
}

#[test]
fn a_pod_that_is_replaced_in_time_or_has_done_its_part_is_not_missing() {
    let mut world = adopted(2);
    world.plan_run(&["n1"], 2);
    world.controller_makes(&["a-0", "a-1"], false);
    world.run_on(&[("a-0", "n1"), ("a-1", "n1")]);
    world.remove("a-1");
    world.wait(100);
    world.controller_makes(&["a-2"], false);
    world.run_on(&[("a-2", "n1")]);
    world.wait(100);
    world.remove("a-2");
    world.wait(100);
    assert_eq!(world.phase(), Phase::Running, "each time it was missing for less than the time-out");
    world.controller_makes(&["a-3"], false);
    world.run_on(&[("a-3", "n1")]);
    // Its controller does not count those that succeed: they are replaced by none.
    let now = at(world.now);
    end(world.pods.get_mut("a-3").unwrap(), 0, "Completed", "", now);
    world.wait(100_000);
    assert_eq!((world.phase(), world.status().attempts), (Phase::Running, 1));
    // Where it does, another one is still to come.
    world.workload.as_mut().unwrap().pods_left = Some(2);
    world.step_until_stable();
    world.wait(200);
    assert_eq!(world.phase(), Phase::Stopping);
}

#[test]
fn a_replacement_that_never_starts_stops_the_workload() {
    let mut world = adopted(1);
    world.plan_run(&["n1"], 1);
    world.controller_makes(&["a-0"], false);
    world.run_on(&[("a-0", "n1")]);
    world.wait(10_000);
    world.remove("a-0");
    world.controller_makes(&["a-1"], false);
    world.pods.get_mut("a-1").unwrap().spec.node_name = Some("n1".to_owned());
    world.waits_with("a-1", "ContainerCreating", "");
    world.wait(899);
    assert_eq!((world.phase(), world.next), (Phase::Running, Some(at(world.now + 1))));
    world.wait(1);
    assert!(world.workload.as_ref().unwrap().suspended);
    world.remove("a-1");
    world.wait(100);
    assert_eq!(world.last(), (Outcome::ClusterFailure, "StartTimeout".into()));
}
