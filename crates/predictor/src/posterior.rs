//! The curve of one profile: the posterior given its rows.
//!
//! A Gaussian process around the physics of [`Quantity`], with the population's prior over its
//! parameters: `cov(i, j) = J_i (own + [same type] within) J_j' + k(i, j) + noise`. J are the
//! physics' slopes at the current parameters (Gauss-Newton, a bounded number of rounds). `k` is a
//! smooth kernel for what no parameter explains. Rows of a user's table also share errors
//! (`table_trust`).
//!
//! So one epoch on one configuration moves all others as far as profiles usually covary. One on a
//! new type fixes the ratio of types, and many rows are followed closely. Outlying rows have Huber
//! weights.

use std::collections::BTreeMap;

use crate::curve_prior::{Prior, RESIDUAL_VARIANCE, kernel};
use crate::linear::Cholesky;
use crate::physics::{INTERCEPT, P, Quantity, Setting, Theta};
use crate::table_trust::WHOLE_TABLE;

/// Most rounds of Gauss-Newton.
const ROUNDS: usize = 14;
/// Largest move of a parameter in a round; the intercept is linear and unbounded.
const MOVE: f64 = 1.0;
/// Largest distance of a parameter from its mean, in standard deviations.
const FURTHEST: f64 = 4.0;
/// Rows beyond this many standard deviations of their noise get less weight.
const HUBER: f64 = 2.5;

/// One row: setting, log of the value, and its noise (standard deviation of the log) beyond the
/// profile's residual noise.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub setting: Setting,
    pub log: f64,
    pub noise: f64,
    /// Shared error variance, if it is a row of the user's table.
    pub table: Option<f64>,
}

/// A profile's curve.
#[derive(Clone, Debug)]
pub(crate) struct Posterior {
    quantity: Quantity,
    prior: Prior,
    /// Variances between profiles and types together.
    both: Theta,
    rows: Vec<Row>,
    /// Linearised residual of each row from the prior mean.
    off: Vec<f64>,
    slopes: Vec<Theta>,
    thetas: BTreeMap<u16, Theta>,
    alpha: Vec<f64>,
    factor: Option<Cholesky>,
}

/// Posterior mean and variance of one parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ParameterEstimate {
    pub mean: f64,
    pub variance: f64,
}

impl ParameterEstimate {
    /// Estimate from the rows alone, without the prior (`mean`, `variance`). Huge variance if the
    /// rows have no information.
    pub fn alone(self, mean: f64, variance: f64) -> Self {
        let informed = if variance > 0.0 { 1.0 - self.variance / variance } else { 0.0 };
        if informed < 0.02 {
            return Self { mean, variance: 1e6 };
        }
        Self { mean: mean + (self.mean - mean) / informed, variance: self.variance / informed }
    }
}

impl Posterior {
    /// From at most a few hundred rows.
    pub fn new(quantity: Quantity, prior: Prior, rows: &[Row]) -> Self {
        let mut it = Self {
            quantity,
            prior,
            both: std::array::from_fn(|p| prior.own[p] + prior.within[p]),
            rows: rows.to_vec(),
            off: vec![0.0; rows.len()],
            slopes: vec![[0.0; P]; rows.len()],
            thetas: BTreeMap::new(),
            alpha: vec![0.0; rows.len()],
            factor: None,
        };
        if !rows.is_empty() {
            it.condition();
        }
        it
    }

    fn condition(&mut self) {
        let n = self.rows.len();
        let fixed: Vec<f64> =
            (0..n).flat_map(|i| (0..=i).map(move |j| (i, j))).map(|(i, j)| self.fixed(i, j)).collect();
        let mut noise: Vec<f64> = self.rows.iter().map(|r| self.noise(r)).collect();
        let (mut part, mut before) = (1.0f64, f64::INFINITY);
        for round in 0..ROUNDS {
            for (i, row) in self.rows.iter().enumerate() {
                let theta = self.theta(row.setting.kind);
                let (at, slopes) = self.quantity.with_slopes(&theta, &row.setting);
                let moved: f64 = (0..P).map(|p| slopes[p] * (theta[p] - self.prior.mean[p])).sum();
                self.slopes[i] = slopes;
                self.off[i] = row.log - at + moved;
            }
            let mut covariance = vec![0.0; n * n];
            let mut at = 0;
            for i in 0..n {
                let (a, kind) = (&self.slopes[i], self.rows[i].setting.kind);
                for j in 0..=i {
                    let shared = self.linear(kind == self.rows[j].setting.kind, a, &self.slopes[j]);
                    covariance[i * n + j] = fixed[at] + shared;
                    at += 1;
                }
                covariance[i * n + i] += noise[i];
            }
            let Some(factor) = Cholesky::new(n, covariance) else { break };
            self.alpha.clone_from(&self.off);
            factor.solve(&mut self.alpha);
            self.factor = Some(factor);
            let change = self.step(part);
            // Steps that do not shrink oscillate: damp them.
            if change > 0.6 * before {
                part *= 0.6;
            }
            before = change;
            // Residual of a row given all shared terms.
            let mut reweighed = false;
            // Only near convergence: earlier, good rows may look like outliers.
            if (change < 0.15 || round > 3) && round < ROUNDS - 2 {
                for (i, row) in self.rows.iter().enumerate() {
                    let usual = self.noise(row);
                    let left = (self.alpha[i] * noise[i]).abs();
                    let wanted = usual * (left / (HUBER * libm::sqrt(usual))).clamp(1.0, 1e3);
                    let wanted = libm::sqrt(wanted * noise[i]).max(usual);
                    reweighed |= (wanted / noise[i] - 1.0).abs() > 0.1;
                    noise[i] = wanted;
                }
            }
            if change < 1e-3 && !reweighed && round > 0 {
                break;
            }
        }
    }

    fn noise(&self, row: &Row) -> f64 {
        row.noise * row.noise + RESIDUAL_VARIANCE
    }

    /// Part of two rows' covariance that does not depend on the parameters.
    fn fixed(&self, i: usize, j: usize) -> f64 {
        let (a, b) = (&self.rows[i], &self.rows[j]);
        let table = match (a.table, b.table) {
            (Some(variance), Some(_)) if a.setting.kind == b.setting.kind => variance,
            (Some(variance), Some(_)) => WHOLE_TABLE * variance,
            _ => 0.0,
        };
        kernel(&a.setting, &b.setting) + table
    }

    fn linear(&self, same_kind: bool, a: &Theta, b: &Theta) -> f64 {
        let variances = if same_kind { &self.both } else { &self.prior.own };
        (0..P).map(|p| a[p] * b[p] * variances[p]).sum()
    }

    /// Parameters on a type.
    fn theta(&self, kind: u16) -> Theta {
        if let Some(theta) = self.thetas.get(&kind) {
            return *theta;
        }
        self.thetas.get(&u16::MAX).copied().unwrap_or(self.prior.mean)
    }

    /// Moves the parameters of every type to where the rows pull them; returns the largest move.
    /// Those of a type without rows are kept under `u16::MAX`.
    fn step(&mut self, part: f64) -> f64 {
        let mut type_index: Vec<u16> = self.rows.iter().map(|r| r.setting.kind).collect();
        type_index.push(u16::MAX);
        type_index.sort_unstable();
        type_index.dedup();
        let mut change = 0.0f64;
        for kind in type_index {
            let was = self.theta(kind);
            let mut theta = was;
            for (p, value) in theta.iter_mut().enumerate() {
                let mut wanted = self.prior.mean[p];
                for (row, (slopes, alpha)) in self.rows.iter().zip(self.slopes.iter().zip(&self.alpha)) {
                    let within = if row.setting.kind == kind { self.prior.within[p] } else { 0.0 };
                    wanted += (self.prior.own[p] + within) * slopes[p] * alpha;
                }
                if p != INTERCEPT {
                    let reach = FURTHEST * libm::sqrt(self.prior.own[p] + self.prior.within[p]);
                    wanted = wanted.clamp(self.prior.mean[p] - reach, self.prior.mean[p] + reach);
                    wanted = was[p] + part * (wanted - was[p]).clamp(-MOVE, MOVE);
                }
                if wanted.is_finite() {
                    if p != INTERCEPT {
                        change = change.max((wanted - was[p]).abs());
                    }
                    *value = wanted;
                }
            }
            self.thetas.insert(kind, theta);
        }
        change
    }

    /// Mean and variance of the log at a setting, without residual noise.
    pub fn mean_and_variance(&self, s: &Setting) -> (f64, f64) {
        let theta = self.theta(s.kind);
        let (at, slopes) = self.quantity.with_slopes(&theta, s);
        let mut variance = self.linear(true, &slopes, &slopes) + kernel(s, s);
        let mut mean = at;
        let Some(factor) = &self.factor else { return (mean, variance.max(1e-6)) };
        let mut with: Vec<f64> = Vec::with_capacity(self.rows.len());
        for ((row, other), alpha) in self.rows.iter().zip(&self.slopes).zip(&self.alpha) {
            let deviation = kernel(s, &row.setting);
            mean += deviation * alpha;
            with.push(deviation + self.linear(row.setting.kind == s.kind, &slopes, other));
        }
        factor.forward(&mut with);
        variance -= with.iter().map(|x| x * x).sum::<f64>();
        (mean, variance.max(1e-6))
    }

    /// Mean of the log.
    pub fn mean(&self, s: &Setting) -> f64 {
        let deviations = self.rows.iter().zip(&self.alpha);
        let own = deviations.map(|(row, alpha)| alpha * kernel(s, &row.setting));
        self.quantity.log_at(&self.theta(s.kind), s) + own.sum::<f64>()
    }

    /// Prior mean of a parameter.
    pub fn prior_mean(&self, p: usize) -> f64 {
        self.prior.mean[p]
    }

    pub fn prior_variance(&self, p: usize) -> f64 {
        self.prior.own[p]
    }

    pub fn within_level(&self) -> f64 {
        self.prior.within[INTERCEPT]
    }

    /// Mean and variance of a table row's own residual beyond the curve.
    pub fn row_residual(&self, row: usize) -> Option<(f64, f64)> {
        let (at, alpha) = (self.rows.get(row)?, self.alpha.get(row)?);
        let (noise, residual_variance) = (at.noise * at.noise, RESIDUAL_VARIANCE);
        Some((residual_variance * alpha, residual_variance * noise / (residual_variance + noise).max(1e-12)))
    }

    /// The profile's own parameters, without the types' part.
    pub fn found(&self) -> [ParameterEstimate; P] {
        self.conditioned(|p, i| self.slopes[i][p], |p| self.prior.own[p])
    }

    /// The profile's intercept on a type, relative to its own intercept.
    pub fn intercept_on(&self, kind: u16) -> ParameterEstimate {
        let slope = |p: usize, i: usize| {
            if p == INTERCEPT && self.rows[i].setting.kind == kind { self.slopes[i][p] } else { 0.0 }
        };
        let mut found = self.conditioned(slope, |p| self.prior.within[p]);
        found[INTERCEPT].mean -= self.prior.mean[INTERCEPT];
        found[INTERCEPT]
    }

    /// Posterior of each parameter: `slope(parameter, row)` is how the row depends on it, `prior(parameter)` its prior variance.
    fn conditioned(
        &self,
        slope: impl Fn(usize, usize) -> f64,
        prior: impl Fn(usize) -> f64,
    ) -> [ParameterEstimate; P] {
        let mut found = [ParameterEstimate::default(); P];
        for (p, found) in found.iter_mut().enumerate() {
            let variance = prior(p);
            let mut with: Vec<f64> = (0..self.rows.len()).map(|i| slope(p, i)).collect();
            let pull: f64 = with.iter().zip(&self.alpha).map(|(s, a)| s * a).sum();
            found.mean = self.prior.mean[p] + variance * pull;
            found.variance = variance;
            if let Some(factor) = &self.factor {
                factor.forward(&mut with);
                found.variance -= variance * variance * with.iter().map(|x| x * x).sum::<f64>();
            }
            found.variance = found.variance.clamp(0.0, variance);
        }
        found
    }

    /// Leave-one-out errors of each row (log).
    pub fn errors(&self) -> Vec<f64> {
        let Some(factor) = &self.factor else { return Vec::new() };
        self.alpha.iter().zip(factor.inverse_diagonal()).map(|(alpha, q)| alpha / q.max(1e-12)).collect()
    }
}

#[cfg(test)]
mod tests;
