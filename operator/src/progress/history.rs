//! Progress reports of one attempt received by this replica. Finer than the status, and lost on restart.

use andreas_api::TrainingJobStatus;
use andreas_api::training_job::Progress;
use andreas_lifecycle::judge::NEARLY_DONE;
use andreas_model::Time;
use andreas_predictor::progress::{Pace, ProgressWindow, Sample};
use jiff::Timestamp;

use super::wire::ReportedProgress;

/// A plain 100 is accepted if the program, this many times faster than before, could be done by now,
const FASTER: f64 = 2.0;
/// ... within this margin, thousandths of a percent.
const MARGIN: f64 = 1_000.0;

/// Reports of one attempt received by this replica.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportHistory {
    /// The attempt.
    attempt: i64,
    /// The highest claim and when it was received.
    best: Option<(i32, Timestamp)>,
    /// When this replica last wrote the job's progress.
    written: Option<Timestamp>,
    /// When the first report was received, and its progress.
    began: (i32, Timestamp),
    /// Progress over time by our clock.
    window: ProgressWindow,
    ended: bool,
}

impl ReportHistory {
    /// Starts at an attempt's first report. It may hold no claim: callbacks post a plain 0 at the start.
    pub fn new(
        attempt: i64,
        claim: Option<ReportedProgress>,
        held: Option<&Progress>,
        at: Timestamp,
    ) -> Self {
        let same = held.filter(|progress| progress.attempt == attempt);
        let counted = claim.filter(|claim| !claim.is_plain_hundred()).map(|claim| claim.milli_percent);
        let from = counted.or(held.map(|progress| progress.milli_percent)).unwrap_or(0);
        Self {
            attempt,
            best: same.map(|progress| (progress.milli_percent, progress.at.0)),
            written: None,
            began: (from, at),
            window: ProgressWindow::default(),
            ended: same.is_some_and(|progress| progress.ended),
        }
    }

    /// The attempt.
    pub fn attempt(&self) -> i64 {
        self.attempt
    }

    /// The highest claim.
    pub fn best(&self) -> Option<i32> {
        self.best.map(|(best, _)| best)
    }

    /// When this replica last wrote the job's progress.
    pub fn written(&self) -> Option<Timestamp> {
        self.written
    }

    /// This replica wrote the job's progress.
    pub fn record_write(&mut self, at: Timestamp) {
        self.written = Some(at);
    }

    /// Adds a claim. `true`: it shows more progress than before, or the end.
    pub fn record(&mut self, claim: ReportedProgress, at: Timestamp) -> bool {
        let ends = claim.forced_end && !self.ended;
        self.ended |= claim.forced_end;
        if claim.is_plain_hundred() {
            return ends;
        }
        let moved = self.best.is_none_or(|(best, _)| claim.milli_percent > best);
        if moved {
            if self.best.is_none() {
                self.began.0 = self.began.0.min(claim.milli_percent);
            }
            self.best = Some((claim.milli_percent, at));
            let fraction = f64::from(claim.milli_percent) / 100_000.0;
            self.window.push(Sample { at: Time(at.as_millisecond() as f64 / 1_000.0), fraction });
        }
        moved || ends
    }

    /// Pace between reports by our clock, without the time before the first step. `None` before two reports.
    pub fn pace(&self, epochs: i32) -> Option<Pace> {
        self.window.pace(f64::from(epochs.max(1)))
    }

    /// Whether a program that reports its end at `at` can be done, given its pace so far. Callbacks post 100
    /// after an early stop too, and their last count may be seconds old. Without a known pace the report is
    /// accepted.
    pub fn can_be_done(&self, status: &TrainingJobStatus, at: Timestamp) -> bool {
        let same = status.progress.as_ref().filter(|progress| progress.attempt == self.attempt);
        let held = same.map(|progress| (progress.milli_percent, progress.at.0));
        let Some((milli, when)) = self.best.max(held) else { return true };
        let seconds = |from: Timestamp, to: Timestamp| to.duration_since(from).as_secs_f64().max(0.0);
        let speed = |(from, since): (i32, Timestamp)| {
            let time = seconds(since, when);
            (time > 0.0 && milli > from).then(|| f64::from(milli - from) / time)
        };
        let running = status.allocation.as_ref().and_then(|allocation| allocation.running_time.as_ref());
        let start = same.map_or(0, |progress| progress.attempt_start);
        let speed = speed(self.began).or_else(|| speed((start, running?.0))).unwrap_or(0.0);
        f64::from(milli) + FASTER * speed * seconds(when, at) + MARGIN >= f64::from(NEARLY_DONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    fn percent(percent: i32) -> ReportedProgress {
        let milli_percent = percent * 1_000;
        ReportedProgress { milli_percent, stepwise: false, forced_end: percent == 100 }
    }

    /// Whether a plain 100 at second `end` is accepted after these claims of (percentage, second).
    fn believed(claims: &[(i32, i64)], end: i64) -> bool {
        let mut history =
            ReportHistory::new(1, claims.first().map(|(p, _)| percent(*p)), None, at(claims[0].1));
        for (p, second) in claims {
            history.record(percent(*p), at(*second));
        }
        history.can_be_done(&TrainingJobStatus::default(), at(end))
    }

    #[test]
    fn a_hundred_that_the_program_counts_up_to_is_believed_and_one_out_of_nowhere_is_not() {
        assert!(believed(&[(97, 0), (98, 10), (99, 20)], 30));
        assert!(believed(&[(33, 0), (66, 60)], 120), "a program that reports once an epoch");
        assert!(!believed(&[(38, 0), (39, 10), (40, 20)], 30), "an early stop");
        assert!(believed(&[(40, 0), (65, 5)], 9), "the last steps were not reported: callbacks wait 5 s");
        assert!(!believed(&[(40, 0)], 5), "one claim says nothing of the speed");
    }

    #[test]
    fn the_zero_at_the_beginning_tells_when_the_program_began() {
        let mut history = ReportHistory::new(1, None, None, at(100));
        history.record(percent(60), at(105));
        assert!(history.can_be_done(&TrainingJobStatus::default(), at(108)));
        assert!(!history.can_be_done(&TrainingJobStatus::default(), at(105)));
    }

    #[test]
    fn only_what_is_above_all_before_is_a_move() {
        let mut history = ReportHistory::new(1, Some(percent(40)), None, at(0));
        let moves = [40, 40, 39, 41, 100, 100, 41].map(|p| history.record(percent(p), at(1)));
        assert_eq!(moves, [true, false, false, true, true, false, false]);
    }
}
