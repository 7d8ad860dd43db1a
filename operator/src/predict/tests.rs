//! Given a run's reports; when its remaining work and its forecast are asked for; then both follow them.

use std::sync::Arc;

use andreas_api::phase::Phase;
use andreas_api::slim::SlimTrainingJob;
use andreas_api::training_job::Prediction;
use andreas_model::{GpuCount, Seconds, Watts};
use andreas_predictor::{LogNormal, Source};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::Table;
use super::forecast::{Waiting, prediction};
use super::outlook::{Outlook, outlook};
use super::sampled::Sampled;
use crate::ledger::JobMemory;
use crate::testing::at;

fn job(spec: Value, status: Value) -> SlimTrainingJob {
    let mut whole = json!({"epochs": 10, "template": {"spec": {"containers": []}}});
    whole.as_object_mut().expect("object").extend(spec.as_object().expect("object").clone());
    serde_json::from_value(json!({
        "metadata": {"name": "a", "creationTimestamp": at(0)}, "spec": whole, "status": status,
    }))
    .expect("a job")
}

/// 100 s per epoch on one A.
fn table() -> Table {
    let row = andreas_planner::Estimate {
        rel_std: 0.2,
        ..andreas_planner::Estimate::new("A".into(), GpuCount(1), Seconds(100.0), Watts(300.0))
    };
    Table {
        rows: vec![row].into(),
        times: vec![LogNormal { median: 100.0, sigma: 0.2, source: Source::UserGiven }],
        draws: vec![LogNormal { median: 300.0, sigma: 0.1, source: Source::UserGiven }],
        spread: Vec::new(),
        limits: Vec::new(),
        prior: false,
        usual_row: Some(0),
        predictions: Vec::new(),
        usual_run: Seconds(14_400.0),
    }
}

fn running(progress: Value) -> Value {
    json!({
        "phase": "Running",
        "allocation": {"attempt": 1, "generation": 1, "gpuType": "A", "gpus": 1, "gpusPerWorker": 1, "nodes": ["n"],
            "since": at(0), "runningTime": at(0), "watts": 300},
        "progress": progress,
    })
}

#[test]
fn a_job_that_reports_nothing_is_thought_to_go_as_predicted() {
    let job = job(json!({}), running(json!(null)));
    let out = outlook(&job, job.status.as_ref(), &table(), at(250));
    assert!((out.epochs_left - 7.5).abs() < 1e-9 && !out.reported);
    assert!((out.seconds_left - 750.0).abs() < 1e-6);
}

#[test]
fn a_run_that_reports_its_near_end_again_and_again_is_overdue() {
    let progress = json!({"milliPercent": 98_000, "attempt": 1, "at": at(900), "millisPerEpoch": 90_000});
    let job = job(json!({}), running(progress));
    let overdue = |second| outlook(&job, job.status.as_ref(), &table(), at(second)).overdue;
    assert_eq!((overdue(901), overdue(1_000)), (false, true));
}

#[test]
fn a_pace_that_is_seen_corrects_what_was_predicted() {
    // Half done in 1,000 s: twice as slow as the table says.
    let progress = json!({"milliPercent": 50_000, "attempt": 1, "at": at(1_000), "millisPerEpoch": 200_000});
    let job = job(json!({"deadlineAfter": "1h"}), running(progress));
    let out = outlook(&job, job.status.as_ref(), &table(), at(1_000));
    assert!(out.pace_factor > 1.7 && out.pace_factor <= 2.0, "{}", out.pace_factor);
    assert_eq!(out.epochs_left, 5.0);
    let shown = prediction(&job, &out, at(1_000), Waiting::default());
    assert_eq!((shown.risk.as_str(), shown.source.as_str()), ("Low", "Observed"));
    assert!(shown.finish_p10 < shown.finish_time && shown.finish_time < shown.finish_p90);
}

/// The table with the certainty of a user's own value.
fn sure() -> Table {
    Table { times: vec![LogNormal { median: 100.0, sigma: 0.05, source: Source::UserGiven }], ..table() }
}

/// After two timed epochs of that many seconds, with such a table.
fn after_two_epochs(seconds: i64) -> (Outlook, Outlook, Prediction) {
    let sure = sure();
    let progress = json!({"milliPercent": 20_000, "attempt": 1, "at": at(2 * seconds),
        "millisPerEpoch": seconds * 1_000, "timedMilliEpochs": 2_000, "stepwise": true});
    let before = job(json!({}), running(json!(null)));
    let after = job(json!({}), running(progress));
    let outlook = |job: &SlimTrainingJob, second| outlook(job, job.status.as_ref(), &sure, at(second));
    let seen = outlook(&after, 2 * seconds);
    let shown = prediction(&after, &seen, at(2 * seconds), Waiting::default());
    (outlook(&before, 1), seen, shown)
}

#[test]
fn two_epochs_put_an_estimate_right_that_is_wrong_by_two() {
    for truth in [50, 200] {
        let (planned, observed, shown) = after_two_epochs(truth);
        let left = 8.0 * truth as f64;
        assert!((observed.seconds_left / left - 1.0).abs() < 0.1, "{truth}: {observed:?}");
        assert!(observed.deviates_from(&planned), "{truth}: {planned:?} {observed:?}");
        assert!(!observed.deviates_from(&observed), "the next plan knows");
        let inside = shown.epoch_millis_low..=shown.epoch_millis_high;
        assert!(inside.contains(&Some(truth * 1_000)) && inside.contains(&shown.epoch_millis), "{shown:?}");
    }
}

#[test]
fn a_job_that_has_ended_asks_for_no_plan() {
    let (planned, _, _) = after_two_epochs(200);
    let progress = json!({"milliPercent": 20_000, "attempt": 1, "at": at(400),
        "millisPerEpoch": 200_000, "timedMilliEpochs": 2_000, "stepwise": true});
    let mut run = job(json!({}), running(progress));
    let mut memory = JobMemory::new("u", at(0));
    memory.set_predictions(Arc::new(sure()), planned, Waiting::default());
    let seen = memory.outlook(&run, at(400));
    assert!(seen.is_some_and(|seen| seen.deviates_from(&planned)), "twice as slow as planned");
    for phase in [Phase::Succeeded, Phase::Failed] {
        run.status.as_mut().expect("a status").phase = phase;
        assert_eq!(memory.outlook(&run, at(400)), None, "{phase:?}");
    }
}

#[test]
fn a_first_report_soon_after_the_start_tells_nothing_of_the_pace() {
    // given a program that imports for 40 s and then runs at the expected pace
    let report = |milli: i32, elapsed: i64, epoch: i64, timed: i64| {
        let progress = json!({"milliPercent": milli, "attempt": 1, "at": at(elapsed), "stepwise": true,
            "millisPerEpoch": epoch * 1_000, "timedMilliEpochs": timed});
        let job = job(json!({}), running(progress));
        outlook(&job, job.status.as_ref(), &sure(), at(elapsed))
    };
    let before = job(json!({}), running(json!(null)));
    let planned = outlook(&before, before.status.as_ref(), &sure(), at(1));
    // 41 s for a hundredth of an epoch, by its own value and our clock since the start
    let first = report(100, 41, 4_100, 0);
    assert_eq!((first.observed, first.epoch), (None, planned.epoch));
    assert!(!first.deviates_from(&planned), "{first:?}");
    // A second report, timed from the first, is enough; so is a whole epoch.
    assert!(report(1_100, 51, 200, 500).deviates_from(&planned));
    assert!(report(10_000, 400, 400, 0).deviates_from(&planned));
}

#[test]
fn what_goes_as_predicted_asks_for_no_plan_and_is_as_sure_as_before() {
    for truth in [95, 100, 108] {
        let (planned, observed, _) = after_two_epochs(truth);
        assert!(!observed.deviates_from(&planned), "{truth}");
        assert!(observed.epoch.sigma <= planned.epoch.sigma * 1.001, "{truth}: {observed:?}");
    }
    // The plan knew nothing of another attempt.
    let (planned, observed, _) = after_two_epochs(115);
    assert!(!observed.deviates_from(&Outlook { attempt: None, ..planned }));
}

#[test]
fn a_program_that_says_it_is_almost_done_for_ever_is_neither_cheap_to_finish_nor_dear_to_stop() {
    // given a run of 1,000 s that posts 98.9 % after 5 s; a second report makes it look timed
    let liar = |second: i64| {
        let progress = json!({"milliPercent": 98_900, "attempt": 1, "at": at(5),
            "millisPerEpoch": 500, "timedMilliEpochs": 9_800, "stepwise": true});
        let job = job(json!({}), running(progress));
        outlook(&job, job.status.as_ref(), &sure(), at(second))
    };
    // at first at most ten times the predicted pace is accepted
    let early = liar(6);
    assert!(early.epochs_left > 9.0 && early.epoch.median >= 10.0, "{early:?}");
    // then it is nearly done; the longer it does not end, the more remains, up to a whole run
    let seconds = |second| liar(second).seconds_left;
    assert!(seconds(200) > 50.0, "{}", seconds(200));
    assert!(seconds(600) > seconds(200), "{} {}", seconds(200), seconds(600));
    assert_eq!(seconds(100_000), 1_000.0);
}

#[test]
fn a_claim_of_a_program_that_nobody_knows_is_believed_until_it_proves_wrong() {
    // given a program without measurements, of 1,000 s by the policy, that posts 98 % after a second, alone or
    // after a timed epoch
    let liar = |second: i64, millis: i64, timed: i64| {
        let progress = json!({"milliPercent": 98_000, "attempt": 1, "at": at(1),
            "millisPerEpoch": millis, "timedMilliEpochs": timed, "stepwise": true});
        let job = job(json!({}), running(progress));
        let usual = LogNormal::prior(100.0);
        let table = Table { times: vec![usual], prior: true, ..table() };
        outlook(&job, job.status.as_ref(), &table, at(second))
    };
    for (millis, timed) in [(0, 0), (102, 0), (102, 9_800)] {
        // when it is not yet overdue, then it is nearly done
        let early = liar(1, millis, timed);
        assert!(!early.overdue && early.seconds_left < 0.021 * early.whole_seconds, "{early:?}");
        // when it should have ended, then at least as much is left as it has been silent, up to a whole run
        let due = 1 + (0.02 * early.whole_seconds).ceil() as i64;
        for second in [due + 1, due + 60, due + 400, 2_000] {
            let late = liar(second, millis, timed);
            let silent = (second - 1) as f64;
            assert!(late.overdue && late.seconds_left >= (silent - 1.0).min(500.0), "{second}: {late:?}");
        }
        assert_eq!(liar(2_000, millis, timed).seconds_left, 1_000.0);
    }
}

#[test]
fn a_job_that_no_gpu_type_fits_is_expected_to_take_the_usual_run_time() {
    let empty =
        Table { rows: [].into(), times: Vec::new(), usual_row: None, usual_run: Seconds(3_600.0), ..table() };
    let job = job(json!({}), json!(null));
    let out = outlook(&job, None, &empty, at(0));
    assert_eq!((out.seconds_left, out.epoch.source), (3_600.0, Source::Prior));
}

#[test]
fn only_a_checkpoint_carries_work_over() {
    let status = json!({"progress": {"milliPercent": 40_000, "attempt": 1, "at": at(5)}});
    let without = job(json!({}), status.clone());
    assert_eq!(outlook(&without, without.status.as_ref(), &table(), at(9)).epochs_left, 10.0);
    let with = job(json!({"checkpoint": {}}), status);
    assert!((outlook(&with, with.status.as_ref(), &table(), at(9)).epochs_left - 6.0).abs() < 1e-9);
}

#[test]
fn a_waiting_job_has_a_start_and_an_end_once_they_were_sampled() {
    let job = job(json!({"deadlineAfter": "1h"}), json!(null));
    let seen = outlook(&job, None, &table(), at(0));
    let shown = |sampled| prediction(&job, &seen, at(0), Waiting { on_time: Some(1.0), sampled });
    let before = shown(None);
    assert_eq!((before.risk.as_str(), before.start_time, before.finish_time), ("Low", None, None));
    let finish = (Some(at(3_000)), Some(at(3_400)), Some(at(4_000)));
    let when = andreas_model::Time(0.0);
    let uncorrected = (andreas_forecast::Quantiles { p10: when, p50: when, p90: when }, when);
    let behind = shown(Some(Sampled { start: Some(at(2_400)), finish, uncorrected, on_time: 0.7 }));
    assert_eq!((behind.start_time, behind.finish_time), (Some(Time(at(2_400))), Some(Time(at(3_400)))));
    assert_eq!(behind.risk, "Medium");
}

#[test]
fn a_passed_deadline_is_late_and_no_deadline_is_no_risk() {
    let late = job(json!({"deadlineAfter": "1m"}), json!(null));
    let seen = |job: &SlimTrainingJob| outlook(job, None, &table(), at(100));
    assert_eq!(prediction(&late, &seen(&late), at(100), Waiting::default()).risk, "Late");
    let free = job(json!({}), json!(null));
    let waiting = Waiting { on_time: Some(1.0), ..Waiting::default() };
    let shown = prediction(&free, &seen(&free), at(100), waiting);
    assert_eq!((shown.risk.as_str(), shown.on_time_percent, shown.finish_time), ("None", None, None));
}
