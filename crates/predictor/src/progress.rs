//! Estimates the pace of a running job from its progress reports.
//!
//! Reports follow Kubeflow Trainer's protocol: a percentage and an estimate of the time left. It
//! posts 0 at every start (also of a resumed run) and 100 at every end (also after an early stop).
//! The estimate is wrong after a resume. The 0, the 100 and the estimate are not used.

use std::collections::VecDeque;

use andreas_model::{Seconds, Time};
use serde::{Deserialize, Serialize};

use crate::Source;

/// Reports kept of an attempt. When full, every second one is dropped, so the window spans the
/// whole attempt.
const CAPACITY: usize = 64;
/// Minimum standard deviation of the log of one observed epoch.
const MIN_SIGMA: f64 = 0.1;

/// The progress of one report.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Time of receipt (the receiver's clock).
    pub at: Time,
    /// Progress of the whole run, 0 to 1.
    pub fraction: f64,
}

/// Reports of one attempt, bounded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgressWindow {
    reports: VecDeque<Sample>,
}

/// Speed of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// Seconds of one epoch.
    pub epoch: Seconds,
    /// Epochs between the first and the last report used.
    pub epochs: f64,
    /// Standard deviation of the log of `epoch` over pairs of reports.
    pub sigma: f64,
}

impl Pace {
    /// Standard deviation of the log of the mean over its epochs.
    pub fn noise(self) -> f64 {
        self.sigma.max(MIN_SIGMA) / libm::sqrt(self.epochs.max(0.1))
    }
}

impl ProgressWindow {
    /// Adds a report unless it is unusable: 0, 1 or beyond, not later, or not further than the one
    /// before. Returns whether it was added.
    pub fn push(&mut self, report: Sample) -> bool {
        let is_usable = report.at.is_finite() && report.fraction > 0.0 && report.fraction < 1.0;
        let moves_on = self.reports.back().is_none_or(|l| report.at > l.at && report.fraction > l.fraction);
        if !(is_usable && moves_on) {
            return false;
        }
        if self.reports.len() >= CAPACITY {
            let mut odd = false;
            self.reports.retain(|_| {
                odd = !odd;
                odd
            });
        }
        self.reports.push_back(report);
        true
    }

    /// The last report added.
    pub fn last(&self) -> Option<Sample> {
        self.reports.back().copied()
    }

    /// Seconds per epoch of a run of `epochs` epochs: median slope over all pairs of reports
    /// (Theil-Sen). Up to 29 % of outliers do not move it. `None` before two reports.
    pub fn pace(&self, epochs: f64) -> Option<Pace> {
        let (first, last) = (self.reports.front()?, self.reports.back()?);
        let watched = (last.fraction - first.fraction) * epochs;
        if !(watched.is_finite() && watched > 0.0) {
            return None;
        }
        let pairs = self
            .reports
            .iter()
            .enumerate()
            .flat_map(|(i, a)| self.reports.iter().skip(i + 1).map(move |b| (a, b)));
        let slopes = pairs.map(|(a, b)| libm::log((b.at - a.at).0 / ((b.fraction - a.fraction) * epochs)));
        let mut slopes: Vec<f64> = slopes.filter(|s| s.is_finite()).collect();
        let median = median(&mut slopes)?;
        let mut off: Vec<f64> = slopes.iter().map(|s| (s - median).abs()).collect();
        // 1.4826 turns the median deviation into a standard deviation for normal errors.
        let sigma = self::median(&mut off)? * 1.4826;
        let epoch = Seconds(libm::exp(median));
        epoch.is_finite().then_some(Pace { epoch, epochs: watched, sigma })
    }
}

/// Median; `None` without values. Sorts them.
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match n {
        0 => None,
        _ if n % 2 == 1 => Some(values[n / 2]),
        _ => Some((values[n / 2 - 1] + values[n / 2]) / 2.0),
    }
}

/// Time left of a run of `epochs` epochs, from its progress (0 to 1) and the time of one epoch.
pub fn remaining(epochs: f64, fraction: f64, epoch: Seconds) -> Seconds {
    Seconds((epochs * (1.0 - fraction.clamp(0.0, 1.0)) * epoch.0).max(0.0))
}

/// Highest plausible ratio of a run's speed to its prediction.
pub const FASTEST: f64 = 10.0;

/// Highest plausible progress, 0 to 1: `elapsed` after the attempt started at `began_at`, at
/// [`FASTEST`] times the predicted pace. `predicted_whole` is the predicted time of the whole run.
/// Progress beyond it is accepted as time passes.
pub fn max_plausible_progress(began_at: f64, elapsed: Seconds, predicted_whole: Seconds) -> f64 {
    let done = FASTEST * elapsed.0.max(0.0) / predicted_whole.0;
    if done.is_finite() { (began_at.clamp(0.0, 1.0) + done).min(1.0) } else { 1.0 }
}

/// Epochs left of a run that had `expected` epochs left `since` ago. All values are in epochs; time
/// is counted in epochs of the run's pace.
///
/// Before it is overdue: the rest of the run, at least a hundredth of `whole`. Once overdue, its
/// reports were wrong: `by_pace`, what its pace leaves of the run, and as long as it is overdue
/// already, at most `longest`, the predicted whole run. So a program that reports "almost done" for
/// ever gains nothing.
pub fn remaining_epochs(expected: f64, since: f64, whole: f64, by_pace: f64, longest: f64) -> f64 {
    let overdue = since - expected;
    let disproved = if overdue > 0.0 { overdue.max(by_pace).min(longest) } else { 0.0 };
    let left = (expected - since).max(0.01 * whole).max(disproved);
    if left.is_finite() { left.max(0.0) } else { 0.0 }
}

/// Epoch time of a running job on its configuration: the prediction corrected by the observed pace.
/// Like an observation of a finished attempt, the pace has weight `tau^2 / (tau^2 + sigma^2 / k)`.
/// `tau` is the prediction's spread, `k` the epochs observed.
pub fn blended(predicted: crate::LogNormal, pace: Pace) -> crate::LogNormal {
    let (tau2, noise2) = (predicted.sigma * predicted.sigma, pace.noise() * pace.noise());
    let trust = tau2 / (tau2 + noise2);
    let (a, b) = (libm::log(predicted.median), libm::log(pace.epoch.0));
    if !(a.is_finite() && b.is_finite() && trust.is_finite()) {
        return predicted;
    }
    crate::LogNormal {
        median: libm::exp(a + trust * (b - a)),
        sigma: libm::sqrt(trust * noise2).max(0.02),
        source: if trust >= 0.5 { Source::Observed } else { predicted.source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LogNormal;

    fn window(reports: &[(f64, f64)]) -> ProgressWindow {
        let mut window = ProgressWindow::default();
        for (at, fraction) in reports {
            window.push(Sample { at: Time(*at), fraction: *fraction });
        }
        window
    }

    #[test]
    fn a_resumed_run_is_paced_by_its_own_reports_not_by_the_zero_or_the_hundred() {
        // given: 100 epochs of 10 s, resumed at 40 %: 0 at the start, real reports, 100 at an early
        // stop
        let window =
            window(&[(0.0, 0.0), (30.0, 0.41), (40.0, 0.42), (50.0, 0.43), (60.0, 0.44), (65.0, 1.0)]);
        // when
        let pace = window.pace(100.0).unwrap();
        // then
        assert!((pace.epoch.0 - 10.0).abs() < 1e-9);
        assert!((pace.epochs - 3.0).abs() < 1e-9);
        assert_eq!(window.last().unwrap().fraction, 0.44);
        assert!((remaining(100.0, 0.44, pace.epoch).0 - 560.0).abs() < 1e-6);
    }

    #[test]
    fn the_window_is_bounded_and_a_pause_does_not_move_the_pace() {
        let late = |i: i32| if i > 4_900 { 600.0 } else { 0.0 };
        let reports: Vec<(f64, f64)> =
            (1..5000).map(|i| (f64::from(i) + late(i), f64::from(i) / 5001.0)).collect();
        let window = window(&reports);
        assert!(window.reports.len() <= CAPACITY && window.reports[0].at == Time(1.0));
        assert!((window.pace(5001.0).unwrap().epoch.0 - 1.0).abs() < 0.05);
    }

    #[test]
    fn nonsense_reports_are_left_out() {
        let mut w = window(&[(10.0, 0.2)]);
        for (at, fraction) in
            [(f64::NAN, 0.3), (20.0, f64::NAN), (20.0, 0.1), (5.0, 0.3), (20.0, 7.0), (20.0, -1.0)]
        {
            assert!(!w.push(Sample { at: Time(at), fraction }));
        }
        assert_eq!(w.pace(10.0), None);
    }

    #[test]
    fn claimed_progress_is_bounded_by_the_clock() {
        let hour = Seconds(3_600.0);
        assert_eq!(max_plausible_progress(0.0, Seconds(36.0), hour), 0.1);
        assert_eq!(max_plausible_progress(0.5, Seconds(36.0), hour), 0.6);
        assert_eq!(max_plausible_progress(0.0, hour, hour), 1.0);
        assert_eq!(max_plausible_progress(0.2, Seconds(-5.0), hour), 0.2);
        assert_eq!(
            max_plausible_progress(0.2, Seconds(5.0), Seconds(0.0)),
            1.0,
            "nothing is predicted: nothing bounds it"
        );
    }

    #[test]
    fn an_overdue_run_has_as_much_left_as_it_is_overdue() {
        let left = |since: f64| remaining_epochs(11.0, since, 1_000.0, 0.0, 4_000.0);
        assert_eq!(left(0.0), 11.0);
        assert_eq!(left(5.0), 10.0, "a hundredth of the run at least");
        assert_eq!(left(111.0), 100.0);
        assert_eq!(left(3_611.0), 3_600.0);
        assert_eq!(left(1e9), 4_000.0, "never more than a whole run");
        assert!(remaining_epochs(f64::NAN, 1.0, 1.0, 0.0, 1.0).is_finite());
    }

    #[test]
    fn an_overdue_run_has_at_least_what_its_pace_leaves() {
        let left = |since: f64, by_pace: f64| remaining_epochs(20.0, since, 1_000.0, by_pace, 4_000.0);
        assert_eq!(left(5.0, 990.0), 15.0, "its reports are believed until they prove wrong");
        assert_eq!(left(21.0, 975.0), 975.0);
        assert_eq!(left(1_020.0, -20.0), 1_000.0);
        assert_eq!(left(21.0, 1e9), 4_000.0);
    }

    #[test]
    fn many_epochs_overrule_a_prior_and_few_do_not_overrule_a_table() {
        let seen = |epochs| Pace { epoch: Seconds(20.0), epochs, sigma: 0.1 };
        let prior = LogNormal { median: 100.0, sigma: 0.857, source: Source::Prior };
        let after = blended(prior, seen(2.0));
        assert!((after.median - 20.0).abs() < 1.0 && after.source == Source::Observed, "{after:?}");
        let table = LogNormal { median: 10.0, sigma: 0.05, source: Source::UserGiven };
        let after = blended(table, seen(0.5));
        assert!(after.median < 12.0 && after.source == Source::UserGiven, "{after:?}");
    }
}
