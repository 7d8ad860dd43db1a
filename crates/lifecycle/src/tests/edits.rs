use andreas_api::{Outcome, Phase, TrainingJobStatus};
use serde_json::json;

use super::world::*;

#[test]
fn the_deadline_follows_its_edits() {
    let mut world = World::new(json!({"deadlineAfter": "36h"}));
    world.step_until_stable();
    world.now = 5;
    world.step_until_stable();
    assert_eq!(world.status().deadline.unwrap().0, at(36 * 3600));
    world.edit(json!({"deadlineAfter": null, "deadline": at(7200).to_string()}));
    assert_eq!(world.status().deadline.unwrap().0, at(7200));
    assert_eq!(world.status().observed_generation, Some(2));
    world.edit(json!({"deadline": null}));
    assert_eq!(world.status().deadline, None);
}

#[test]
fn what_became_of_the_deadline_of_an_ended_job_is_final() {
    let mut world = World::running(json!({"deadline": at(60).to_string()}), &["n1"], 1);
    world.wait(100).exit("bert-1-0", 0, "");
    let ended = world.status();
    assert_eq!(ended.display.on_time.as_deref(), Some("Missed"));
    for edit in [json!({"deadline": at(7200).to_string()}), json!({"deadline": null})] {
        world.edit(edit);
        let observed_generation = world.status().observed_generation;
        assert_eq!(world.status(), TrainingJobStatus { observed_generation, ..ended.clone() });
    }
}

#[test]
fn weight_retries_preemption_and_time_outs_touch_no_running_attempt() {
    let mut world = World::running(json!({"retries": 0, "maxRunTime": "1h"}), &["n1"], 1);
    for edit in [
        json!({"weight": 500}),
        json!({"preemption": "Never"}),
        json!({"retries": 1}),
        json!({"maxRunTime": "2h"}),
        json!({"progressTimeout": "3h"}),
        json!({"startTimeout": "1m"}),
        json!({"historyLimit": 1}),
        json!({"ttlSecondsAfterFinished": 10}),
    ] {
        world.edit(edit.clone());
        assert_eq!((world.phase(), world.status().decisions), (Phase::Running, Some(1)), "{edit}");
    }
    // They hold: an hour does not end it, nor do two once the time-out is removed.
    world.wait(3700);
    assert_eq!(world.phase(), Phase::Running);
    world.edit(json!({"maxRunTime": null, "progressTimeout": null})).wait(10_000);
    assert_eq!(world.phase(), Phase::Running);
    // The added retry is used.
    world.exit("bert-1-0", 1, "");
    assert_eq!(world.phase(), Phase::Pending);
}

#[test]
fn a_shorter_time_out_holds_from_the_same_beginning() {
    let mut world = World::running(json!({}), &["n1"], 1);
    world.wait(600).edit(json!({"maxRunTime": "5m"}));
    assert_eq!(world.status().stop.unwrap().reason, "MaxRunTime");
}

#[test]
fn an_allocation_that_gpus_no_longer_allows_is_stopped_and_planned_again() {
    for (edit, why) in [
        (json!({"gpus": {"max": 1}}), "spec.gpus does not allow 2 GPUs any more; will be planned again"),
        (json!({"gpus": {"min": 4}}), "spec.gpus does not allow 2 GPUs any more; will be planned again"),
        (
            json!({"gpus": {"counts": [1, 4]}}),
            "spec.gpus does not allow 2 GPUs any more; will be planned again",
        ),
        (
            json!({"gpus": {"types": ["H100"]}}),
            "spec.gpus.types does not allow A100 any more; will be planned again",
        ),
        (
            json!({"gpus": {"maxNodes": 1}}),
            "spec.gpus.maxNodes does not allow 2 nodes any more; will be planned again",
        ),
        (
            json!({"gpus": {"memoryGiB": 80}}),
            "spec.gpus.memoryGiB does not allow GPUs with less than 80 GiB any more; will be planned again",
        ),
    ] {
        let mut world = World::running(json!({"gpus": {"max": 4, "maxNodes": 2}}), &["n1", "n2"], 1);
        for fact in world.nodes.values_mut() {
            fact.gpu_memory_mib = Some(40_960);
        }
        world.edit(edit.clone());
        assert_eq!(world.phase(), Phase::Stopping, "{edit}");
        assert_eq!(world.status().stop.unwrap().message, why);
        world.leave(0);
        assert_eq!(
            (world.phase(), world.reason().as_str(), world.last().0),
            (Phase::Pending, "NotPlannedYet", Outcome::Stopped)
        );
    }
}

#[test]
fn an_edit_of_gpus_that_still_allows_the_allocation_stops_nothing() {
    let mut world = World::running(json!({"gpus": {"max": 4}}), &["n1"], 2);
    world.nodes.get_mut("n1").unwrap().gpu_memory_mib = Some(81_559);
    world.edit(json!({"gpus": {"max": 8, "types": ["A100", "H100"], "memoryGiB": 80}}));
    assert_eq!(world.phase(), Phase::Running);
}

#[test]
fn a_plan_from_before_the_edit_is_not_carried_out_against_it() {
    let mut world = World::new(json!({"gpus": {"max": 4}}));
    world.step_until_stable();
    world.job.spec.gpus.max = Some(2);
    world.plan_run(&["n1"], 4);
    assert_eq!(world.phase(), Phase::Pending);
}
