//! A log-normal estimate of a positive quantity, with its source: its errors are factors, not differences.

use andreas_model::Seconds;
use andreas_model::normal::{QUANTILE_90, QUANTILE_95};
use serde::{Deserialize, Serialize};

/// Standard deviation of the log for "a factor 3 each way": p10 = median / 3, p90 = median x 3.
pub(crate) const FACTOR_THREE: f64 = 1.098_612_288_668_109_8 / QUANTILE_90;

/// Largest standard deviation of the log that a mean is taken with: a factor of 13 each way between p10 and
/// p90. The mean of anything wider is decided by an unobserved tail.
pub const WIDEST: f64 = 2.0;

/// Mean of a log-normal quantity relative to its median, for a standard deviation `sigma` of the log.
pub fn mean_over_median(sigma: f64) -> f64 {
    libm::exp(sigma * sigma / 2.0)
}

andreas_model::names! {
    /// What an estimate rests on.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    pub enum Source {
        /// The table in `TrainingProfile.spec`.
        UserGiven,
        /// Runs of this profile on this GPU type.
        Observed,
        /// Runs of this profile on other types, with type ratios from other profiles.
        Regression,
        /// Nothing about the profile.
        Prior,
    }
}

/// A positive quantity, log-normal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogNormal {
    /// The median; > 0.
    pub median: f64,
    /// Standard deviation of its natural logarithm; >= 0.
    pub sigma: f64,
    /// Its source.
    pub source: Source,
}

impl LogNormal {
    /// Estimate without evidence: wrong by a factor of 3 each way (p10 and p90).
    pub fn prior(median: f64) -> Self {
        Self { median, sigma: FACTOR_THREE, source: Source::Prior }
    }

    /// 10 % quantile.
    pub fn p10(&self) -> f64 {
        self.median * libm::exp(-QUANTILE_90 * self.sigma)
    }

    /// 90 % quantile.
    pub fn p90(&self) -> f64 {
        self.median * libm::exp(QUANTILE_90 * self.sigma)
    }

    /// 5 % quantile: lower end of the 90 % interval.
    pub fn low(&self) -> f64 {
        self.median * libm::exp(-QUANTILE_95 * self.sigma)
    }

    /// 95 % quantile: upper end of the 90 % interval.
    pub fn high(&self) -> f64 {
        self.median * libm::exp(QUANTILE_95 * self.sigma)
    }

    /// Expected value, `exp(mu + s^2 / 2)` with `s` = [`Self::planning_sigma`]; what a planner counts with.
    pub fn mean(&self) -> f64 {
        self.median * mean_over_median(self.planning_sigma())
    }

    /// Standard deviation of the logarithm for a planner: `sigma`, at most [`WIDEST`].
    pub fn planning_sigma(&self) -> f64 {
        self.sigma.min(WIDEST)
    }
}

/// Probability that something ends within `available`. `remaining` is its median time, `sigma` the
/// standard deviation of the log.
///
/// 0 if no time is left and something remains; a step function if `sigma` is 0. Never NaN: NaN
/// input counts as not on time.
pub fn on_time_probability(remaining: Seconds, sigma: f64, available: Seconds) -> f64 {
    if remaining.0.is_nan() || available.0.is_nan() || sigma.is_nan() || available.0 < 0.0 {
        return 0.0;
    }
    if remaining.0 <= 0.0 {
        return 1.0;
    }
    let distance = libm::log(available.0) - libm::log(remaining.0);
    if distance.is_nan() || sigma <= 0.0 {
        return if available.0 >= remaining.0 { 1.0 } else { 0.0 };
    }
    libm::erfc(-distance / sigma / std::f64::consts::SQRT_2) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_lies_above_the_median_as_far_as_the_spread_says() {
        let of = |sigma| LogNormal { median: 100.0, sigma, source: Source::Regression }.mean();
        assert_eq!(of(0.0), 100.0);
        assert!((of(0.4) - 108.328_706_767_495_86).abs() < 1e-9, "8 % at 0.4");
        assert!((LogNormal::prior(100.0).mean() / 144.4 - 1.0).abs() < 1e-3, "44 % without evidence");
        assert_eq!(of(9.0), of(WIDEST), "and is bounded");
    }

    #[test]
    fn on_time_is_even_odds_at_the_median_and_nine_in_ten_at_p90() {
        let sigma = 0.4;
        let estimate = LogNormal { median: 100.0, sigma, source: Source::Observed };
        let at = |available: f64| on_time_probability(Seconds(100.0), sigma, Seconds(available));
        assert!((at(100.0) - 0.5).abs() < 1e-12);
        assert!((at(estimate.p90()) - 0.9).abs() < 1e-9);
        assert!((at(estimate.p10()) - 0.1).abs() < 1e-9);
    }

    #[test]
    fn on_time_has_answers_at_the_edges() {
        let p = |r: f64, s: f64, a: f64| on_time_probability(Seconds(r), s, Seconds(a));
        assert_eq!(p(10.0, 0.3, 0.0), 0.0);
        assert_eq!(p(10.0, 0.3, -5.0), 0.0);
        assert_eq!(p(0.0, 0.3, 5.0), 1.0);
        assert_eq!(p(10.0, 0.0, 10.0), 1.0);
        assert_eq!(p(10.0, 0.0, 9.9), 0.0);
        assert_eq!(p(f64::NAN, 0.3, 9.9), 0.0);
        assert_eq!(p(10.0, 0.3, f64::INFINITY), 1.0);
        assert_eq!(p(f64::INFINITY, 0.3, f64::INFINITY), 1.0);
    }
}
