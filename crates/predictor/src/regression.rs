//! linfa's elastic net, bounded. Used for ratios of GPU types and for intercepts of profiles that
//! never ran.
//!
//! Not a gamma regression: linfa's Tweedie GLM stops at its start or does not return on such rows.
//! Targets are logs: times span five decades.

use andreas_model::normal::QUANTILE_90;
use linfa::Dataset;
use linfa::traits::Fit;
use linfa_elasticnet::ElasticNet;
use ndarray::{Array1, Array2};

const PENALTY: f64 = 2e-3;
const L1_RATIO: f64 = 0.2;
const MAX_ITERATIONS: u32 = 300;
const TOLERANCE: f64 = 1e-6;

/// Coefficients for centred columns and targets; `None` if linfa finds none or they are not finite.
///
/// No intercept is fitted: linfa's own centres the target but not the columns.
pub(crate) fn elastic_net(xs: Vec<f64>, width: usize, ys: Vec<f64>) -> Option<Vec<f64>> {
    let x = Array2::from_shape_vec((ys.len(), width), xs).ok()?;
    let fit = ElasticNet::params()
        .penalty(PENALTY)
        .l1_ratio(L1_RATIO)
        .with_intercept(false)
        .max_iterations(MAX_ITERATIONS)
        .tolerance(TOLERANCE)
        .fit(&Dataset::new(x, Array1::from_vec(ys)))
        .ok()?;
    let coefficients = fit.hyperplane().to_vec();
    coefficients.iter().all(|c| c.is_finite()).then_some(coefficients)
}

/// Split conformal: the sigma whose p10..p90 covers 80 % of these absolute errors.
pub(crate) fn interval(mut errors: Vec<f64>, at_least: usize) -> Option<f64> {
    if errors.len() < at_least.max(1) {
        return None;
    }
    errors.sort_by(f64::total_cmp);
    // Finite-sample rank of split conformal prediction: ceil((n + 1) 0.8).
    let rank = (errors.len() + 1) * 4 / 5;
    Some(errors[rank.min(errors.len() - 1)] / QUANTILE_90)
}

/// Upper median; `None` without values.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
