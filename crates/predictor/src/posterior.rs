//! The curve of one family, bent by what was observed of it.
//!
//! A Gaussian process whose mean is the physics of [`Quantity`] and whose prior over the physics' parameters comes from
//! the population: `cov(i, j) = J_i (own + [same type] within) J_j' + k(i, j) + noise`, with J the physics' slopes at the
//! parameters found so far (Gauss-Newton, a fixed number of rounds), `k` a smooth deviation that no parameter
//! explains, and errors that rows of a user's table share ([`TableVariances`]). So a single epoch on one configuration moves all others as far
//! as families usually go together, one on a new type fixes the ratio of types, and many rows are followed closely.
//! Rows far from what the others say weigh less (Huber). Nothing iterates without bound.

use std::collections::BTreeMap;
use std::sync::Arc;

use andreas_core::GpuType;

use crate::linear::Cholesky;
use crate::model_effect::{ModelEffect, Rows, TrainingPoint};
use crate::physics::{LEVEL, P, Quantity, Setting, Theta};
use crate::table_trust::TableVariances;

/// Rounds of Gauss-Newton.
const ROUNDS: usize = 14;
/// Largest move of a parameter in a round; the level is linear and free.
const MOVE: f64 = 1.0;
/// How far a parameter goes from its mean, in standard deviations.
const FURTHEST: f64 = 4.0;
/// A row further off than this many standard deviations of its noise weighs less.
const HUBER: f64 = 2.5;

/// A row: where, log of the value, its own noise (standard deviation of the log) beyond the family's scatter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub setting: Setting,
    pub log: f64,
    pub noise: f64,
    /// From the user's table: what its rows are thought to have in common.
    pub table: Option<TableVariances>,
}

/// What is thought of the parameters before the family's own rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Prior {
    pub mean: Theta,
    /// Variances between families.
    pub own: Theta,
    /// Variances between types within a family.
    pub within: Theta,
}

/// Smoothness and scatter of what no parameter explains (standard deviations of the log, lengths in doublings).
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

    /// Covariance of what single rows on one placement are off by, where they share it: less for other batches and limits.
    pub fn nearby(&self, a: &Setting, b: &Setting) -> f64 {
        let (batch, depth) = ((a.batch - b.batch) / std::f64::consts::LN_2, (a.depth - b.depth) * 4.0);
        let d = libm::sqrt(batch * batch + depth * depth) / (2.0 * self.length);
        self.scatter * self.scatter * libm::exp(-d)
    }
}

/// A family's curve.
#[derive(Clone, Debug)]
pub(crate) struct Posterior {
    quantity: Quantity,
    prior: Prior,
    /// Variances between families and types together.
    both: Theta,
    pub kernel: KernelParameters,
    rows: Vec<Row>,
    /// What each row is off by from the prior's mean, where the physics is linear.
    off: Vec<f64>,
    slopes: Vec<Theta>,
    /// What families of the same model share; of each row the mean, and what is told of it.
    model_effect: Option<Arc<ModelEffect>>,
    common: Vec<(f64, Vec<f64>)>,
    /// What the rows take back of it, by weights of the siblings' rows.
    taken: Vec<f64>,
    thetas: BTreeMap<u16, Theta>,
    alpha: Vec<f64>,
    factor: Option<Cholesky>,
    /// Log of the evidence for prior and texture, up to a constant.
    pub evidence: f64,
}

/// One parameter as the rows have it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Found {
    pub mean: f64,
    pub variance: f64,
}

impl Found {
    /// What the rows alone say, the prior (`mean`, `variance`) taken back out; a huge variance where they say nothing.
    pub fn alone(self, mean: f64, variance: f64) -> Self {
        let informed = if variance > 0.0 { 1.0 - self.variance / variance } else { 0.0 };
        if informed < 0.02 {
            return Self { mean, variance: 1e6 };
        }
        Self { mean: mean + (self.mean - mean) / informed, variance: self.variance / informed }
    }
}

impl Posterior {
    /// From the rows, at most a few hundred, and parameters by type to start from (the prior's where there are none).
    pub fn new(
        quantity: Quantity,
        prior: Prior,
        kernel: KernelParameters,
        rows: &[Row],
        thetas: BTreeMap<u16, Theta>,
        model_effect: Option<Arc<ModelEffect>>,
    ) -> Self {
        let common = |model_effect: &Arc<ModelEffect>| {
            let of = |row: &Row| {
                let with = model_effect.with(&row.setting);
                (model_effect.mean(&with), model_effect.informed(with))
            };
            rows.iter().map(of).collect()
        };
        let mut it = Self {
            quantity,
            prior,
            both: std::array::from_fn(|p| prior.own[p] + prior.within[p]),
            kernel,
            common: model_effect.as_ref().map_or_else(Vec::new, common),
            model_effect,
            taken: Vec::new(),
            rows: rows.to_vec(),
            off: vec![0.0; rows.len()],
            slopes: vec![[0.0; P]; rows.len()],
            thetas,
            alpha: vec![0.0; rows.len()],
            factor: None,
            evidence: 0.0,
        };
        if !rows.is_empty() {
            it.condition();
            it.take_back();
        }
        it
    }

    /// What the siblings say that the rows already said.
    fn take_back(&mut self) {
        let Some(model_effect) = &self.model_effect else { return };
        let mut sum = vec![0.0; self.common.first().map_or(0, |(_, informed)| informed.len())];
        for ((_, informed), alpha) in self.common.iter().zip(&self.alpha) {
            for (sum, t) in sum.iter_mut().zip(informed) {
                *sum += alpha * t;
            }
        }
        self.taken = model_effect.weights(sum);
    }

    /// Covariance of the deviations at two settings before any row.
    fn deviation(&self, a: &Setting, b: &Setting) -> f64 {
        match &self.model_effect {
            Some(model_effect) => model_effect.covariance(self.kernel, a, b),
            None => self.kernel.covariance(a, b),
        }
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
                let common = self.common.get(i).map_or(0.0, |(mean, _)| *mean);
                self.off[i] = row.log - common - at + moved;
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
            self.evidence = -0.5 * self.off.iter().zip(&self.alpha).map(|(r, a)| r * a).sum::<f64>()
                - 0.5 * factor.log_det();
            self.factor = Some(factor);
            let change = self.step(part);
            // Steps that do not get smaller go to and fro.
            if change > 0.6 * before {
                part *= 0.6;
            }
            before = change;
            // What is left of a row once everything shared is taken off it.
            let mut reweighed = false;
            // Only once the curve stands: before that an honest row may look far off.
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
        row.noise * row.noise + self.scatter()
    }

    /// What of two rows' covariance does not depend on the parameters.
    fn fixed(&self, i: usize, j: usize) -> f64 {
        let (a, b) = (&self.rows[i], &self.rows[j]);
        let table = match (a.table, b.table) {
            (Some(doubt), Some(_)) if a.setting.kind == b.setting.kind => doubt.table + doubt.kind,
            (Some(doubt), Some(_)) => doubt.table,
            _ => 0.0,
        };
        let informed = match (self.common.get(i), self.common.get(j)) {
            (Some((_, a)), Some((_, b))) => a.iter().zip(b).map(|(x, y)| x * y).sum(),
            _ => 0.0,
        };
        self.deviation(&a.setting, &b.setting) - informed + table
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

    /// Moves the parameters of every type (and those of a type without rows, kept under `u16::MAX`) to where the rows
    /// pull them; the largest move.
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
                if p != LEVEL {
                    let reach = FURTHEST * libm::sqrt(self.prior.own[p] + self.prior.within[p]);
                    wanted = wanted.clamp(self.prior.mean[p] - reach, self.prior.mean[p] + reach);
                    wanted = was[p] + part * (wanted - was[p]).clamp(-MOVE, MOVE);
                }
                if wanted.is_finite() {
                    if p != LEVEL {
                        change = change.max((wanted - was[p]).abs());
                    }
                    *value = wanted;
                }
            }
            self.thetas.insert(kind, theta);
        }
        change
    }

    /// Mean and variance of the log at a setting, the scatter of single rows not counted.
    pub fn at(&self, s: &Setting) -> (f64, f64) {
        let theta = self.theta(s.kind);
        let (at, slopes) = self.quantity.with_slopes(&theta, s);
        let mut variance = self.linear(true, &slopes, &slopes) + self.deviation(s, s);
        let mut mean = at;
        let mut here = Vec::new();
        if let Some(model_effect) = &self.model_effect {
            let with = model_effect.with(s);
            mean += model_effect.mean(&with);
            here = model_effect.informed(with);
            variance -= here.iter().map(|x| x * x).sum::<f64>();
        }
        let Some(factor) = &self.factor else { return (mean, variance.max(1e-6)) };
        let mut with: Vec<f64> = Vec::with_capacity(self.rows.len());
        for (i, ((row, other), alpha)) in self.rows.iter().zip(&self.slopes).zip(&self.alpha).enumerate() {
            let informed =
                self.common.get(i).map_or(0.0, |(_, t)| t.iter().zip(&here).map(|(x, y)| x * y).sum());
            let deviation = self.deviation(s, &row.setting) - informed;
            mean += deviation * alpha;
            with.push(deviation + self.linear(row.setting.kind == s.kind, &slopes, other));
        }
        factor.forward(&mut with);
        variance -= with.iter().map(|x| x * x).sum::<f64>();
        (mean, variance.max(1e-6))
    }

    /// Mean of the log alone.
    pub fn mean(&self, s: &Setting) -> f64 {
        let at = self.quantity.at(&self.theta(s.kind), s);
        let deviations = self.rows.iter().zip(&self.alpha);
        let own = deviations.map(|(row, alpha)| alpha * self.deviation(s, &row.setting)).sum::<f64>();
        let Some(model_effect) = &self.model_effect else { return at + own };
        let with = model_effect.with(s);
        at + own + model_effect.mean(&with) - with.iter().zip(&self.taken).map(|(w, t)| w * t).sum::<f64>()
    }

    /// The rows as siblings are told of them, `gpu_type` naming their types.
    pub fn sites(&self, gpu_type: impl Fn(usize) -> GpuType) -> Rows {
        let rows = self.rows.iter().zip(&self.slopes).zip(&self.off).enumerate();
        let site = |(i, ((row, slopes), off)): (usize, ((&Row, &Theta), &f64))| TrainingPoint {
            gpu_type: gpu_type(i),
            setting: row.setting,
            off: *off,
            slopes: *slopes,
            noise: row.noise,
        };
        Rows { prior: self.prior, sites: rows.map(site).collect() }
    }

    /// The physics alone.
    pub fn physics(&self, s: &Setting) -> f64 {
        self.quantity.at(&self.theta(s.kind), s)
    }

    /// Mean and variance of a parameter before the rows; the level's variance between types.
    pub fn prior_mean(&self, p: usize) -> f64 {
        self.prior.mean[p]
    }

    pub fn prior_variance(&self, p: usize) -> f64 {
        self.prior.own[p]
    }

    pub fn within_level(&self) -> f64 {
        self.prior.within[LEVEL]
    }

    /// Parameters by type, for a start elsewhere.
    pub fn thetas(&self) -> BTreeMap<u16, Theta> {
        self.thetas.clone()
    }

    /// The scatter of single rows around the curve (variance).
    pub fn scatter(&self) -> f64 {
        match &self.model_effect {
            Some(model_effect) => model_effect.scatter(self.kernel),
            None => self.kernel.scatter * self.kernel.scatter,
        }
    }

    /// What a row says of its very setting beyond the curve: mean and variance (a new row there has all the scatter).
    pub fn detail(&self, row: usize) -> Option<(f64, f64)> {
        let (at, alpha) = (self.rows.get(row)?, self.alpha.get(row)?);
        let (noise, scatter) = (at.noise * at.noise, self.scatter());
        Some((scatter * alpha, scatter * noise / (scatter + noise).max(1e-12)))
    }

    /// The family's own parameters, the types' set aside.
    pub fn found(&self) -> [Found; P] {
        self.weigh(|p, i| self.slopes[i][p], |p| self.prior.own[p])
    }

    /// How the family's level on a type differs from its own level elsewhere.
    pub fn level_on(&self, kind: u16) -> Found {
        let slope = |p: usize, i: usize| {
            if p == LEVEL && self.rows[i].setting.kind == kind { self.slopes[i][p] } else { 0.0 }
        };
        let mut found = self.weigh(slope, |p| self.prior.within[p]);
        found[LEVEL].mean -= self.prior.mean[LEVEL];
        found[LEVEL]
    }

    /// A parameter on a type, the family's own and the type's together, as the rows alone have it.
    pub fn on(&self, kind: u16, p: usize) -> Found {
        let slope = |q: usize, i: usize| {
            let here = if self.rows[i].setting.kind == kind { self.both[p] } else { self.prior.own[p] };
            if q == p { self.slopes[i][p] * here / self.both[p] } else { 0.0 }
        };
        let found = self.weigh(slope, |q| if q == p { self.both[p] } else { 0.0 });
        found[p].alone(self.prior.mean[p], self.both[p])
    }

    fn weigh(&self, slope: impl Fn(usize, usize) -> f64, prior: impl Fn(usize) -> f64) -> [Found; P] {
        let mut found = [Found::default(); P];
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

    /// Errors of each row (log) as the others predict it, leaving it out.
    pub fn errors(&self) -> Vec<f64> {
        let Some(factor) = &self.factor else { return Vec::new() };
        self.alpha.iter().zip(factor.inverse_diagonal()).map(|(alpha, q)| alpha / q.max(1e-12)).collect()
    }
}

#[cfg(test)]
mod tests;
