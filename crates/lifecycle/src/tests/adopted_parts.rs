//! Jobs that stand for a workload whose parts start and end apart from each other.

use andreas_api::phase::condition;
use andreas_api::{Outcome, Phase, Reason};
use andreas_workloads::adopt::{Kind, Workload};

use super::adopted::adopted;
use super::world::*;

/// A JobSet with so many pods of one GPU.
fn job_set(pods: i32) -> World {
    let mut world = adopted(pods);
    *world.workload.as_mut().unwrap() = Workload {
        kind: Kind::JobSet,
        pods_left: Some(pods.into()),
        pods_succeed_once: true,
        ..world.workload.clone().unwrap()
    };
    world
}

fn succeeds(world: &mut World, pod: &str) {
    let now = at(world.now);
    end(world.pods.get_mut(pod).unwrap(), 0, "Completed", "", now);
    world.step_until_stable();
}

/// Its controller counts whole Jobs, or nothing: what has succeeded of one that has not ended is known by its pods.
#[test]
fn pods_that_have_succeeded_are_neither_missing_nor_made_again() {
    for counted in [Some(4), None] {
        let mut world = job_set(4);
        world.workload.as_mut().unwrap().pods_left = counted;
        world.plan_run(&["n1"], 4);
        world.controller_makes(&["a-0", "a-1", "a-2", "a-3"], false);
        world.run_on(&[("a-0", "n1"), ("a-1", "n1"), ("a-2", "n1"), ("a-3", "n1")]);
        for pod in ["a-0", "a-1", "a-2"] {
            succeeds(&mut world, pod);
        }
        // The last one writes its results.
        world.wait(10_000);
        assert_eq!((world.phase(), world.status().attempts), (Phase::Running, 1));
        world.plan_wait(Reason::Preempted, "another is worth more");
        // It ends with 0 where it is stopped, which its Job does not count.
        succeeds(&mut world, "a-3");
        world.remove("a-3");
        world.wait(100);
        assert_eq!((world.phase(), world.last().0), (Phase::Pending, Outcome::Stopped));
        world.plan_run(&["n2"], 4);
        world.controller_makes(&["a-4"], false);
        world.run_on(&[("a-4", "n2")]);
        world.wait(10_000);
        assert_eq!((world.phase(), world.status().attempts), (Phase::Running, 2));
    }
}

/// One that has succeeded takes the place of none.
#[test]
fn a_pod_that_nobody_makes_again_is_missing_beside_those_that_have_succeeded() {
    for counted in [Some(4), None] {
        let mut world = job_set(4);
        world.workload.as_mut().unwrap().pods_left = counted;
        world.plan_run(&["n1"], 4);
        world.controller_makes(&["a-0", "a-1", "a-2", "a-3"], false);
        world.run_on(&[("a-0", "n1"), ("a-1", "n1"), ("a-2", "n1"), ("a-3", "n1")]);
        succeeds(&mut world, "a-0");
        world.remove("a-3");
        world.step_until_stable();
        world.wait(119);
        assert_eq!(world.phase(), Phase::Running);
        world.wait(1);
        assert_eq!(world.phase(), Phase::Stopping);
    }
}

#[test]
fn the_grace_of_a_deleted_pod_is_waited_for_beside_those_that_have_succeeded() {
    let mut world = job_set(2);
    world.plan_run(&["n1"], 2);
    world.controller_makes(&["a-0", "a-1"], false);
    world.run_on(&[("a-0", "n1"), ("a-1", "n1")]);
    succeeds(&mut world, "a-0");
    world.plan_wait(Reason::Preempted, "another is worth more");
    world.remove("a-1");
    world.step_until_stable();
    assert_eq!(world.phase(), Phase::Stopping, "its processes may still run");
    world.wait(100);
    assert_eq!((world.phase(), world.last().0), (Phase::Pending, Outcome::Stopped));
}

/// An evaluation on processors alone, after the training.
#[test]
fn a_part_without_gpus_goes_on_when_all_pods_with_gpus_have_succeeded() {
    let mut world = job_set(2);
    world.plan_run(&["n1"], 2);
    world.controller_makes(&["a-0", "a-1"], false);
    world.run_on(&[("a-0", "n1"), ("a-1", "n1")]);
    succeeds(&mut world, "a-0");
    succeeds(&mut world, "a-1");
    world.workload.as_mut().unwrap().pods_left = Some(1);
    world.step_until_stable();
    world.wait(10_000);
    assert_eq!((world.phase(), world.status().attempts), (Phase::Running, 1));
    world.plan_wait(Reason::Preempted, "another is worth more");
    world.wait(100);
    assert_eq!((world.phase(), world.last().0), (Phase::Pending, Outcome::Stopped));
    // No pod with GPUs comes again.
    world.plan_run(&["n2"], 2);
    world.step_until_stable();
    world.wait(10_000);
    assert_eq!((world.phase(), world.status().attempts), (Phase::Running, 2));
}

#[test]
fn pods_that_its_controller_has_counted_are_not_counted_again() {
    let mut world = job_set(4);
    world.plan_run(&["n1"], 4);
    world.controller_makes(&["a-0", "a-1", "a-2", "a-3"], false);
    world.run_on(&[("a-0", "n1"), ("a-1", "n1"), ("a-2", "n1"), ("a-3", "n1")]);
    succeeds(&mut world, "a-0");
    succeeds(&mut world, "a-1");
    // A child Job of two pods has ended, and one of the other Job's is gone for good.
    world.workload.as_mut().unwrap().pods_left = Some(2);
    world.remove("a-3");
    world.step_until_stable();
    world.wait(119);
    assert_eq!(world.phase(), Phase::Running);
    world.wait(1);
    assert_eq!(world.phase(), Phase::Stopping, "one of two is missing");
}

#[test]
fn pods_of_a_part_that_starts_after_another_may_come_late_and_are_then_bound_in_time() {
    let mut world = job_set(2);
    world.workload.as_mut().unwrap().parts_in_order = true;
    world.plan_run(&["n1"], 2);
    world.wait(600);
    assert_eq!(world.phase(), Phase::Starting, "another part downloads the data");
    world.controller_makes(&["a-0", "a-1"], false);
    world.step_until_stable();
    world.wait(119);
    assert_eq!(world.phase(), Phase::Starting);
    world.wait(1);
    assert!(world.status().history.is_empty() && world.phase() == Phase::Stopping);
    assert_eq!(world.status().excluded_nodes.len(), 1, "they were not bound");
}

#[test]
fn pods_that_are_never_made_are_no_fault_of_a_node() {
    for (in_order, seconds) in [(true, 900), (false, 120)] {
        let mut world = job_set(2);
        world.workload.as_mut().unwrap().parts_in_order = in_order;
        world.plan_run(&["n1"], 2);
        world.controller_makes(&["a-0"], false);
        world.step_until_stable();
        world.wait(seconds - 1);
        assert_eq!(world.phase(), Phase::Starting);
        world.wait(1);
        assert!(world.workload.as_ref().unwrap().suspended);
        world.remove("a-0");
        world.wait(100);
        let record = world.status().history.last().cloned().unwrap();
        assert_eq!((record.outcome, record.reason.as_str()), (Outcome::Withdrawn, "PlacementTimeout"));
        assert!(record.message.starts_with("its controller has not made 1 of 2 pods within"), "{record:?}");
        assert!(world.status().excluded_nodes.is_empty());
    }
}

/// A webhook of its kind may refuse what its controller does to stop it.
#[test]
fn an_event_names_a_suspended_workload_whose_pods_still_run() {
    let mut world = job_set(1);
    world.plan_run(&["n1"], 1);
    world.controller_makes(&["a-0"], false);
    world.run_on(&[("a-0", "n1")]);
    world.plan_wait(Reason::Preempted, "another is worth more");
    world.wait(119);
    assert!(!world.condition(condition::RUNNING).message.contains("has not stopped"));
    let told = |world: &World| world.events.iter().filter(|e| e.message.contains("has not stopped")).count();
    for _ in 0..3 {
        world.wait(100);
        let words = "the JobSet is suspended, and its controller has not stopped its pods";
        assert_eq!(world.condition(condition::RUNNING).message, words);
        assert_eq!((world.phase(), told(&world)), (Phase::Stopping, 1));
    }
    // One that is being deleted has its grace period.
    world.remove("a-0");
    world.wait(100);
    assert_eq!((world.phase(), world.last().0), (Phase::Pending, Outcome::Stopped));
}
