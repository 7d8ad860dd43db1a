//! Intercept of a profile that never ran, from its features.
//!
//! Target: log of the time per sample at the curve's origin (per epoch if its samples are unknown).
//! Regressors: logs of parameters and batch, and one column per precision and model family that
//! several profiles share. One fit for each set of features that occurs among a tenant's profiles.

use std::collections::{BTreeMap, BTreeSet};

use crate::Features;
use crate::regression::{elastic_net, interval};

/// Fewer profiles do not show a trend.
const MIN_FAMILIES: usize = 8;
/// Bounds on the work: profiles per fit, indicator columns, fits.
const MAX_FAMILIES: usize = 512;
const MAX_WORDS: usize = 32;
const MAX_FITS: usize = 16;
const FOLDS: usize = 5;
/// Bounds on the standard deviation; the last one applies to new models.
const SIGMA: (f64, f64) = (0.2, crate::estimate::FACTOR_THREE);
const MOST_NEW: f64 = 3.0;

/// Features that are present: bits for parameters, batch, precision, model family, samples.
type Mask = u8;

fn positive(x: Option<f64>) -> Option<f64> {
    x.filter(|x| x.is_finite() && *x > 0.0).map(|x| libm::log(x.clamp(1e-12, 1e18)))
}

fn mask(f: &Features) -> Mask {
    u8::from(positive(f.parameters).is_some())
        | u8::from(positive(f.batch).is_some()) << 1
        | u8::from(f.precision.is_some()) << 2
        | u8::from(f.model_family.is_some()) << 3
        | u8::from(positive(f.samples).is_some()) << 4
}

const PRECISION: u8 = 0;
const MODEL: u8 = 1;

/// Indicator features in the mask, with their kind.
fn words(f: &Features, mask: Mask) -> impl Iterator<Item = (u8, &str)> {
    let precision = f.precision.as_deref().filter(|_| mask & 4 != 0).map(|w| (PRECISION, w));
    let family = f.model_family.as_deref().filter(|_| mask & 8 != 0).map(|w| (MODEL, w));
    precision.into_iter().chain(family)
}

#[derive(Clone, Debug, PartialEq)]
struct Fitted {
    mask: Mask,
    words: BTreeMap<(u8, String), usize>,
    /// Observed ranges of the two numeric features; inputs are clamped to them.
    ranges: [(f64, f64); 2],
    coefficients: Vec<f64>,
    intercept: f64,
    /// Standard deviation for models that were seen, and for new ones.
    sigma: f64,
    sigma_new: f64,
}

impl Fitted {
    fn row(&self, f: &Features) -> Vec<f64> {
        let mut x = vec![0.0; 2 + self.words.len()];
        for (i, value) in [positive(f.parameters), positive(f.batch)].into_iter().enumerate() {
            if let (true, Some(value)) = (self.mask & (1 << i) != 0, value) {
                x[i] = value.clamp(self.ranges[i].0, self.ranges[i].1) - self.ranges[i].0;
            }
        }
        for (kind, word) in words(f, self.mask) {
            if let Some(i) = self.words.get(&(kind, word.to_owned())) {
                x[2 + i] = 1.0;
            }
        }
        x
    }

    /// Standard deviation of the log.
    fn spread(&self, f: &Features) -> f64 {
        let is_new = words(f, self.mask)
            .any(|(kind, word)| kind == MODEL && !self.words.contains_key(&(kind, word.to_owned())));
        if is_new { self.sigma_new } else { self.sigma }
    }

    fn at(&self, f: &Features) -> f64 {
        self.intercept + self.row(f).iter().zip(&self.coefficients).map(|(a, b)| a * b).sum::<f64>()
    }

    fn fit(mask: Mask, families: &[(&Features, f64)]) -> Option<Self> {
        if families.len() < MIN_FAMILIES {
            return None;
        }
        let mut counts: BTreeMap<(u8, &str), usize> = BTreeMap::new();
        for word in families.iter().flat_map(|(f, _)| words(f, mask)) {
            *counts.entry(word).or_default() += 1;
        }
        let shared =
            counts.into_iter().filter(|(_, n)| *n >= 2).map(|((kind, word), _)| (kind, word.to_owned()));
        let words = shared.take(MAX_WORDS).enumerate().map(|(i, word)| (word, i)).collect();
        let range = |of: fn(&Features) -> Option<f64>| {
            let values = families.iter().filter_map(|(f, _)| positive(of(f)));
            let (low, high) = values.fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)));
            if low <= high { (low, high) } else { (0.0, 0.0) }
        };
        let ranges = [range(|f| f.parameters), range(|f| f.batch)];
        let mut fitted = Self {
            mask,
            words,
            ranges,
            coefficients: Vec::new(),
            intercept: 0.0,
            sigma: SIGMA.1,
            sigma_new: MOST_NEW,
        };
        let rows: Vec<Vec<f64>> = families.iter().map(|(f, _)| fitted.row(f)).collect();
        let (width, n) = (2 + fitted.words.len(), families.len() as f64);
        let means: Vec<f64> = (0..width).map(|i| rows.iter().map(|x| x[i]).sum::<f64>() / n).collect();
        let mean = families.iter().map(|(_, y)| y).sum::<f64>() / n;
        let xs = rows.iter().flat_map(|x| x.iter().zip(&means).map(|(a, m)| a - m)).collect();
        let ys = families.iter().map(|(_, y)| y - mean).collect();
        fitted.coefficients = elastic_net(xs, width, ys)?;
        fitted.intercept = mean - means.iter().zip(&fitted.coefficients).map(|(m, c)| m * c).sum::<f64>();
        Some(fitted)
    }
}

/// One fit for each set of features that occurs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Levels {
    fits: Vec<Fitted>,
}

impl Levels {
    /// From the profiles that ran: their features and their log time at the curve's origin.
    pub fn fit(families: &[(&Features, f64)]) -> Self {
        let families = &families[..families.len().min(MAX_FAMILIES)];
        let masks: BTreeSet<Mask> = families.iter().map(|(f, _)| mask(f)).collect();
        let fits = masks.into_iter().take(MAX_FITS).filter_map(|wanted| {
            let having = families.iter().filter(|(f, _)| mask(f) & wanted == wanted);
            let having: Vec<_> = having.map(|(f, y)| (*f, y - samples(f, wanted))).collect();
            let mut fitted = Fitted::fit(wanted, &having)?;
            let models: BTreeSet<Option<&str>> =
                having.iter().map(|(f, _)| f.model_family.as_deref()).collect();
            let model =
                |f: &Features| models.iter().position(|m| *m == f.model_family.as_deref()).unwrap_or(0);
            let (by_family, by_model) = (
                cross_validated(wanted, &having, |i, _| i),
                cross_validated(wanted, &having, |_, f| model(f)),
            );
            fitted.sigma = by_family.unwrap_or(SIGMA.1).clamp(SIGMA.0, SIGMA.1);
            fitted.sigma_new = by_model.unwrap_or(MOST_NEW).clamp(fitted.sigma, MOST_NEW);
            Some(fitted)
        });
        Self { fits: fits.collect() }
    }

    /// Log time at the curve's origin and its standard deviation, by the fit that uses the most of
    /// the given features.
    pub fn at(&self, features: &Features) -> Option<(f64, f64)> {
        let has = mask(features);
        let usable = self.fits.iter().filter(|f| f.mask & has == f.mask);
        let best = usable.max_by_key(|f| (f.mask.count_ones(), f.mask))?;
        Some((best.at(features) + samples(features, best.mask), best.spread(features)))
    }
}

/// Log of the samples of an epoch, for fits of the time of one sample; else 0.
fn samples(features: &Features, mask: Mask) -> f64 {
    positive(features.samples).filter(|_| mask & 16 != 0).unwrap_or(0.0)
}

/// Standard deviation by cross-validation; profiles of one `part` are left out together.
fn cross_validated(
    mask: Mask,
    families: &[(&Features, f64)],
    part: impl Fn(usize, &Features) -> usize,
) -> Option<f64> {
    let mut errors = Vec::new();
    for fold in 0..FOLDS {
        let split = |held: bool| {
            let mine =
                families.iter().enumerate().filter(|(i, (f, _))| (part(*i, f) % FOLDS == fold) == held);
            mine.map(|(_, f)| *f).collect::<Vec<_>>()
        };
        let Some(fit) = Fitted::fit(mask, &split(false)) else { continue };
        errors.extend(split(true).iter().map(|(f, y)| (y - fit.at(f)).abs()));
    }
    interval(errors, MIN_FAMILIES)
}
