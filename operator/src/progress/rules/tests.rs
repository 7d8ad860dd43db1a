//! Given a status; when a report comes; then it is written, deferred or ignored.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use super::*;
use crate::progress::wire::ReportBody;
use crate::testing::at;

fn status(progress: Value) -> TrainingJobStatus {
    serde_json::from_value(json!({
        "phase": "Running",
        "allocation": {"attempt": 2, "generation": 3, "gpuType": "A", "gpus": 1, "gpusPerWorker": 1, "nodes": ["n"],
            "since": at(0), "runningTime": at(0)},
        "progress": progress,
    }))
    .expect("a status")
}

fn spec(timeout: Option<&str>) -> TrainingJobSpec {
    let mut spec = json!({"epochs": 10, "template": {"spec": {"containers": []}}});
    if let Some(timeout) = timeout {
        spec["progressTimeout"] = timeout.into();
    }
    serde_json::from_value(spec).expect("a spec")
}

fn progress(attempt: i64, milli: i32, seconds: i64) -> Value {
    json!({"milliPercent": milli, "attempt": attempt, "at": at(seconds)})
}

const PLAIN_HUNDRED: ReportedProgress =
    ReportedProgress { milli_percent: 100_000, stepwise: false, forced_end: true };

fn reported(milli_percent: i32) -> ReportedProgress {
    ReportedProgress { milli_percent, stepwise: true, forced_end: false }
}

/// A report of attempt 2, judged by a replica without earlier reports.
fn judged(
    held: &TrainingJobStatus,
    timeout: Option<&str>,
    claim: ReportedProgress,
    seconds: i64,
    running: usize,
) -> ReportAction {
    let history = ReportHistory::new(2, Some(claim), held.progress.as_ref(), at(seconds));
    let report = Report { attempt: 2, claim, at: at(seconds) };
    judge(held, &spec(timeout), &report, &history, at(seconds), running)
}

#[test]
fn only_forward_by_a_percent_and_ten_seconds() {
    let held = status(progress(2, 40_000, 100));
    let judge = |milli, seconds, running| judged(&held, None, reported(milli), seconds, running);
    assert_eq!(judge(39_000, 200, 1), ReportAction::Nothing);
    assert_eq!(judge(40_500, 200, 1), ReportAction::Nothing);
    assert_eq!(judge(42_000, 105, 1), ReportAction::Later(Duration::from_secs(5)));
    assert!(matches!(judge(42_000, 110, 1), ReportAction::Write(p) if p.milli_percent == 42_000));
    assert!(matches!(judge(42_000, 130, 500), ReportAction::Later(..)));
    assert!(matches!(judge(42_000, 160, 500), ReportAction::Write(_)));
}

#[test]
fn a_slow_run_is_written_before_its_progress_timeout_by_whichever_replica_hears_of_it() {
    let held = status(progress(2, 40_000, 100));
    let judge = |timeout, milli, seconds| judged(&held, Some(timeout), reported(milli), seconds, 500);
    // A third of 90 s, even if one per cent takes longer.
    assert_eq!(judge("90s", 40_001, 120), ReportAction::Later(Duration::from_secs(10)));
    assert!(matches!(judge("90s", 40_001, 130), ReportAction::Write(p) if p.milli_percent == 40_001));
    assert!(matches!(judge("90s", 42_000, 130), ReportAction::Write(_)));
    // A minute at most.
    assert_eq!(judge("1h", 40_001, 159), ReportAction::Later(Duration::from_secs(1)));
    assert!(matches!(judge("1h", 40_001, 160), ReportAction::Write(_)));
    // Never without a pause, whatever the time-out.
    assert!(matches!(judge("0s", 40_001, 100), ReportAction::Later(wait) if wait >= Duration::from_secs(1)));
}

#[test]
fn the_first_report_of_an_attempt_is_kept_with_its_later_ones() {
    // Given an attempt whose predecessor had reported 40 %,
    let held = status(progress(1, 40_000, 100));
    let ReportAction::Write(first) = judged(&held, None, reported(45_000), 105, 1) else {
        panic!("not written")
    };
    // then its first report is kept,
    let kept = FirstReport { at: Time(at(105)), milli_percent: 45_000 };
    assert_eq!((first.attempt_start, first.first.clone()), (40_000, Some(kept.clone())));
    // whatever it reports later.
    let held = status(serde_json::to_value(&first).expect("json"));
    let ReportAction::Write(next) = judged(&held, None, reported(60_000), 200, 1) else {
        panic!("not written")
    };
    assert_eq!(next.first, Some(kept));
}

#[test]
fn what_did_not_move_is_never_due() {
    let held = status(progress(2, 40_500, 100));
    assert_eq!(judged(&held, Some("90s"), reported(40_500), 10_000, 1), ReportAction::Nothing);
}

#[test]
fn a_report_counts_from_when_it_came_and_writes_from_when_they_were_made() {
    let held = status(progress(2, 40_000, 100));
    let report = Report { attempt: 2, claim: reported(50_000), at: at(105) };
    let mut history = ReportHistory::new(2, Some(report.claim), held.progress.as_ref(), at(105));
    let ReportAction::Write(written) = judge(&held, &spec(None), &report, &history, at(110), 1) else {
        panic!("not written")
    };
    // Half of ten epochs in 105 s.
    assert_eq!((written.at.0, written.millis_per_epoch), (at(105), 21_000));
    history.record_write(at(110));
    let held = status(serde_json::to_value(&written).expect("json"));
    let next = Report { attempt: 2, claim: reported(55_000), at: at(116) };
    assert_eq!(
        judge(&held, &spec(None), &next, &history, at(116), 1),
        ReportAction::Later(Duration::from_secs(4))
    );
}

#[test]
fn a_new_attempt_may_start_lower_and_its_pace_is_its_own() {
    let held = status(progress(1, 40_000, 0));
    let ReportAction::Write(first) = judged(&held, None, reported(30_000), 20, 1) else {
        panic!("not written")
    };
    assert_eq!((first.attempt, first.milli_percent, first.attempt_start), (2, 30_000, 30_000));
    let held = status(serde_json::to_value(&first).expect("json"));
    let ReportAction::Write(next) = judged(&held, None, reported(50_000), 60, 1) else {
        panic!("not written")
    };
    // Two of ten epochs in 60 s.
    assert_eq!(next.millis_per_epoch, 30_000);
}

#[test]
fn an_attempt_that_is_over_moves_nothing() {
    // Given a third attempt with reports, on a replica that still defers a claim of the second.
    let mut held = status(progress(3, 10_000, 100));
    held.allocation.as_mut().expect("held").attempt = 3;
    assert_eq!(judged(&held, None, reported(70_000), 200, 1), ReportAction::Nothing);
    // And without any allocation.
    held.allocation = None;
    assert_eq!(judged(&held, None, reported(70_000), 200, 1), ReportAction::Nothing);
}

#[test]
fn the_hundred_of_an_early_stop_is_remembered_but_not_believed() {
    let held = status(progress(2, 40_000, 100));
    let ReportAction::Write(ended) = judged(&held, None, PLAIN_HUNDRED, 101, 1) else {
        panic!("not written")
    };
    assert_eq!((ended.milli_percent, ended.ended), (40_000, true));
}

#[test]
fn the_hundred_at_the_end_of_a_whole_run_is_its_last_count() {
    // Given a run whose callback reports every 5 s and last reported 66 %, which was not worth a write.
    let held = status(progress(2, 33_000, 5));
    let mut history = ReportHistory::new(2, None, None, at(0));
    history.record(reported(33_000), at(5));
    history.record(reported(66_000), at(10));
    let report = Report { attempt: 2, claim: PLAIN_HUNDRED, at: at(14) };
    let ReportAction::Write(end) = judge(&held, &spec(None), &report, &history, at(14), 1) else {
        panic!("not written")
    };
    assert_eq!((end.milli_percent, end.ended), (100_000, true));
    // When it comes too soon for that, the last report stands.
    let report = Report { at: at(11), ..report };
    let ReportAction::Write(end) = judge(&held, &spec(None), &report, &history, at(11), 1) else {
        panic!("not written")
    };
    assert_eq!((end.milli_percent, end.ended), (66_000, true));
}

#[test]
fn a_count_below_the_end_stands_beside_a_hundred() {
    let held = status(progress(2, 30_000, 100));
    let early = ReportedProgress { forced_end: true, ..reported(40_000) };
    let ReportAction::Write(end) = judged(&held, None, early, 101, 1) else { panic!("not written") };
    assert_eq!((end.milli_percent, end.ended, end.stepwise), (40_000, true, true));
}

#[test]
fn the_last_percent_is_written_whenever_it_comes() {
    let held = status(progress(2, 98_500, 100));
    let judged_after = judged(&held, None, reported(100_000), 101, 1);
    assert!(matches!(judged_after, ReportAction::Write(p) if p.milli_percent == 100_000));
}

/// The history of a replica that received these percentages at these seconds from a run of ten epochs.
fn history_of(claims: &[(i32, i64)]) -> ReportHistory {
    let mut history = ReportHistory::new(2, None, None, at(0));
    for (percent, second) in claims {
        history.record(reported(percent * 1_000), at(*second));
    }
    history
}

#[test]
fn a_pace_is_timed_between_reports_and_not_from_the_start() {
    // Given a program that imports for a minute and then takes 10 s per epoch.
    let history = history_of(&[(1, 61), (5, 65), (11, 71), (21, 81)]);
    let report = Report { attempt: 2, claim: reported(21_000), at: at(81) };
    let judged = |held: &TrainingJobStatus| judge(held, &spec(None), &report, &history, at(81), 1);
    let ReportAction::Write(written) = judged(&status(json!(null))) else { panic!("not written") };
    assert_eq!((written.millis_per_epoch, written.timed_milli_epochs), (10_000, 2_000));
    // If another replica timed much more, its pace stands.
    let mut held = progress(2, 1_000, 61);
    held["millisPerEpoch"] = 11_000.into();
    held["timedMilliEpochs"] = 9_000.into();
    let ReportAction::Write(written) = judged(&status(held)) else { panic!("not written") };
    assert_eq!((written.millis_per_epoch, written.timed_milli_epochs), (11_000, 9_000));
}

#[test]
fn a_pace_outside_of_its_interval_is_written_at_once_and_once() {
    // Given a prediction of 4.5 to 5.5 s, and epochs of 10 s.
    let mut held = status(progress(2, 1_000, 61));
    held.prediction =
        serde_json::from_value(json!({"risk": "Low", "source": "UserGiven", "epochMillis": 5_000,
        "epochMillisLow": 4_500, "epochMillisHigh": 5_500}))
        .ok();
    let judged_after = |held: &TrainingJobStatus, claims: &[(i32, i64)], running| {
        let (percent, second) = *claims.last().expect("a claim");
        let report = Report { attempt: 2, claim: reported(percent * 1_000), at: at(second) };
        judge(held, &spec(None), &report, &history_of(claims), at(second), running)
    };
    // Half an epoch is too little.
    assert!(matches!(judged_after(&held, &[(1, 61), (6, 66)], 500), ReportAction::Later(_)));
    let ReportAction::Write(news) = judged_after(&held, &[(1, 61), (11, 71)], 500) else {
        panic!("not written")
    };
    assert_eq!(news.millis_per_epoch, 10_000);
    // A repeated deviation is not written at once, nor is a pace as predicted.
    let reported = TrainingJobStatus { progress: Some(news), ..held.clone() };
    assert!(matches!(judged_after(&reported, &[(1, 61), (11, 71), (12, 72)], 500), ReportAction::Later(_)));
    assert!(matches!(judged_after(&held, &[(1, 61), (11, 66)], 500), ReportAction::Later(_)));
}

/// Values that a program may post: valid and invalid numbers.
fn posted() -> impl Strategy<Value = Value> {
    let percent = prop_oneof![
        3 => (0..1_000_i32).prop_map(|tenths| json!(f64::from(tenths) / 10.0)),
        1 => select(vec![json!(-1e12), json!(-3), json!(0), json!(100), json!(1e12), json!(null)]),
    ];
    let number = prop_oneof![
        3 => (0..50_i32).prop_map(|number| number.to_string()),
        1 => select(vec!["NaN", "-1", "0", "1e12", "-1e12", "1e-300", "1e400", "inf", "", "x"]).prop_map(str::to_owned),
    ];
    let name = select(vec!["current_step", "total_steps", "current_epoch", "total_epochs", "loss"]);
    (percent, vec((name, number), 0..4)).prop_map(|(percent, metrics)| {
        let metrics: Vec<Value> =
            metrics.into_iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        json!({"trainerStatus": {"progressPercentage": percent, "metrics": metrics}})
    })
}

/// Seconds to the next report; sometimes the clock is set, also back.
fn wait() -> impl Strategy<Value = i64> {
    prop_oneof![5 => 0..30_i64, 1 => -600..600_i64]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Given a program that posts any value, and a clock that is sometimes set back.
    #[test]
    fn progress_never_goes_back_and_its_pace_is_a_time_whatever_is_posted(
        posts in vec((posted(), wait()), 1..40),
    ) {
        let mut held = status(json!(null));
        let mut second: i64 = 10;
        let mut history: Option<ReportHistory> = None;
        for (body, wait) in posts {
            second += wait;
            let body: ReportBody = serde_json::from_value(body).expect("a report");
            let claim = body.trainer_status.expect("a status").reported_progress(10);
            let history = history.get_or_insert_with(|| ReportHistory::new(2, claim, None, at(second)));
            let Some(claim) = claim.filter(|claim| history.record(*claim, at(second))) else { continue };
            let report = Report { attempt: 2, claim, at: at(second) };
            let ReportAction::Write(written) = judge(&held, &spec(None), &report, history, at(second), 1) else { continue };
            let before = held.progress.as_ref().map_or(0, |progress| progress.milli_percent);
            prop_assert!((before..=100_000).contains(&written.milli_percent), "{:?}", written);
            prop_assert!(written.millis_per_epoch >= 0 && written.timed_milli_epochs >= 0, "{:?}", written);
            prop_assert!(written.timed_milli_epochs <= 10_000, "{:?}", written);
            prop_assert!((0..=written.milli_percent).contains(&written.attempt_start), "{:?}", written);
            held.progress = Some(written);
        }
    }
}
