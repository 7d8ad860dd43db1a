//! Intercept of a profile that never ran, from its features.
//!
//! Target: log of the time per sample at the curve's origin (per epoch if its samples are unknown).
//! Columns: logs of parameters and batch, one that marks each missing number, and one per precision
//! and model family that several profiles share. One fit for all profiles.

use std::collections::{BTreeMap, BTreeSet};

use crate::Features;
use crate::regression::{elastic_net, interval};

/// Fewer profiles do not show a trend.
const MIN_PROFILES: usize = 8;
/// Bounds on the work: profiles, and indicator columns.
const MAX_PROFILES: usize = 512;
const MAX_CATEGORIES: usize = 32;
const FOLDS: usize = 5;
/// Bounds on the standard deviation; the last one applies to new models.
const SIGMA: (f64, f64) = (0.2, crate::estimate::FACTOR_THREE);
const MAX_NEW_SIGMA: f64 = 3.0;
/// Columns of numbers and of missing ones.
const NUMERIC_COLUMNS: usize = 5;

/// A model family or a precision.
type Category<'a> = (bool, &'a str);

pub(crate) fn positive(x: Option<f64>) -> Option<f64> {
    x.filter(|x| x.is_finite() && *x > 0.0).map(|x| libm::log(x.clamp(1e-12, 1e18)))
}

fn categories(f: &Features) -> impl Iterator<Item = Category<'_>> {
    let precision = f.precision.as_deref().map(|category| (false, category));
    precision.into_iter().chain(f.model_family.as_deref().map(|category| (true, category)))
}

/// Log of the samples of an epoch, if known.
fn samples(f: &Features) -> f64 {
    positive(f.samples).unwrap_or(0.0)
}

#[derive(Clone, Debug, PartialEq)]
struct Fitted {
    categories: BTreeMap<(bool, String), usize>,
    /// Observed ranges of parameters and batch; inputs are clamped to them.
    ranges: [(f64, f64); 2],
    coefficients: Vec<f64>,
    intercept: f64,
}

impl Fitted {
    fn design_row(&self, f: &Features) -> Vec<f64> {
        let mut x = vec![0.0; NUMERIC_COLUMNS + self.categories.len()];
        for (i, value) in [positive(f.parameters), positive(f.batch)].into_iter().enumerate() {
            match value {
                Some(value) => x[i] = value.clamp(self.ranges[i].0, self.ranges[i].1) - self.ranges[i].0,
                None => x[2 + i] = 1.0,
            }
        }
        x[4] = if positive(f.samples).is_none() { 1.0 } else { 0.0 };
        for (is_model, category) in categories(f) {
            if let Some(i) = self.categories.get(&(is_model, category.to_owned())) {
                x[NUMERIC_COLUMNS + i] = 1.0;
            }
        }
        x
    }

    fn predict(&self, f: &Features) -> f64 {
        samples(f)
            + self.intercept
            + self.design_row(f).iter().zip(&self.coefficients).map(|(a, b)| a * b).sum::<f64>()
    }

    fn fit(profiles: &[(&Features, f64)]) -> Option<Self> {
        if profiles.len() < MIN_PROFILES {
            return None;
        }
        let mut counts: BTreeMap<Category<'_>, usize> = BTreeMap::new();
        for category in profiles.iter().flat_map(|(f, _)| categories(f)) {
            *counts.entry(category).or_default() += 1;
        }
        let shared = counts
            .into_iter()
            .filter(|(_, n)| *n > 1)
            .map(|((model, category), _)| (model, category.to_owned()));
        let categories = shared.take(MAX_CATEGORIES).zip(0..).collect();
        let range = |of: fn(&Features) -> Option<f64>| {
            let values = profiles.iter().filter_map(|(f, _)| positive(of(f)));
            let (low, high) = values.fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)));
            if low <= high { (low, high) } else { (0.0, 0.0) }
        };
        let ranges = [range(|f| f.parameters), range(|f| f.batch)];
        let mut it = Self { categories, ranges, coefficients: Vec::new(), intercept: 0.0 };
        let rows: Vec<Vec<f64>> = profiles.iter().map(|(f, _)| it.design_row(f)).collect();
        let (width, n) = (NUMERIC_COLUMNS + it.categories.len(), profiles.len() as f64);
        let means: Vec<f64> = (0..width).map(|i| rows.iter().map(|x| x[i]).sum::<f64>() / n).collect();
        let mean = profiles.iter().map(|(f, y)| y - samples(f)).sum::<f64>() / n;
        let xs = rows.iter().flat_map(|x| x.iter().zip(&means).map(|(a, m)| a - m)).collect();
        let ys = profiles.iter().map(|(f, y)| y - samples(f) - mean).collect();
        it.coefficients = elastic_net(xs, width, ys)?;
        it.intercept = mean - means.iter().zip(&it.coefficients).map(|(m, c)| m * c).sum::<f64>();
        Some(it)
    }
}

/// Intercepts by features, with their standard deviation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Intercepts {
    fitted: Option<Fitted>,
    models: BTreeSet<String>,
    /// Standard deviations for models that ran, and for new ones.
    sigmas: (f64, f64),
}

impl Intercepts {
    /// From the profiles that ran: their features and their log time at the curve's origin.
    pub fn fit(profiles: &[(&Features, f64)]) -> Self {
        let profiles = &profiles[..profiles.len().min(MAX_PROFILES)];
        let models: BTreeSet<&str> = profiles.iter().filter_map(|(f, _)| f.model_family.as_deref()).collect();
        let model = |f: &Features| models.iter().position(|m| Some(*m) == f.model_family.as_deref());
        let sigma = cross_validated(profiles, |i, _| i).unwrap_or(SIGMA.1).clamp(SIGMA.0, SIGMA.1);
        let of_new = cross_validated(profiles, |i, f| model(f).unwrap_or(i)).unwrap_or(MAX_NEW_SIGMA);
        Self {
            fitted: Fitted::fit(profiles),
            sigmas: (sigma, of_new.clamp(sigma, MAX_NEW_SIGMA)),
            models: models.into_iter().map(ToOwned::to_owned).collect(),
        }
    }

    /// Log time at the curve's origin and its standard deviation. `None` with too few profiles, or
    /// without any feature.
    pub fn predict(&self, features: &Features) -> Option<(f64, f64)> {
        if *features == Features::default() {
            return None;
        }
        let is_new = features.model_family.as_ref().is_some_and(|model| !self.models.contains(model));
        Some((self.fitted.as_ref()?.predict(features), if is_new { self.sigmas.1 } else { self.sigmas.0 }))
    }
}

/// Standard deviation by cross-validation; profiles of one `part` are left out together.
fn cross_validated(profiles: &[(&Features, f64)], part: impl Fn(usize, &Features) -> usize) -> Option<f64> {
    let mut errors = Vec::new();
    for fold in 0..FOLDS {
        let split = |held: bool| {
            let of = profiles.iter().enumerate().filter(|(i, (f, _))| (part(*i, f) % FOLDS == fold) == held);
            of.map(|(_, f)| *f).collect::<Vec<_>>()
        };
        let Some(fit) = Fitted::fit(&split(false)) else { continue };
        errors.extend(split(true).iter().map(|(f, y)| (y - fit.predict(f)).abs()));
    }
    interval(errors, MIN_PROFILES)
}
