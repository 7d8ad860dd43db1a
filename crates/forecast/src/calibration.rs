//! Intervals corrected by what became of earlier forecasts (split conformal prediction).
//!
//! **In**: the first forecasts of jobs that ended, and their ends. **Out**: for a new forecast, where its median and the
//! ends of its interval belong. An end is scored by its distance from the median, in widths of the interval on that side,
//! so that forecasts of minutes and of days are compared. The scores' quantiles of 10, 50 and 90 % take the places of
//! -1, 0 and 1. What is not modelled, such as failures, shows in them. Scores as they should be stand for jobs
//! that have not ended yet.

use std::collections::VecDeque;

use andreas_model::normal::{QUANTILE_90, quantile};
use andreas_model::{Seconds, Time};

use crate::job_forecast::Quantiles;

/// Scores that are kept, the newest.
const KEPT: usize = 200;
/// Scores as they should be that a correction starts with.
const START: usize = 20;
/// Least width of a side of an interval, as part of the time from now to the median.
const LEAST_WIDTH: f64 = 0.01;
/// Bounds of where an interval's end belongs, in widths from the median; the median is moved by at most the lower one.
const LEAST: f64 = 0.5;
const MOST: f64 = 4.0;

/// Scores of ended jobs.
#[derive(Clone, Debug, Default)]
pub struct Calibration {
    scores: VecDeque<f64>,
}

/// Median and widths of an interval.
struct Scale {
    median: Time,
    below: Seconds,
    above: Seconds,
}

impl Scale {
    fn from_quantiles(finish: &Quantiles, now: Time) -> Option<Self> {
        let least = (finish.p50 - now) * LEAST_WIDTH;
        let (below, above) = ((finish.p50 - finish.p10).max(least), (finish.p90 - finish.p50).max(least));
        let usable = below.0 > 0.0 && above.0 > 0.0 && finish.p90.is_finite();
        usable.then_some(Self { median: finish.p50, below, above })
    }

    fn score(&self, end: Time) -> f64 {
        let off = (end - self.median).0;
        off / if off < 0.0 { self.below.0 } else { self.above.0 }
    }

    fn time_at(&self, score: f64) -> Time {
        self.median + if score < 0.0 { self.below * score } else { self.above * score }
    }
}

impl Calibration {
    /// Adds a job that ended, with the quantiles of its end as they were first sampled at `now`.
    pub fn add(&mut self, finish: &Quantiles, now: Time, end: Time) {
        let Some(score) = Scale::from_quantiles(finish, now).map(|scale| scale.score(end)) else { return };
        if score.is_finite() {
            self.scores.push_back(score);
            self.scores.drain(..self.scores.len().saturating_sub(KEPT));
        }
    }

    /// The quantiles of an end as they belong, from those that were sampled at `now`.
    #[must_use]
    pub fn corrected(&self, finish: &Quantiles, now: Time) -> Quantiles {
        let scale = Scale::from_quantiles(finish, now).filter(|_| !self.scores.is_empty());
        let Some(scale) = scale else { return *finish };
        let [p10, p50, p90] = self.places().map(|place| scale.time_at(place).max(now));
        Quantiles { p10, p50, p90 }
    }

    /// Where the quantiles of 10, 50 and 90 % belong, in widths from the median.
    fn places(&self) -> [f64; 3] {
        let start = (0..START).map(|n| quantile((n as f64 + 0.5) / START as f64) / QUANTILE_90);
        let mut all: Vec<f64> = self.scores.iter().copied().chain(start).collect();
        all.sort_by(f64::total_cmp);
        let at = |p: f64| all[((p * all.len() as f64) as usize).min(all.len() - 1)];
        [at(0.1).clamp(-MOST, -LEAST), at(0.5).clamp(-LEAST, LEAST), at(0.9).clamp(LEAST, MOST)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time(1_000.0);

    fn finish() -> Quantiles {
        Quantiles { p10: Time(1_900.0), p50: Time(2_000.0), p90: Time(2_200.0) }
    }

    fn after(ends: impl Iterator<Item = f64>) -> Quantiles {
        let mut calibration = Calibration::default();
        ends.for_each(|end| calibration.add(&finish(), NOW, Time(end)));
        calibration.corrected(&finish(), NOW)
    }

    #[test]
    fn intervals_become_as_wide_as_ends_were_off() {
        assert_eq!(after([].into_iter()), finish());
        // Half of the jobs end a width later than the interval says, and as many sooner than it does.
        let wide = after((0..200).map(|n| 1_000.0 + 10.0 * f64::from(n)));
        assert!(
            (1_600.0..1_700.0).contains(&wide.p10.0) && (2_600.0..2_800.0).contains(&wide.p90.0),
            "{wide:?}"
        );
        // All of them end at the median.
        let narrow = after((0..200).map(|_| 2_000.0));
        assert_eq!((narrow.p10, narrow.p50, narrow.p90), (Time(1_950.0), Time(2_000.0), Time(2_100.0)));
        // What was always late is expected late, in bounds.
        let late = after((0..200).map(|_| 1e9));
        assert_eq!((late.p10, late.p50, late.p90), (Time(1_950.0), Time(2_100.0), Time(2_800.0)));
    }

    #[test]
    fn no_forecast_breaks_it() {
        let mut calibration = Calibration::default();
        let never = Quantiles { p90: Time(f64::INFINITY), ..finish() };
        calibration.add(&never, NOW, Time(f64::NAN));
        calibration.add(&finish(), NOW, Time(f64::INFINITY));
        assert_eq!(calibration.corrected(&finish(), NOW), finish());
        calibration.add(&finish(), NOW, Time(5_000.0));
        assert_eq!(calibration.corrected(&never, NOW), never);
        let ends = |at| Quantiles { p10: at, p50: at, p90: at };
        assert_eq!(calibration.corrected(&ends(NOW), NOW), ends(NOW), "it ends now");
    }
}
