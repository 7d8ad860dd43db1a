//! From progress reports to the pace of a running job.
//!
//! Reports are what Kubeflow Trainer's protocol posts: a percentage, a 0 at every begin (also of a resumed run), a 100
//! at every end (also after an early stop), and an estimate of the time left that is wrong after a resume. The 0,
//! the 100 and that estimate are not used.

use std::collections::VecDeque;

use andreas_core::{Seconds, Time};
use serde::{Deserialize, Serialize};

use crate::Source;

/// Reports kept of an attempt. When full every second one goes: the window always spans the whole attempt.
const CAPACITY: usize = 64;

/// One report.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// When it came (the receiver's clock).
    pub at: Time,
    /// How far the whole run is, 0 to 1.
    pub fraction: f64,
}

/// The reports of one attempt, bounded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgressWindow {
    reports: VecDeque<Report>,
}

/// How fast a run is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// Seconds of one epoch.
    pub epoch: Seconds,
    /// Epochs between the first and the last report used.
    pub epochs: f64,
    /// Spread of the log of `epoch` between pairs of reports.
    pub sigma: f64,
}

impl ProgressWindow {
    /// Takes a report in, unless it says nothing: 0, 1 and beyond, not later or not further than the one before.
    /// Whether it was taken.
    pub fn push(&mut self, report: Report) -> bool {
        let says_something = report.at.is_finite() && report.fraction > 0.0 && report.fraction < 1.0;
        let moves_on = self.reports.back().is_none_or(|l| report.at > l.at && report.fraction > l.fraction);
        if !(says_something && moves_on) {
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

    /// The last report taken.
    pub fn last(&self) -> Option<Report> {
        self.reports.back().copied()
    }

    /// Seconds per epoch of a run of `epochs` epochs: the median slope between all pairs of reports (Theil-Sen), which
    /// up to 29 % of outliers do not move. `None` before two reports.
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
        // 1.4826 makes the median deviation a standard deviation for normal errors.
        let sigma = self::median(&mut off)? * 1.4826;
        let epoch = Seconds(libm::exp(median));
        epoch.is_finite().then_some(Pace { epoch, epochs: watched, sigma })
    }
}

fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match n {
        0 => None,
        _ if n % 2 == 1 => Some(values[n / 2]),
        _ => Some((values[n / 2 - 1] + values[n / 2]) / 2.0),
    }
}

/// Time that the rest of a run of `epochs` epochs takes, from how far it is (0 to 1) and the time of one epoch.
pub fn remaining(epochs: f64, fraction: f64, epoch: Seconds) -> Seconds {
    Seconds((epochs * (1.0 - fraction.clamp(0.0, 1.0)) * epoch.0).max(0.0))
}

/// How far a run is thought to be that reports nothing: elapsed over predicted, from where the attempt began, never
/// beyond 0.99.
pub fn assumed_fraction(began_at: f64, elapsed: Seconds, predicted_whole: Seconds) -> f64 {
    let done = elapsed.0.max(0.0) / predicted_whole.0;
    let done = if done.is_finite() && done > 0.0 { done } else { 0.0 };
    (began_at.clamp(0.0, 1.0) + done).min(0.99)
}

/// Time of one epoch of a running job on the configuration it runs on: what was predicted, corrected by what is seen.
/// The pace counts as much as `tau^2 / (tau^2 + sigma^2 / k)`, with `tau` the prediction's own spread and `k`
/// the epochs watched, like an observation of a finished attempt.
pub fn blended(predicted: crate::Estimate, pace: Pace) -> crate::Estimate {
    let noise = pace.sigma.max(0.1) / libm::sqrt(pace.epochs.max(0.1));
    let (tau2, noise2) = (predicted.sigma * predicted.sigma, noise * noise);
    let trust = tau2 / (tau2 + noise2);
    let (a, b) = (libm::log(predicted.median), libm::log(pace.epoch.0));
    if !(a.is_finite() && b.is_finite() && trust.is_finite()) {
        return predicted;
    }
    crate::Estimate {
        median: libm::exp(a + trust * (b - a)),
        sigma: libm::sqrt(trust * noise2).max(0.02),
        source: if trust >= 0.5 { Source::Observed } else { predicted.source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Estimate;

    fn window(reports: &[(f64, f64)]) -> ProgressWindow {
        let mut window = ProgressWindow::default();
        for (at, fraction) in reports {
            window.push(Report { at: Time(*at), fraction: *fraction });
        }
        window
    }

    #[test]
    fn a_resumed_run_is_paced_by_its_own_reports_not_by_the_zero_or_the_hundred() {
        // given: a run of 100 epochs, 10 s each, resumed at 40 %: 0 at begin, real reports, 100 after an early stop
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
    fn a_pause_for_a_checkpoint_does_not_move_the_pace() {
        let mut reports: Vec<(f64, f64)> =
            (1..=20).map(|i| (f64::from(i) * 5.0, f64::from(i) * 0.01)).collect();
        for r in reports.iter_mut().skip(18) {
            r.0 += 60.0;
        }
        let pace = window(&reports).pace(100.0).unwrap();
        assert!((pace.epoch.0 - 5.0).abs() < 0.3, "{pace:?}");
    }

    #[test]
    fn the_window_is_bounded_and_still_spans_the_attempt() {
        let reports: Vec<(f64, f64)> = (1..5000).map(|i| (f64::from(i), f64::from(i) / 5001.0)).collect();
        let window = window(&reports);
        assert!(window.reports.len() <= CAPACITY);
        assert_eq!(window.reports[0].at, Time(1.0));
        assert_eq!(window.last().unwrap().at, Time(4999.0));
        assert!((window.pace(5001.0).unwrap().epoch.0 - 1.0).abs() < 1e-9);
    }

    #[test]
    fn nonsense_reports_are_left_out() {
        let mut w = window(&[(10.0, 0.2)]);
        for (at, fraction) in
            [(f64::NAN, 0.3), (20.0, f64::NAN), (20.0, 0.1), (5.0, 0.3), (20.0, 7.0), (20.0, -1.0)]
        {
            assert!(!w.push(Report { at: Time(at), fraction }));
        }
        assert_eq!(w.pace(10.0), None);
        assert_eq!(assumed_fraction(0.25, Seconds(50.0), Seconds(200.0)), 0.5);
        assert_eq!(assumed_fraction(0.0, Seconds(f64::INFINITY), Seconds(0.0)), 0.0);
        assert_eq!(assumed_fraction(0.9, Seconds(1e9), Seconds(1.0)), 0.99);
    }

    #[test]
    fn many_epochs_overrule_a_prior_and_few_do_not_overrule_a_table() {
        let seen = |epochs| Pace { epoch: Seconds(20.0), epochs, sigma: 0.1 };
        let prior = Estimate { median: 100.0, sigma: 0.857, source: Source::Prior };
        let after = blended(prior, seen(2.0));
        assert!((after.median - 20.0).abs() < 1.0 && after.source == Source::Observed, "{after:?}");
        let table = Estimate { median: 10.0, sigma: 0.05, source: Source::UserGiven };
        let after = blended(table, seen(0.5));
        assert!(after.median < 12.0 && after.source == Source::UserGiven, "{after:?}");
    }
}
