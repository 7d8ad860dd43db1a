//! The standard normal distribution.

/// Its 90 % quantile: four of five values are within it on both sides.
pub const QUANTILE_90: f64 = 1.281_551_565_544_600_4;
/// Its 95 % quantile: nine of ten values are within it on both sides.
pub const QUANTILE_95: f64 = 1.644_853_626_951_472_2;

/// Probability of a value of at most `x`.
#[inline]
pub fn cdf(x: f64) -> f64 {
    0.5 * libm::erfc(-x / std::f64::consts::SQRT_2)
}

/// The value with that probability below it, for 0 < p < 1: Newton's method on [`cdf`], from the logistic approximation.
pub fn quantile(p: f64) -> f64 {
    let mut x = libm::log(p / (1.0 - p)) / 1.702;
    for _ in 0..8 {
        let density = libm::exp(-x * x / 2.0) / libm::sqrt(2.0 * std::f64::consts::PI);
        let step = (cdf(x) - p) / density.max(1e-12);
        x -= step.clamp(-0.5, 0.5);
        if step.abs() < 1e-10 {
            break;
        }
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_invert_the_distribution_function() {
        for p in [0.000_1, 0.01, 0.1, 0.5, 0.84, 0.975, 0.999_9] {
            assert!((cdf(quantile(p)) - p).abs() < 1e-9, "{p}: {}", quantile(p));
        }
        for (p, value) in [(0.9, QUANTILE_90), (0.95, QUANTILE_95)] {
            assert!((quantile(p) - value).abs() < 1e-9, "{p}: {}", quantile(p));
        }
    }
}
