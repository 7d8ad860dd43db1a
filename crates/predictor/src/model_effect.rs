//! Model-shared effect: what profiles of one model share beyond their parameters, such as a slow
//! placement.
//!
//! A Gaussian process over all rows of the siblings (profiles of the same model). Each sibling
//! keeps its own intercept and parameters, so only the residual shape is shared. One part of it is
//! common to the model, the rest is the profile's own. The shares maximise the evidence over the
//! tenant's models. On one node only: between nodes it would be confused with synchronisation.
//!
//! A new profile's curve starts from the common part, given the siblings' rows, with the remaining
//! variance. Outlying rows have Huber weights, and no sibling has more rows than another.

use andreas_core::GpuType;

use crate::curve_prior::{KernelParameters, Prior};
use crate::linear::Cholesky;
use crate::physics::{Setting, Theta};
use crate::spread::spread_over;

/// Bounds on the work: siblings' rows for one profile, and for fitting the shares; models for
/// fitting.
const MAX_SITES: usize = 64;
const COMPARED_SITES: usize = 40;
const COMPARED_MODELS: usize = 12;
/// Rows beyond this many standard deviations of their noise get less weight, in this many rounds.
const HUBER: f64 = 2.5;
const ROUNDS: usize = 5;
/// Most evidence that one model may give for or against a share.
const MOST_EVIDENCE: f64 = 6.0;
/// Shares that are tried; the start is 0.
const PARTS: [f64; 4] = [0.25, 0.5, 0.75, 0.9];

/// A profile's row with its residual from the expected physics.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TrainingPoint {
    pub gpu_type: GpuType,
    pub setting: Setting,
    /// Log of the value over the expected one; its derivatives by the parameters; its noise
    /// (standard deviation).
    pub off: f64,
    pub slopes: Theta,
    pub noise: f64,
}

/// A profile's rows with the prior of its parameters.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rows {
    pub prior: Prior,
    pub sites: Vec<TrainingPoint>,
}

/// Shares of the kernel's variance, and of the residual noise of a placement, that all profiles of
/// a model have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Parts {
    deviation: f64,
    scatter: f64,
}

/// Model-shared effect for one profile.
#[derive(Clone, Debug)]
pub(crate) struct ModelEffect {
    types: Vec<GpuType>,
    settings: Vec<Setting>,
    kernel: KernelParameters,
    parts: Parts,
    factor: Cholesky,
    alpha: Vec<f64>,
}

/// Profiles of one model.
pub(crate) type Siblings<'a> = [&'a Rows];

impl Parts {
    /// Shares by evidence over the models, each with its profiles.
    pub fn fit(models: &[Vec<&Rows>], kernel: KernelParameters) -> Self {
        let mut several: Vec<&Vec<&Rows>> = models.iter().filter(|m| m.len() > 1).collect();
        several.sort_by_key(|m| std::cmp::Reverse(m.iter().map(|r| r.sites.len()).sum::<usize>()));
        several.truncate(COMPARED_MODELS);
        let systems: Vec<System> =
            several.iter().map(|m| System::new(m, kernel, COMPARED_SITES)).collect();
        let alone: Vec<f64> = systems.iter().map(|s| s.evidence(Self::default())).collect();
        let evidence = |parts: Self| {
            let beyond = systems.iter().zip(&alone);
            beyond.map(|(s, alone)| (s.evidence(parts) - alone).clamp(-MOST_EVIDENCE, MOST_EVIDENCE)).sum()
        };
        let mut best: (f64, Self) = (0.0, Self::default());
        let moves: [fn(Self, f64) -> Self; 3] = [
            |p, x| Self { scatter: x, ..p },
            |p, x| Self { deviation: x, ..p },
            |p, x| Self { scatter: x, ..p },
        ];
        for with in moves {
            let from = best.1;
            for part in PARTS {
                let found: f64 = evidence(with(from, part));
                if found > best.0 {
                    best = (found, with(from, part));
                }
            }
        }
        best.1
    }

    fn shared(self, kernel: KernelParameters, a: &Setting, b: &Setting) -> f64 {
        if a.nodes > 0.0 || b.nodes > 0.0 {
            return 0.0;
        }
        let smooth = self.deviation * kernel.covariance(a, b);
        let here = a.kind == b.kind && a.gpus == b.gpus;
        if here { smooth + self.scatter * kernel.nearby(a, b) } else { smooth }
    }
}

/// Rows of several profiles together.
struct System<'a> {
    types: Vec<GpuType>,
    settings: Vec<Setting>,
    rows: Vec<(usize, &'a TrainingPoint)>,
    off: Vec<f64>,
    priors: Vec<Prior>,
    kernel: KernelParameters,
}

impl<'a> System<'a> {
    fn new(siblings: &Siblings<'a>, kernel: KernelParameters, most: usize) -> Self {
        let each = (most / siblings.len().max(1)).max(2);
        let few = |(family, all): (usize, &&'a Rows)| {
            spread_over(all.sites.len(), each).map(move |i| (family, &all.sites[i])).collect::<Vec<_>>()
        };
        let mut rows: Vec<(usize, &TrainingPoint)> = siblings.iter().enumerate().flat_map(few).collect();
        rows.truncate(most);
        let mut types: Vec<GpuType> = rows.iter().map(|(_, s)| s.gpu_type.clone()).collect();
        types.sort();
        types.dedup();
        let kind = |t: &GpuType| types.iter().position(|k| k == t).unwrap_or(types.len());
        let settings: Vec<Setting> = rows
            .iter()
            .map(|(_, s)| Setting { kind: u16::try_from(kind(&s.gpu_type)).unwrap_or(u16::MAX), ..s.setting })
            .collect();
        let off = rows.iter().map(|(_, s)| s.off).collect();
        let priors = siblings.iter().map(|rows| rows.prior).collect();
        Self { types, settings, rows, off, priors, kernel }
    }

    fn noise(&self) -> Vec<f64> {
        let scatter = self.kernel.scatter * self.kernel.scatter;
        self.rows.iter().map(|(_, s)| s.noise * s.noise + scatter).collect()
    }

    fn factor(&self, parts: Parts, noise: &[f64]) -> Option<Cholesky> {
        let n = self.rows.len();
        let mut covariance = vec![0.0; n * n];
        for i in 0..n {
            let (a, (of, site)) = (&self.settings[i], self.rows[i]);
            for j in 0..=i {
                let (b, (other, mate)) = (&self.settings[j], self.rows[j]);
                let mut at = parts.shared(self.kernel, a, b);
                if of == other {
                    let prior = &self.priors[of];
                    let within = if a.kind == b.kind { 1.0 } else { 0.0 };
                    let slopes = site.slopes.iter().zip(&mate.slopes).enumerate();
                    at += slopes
                        .map(|(p, (x, y))| x * y * (prior.own[p] + within * prior.within[p]))
                        .sum::<f64>();
                    at += (1.0 - parts.deviation) * self.kernel.covariance(a, b);
                }
                covariance[i * n + j] = at;
            }
            covariance[i * n + i] += noise[i] - parts.scatter * self.kernel.scatter * self.kernel.scatter;
        }
        Cholesky::new(n, covariance)
    }

    fn evidence(&self, parts: Parts) -> f64 {
        let Some((factor, alpha, _)) = self.solved(parts) else { return f64::NEG_INFINITY };
        let square: f64 = self.off.iter().zip(&alpha).map(|(r, a)| r * a).sum();
        -0.5 * square - 0.5 * factor.log_det()
    }

    fn solved(&self, parts: Parts) -> Option<(Cholesky, Vec<f64>, Vec<f64>)> {
        let usual = self.noise();
        let mut noise = usual.clone();
        for round in 0.. {
            let factor = self.factor(parts, &noise)?;
            let mut alpha = self.off.clone();
            factor.solve(&mut alpha);
            let mut reweighed = false;
            for ((noise, usual), alpha) in noise.iter_mut().zip(&usual).zip(&alpha) {
                let left = (alpha * *noise).abs() / (HUBER * libm::sqrt(*usual));
                // Half a step: an outlier must not cost its neighbours their weight.
                let wanted = libm::sqrt(usual * left.clamp(1.0, 1e4) * *noise).max(*usual);
                reweighed |= (wanted / *noise - 1.0).abs() > 0.1;
                *noise = wanted;
            }
            if round + 1 >= ROUNDS || !reweighed {
                return Some((factor, alpha, noise));
            }
        }
        None
    }
}

impl ModelEffect {
    /// From a profile's siblings; `None` without siblings or if nothing is shared.
    pub fn of(
        siblings: &Siblings<'_>,
        kernel: KernelParameters,
        parts: Parts,
    ) -> Option<Self> {
        if siblings.is_empty() || parts == Parts::default() {
            return None;
        }
        let system = System::new(siblings, kernel, MAX_SITES);
        let (factor, alpha, _) = system.solved(parts)?;
        let System { types, settings, .. } = system;
        Some(Self { types, settings, kernel, parts, factor, alpha })
    }

    /// The siblings' GPU types; a setting's `kind` is an index here.
    pub fn types(&self) -> &[GpuType] {
        &self.types
    }

    /// Covariances of the common part with the siblings' rows.
    pub fn with(&self, s: &Setting) -> Vec<f64> {
        self.settings.iter().map(|at| self.parts.shared(self.kernel, s, at)).collect()
    }

    /// Mean of the common part (log) from these covariances.
    pub fn mean(&self, with: &[f64]) -> f64 {
        with.iter().zip(&self.alpha).map(|(w, a)| w * a).sum()
    }

    /// Whitened covariances: the product of two is the covariance that the siblings' rows explain.
    pub fn informed(&self, mut with: Vec<f64>) -> Vec<f64> {
        self.factor.forward(&mut with);
        with
    }

    /// From whitened units back to a weight per sibling's row.
    pub fn weights(&self, mut informed: Vec<f64>) -> Vec<f64> {
        self.factor.backward(&mut informed);
        informed
    }

    /// Prior covariance of a profile's deviation at two settings; `own` are the profile's kernel
    /// parameters.
    pub fn covariance(&self, own: KernelParameters, a: &Setting, b: &Setting) -> f64 {
        self.parts.shared(self.kernel, a, b) + (1.0 - self.parts.deviation) * own.covariance(a, b)
    }

    /// Residual noise of the profile that is not shared (variance).
    pub fn scatter(&self, own: KernelParameters) -> f64 {
        (1.0 - self.parts.scatter) * own.scatter * own.scatter
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::physics::{P, Quantity};

    fn here() -> Setting {
        Setting { gpus: 1.0, ..Setting::default() }
    }

    /// A profile that is off by `bump` on two GPUs, with its own intercept.
    fn family(level: f64, bump: f64) -> Rows {
        let q = Quantity::Time;
        let site = |gpus: u32| {
            let off = level + if gpus == 1 { bump } else { 0.0 };
            let mut slopes = [0.0; P];
            slopes[0] = 1.0;
            let setting = Setting { gpus: f64::from(gpus), ..here() };
            TrainingPoint { gpu_type: "T4".into(), setting, off, slopes, noise: 0.01 }
        };
        let prior = Prior { mean: q.means(), own: q.between(), within: q.within() };
        Rows { prior, sites: (0..4).map(site).collect() }
    }

    fn found(bumps: &[f64], parts: Option<Parts>) -> (Parts, f64) {
        let families: Vec<Rows> = bumps.iter().enumerate().map(|(i, b)| family(i as f64, *b)).collect();
        let siblings: Vec<&Rows> = families.iter().collect();
        let kernel = KernelParameters::USUAL;
        let fitted = || Parts::fit(&vec![siblings.clone(); 3], kernel);
        let parts = parts.unwrap_or_else(fitted);
        let model_effect = ModelEffect::of(&siblings, kernel, parts);
        (
            parts,
            model_effect.map_or(0.0, |model_effect| {
                model_effect.mean(&model_effect.with(&here()))
                    - model_effect.mean(&model_effect.with(&Setting { gpus: 3.0, ..here() }))
            }),
        )
    }

    #[test]
    fn what_siblings_agree_on_is_expected_of_the_next_one_and_nothing_else() {
        let (parts, bump) = found(&[0.2, 0.22, 0.18, 0.2], None);
        assert!(parts != Parts::default() && (0.1..0.25).contains(&bump), "{parts:?} {bump}");
        let (parts, bump) = found(&[0.2, -0.22, 0.18, -0.2], None);
        assert!(bump.abs() < 0.03, "{parts:?} {bump}");
    }

    #[test]
    fn one_sibling_that_is_far_off_changes_little() {
        let (parts, honest) = found(&[0.2, 0.22, 0.18, 0.2, 0.21, 0.19], None);
        let lied = found(&[0.2, 0.22, 0.18, 0.2, 0.21, 0.19, -5.0], Some(parts)).1;
        assert!((lied - honest).abs() < 0.06, "{honest} {lied}");
    }
}
