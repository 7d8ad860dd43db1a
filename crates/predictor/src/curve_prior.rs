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

/// Amplitude of the kernel (standard deviation of the log) and its length scale (doublings).
const DEVIATION: f64 = 0.08;
const LENGTH: f64 = 2.0;
/// Variance of the residual noise of single rows.
pub(crate) const RESIDUAL_VARIANCE: f64 = 0.05 * 0.05;

/// Covariance of the deviations from physics at two settings.
pub(crate) fn kernel(a: &Setting, b: &Setting) -> f64 {
    let square = |x: f64| x * x;
    let (batch, depth) = ((a.batch - b.batch) / std::f64::consts::LN_2, (a.depth - b.depth) * 4.0);
    let far = square(a.gpus - b.gpus) * 1.5 + square(a.nodes - b.nodes) * 1.5 + square(batch) + square(depth);
    // Matern 3/2: measured curves have kinks.
    let d = libm::sqrt(3.0 * far) / LENGTH;
    let shared = if a.kind == b.kind { 1.0 } else { 0.5 };
    DEVIATION * DEVIATION * shared * (1.0 + d) * libm::exp(-d)
}
