use andreas_api::training_job::FirstReport;
use andreas_api::{Outcome, Phase, Reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::world::*;
use crate::*;

#[test]
fn half_a_gang_made_before_a_crash_is_completed() {
    let mut world = World::new(json!({"gpus": {"min": 2, "maxNodes": 2}}));
    world.plan_run(&["n1", "n2"], 1);
    // The operator died between the two creations.
    world.pods.remove("bert-1-1");
    world.restart_operator();
    assert_eq!(world.members(), ["bert-1-0", "bert-1-1"]);
    assert_eq!(world.status().attempts, 1);
}

#[test]
fn an_allocation_written_before_a_crash_is_carried_out_after_it() {
    let mut world = World::new(json!({}));
    world.plan_run(&["n1"], 1);
    world.pods.clear();
    world.restart_operator();
    assert_eq!((world.members(), world.status().attempts), (vec!["bert-1-0".to_owned()], 1));
}

#[test]
fn a_stop_written_before_a_crash_is_carried_out_after_it() {
    let mut world = World::running(json!({}), &["n1"], 1);
    world.plan_wait(Reason::Preempted, "");
    world.pods.get_mut("bert-1-0").unwrap().metadata.deletion_timestamp = None;
    world.deleted.clear();
    world.restart_operator();
    assert_eq!(world.deleted.len(), 1);
    world.now += 10;
    world.leave(0);
    assert_eq!(world.last().0, Outcome::Stopped);
}

#[test]
fn pods_that_ended_and_went_while_the_operator_was_away_after_its_stop_are_stopped() {
    let mut world = World::running(json!({"checkpoint": {"graceSeconds": 60}}), &["n1"], 1);
    world.now = 100;
    world.plan_wait(Reason::Preempted, "");
    world.pods.clear();
    world.now = 110;
    world.restart_operator();
    // The end was not observed: the GPUs count as in use for the grace period from the stop.
    assert_eq!((world.phase(), world.next), (Phase::Stopping, Some(at(160))));
    world.wait(50);
    assert_eq!((world.phase(), world.last().0), (Phase::Pending, Outcome::Stopped));
}

#[test]
fn a_run_that_finished_while_the_operator_was_away_is_found_finished() {
    let mut world = World::running(json!({}), &["n1"], 1);
    world.now = 100;
    world.exit_quietly("bert-1-0", 0, "");
    world.now = 500;
    world.restart_operator();
    assert_eq!((world.phase(), world.status().completion_time.unwrap().0), (Phase::Succeeded, at(100)));
}

#[test]
fn a_failure_is_judged_once_however_often_the_operator_starts_again() {
    let mut world = World::running(json!({"gpus": {"min": 2, "maxNodes": 2}}), &["n1", "n2"], 1);
    world.exit("bert-1-0", 1, "boom");
    for _ in 0..3 {
        world.restart_operator();
    }
    // Another client deletes the failed pod; the verdict is in the status.
    world.pods.remove("bert-1-0");
    world.now += 5;
    world.leave(143);
    world.wait(60);
    let record = world.status().history[0].clone();
    assert_eq!(
        (record.outcome, record.exit_code, record.message.as_str()),
        (Outcome::UserFailure, Some(1), "worker 0 exited with 1: boom")
    );
    assert_eq!((world.status().user_failures, world.status().history.len()), (1, 1));
}

#[test]
fn a_worker_that_lost_a_vanished_peer_is_not_blamed_by_an_operator_that_was_away() {
    // Given a pod of a gang that somebody deletes while no operator runs, and a worker that loses its peer so.
    let away = || {
        let mut world = World::running(json!({"gpus": {"min": 2, "maxNodes": 2}}), &["n1", "n2"], 1);
        let pod = world.pods.remove("bert-1-0").unwrap();
        world.exit_quietly("bert-1-1", 1, "lost peer: rank 0");
        // When the operator starts, then who failed first is not known: the pod may still appear.
        world.restart_operator();
        assert_eq!(world.phase(), Phase::Running);
        (world, pod)
    };
    // When it does not, then it has vanished, and that explains the failure.
    let (mut world, _) = away();
    world.wait(10);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Stopping, "Vanished"));
    world.wait(60);
    let outcome = world.status().history[0].outcome;
    assert_eq!((world.status().user_failures, outcome), (0, Outcome::ClusterFailure));
    // When it does, then the failure is the program's own.
    let (mut world, pod) = away();
    world.pods.insert("bert-1-0".into(), pod);
    world.wait(1);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Stopping, "ContainerFailed"));
}

#[test]
fn an_allocation_that_was_taken_out_of_the_status_by_hand_ends_its_pods() {
    let mut world = World::running(json!({}), &["n1"], 1);
    world.job.status.as_mut().unwrap().allocation = None;
    world.step_until_stable();
    assert_eq!((world.phase(), world.deleted.len()), (Phase::Pending, 1));
}

#[test]
fn a_pod_that_the_caches_do_not_show_yet_after_a_start_has_not_vanished() {
    // Given a running job and an operator that starts with a pod cache from before that pod.
    let mut world = World::running(json!({}), &["n1"], 1);
    let pod = world.pods.remove("bert-1-0").unwrap();
    world.now = 100;
    world.restart_operator();
    assert_eq!((world.phase(), world.next), (Phase::Running, Some(at(110))));
    // When the pod appears, then nothing has happened.
    world.pods.insert("bert-1-0".into(), pod);
    world.wait(60);
    assert_eq!((world.phase(), world.deleted.len()), (Phase::Running, 0));
    // When it does not, then it has vanished.
    world.pods.remove("bert-1-0");
    world.restart_operator();
    world.wait(9);
    assert_eq!(world.phase(), Phase::Running);
    world.wait(1);
    assert_eq!((world.phase(), world.reason().as_str()), (Phase::Stopping, "Vanished"));
}

/// The present attempt has reported this much, by counted steps since `first` seconds.
fn report_since(world: &mut World, first: i64, milli_percent: i32) {
    world.report(milli_percent);
    let progress = world.job.status.as_mut().unwrap().progress.as_mut().unwrap();
    progress.attempt_start = 40_000.min(milli_percent);
    progress.timed_milli_epochs = 2_000;
    progress.first = Some(FirstReport { at: Time(at(first)), milli_percent: 50_000 });
}

#[test]
fn what_a_restart_by_the_plan_takes_is_learned_without_the_queue_and_without_training() {
    // Given a run of ten epochs of 60 s that the plan stops at 100 s, and that has stopped 30 s later,
    let mut world = World::running(json!({"epochs": 10, "checkpoint": {"claimName": "ckpt"}}), &["n1"], 1);
    world.wait(100).report(40_000).plan_wait(Reason::Preempted, "in favour of team/urgent");
    world.wait(30).leave(143);
    assert_eq!(world.status().history.last().unwrap().planned_stop, Some(Time(at(100))));
    // when it gets GPUs at 1,000 s, and its first report at 1,110 s counts one epoch more than before,
    world.wait(870).plan_run(&["n2"], 1).bind_all().run_all();
    let since = world.status().allocation.unwrap().since.0;
    world.wait(400);
    report_since(&mut world, 1_110, 90_000);
    world.plan_wait(Reason::Preempted, "again").wait(5).leave(143);
    // then the restart took the stop, and the start less the epoch.
    let start = at(1_110).duration_since(since).as_secs() - 60;
    let restarts: Vec<i64> = world
        .learned
        .iter()
        .filter_map(|update| match update {
            ProfileUpdate::Restart(restart) => Some(restart.seconds),
            _ => None,
        })
        .collect();
    assert_eq!(restarts, [30 + start]);
}

#[test]
fn a_stop_by_the_user_or_a_failure_is_no_restart_by_the_plan() {
    let mut held = World::running(json!({"checkpoint": {"claimName": "ckpt"}}), &["n1"], 1);
    held.wait(100).edit(json!({"suspend": true})).wait(5).leave(143);
    assert_eq!(held.last().0, Outcome::Stopped);
    assert_eq!(held.status().history.last().unwrap().planned_stop, None);
    // A run that ended by itself before the plan's stop reached it was not stopped.
    let mut done = World::running(json!({}), &["n1"], 1);
    done.wait(100).report(100_000).plan_wait(Reason::Preempted, "");
    done.now += 1;
    done.leave(0);
    assert_eq!(done.last().0, Outcome::Finished);
    assert_eq!(done.status().history.last().unwrap().planned_stop, None);
}

/// At most eight restarts a day: other ends must not push their records out.
#[test]
fn restarts_of_the_last_day_stay_in_the_history() {
    let record = |attempt: i64, planned: bool, ended: i64| {
        let outcome = if planned { "Stopped" } else { "ClusterFailure" };
        json!({"attempt": attempt, "outcome": outcome, "reason": "Preempted", "gpuType": "A100", "gpus": 1, "placement": "n1",
            "started": at(ended - 60), "plannedStop": planned.then(|| at(ended - 10)), "ended": at(ended)})
    };
    for (now, kept) in [(50_000, true), (150_000, false)] {
        let mut world = World::running(json!({}), &["n1"], 1);
        world.now = now;
        let history = (0..16).map(|n| record(n, n == 0, 20_000 + n));
        world.job.status.as_mut().unwrap().history =
            serde_json::from_value(history.collect::<Vec<_>>().into()).unwrap();
        world.exit("bert-1-0", 1, "");
        let history = &world.status().history;
        assert_eq!(history.len(), 16);
        assert_eq!(history[0].planned_stop.is_some(), kept, "{history:?}");
    }
}

#[test]
fn a_run_of_more_attempts_than_the_history_keeps_is_not_learned_as_a_short_one() {
    for (attempts, learned) in [(3, 1), (16, 0)] {
        let mut world = World::running(json!({}), &["n1"], 1);
        world.exit("bert-1-0", 1, "");
        let status = world.job.status.as_mut().unwrap();
        let record = status.history[0].clone();
        status.history = vec![record; attempts];
        world.wait(400).plan_run(&["n1"], 1).bind_all().run_all().wait(60).exit("bert-2-0", 0, "");
        assert_eq!(world.phase(), Phase::Succeeded);
        let finished = world.learned.iter().filter(|update| matches!(update, ProfileUpdate::Finished(_)));
        assert_eq!(finished.count(), learned, "{attempts} attempts");
    }
}
