//! What is assumed of a curve before its rows: the prior of its parameters, and the kernel of what no
//! parameter explains.

use crate::physics::{Setting, Theta};

/// Prior of the parameters, before the profile's own rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Prior {
    pub mean: Theta,
    /// Variances between profiles.
    pub own: Theta,
    /// Variances between types within a profile.
    pub within: Theta,
}

/// Kernel hyperparameters: amplitude and residual noise (standard deviations of the log), length
/// scale (doublings).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct KernelParameters {
    pub deviation: f64,
    pub scatter: f64,
    pub length: f64,
}

impl KernelParameters {
    pub const USUAL: Self = Self { deviation: 0.08, scatter: 0.05, length: 2.0 };

    pub fn covariance(&self, a: &Setting, b: &Setting) -> f64 {
        let square = |x: f64| x * x;
        let (batch, depth) = ((a.batch - b.batch) / std::f64::consts::LN_2, (a.depth - b.depth) * 4.0);
        let far =
            square(a.gpus - b.gpus) * 1.5 + square(a.nodes - b.nodes) * 1.5 + square(batch) + square(depth);
        // Matern 3/2: measured curves have kinks.
        let d = libm::sqrt(3.0 * far) / self.length;
        let shared = if a.kind == b.kind { 1.0 } else { 0.5 };
        self.deviation * self.deviation * shared * (1.0 + d) * libm::exp(-d)
    }
}
