//! When a report is worth a write.

use std::time::Duration;

use andreas_api::TrainingJobStatus;
use andreas_api::training_job::{Progress, TrainingJobSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::heard::Heard;
use super::wire::Claim;
use crate::lifecycle::judge::NEARLY_DONE;

/// A report moves the status only when it moves by this much, thousandths of a percent.
const STEP: i32 = 1_000;
/// ... and this much time has passed since the last write of it,
const EVERY: Duration = Duration::from_secs(10);
/// ... or this much where many jobs run.
const EVERY_WHEN_MANY: Duration = Duration::from_secs(60);
/// Many jobs.
const MANY: usize = 200;
/// Where the job has a `progressTimeout`, any move is written after this much time at the latest, or this part of the
/// time-out: the replica that judges it may be another one than that which hears of it.
const ALIVE: Duration = Duration::from_secs(60);
const ALIVE_PART: u32 = 3;

/// A claim, and when it came.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// The attempt whose member sent it.
    pub attempt: i64,
    /// What it says.
    pub claim: Claim,
    /// When it came, by our clock.
    pub at: Timestamp,
}

/// What to do with a report.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Write it.
    Write(Progress),
    /// It is good but not worth a write yet; worth one after this long, more than nothing, if nothing newer comes.
    Later(Duration),
    /// It changes nothing that is worth a write before more comes.
    Nothing,
}

/// Judges a report against what the status holds.
///
/// Only of the present attempt, and only forward within it; a new attempt may start lower. `running`: how many jobs run
/// now.
pub fn judge(
    status: &TrainingJobStatus,
    spec: &TrainingJobSpec,
    report: &Report,
    heard: &Heard,
    now: Timestamp,
    running: usize,
) -> Verdict {
    let Report { attempt, claim, at } = *report;
    let present = status.allocation.as_ref().is_some_and(|allocation| allocation.attempt == attempt);
    if status.phase.is_terminal() || !present {
        return Verdict::Nothing;
    }
    let held = status.progress.as_ref();
    let same = held.filter(|progress| progress.attempt == attempt);
    let floor = same.map_or(0, |progress| progress.milli_percent);
    let ended = same.is_some_and(|progress| progress.ended) || claim.forced_end;
    let said = if !claim.is_plain_hundred() || heard.can_be_done(status, at) {
        claim.milli_percent
    } else {
        // That the program has ended, not how far it came.
        heard.best.map_or(0, |(best, _)| best)
    };
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
        at: Time(at),
        millis_per_epoch: pace(status, spec.epochs, attempt_start, milli_percent, at)
            .or(same.map(|progress| progress.millis_per_epoch))
            .unwrap_or(0),
        ended,
        stepwise: claim.stepwise || same.is_some_and(|progress| progress.stepwise),
    };
    let Some(same) = same else { return Verdict::Write(progress) };
    if newly_ended || milli_percent >= NEARLY_DONE && floor < NEARLY_DONE {
        return Verdict::Write(progress);
    }
    let alive = spec.progress_timeout.as_ref().and_then(|timeout| timeout.seconds()).map(|seconds| {
        let part = Duration::from_secs(u64::try_from(seconds).unwrap_or(0)) / ALIVE_PART;
        part.clamp(Duration::from_secs(1), ALIVE)
    });
    let every = if running > MANY { EVERY_WHEN_MANY } else { EVERY };
    let every = if milli_percent - floor >= STEP {
        alive.map_or(every, |alive| alive.min(every))
    } else if let Some(alive) = alive {
        alive
    } else {
        return Verdict::Nothing;
    };
    let last = heard.written.map_or(same.at.0, |written| written.max(same.at.0));
    let since = now.duration_since(last).unsigned_abs();
    if since < every { Verdict::Later(every - since) } else { Verdict::Write(progress) }
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
mod tests;
