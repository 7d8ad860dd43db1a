//! Model of one quantity: priors and kernel hyperparameters.
//!
//! Fitted in two passes. Curves with the start prior give the tenant's prior; curves with that prior
//! give the final one. The work is bounded by aggregated samples per profile, per namespace and in
//! total.

use std::collections::BTreeMap;

use andreas_model::GpuType;

use crate::curve_prior::{Prior, RESIDUAL_VARIANCE};
use crate::expected::Expected;
use crate::physics::{GpuTypeIndex, INTERCEPT, Quantity, Setting};
use crate::population::{FittedProfile, Population, UNKNOWN_TYPE};
use crate::posterior::{ParameterEstimate, Posterior, Row};
use crate::ratio::Level;
use crate::spread::spread;

/// Most siblings used for a profile.
const SIBLINGS: usize = 64;
/// Most samples of a profile in a pooled fit.
const POOLED_CELLS: usize = 64;
/// From this many samples on a type, its curve is not projected between them.
const SPEAKS: usize = 10;
/// Variance of an unknown intercept.
const FREE: f64 = 9.0;

/// A sample as the curve takes it, before types have indices.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct QuantitySample {
    pub gpu_type: GpuType,
    /// The analytic prior's log for the type (power: for type, GPUs and nodes).
    pub law: f64,
    /// `kind` and `base` are filled in later.
    pub setting: Setting,
    pub log: f64,
    pub noise: f64,
    pub table: Option<f64>,
}

/// One profile's samples of one quantity.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProfileSamples {
    pub name: String,
    pub model: Option<String>,
    pub samples: Vec<QuantitySample>,
}

/// A profile's curve with its prior and evidence.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    pub posterior: Posterior,
    pub expected: Expected,
    type_index: GpuTypeIndex,
    /// Samples by type.
    pub counts: BTreeMap<GpuType, usize>,
    /// Fewest and most GPUs seen on a type, in doublings.
    spans: BTreeMap<GpuType, (f64, f64)>,
    level: f64,
}

impl Curve {
    /// The setting with this curve's type index; an unseen type gets `u16::MAX`.
    fn place(&self, sample: &QuantitySample) -> Setting {
        let known = self.type_index.iter().find(|(_, t)| **t == sample.gpu_type).map(|(kind, _)| kind);
        let kind = known.unwrap_or(u16::MAX);
        self.expected.place(&sample.gpu_type, sample.law, self.level, Setting { kind, ..sample.setting })
    }

    /// Mean of the log.
    pub fn mean(&self, sample: &QuantitySample) -> f64 {
        self.posterior.mean(&self.place(sample))
    }

    /// Predictive mean and variance of the natural log of a new observation (s or W), residual variance included.
    pub fn predict_log(&self, sample: &QuantitySample) -> (f64, f64) {
        let (mean, variance) = self.posterior.mean_and_variance(&self.place(sample));
        (mean, variance + RESIDUAL_VARIANCE)
    }

    /// Whether enough was seen around this number of GPUs to skip the monotone projection.
    pub fn has_evidence_near(&self, gpu_type: &GpuType, gpus: u32) -> bool {
        let doublings = libm::log2(f64::from(gpus.max(1)));
        let here = self.spans.get(gpu_type).is_some_and(|(low, high)| (*low..=*high).contains(&doublings));
        here && self.count(gpu_type) >= SPEAKS
    }

    /// Samples of a type.
    pub fn count(&self, gpu_type: &GpuType) -> usize {
        self.counts.get(gpu_type).copied().unwrap_or(0)
    }
}

/// Fitted model of one quantity, from one tenant's profiles.
#[derive(Clone, Debug)]
pub(crate) struct QuantityModel {
    pub quantity: Quantity,
    pub population: Population,
    pub members: Vec<FittedProfile>,
}

impl QuantityModel {
    /// From a tenant's profiles, ordered by name.
    pub fn fit(quantity: Quantity, profiles: &[ProfileSamples]) -> Self {
        let mut it = Self { quantity, population: Population::new(quantity), members: Vec::new() };
        it.refit(profiles);
        it.refit(profiles);
        it
    }

    /// Fits the profiles with the current prior, and the prior to them.
    fn refit(&mut self, profiles: &[ProfileSamples]) {
        self.members = profiles.iter().filter_map(|f| self.fitted_profile(f)).collect();
        self.population = Population::fit(self.quantity, &self.members.iter().collect::<Vec<_>>());
    }

    /// Prior of a profile; its own earlier fit is not its sibling.
    pub fn expect(&self, profile: &ProfileSamples) -> Expected {
        self.expect_from(&self.population, profile)
    }

    /// The same from another population.
    pub fn expect_from(&self, population: &Population, profile: &ProfileSamples) -> Expected {
        let is = |m: &&FittedProfile| m.model == profile.model && m.name != profile.name;
        let siblings = self.members.iter().filter(|_| profile.model.is_some()).filter(is).take(SIBLINGS);
        population.expect(self.quantity, &siblings.collect::<Vec<_>>())
    }

    /// A profile's curve from its samples; `level` is the prior of its intercept without rows.
    pub fn curve(&self, samples: &[QuantitySample], expected: Expected, level: ParameterEstimate) -> Curve {
        let mut type_index = GpuTypeIndex::default();
        let mut counts: BTreeMap<GpuType, usize> = BTreeMap::new();
        let mut spans: BTreeMap<GpuType, (f64, f64)> = BTreeMap::new();
        let mut rows: Vec<Row> = Vec::with_capacity(samples.len());
        for sample in samples {
            *counts.entry(sample.gpu_type.clone()).or_default() += 1;
            let g = sample.setting.gpus;
            let span = spans.entry(sample.gpu_type.clone()).or_insert((g, g));
            *span = (span.0.min(g), span.1.max(g));
            let setting = Setting { kind: type_index.index_of(&sample.gpu_type), ..sample.setting };
            let setting = expected.place(&sample.gpu_type, sample.law, level.mean, setting);
            rows.push(Row { setting, log: sample.log, noise: sample.noise, table: sample.table });
        }
        let mut prior = expected.prior;
        if self.quantity == Quantity::Time {
            prior.own[INTERCEPT] = level.variance;
        }
        // Types without comparison differ by the error of the analytic prior.
        if counts.keys().any(|t| !expected.covers(t)) || samples.is_empty() {
            prior.within[INTERCEPT] = prior.within[INTERCEPT].max(0.5 * UNKNOWN_TYPE);
        }
        let posterior = Posterior::new(self.quantity, prior, &rows);
        Curve { posterior, expected, type_index, counts, spans, level: level.mean }
    }

    fn fitted_profile(&self, profile: &ProfileSamples) -> Option<FittedProfile> {
        if profile.samples.is_empty() {
            return None;
        }
        let samples = spread(&profile.samples, POOLED_CELLS);
        let expected = self.population.expect(self.quantity, &[]);
        let level = self.free_level(&samples, &expected);
        let mut wide = expected.clone();
        // Ratios are learned from intercepts by type: they are not shrunk to the analytic prior
        // here.
        wide.prior.within[INTERCEPT] = wide.prior.within[INTERCEPT].max(0.5);
        // The profile's own intercept is free, so that it does not enter the types' intercepts.
        wide.prior.own[INTERCEPT] = wide.prior.own[INTERCEPT].max(FREE);
        let curve = self.curve(&samples, wide, level);
        let mut found = curve.posterior.found();
        for (p, found) in found.iter_mut().enumerate() {
            let (mean, own) = (curve.posterior.prior_mean(p), curve.posterior.prior_variance(p));
            *found = found.alone(mean, own);
        }
        found[INTERCEPT].mean += level.mean;
        let within = curve.posterior.within_level();
        let types = curve.counts.len().max(1) as f64;
        let on = curve.type_index.iter().map(|(kind, gpu_type)| {
            // With a free intercept, only differences between types are known.
            let mut at = curve.posterior.intercept_on(kind);
            at.variance = (at.variance - within / types).max(0.0);
            let at = at.alone(0.0, within * (1.0 - 1.0 / types));
            // Relative to the analytic prior: the expected part plus the fitted part.
            let law = samples.iter().find(|s| s.gpu_type == *gpu_type).map_or(0.0, |s| s.law);
            let expected = curve.expected.base(gpu_type, law) - law;
            Level { gpu_type: gpu_type.clone(), level: at.mean + expected, variance: at.variance }
        });
        Some(FittedProfile {
            name: profile.name.clone(),
            model: profile.model.clone(),
            found,
            on: on.collect(),
        })
    }

    /// An uninformative intercept at the median residual.
    pub fn free_level(&self, samples: &[QuantitySample], expected: &Expected) -> ParameterEstimate {
        if self.quantity == Quantity::Power {
            return ParameterEstimate::default();
        }
        let Prior { mean, .. } = expected.prior;
        let mut off: Vec<f64> = samples
            .iter()
            .map(|s| {
                let setting = expected.place(&s.gpu_type, s.law, 0.0, s.setting);
                s.log - self.quantity.log_at(&mean, &setting)
            })
            .collect();
        off.sort_by(f64::total_cmp);
        ParameterEstimate { mean: off.get(off.len() / 2).copied().unwrap_or(0.0), variance: FREE }
    }
}
