//! Prediction errors, and their correction by measured epochs.

use andreas_model::{GpuType, Seconds};
use andreas_planner::{Estimate, Job};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

/// Error model of predicted times. Predicted powers are always correct.
///
/// The logarithm of predicted / true time is `a + b`. `a` is normal per job, `b` normal per job and GPU type,
/// of equal variance. This is the model of the closed-loop studies that this simulator repeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PredictionError {
    /// Mean absolute error as a share of the true time; 0 = none.
    pub mape: f64,
    /// Whether the first whole epoch on a type corrects the predictions.
    pub corrected: bool,
    /// Whether the planner knows the uncertainty of the predictions.
    pub stated: bool,
    /// Seed.
    pub seed: u64,
}

impl PredictionError {
    /// Standard deviation of the logarithm: the solution s of `E|exp(sZ) - 1| = exp(s^2/2) erf(s / sqrt 2) =
    /// mape`.
    fn sigma(&self) -> f64 {
        let error = |s: f64| libm::exp(s * s / 2.0) * libm::erf(s / std::f64::consts::SQRT_2);
        let (mut low, mut high) = (0.0, 3.0);
        for _ in 0..60 {
            let middle = 0.5 * (low + high);
            if error(middle) < self.mape { low = middle } else { high = middle }
        }
        low
    }
}

/// Predictions of a job with simulated errors; exact on the types where it was measured.
#[derive(Debug)]
pub(super) struct NoisyPredictions {
    /// Logarithm of predicted / true, by type.
    errors: Vec<(GpuType, f64)>,
    measured: Vec<GpuType>,
    /// Variance of each of the two parts.
    variance: f64,
    stated: bool,
}

impl NoisyPredictions {
    /// The predictions of job number `index`; `None` for exact predictions.
    pub fn new(error: &PredictionError, job: &Job, index: usize) -> Option<Self> {
        if error.mape <= 0.0 {
            return None;
        }
        let mut rng = ChaCha8Rng::seed_from_u64(error.seed);
        rng.set_stream(index as u64);
        let sigma = error.sigma() / std::f64::consts::SQRT_2;
        let own = sigma * normal(&mut rng);
        let mut types: Vec<_> = job.estimates.iter().map(|row| row.gpu_type.clone()).collect();
        types.sort();
        types.dedup();
        let errors = types.into_iter().map(|kind| (kind, own + sigma * normal(&mut rng))).collect();
        Some(Self { errors, measured: Vec::new(), variance: sigma * sigma, stated: error.stated })
    }

    /// Whether an epoch on this type would give new information.
    pub fn lacks_measurement(&self, kind: &GpuType) -> bool {
        !self.measured.contains(kind)
    }

    /// Records a whole epoch on this type.
    pub fn measure(&mut self, kind: &GpuType) {
        self.measured.push(kind.clone());
    }

    /// The table for the planner: exact where measured. Elsewhere it is corrected by the expected error of
    /// the job itself, the mean of a normal prior given the measured sums.
    pub fn table(&self, truth: &[Estimate]) -> Vec<Estimate> {
        let of = |kind: &GpuType| self.errors.iter().find(|(k, _)| k == kind).map_or(0.0, |(_, e)| *e);
        let n = self.measured.len() as f64;
        let mean = self.measured.iter().map(of).sum::<f64>() / n.max(1.0);
        let own = mean * n / (n + 1.0);
        let unknown = self.variance * (1.0 + 1.0 / (n + 1.0));
        truth
            .iter()
            .map(|row| {
                let known = self.measured.contains(&row.gpu_type);
                let error = if known { 0.0 } else { of(&row.gpu_type) - own };
                Estimate {
                    epoch: Seconds(row.epoch.0 * libm::exp(error)),
                    rel_std: if known || !self.stated { 0.0 } else { unknown.sqrt() },
                    ..row.clone()
                }
            })
            .collect()
    }
}

/// A standard normal random number (Box and Muller).
pub(super) fn normal(rng: &mut ChaCha8Rng) -> f64 {
    let (u, v): (f64, f64) = (rng.random(), rng.random());
    libm::sqrt(-2.0 * libm::log(1.0 - u)) * libm::cos(2.0 * std::f64::consts::PI * v)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_error_is_the_one_that_was_asked_for() {
        let error = PredictionError { mape: 0.24, ..PredictionError::default() };
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let sigma = error.sigma();
        let mean = (0..100_000).map(|_| (libm::exp(sigma * normal(&mut rng)) - 1.0).abs()).sum::<f64>() / 1e5;
        assert!((mean - 0.24).abs() < 0.004, "{mean}");
    }
}
