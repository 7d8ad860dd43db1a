//! When a report is worth a write.

use std::time::Duration;

use andreas_api::training_job::Progress;
use andreas_api::{Phase, TrainingJobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::wire::Claim;

/// A report moves the status only when it moves by this much, thousandths of a percent.
const STEP: i32 = 1_000;
/// ... and this much time has passed since the last write of it,
const EVERY: Duration = Duration::from_secs(10);
/// ... or this much where many jobs run.
const EVERY_WHEN_MANY: Duration = Duration::from_secs(60);
/// Many jobs.
const MANY: usize = 200;
/// Above this the last step counts whenever it comes: what is judged at the end needs it.
const NEARLY: i32 = 99_000;

/// What to do with a report.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Write it.
    Write(Progress),
    /// It is good but not worth a write yet; worth one after this long if nothing newer comes.
    Later(Duration, Progress),
    /// It changes nothing.
    Nothing,
}

/// Judges a claim of attempt `attempt` against what the status holds.
///
/// Only forward within an attempt; a new attempt may start lower. `running`: how many jobs run now.
pub fn judge(
    status: &TrainingJobStatus,
    attempt: i64,
    epochs: i32,
    claim: Claim,
    now: Timestamp,
    running: usize,
) -> Verdict {
    if status.phase.is_terminal() || status.phase == Phase::Suspended && status.allocation.is_none() {
        return Verdict::Nothing;
    }
    let held = status.progress.as_ref();
    let same = held.filter(|progress| progress.attempt == attempt);
    let floor = same.map_or(0, |progress| progress.milli_percent);
    let ended = same.is_some_and(|progress| progress.ended) || claim.forced_end;
    // A plain 100 at the end says that the program has ended, not how far it came.
    let said = if claim.forced_end && same.is_some() { floor } else { claim.milli_percent };
    let milli_percent = said.clamp(floor, 100_000);
    let newly_ended = ended && !same.is_some_and(|progress| progress.ended);
    if same.is_some() && milli_percent == floor && !newly_ended {
        return Verdict::Nothing;
    }
    let attempt_start = same.map_or_else(|| start_of(held, milli_percent), |progress| progress.attempt_start);
    let progress = Progress {
        milli_percent,
        text: format!("{}%", milli_percent / 1_000),
        attempt,
        attempt_start,
        at: Time(now),
        millis_per_epoch: pace(status, epochs, attempt_start, milli_percent, now)
            .or(same.map(|progress| progress.millis_per_epoch))
            .unwrap_or(0),
        ended,
    };
    let Some(same) = same else { return Verdict::Write(progress) };
    if newly_ended || milli_percent >= NEARLY && floor < NEARLY {
        return Verdict::Write(progress);
    }
    let every = if running > MANY { EVERY_WHEN_MANY } else { EVERY };
    let since = now.duration_since(same.at.0).unsigned_abs();
    if milli_percent - floor < STEP {
        return Verdict::Later(every.max(EVERY_WHEN_MANY).saturating_sub(since), progress);
    }
    if since < every { Verdict::Later(every - since, progress) } else { Verdict::Write(progress) }
}

/// Where an attempt began, seen from its first report: at what the last one left, but never above what it reports.
fn start_of(held: Option<&Progress>, reported: i32) -> i32 {
    held.map_or(0, |progress| progress.milli_percent).min(reported)
}

/// Milliseconds per epoch since all members ran.
fn pace(status: &TrainingJobStatus, epochs: i32, from: i32, to: i32, now: Timestamp) -> Option<i64> {
    let since = status.allocation.as_ref()?.running_time.as_ref()?;
    let elapsed = now.duration_since(since.0).as_millis();
    let done = f64::from(to - from) / 100_000.0 * f64::from(epochs.max(1));
    let pace = elapsed as f64 / done;
    (done > 0.0 && elapsed > 0 && pace.is_finite()).then(|| pace.min(i64::MAX as f64 / 2.0) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
    }

    fn status(progress: serde_json::Value) -> TrainingJobStatus {
        serde_json::from_value(json!({
            "phase": "Running",
            "allocation": {"attempt": 2, "generation": 3, "gpuType": "A", "gpus": 1, "gpusPerWorker": 1, "nodes": ["n"],
                "placement": "n", "since": at(0), "runningTime": at(0)},
            "progress": progress,
        }))
        .expect("a status")
    }

    fn progress(attempt: i64, milli: i32, seconds: i64) -> serde_json::Value {
        json!({"milliPercent": milli, "text": "", "attempt": attempt, "at": at(seconds)})
    }

    fn claim(milli_percent: i32) -> Claim {
        Claim { milli_percent, forced_end: false }
    }

    #[test]
    fn only_forward_by_a_percent_and_ten_seconds() {
        let held = status(progress(2, 40_000, 100));
        let judge = |milli, seconds, running| judge(&held, 2, 10, claim(milli), at(seconds), running);
        assert_eq!(judge(39_000, 200, 1), Verdict::Nothing);
        assert!(matches!(judge(40_500, 200, 1), Verdict::Later(..)));
        assert!(matches!(judge(42_000, 105, 1), Verdict::Later(wait, _) if wait == Duration::from_secs(5)));
        assert!(
            matches!(judge(42_000, 110, 1), Verdict::Write(p) if p.milli_percent == 42_000 && p.text == "42%")
        );
        assert!(matches!(judge(42_000, 130, 500), Verdict::Later(..)));
        assert!(matches!(judge(42_000, 160, 500), Verdict::Write(_)));
    }

    #[test]
    fn a_new_attempt_may_start_lower_and_its_pace_is_its_own() {
        let held = status(progress(1, 40_000, 0));
        let Verdict::Write(first) = judge(&held, 2, 10, claim(30_000), at(20), 1) else {
            panic!("not written")
        };
        assert_eq!((first.attempt, first.milli_percent, first.attempt_start), (2, 30_000, 30_000));
        let held = status(serde_json::to_value(&first).expect("json"));
        let Verdict::Write(next) = judge(&held, 2, 10, claim(50_000), at(60), 1) else {
            panic!("not written")
        };
        // Two of ten epochs in 60 s.
        assert_eq!(next.millis_per_epoch, 30_000);
    }

    #[test]
    fn the_hundred_at_the_end_is_remembered_but_not_believed() {
        let held = status(progress(2, 40_000, 100));
        let end = Claim { milli_percent: 100_000, forced_end: true };
        let Verdict::Write(ended) = judge(&held, 2, 10, end, at(101), 1) else { panic!("not written") };
        assert_eq!((ended.milli_percent, ended.ended), (40_000, true));
    }

    #[test]
    fn the_last_percent_is_written_whenever_it_comes() {
        let held = status(progress(2, 98_500, 100));
        assert!(
            matches!(judge(&held, 2, 10, claim(100_000), at(101), 1), Verdict::Write(p) if p.milli_percent == 100_000)
        );
    }
}
