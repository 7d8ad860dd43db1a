use andreas_api::training_job::Prediction;
use andreas_api::{Phase, Reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::world::*;
use crate::*;

fn forecast(finish: i64, percent: Option<i32>, risk: &str) -> Prediction {
    Prediction {
        start_time: None,
        finish_time: Some(Time(at(finish))),
        finish_p10: None,
        finish_p90: None,
        on_time_percent: percent,
        risk: risk.into(),
        source: "Prior".into(),
        epoch_millis: None,
        epoch_millis_low: None,
        epoch_millis_high: None,
        joules: 0,
    }
}

#[test]
fn a_job_without_deadline_says_nothing_of_being_on_time() {
    let mut world = World::new(json!({}));
    world.forecast = Some(forecast(1000, None, "None"));
    world.plan_run(&["n1"], 1).bind_all().run_all();
    assert_eq!(world.status().deadline, None);
    assert!(!world.has_condition("OnTime"));
    world.exit("bert-1-0", 0, "");
    assert!(!world.has_condition("OnTime"));
}

#[test]
fn on_time_is_what_the_forecast_says_and_in_the_end_what_happened() {
    let mut world = World::new(json!({"deadline": at(500).to_string()}));
    world.forecast = Some(forecast(400, Some(95), "Low"));
    world.plan_run(&["n1"], 1).bind_all().run_all();
    assert_eq!(world.condition("OnTime").status, "True");
    world.now = 600;
    world.forecast = Some(forecast(900, Some(0), "Late"));
    world.step_until_stable();
    let condition = world.condition("OnTime");
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "DeadlineUnreachable"));
    world.exit("bert-1-0", 0, "");
    assert_eq!(world.condition("OnTime").message, "ended 1m40s after the deadline");
    assert_eq!(world.status().prediction, None);
}

/// No plan has it until somebody changes something.
#[test]
fn nothing_is_predicted_for_a_job_that_is_held_or_refused() {
    let predicted = || {
        let mut world = World::new(json!({"deadline": at(500).to_string()}));
        world.forecast = Some(forecast(400, Some(95), "Low"));
        world.plan_wait(Reason::WaitingForCapacity, "others need them more");
        assert_eq!(world.status().display.on_time.as_deref(), Some("95%"));
        world
    };
    let mut held = predicted();
    held.edit(json!({"suspend": true}));
    let mut refused = predicted();
    refused.server_refuses = Some((Reason::TemplateRejected, "no".into()));
    refused.dry_run = None;
    refused.step_until_stable();
    assert_eq!(refused.reason(), "TemplateRejected");
    for mut world in [held, refused] {
        world.wait(1_000);
        let status = world.status();
        assert_eq!((status.prediction, status.display.on_time), (None, None), "{:?}", status.phase);
        assert!(!world.has_condition("OnTime"));
    }
}

#[test]
fn a_forecast_is_written_when_it_moves_by_a_tenth_and_at_most_once_a_minute() {
    let mut world = World::new(json!({}));
    world.forecast = Some(forecast(10_000, None, "None"));
    world.plan_run(&["n1"], 1).bind_all().run_all();
    world.report(1_000);
    let writes = world.writes;
    world.forecast = Some(forecast(10_500, None, "None"));
    world.wait(100);
    assert_eq!(world.writes, writes, "5 %");
    world.forecast = Some(forecast(12_000, None, "None"));
    world.wait(1);
    assert_eq!(world.writes, writes + 1, "20 %");
    world.forecast = Some(forecast(20_000, None, "None"));
    world.wait(10);
    assert_eq!((world.writes, world.next), (writes + 1, Some(at(world.now + 50))), "within the minute");
    world.wait(50);
    assert_eq!(world.writes, writes + 2);
}

#[test]
fn a_job_that_reports_nothing_says_so_and_goes_on() {
    let mut world = World::running(json!({}), &["n1"], 1);
    world.wait(599);
    assert_eq!(world.condition("Progressing").status, "True");
    world.wait(1);
    let condition = world.condition("Progressing");
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("Unknown", "ProgressUnknown"));
    assert_eq!(world.phase(), Phase::Running);
    world.report(20_000);
    assert_eq!(world.condition("Progressing").status, "True");
    world.exit("bert-1-0", 0, "");
    // Without any report, a whole run in one attempt still gives its time.
    let mut silent = World::running(json!({"epochs": 10}), &["n1"], 1);
    silent.now = 200;
    silent.exit("bert-1-0", 0, "");
    assert_eq!((silent.phase(), silent.reason().as_str()), (Phase::Succeeded, ""));
    let Some(ProfileUpdate::Observation(seen)) = silent.learned.first() else {
        panic!("{:?}", silent.learned)
    };
    assert_eq!((seen.millis_per_epoch, seen.milli_epochs, seen.run.as_str()), (20_000, 10_000, "bert-1"));
}

#[test]
fn what_an_attempt_reported_is_learned_at_its_end_also_when_it_was_stopped() {
    let mut world = World::running(json!({"epochs": 10}), &["n1"], 1);
    world.wait(300).report(50_000).plan_wait(Reason::Preempted, "");
    world.leave(0);
    let Some(ProfileUpdate::Observation(seen)) = world.learned.first() else { panic!("{:?}", world.learned) };
    assert_eq!((seen.millis_per_epoch, seen.milli_epochs, seen.gpus), (60_000, 5_000, 1));
}

#[test]
fn nonsense_in_a_status_does_not_panic_and_is_put_right() {
    for phase in Phase::ALL {
        let mut world = World::new(json!({}));
        world.job.status = Some(andreas_api::TrainingJobStatus { phase, ..Default::default() });
        world.step_until_stable();
        if !phase.is_terminal() {
            assert_eq!(world.phase(), Phase::Pending, "{phase:?}");
        }
    }
}
