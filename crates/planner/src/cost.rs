//! Cost of a run: energy at the tariff, and the expected price of lateness with an uncertain time.
//!
//! Times are log-normal around the prediction: `X = t exp(s Z - s^2/2)` with mean `t`. The expected tardiness
//! is the Black-Scholes formula of a call on `X`.

use andreas_model::normal::cdf;

use crate::snapshot::{Lateness, Snapshot};

/// The tariff from now on: the integral of the price, in money per watt.
pub(crate) struct PriceOverTime {
    /// Start in seconds from now, price per joule, integral up to the start.
    pieces: Vec<(f64, f64, f64)>,
}

impl PriceOverTime {
    pub fn new(snapshot: &Snapshot) -> Self {
        let now = snapshot.now;
        let mut pieces: Vec<(f64, f64, f64)> = Vec::new();
        if let Some(price) = snapshot.tariff.at(now) {
            pieces.push((0.0, price.0, 0.0));
        }
        for (from, price) in snapshot.tariff.windows().iter().skip(1) {
            if let Some(&(begin, before, sum)) = pieces.last()
                && *from > now
            {
                let offset = (*from - now).0;
                pieces.push((offset, price.0, sum + (offset - begin) * before));
            }
        }
        Self { pieces }
    }

    /// Money per watt drawn from now for this many seconds.
    pub fn integral(&self, seconds: f64) -> f64 {
        if let [(begin, price, sum)] = self.pieces.as_slice() {
            return sum + (seconds - begin) * price;
        }
        let after = self.pieces.partition_point(|(begin, _, _)| *begin <= seconds);
        match self.pieces.get(after.saturating_sub(1)) {
            Some((begin, price, sum)) => sum + (seconds - begin) * price,
            None => 0.0,
        }
    }

    /// Money for a constant draw from now on.
    pub fn energy_cost(&self, watts: f64, seconds: f64) -> f64 {
        watts * self.integral(seconds)
    }
}

/// Forecast of the end of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forecast {
    /// Fixed seconds from now before it trains (a restart).
    pub delay: f64,
    /// Mean remaining training time in seconds.
    pub time: f64,
    /// Standard deviation of the logarithm of the time.
    pub rel_std: f64,
}

impl Forecast {
    pub fn mean_end(&self) -> f64 {
        self.delay + self.time
    }

    /// Probability that it ends within this many seconds.
    pub fn within(&self, seconds: f64) -> f64 {
        let left = seconds - self.delay;
        if left == f64::INFINITY {
            return 1.0;
        }
        if self.rel_std < 1e-9 {
            return if self.time <= left { 1.0 } else { 0.0 };
        }
        if left <= 0.0 {
            return 0.0;
        }
        cdf(libm::log(left / self.time) / self.rel_std + self.rel_std / 2.0)
    }

    /// Expected seconds of tardiness with the deadline this many seconds away.
    pub fn tardiness(&self, seconds: f64) -> f64 {
        let left = seconds - self.delay;
        if left == f64::INFINITY {
            return 0.0;
        }
        if left <= 0.0 || self.rel_std < 1e-9 {
            return (self.time - left).max(0.0);
        }
        let d = libm::log(self.time / left) / self.rel_std;
        let half = self.rel_std / 2.0;
        (self.time * cdf(d + half) - left * cdf(d - half)).max(0.0)
    }

    /// Expected cost of tardiness, a miss and time in the system, for a job submitted `age` seconds ago.
    pub fn lateness_cost(
        &self,
        deadline_in: f64,
        weight: f64,
        share: f64,
        age: f64,
        rules: &Lateness,
    ) -> f64 {
        let missed = 1.0 - self.within(deadline_in);
        let turnaround = (self.mean_end() + age).max(0.0);
        weight * (self.tardiness(deadline_in) + missed * rules.late_fixed.0 + share * turnaround)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exact_time_has_plain_tardiness() {
        let run = Forecast { delay: 10.0, time: 100.0, rel_std: 0.0 };
        assert_eq!(run.tardiness(60.0), 50.0);
        assert_eq!(run.tardiness(200.0), 0.0);
        assert_eq!((run.within(109.0), run.within(110.0)), (0.0, 1.0));
    }

    #[test]
    fn expected_tardiness_agrees_with_a_numerical_integral() {
        let run = Forecast { delay: 0.0, time: 100.0, rel_std: 0.4 };
        let deadline = 120.0;
        let steps = 200_000;
        let mean: f64 = (0..steps)
            .map(|i| {
                let z = -8.0 + 16.0 * (f64::from(i) + 0.5) / f64::from(steps);
                let density = libm::exp(-z * z / 2.0) / libm::sqrt(2.0 * std::f64::consts::PI);
                let x = 100.0 * libm::exp(0.4 * z - 0.08);
                (x - deadline).max(0.0) * density * 16.0 / f64::from(steps)
            })
            .sum();
        assert!((run.tardiness(deadline) - mean).abs() < 1e-3, "{} {mean}", run.tardiness(deadline));
    }
}
