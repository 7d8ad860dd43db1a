//! When a report is worth a write.

use std::time::Duration;

use andreas_api::TrainingJobStatus;
use andreas_api::training_job::{FirstReport, Progress, TrainingJobSpec};
use andreas_lifecycle::judge::NEARLY_DONE;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::history::ReportHistory;
use super::wire::ReportedProgress;

/// A report is written only if progress moved by this much, thousandths of a percent.
const STEP: i32 = 1_000;
/// ... and this much time has passed since the last write,
const EVERY: Duration = Duration::from_secs(10);
/// ... or this much if many jobs run.
const EVERY_WHEN_MANY: Duration = Duration::from_secs(60);
/// Number of running jobs that counts as many.
const MANY: usize = 200;
/// With a `progressTimeout`, any progress is written after this time at the latest, or after a third of the
/// time-out. The replica that judges the time-out may not be the one that receives the reports.
const ALIVE: Duration = Duration::from_secs(60);
const ALIVE_PART: u32 = 3;
/// ... or this much if the pace left the prediction: plans depend on it.
const SIGNIFICANT_AFTER: Duration = Duration::from_secs(1);
/// A pace counts once it is timed over an epoch (thousandths), or over a tenth of a shorter run.
const SIGNIFICANT_EPOCH: i64 = 1_000;
const SIGNIFICANT_PART: i64 = 10;

/// A claim and its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// The sending member's attempt.
    pub attempt: i64,
    /// The claimed progress.
    pub claim: ReportedProgress,
    /// When it was received, by our clock.
    pub at: Timestamp,
}

/// How to handle a report.
#[derive(Clone, Debug, PartialEq)]
pub enum ReportAction {
    /// Write it.
    Write(Progress),
    /// Valid, but not worth a write yet. Write it after this delay (above 0) if nothing newer comes.
    Later(Duration),
    /// No change worth a write.
    Nothing,
}

/// Judges a report against the status.
///
/// Only reports of the current attempt count, and only forward progress within it; a new attempt may start
/// lower. `running`: number of running jobs.
pub fn judge(
    status: &TrainingJobStatus,
    spec: &TrainingJobSpec,
    report: &Report,
    history: &ReportHistory,
    now: Timestamp,
    running: usize,
) -> ReportAction {
    let Report { attempt, claim, at } = *report;
    let present = status.allocation.as_ref().is_some_and(|allocation| allocation.attempt == attempt);
    if status.phase.is_terminal() || !present {
        return ReportAction::Nothing;
    }
    let held = status.progress.as_ref();
    let same = held.filter(|progress| progress.attempt == attempt);
    let floor = same.map_or(0, |progress| progress.milli_percent);
    let ended = same.is_some_and(|progress| progress.ended) || claim.forced_end;
    let claimed = if !claim.is_plain_hundred() || history.can_be_done(status, at) {
        claim.milli_percent
    } else {
        // It shows that the program has ended, not its progress.
        history.best().unwrap_or(0)
    };
    let milli_percent = claimed.clamp(floor, 100_000);
    let newly_ended = ended && !same.is_some_and(|progress| progress.ended);
    if same.is_some() && milli_percent == floor && !newly_ended {
        return ReportAction::Nothing;
    }
    let attempt_start = same.map_or_else(|| start_of(held, milli_percent), |progress| progress.attempt_start);
    let (millis_per_epoch, timed_milli_epochs) = timed(history, spec, same)
        .or_else(|| Some((pace(status, spec.epochs, attempt_start, milli_percent, at)?, 0)))
        .or(same.map(|progress| (progress.millis_per_epoch, progress.timed_milli_epochs)))
        .unwrap_or((0, 0));
    let progress = Progress {
        milli_percent,
        attempt,
        attempt_start,
        at: Time(at),
        millis_per_epoch,
        timed_milli_epochs,
        ended,
        stepwise: claim.stepwise || same.is_some_and(|progress| progress.stepwise),
        // Some programs say where they begin before they load their data.
        first: same.and_then(|progress| progress.first.clone()).or_else(|| {
            (milli_percent > attempt_start).then_some(FirstReport { at: Time(at), milli_percent })
        }),
    };
    let Some(same) = same else { return ReportAction::Write(progress) };
    if newly_ended || milli_percent >= NEARLY_DONE && floor < NEARLY_DONE {
        return ReportAction::Write(progress);
    }
    let alive = spec.progress_timeout.as_ref().and_then(|timeout| timeout.seconds()).map(|seconds| {
        let part = Duration::from_secs(u64::try_from(seconds).unwrap_or(0)) / ALIVE_PART;
        part.clamp(Duration::from_secs(1), ALIVE)
    });
    let every = if running > MANY { EVERY_WHEN_MANY } else { EVERY };
    let every = if off_prediction(status, spec, &progress) && !off_prediction(status, spec, same) {
        SIGNIFICANT_AFTER
    } else if milli_percent - floor >= STEP {
        alive.map_or(every, |alive| alive.min(every))
    } else if let Some(alive) = alive {
        alive
    } else {
        return ReportAction::Nothing;
    };
    let last = history.written().map_or(same.at.0, |written| written.max(same.at.0));
    let since = now.duration_since(last).unsigned_abs();
    if since < every { ReportAction::Later(every - since) } else { ReportAction::Write(progress) }
}

/// Milliseconds per epoch between reports by our clock, and the timed thousandths of an epoch. Taken from
/// this replica's reports, or from the status if another replica timed much more.
fn timed(history: &ReportHistory, spec: &TrainingJobSpec, same: Option<&Progress>) -> Option<(i64, i64)> {
    let written = same.filter(|progress| progress.timed_milli_epochs > 0 && progress.millis_per_epoch > 0);
    let written = written.map(|progress| (progress.millis_per_epoch, progress.timed_milli_epochs));
    let own = history.pace(spec.epochs).map(|pace| {
        let millis = (pace.epoch.0 * 1_000.0).clamp(1.0, i64::MAX as f64 / 2.0);
        (millis.round() as i64, (pace.epochs * 1_000.0).round() as i64)
    });
    match (own.filter(|(_, epochs)| *epochs > 0), written) {
        (Some(own), Some(written)) if own.1.saturating_mul(4) < written.1 => Some(written),
        (own, written) => own.or(written),
    }
}

/// The pace is timed long enough and lies outside the status's prediction interval.
fn off_prediction(status: &TrainingJobStatus, spec: &TrainingJobSpec, progress: &Progress) -> bool {
    let enough = SIGNIFICANT_EPOCH.min(i64::from(spec.epochs.max(1)) * 1_000 / SIGNIFICANT_PART);
    let interval = status.prediction.as_ref().and_then(|p| Some(p.epoch_millis_low?..=p.epoch_millis_high?));
    let outside = interval.is_some_and(|interval| !interval.contains(&progress.millis_per_epoch));
    outside && progress.timed_milli_epochs >= enough
}

/// Starting progress of an attempt at its first report: the last attempt's end, but at most the
/// reported value. Thousandths of a percent.
fn start_of(previous: Option<&Progress>, reported: i32) -> i32 {
    previous.map_or(0, |progress| progress.milli_percent).min(reported)
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
mod tests;
