//! linfa's elastic net, bounded: how the population deviates from the analytic law.
//!
//! Rows are log residuals against the law, one per family and configuration, **centred within each family**: what
//! is compared are configurations of the same family, never levels of different ones (an epoch of one family has
//! nothing to do with an epoch of another). The penalty pulls towards 0, that is towards the law: what the
//! population does not show (a type that no family ran beside another one) stays as the law has it.
//!
//! Why this and no gamma regression: linfa's Tweedie GLM stops at its start or does not return on such rows. Why
//! log targets: times span five decades.

use std::collections::BTreeMap;

use andreas_core::GpuType;
use linfa::Dataset;
use linfa::traits::Fit;
use linfa_elasticnet::ElasticNet;
use ndarray::{Array1, Array2};

use crate::known::Observed;

/// Fewer rows say less than the law does.
pub(crate) const MIN_ROWS: usize = 12;
/// Bound on the rows of one fit: newest first, types in turn.
const MAX_ROWS: usize = 800;
/// Bound on the types told apart.
const MAX_TYPES: usize = 24;
const PENALTY: f64 = 2e-3;
const L1_RATIO: f64 = 0.2;
const MAX_ITERATIONS: u32 = 300;
const TOLERANCE: f64 = 1e-6;
const FOLDS: usize = 5;
/// Interval of a prediction for an unseen configuration before it could be cross-validated, and its bounds.
const UNTESTED_SIGMA: f64 = 0.3;
const SIGMA: (f64, f64) = (0.06, 1.0);
/// Standard normal quantile of 90 %: half the rows' errors beyond 80 % each way are the interval p10..p90.
const Z90: f64 = 1.281_551_565_544_600_4;

/// One family's configurations with their log residuals against the law.
#[derive(Clone, Debug)]
pub(crate) struct FamilyRows {
    pub rows: Vec<(Observed, f64)>,
}

impl FamilyRows {
    /// Weighted mean of the residuals: how slow (or hungry) this family is as such.
    pub fn level(&self, minus: impl Fn(&Observed) -> f64) -> Option<f64> {
        let total: f64 = self.rows.iter().map(|(o, _)| weight(o)).sum();
        (total > 0.0).then(|| self.rows.iter().map(|(o, r)| weight(o) * (r - minus(o))).sum::<f64>() / total)
    }
}

/// One epoch counts half, many epochs count 1: a long run is no better witness of *configurations* than a short one.
fn weight(o: &Observed) -> f64 {
    o.epochs / (o.epochs + 1.0)
}

/// What the population shows beyond the law.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Correction {
    by_type: BTreeMap<GpuType, f64>,
    gpus: [f64; 2],
    nodes: f64,
    max_gpus: f64,
    max_nodes: f64,
    /// Spread of an unseen configuration of a family seen elsewhere (log).
    pub sigma: f64,
    /// Mean and spread of the families' own levels, where there are at least three.
    pub level: Option<(f64, f64)>,
}

impl Correction {
    /// Whether the population ran on this type beside others.
    pub fn covers(&self, gpu_type: &GpuType) -> bool {
        self.by_type.contains_key(gpu_type)
    }

    /// Deviation of a type.
    pub fn of_type(&self, gpu_type: &GpuType) -> f64 {
        self.by_type.get(gpu_type).copied().unwrap_or(0.0)
    }

    /// Deviation of a number of GPUs; held constant beyond what was seen.
    pub fn of_gpus(&self, gpus: u32) -> f64 {
        let l = libm::log2(f64::from(gpus.max(1))).min(self.max_gpus);
        self.gpus[0] * l + self.gpus[1] * l * l
    }

    /// Deviation of a number of nodes; held constant beyond what was seen.
    pub fn of_nodes(&self, nodes: u32) -> f64 {
        self.nodes * libm::log2(f64::from(nodes.max(1))).min(self.max_nodes)
    }

    fn of(&self, o: &Observed) -> f64 {
        self.of_type(&o.gpu_type) + self.of_gpus(o.gpus) + self.of_nodes(o.nodes)
    }

    /// `None` with too few rows to say anything.
    pub fn fit(families: &[FamilyRows]) -> Option<Self> {
        let families = thinned(families);
        let mut correction = Self::fit_once(&families)?;
        correction.sigma = cross_validated(&families).unwrap_or(UNTESTED_SIGMA).clamp(SIGMA.0, SIGMA.1);
        correction.level = levels(&families, &correction);
        Some(correction)
    }

    fn fit_once(families: &[FamilyRows]) -> Option<Self> {
        // Families with one configuration compare nothing.
        let comparing = || families.iter().filter(|f| f.rows.len() > 1);
        if comparing().map(|f| f.rows.len()).sum::<usize>() < MIN_ROWS {
            return None;
        }
        let mut seen: BTreeMap<&GpuType, usize> = BTreeMap::new();
        for (o, _) in comparing().flat_map(|f| &f.rows) {
            *seen.entry(&o.gpu_type).or_default() += 1;
        }
        let types: Vec<&GpuType> =
            seen.into_iter().filter(|(_, n)| *n >= 3).map(|(t, _)| t).take(MAX_TYPES).collect();
        let column: BTreeMap<&GpuType, usize> = types.iter().enumerate().map(|(i, t)| (*t, i + 3)).collect();
        let width = 3 + types.len();
        let features = |o: &Observed| {
            let mut x = vec![0.0; width];
            let l = libm::log2(f64::from(o.gpus.max(1)));
            (x[0], x[1], x[2]) = (l, l * l, libm::log2(f64::from(o.nodes.max(1))));
            if let Some(i) = column.get(&o.gpu_type) {
                x[*i] = 1.0;
            }
            x
        };
        let mut xs: Vec<f64> = Vec::new();
        let mut ys: Vec<f64> = Vec::new();
        for family in comparing() {
            let rows: Vec<(f64, Vec<f64>, f64)> =
                family.rows.iter().map(|(o, r)| (weight(o), features(o), *r)).collect();
            let total: f64 = rows.iter().map(|(w, ..)| w).sum();
            let mean_y = rows.iter().map(|(w, _, y)| w * y).sum::<f64>() / total;
            let mean_x: Vec<f64> =
                (0..width).map(|i| rows.iter().map(|(w, x, _)| w * x[i]).sum::<f64>() / total).collect();
            for (w, x, y) in rows {
                let root = libm::sqrt(w);
                xs.extend(x.iter().zip(&mean_x).map(|(a, m)| (a - m) * root));
                ys.push((y - mean_y) * root);
            }
        }
        let coefficients = elastic_net(xs, width, ys)?;
        let max = |f: fn(&Observed) -> u32| {
            libm::log2(f64::from(comparing().flat_map(|c| &c.rows).map(|(o, _)| f(o)).max().unwrap_or(1)))
        };
        Some(Self {
            by_type: types.into_iter().cloned().zip(coefficients[3..].iter().copied()).collect(),
            gpus: [coefficients[0], coefficients[1]],
            nodes: coefficients[2],
            max_gpus: max(|o| o.gpus),
            max_nodes: max(|o| o.nodes),
            sigma: UNTESTED_SIGMA,
            level: None,
        })
    }
}

/// The fit itself, of centred columns and targets; `None` where linfa finds no coefficients, or none that are finite.
///
/// No intercept is asked of linfa: its own takes the mean off the target but not off the columns.
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

/// At most [`MAX_ROWS`] rows: types in turn, newest first.
fn thinned(families: &[FamilyRows]) -> Vec<FamilyRows> {
    if families.iter().map(|f| f.rows.len()).sum::<usize>() <= MAX_ROWS {
        return families.to_vec();
    }
    let mut by_type: BTreeMap<&GpuType, Vec<(f64, usize, usize)>> = BTreeMap::new();
    for (f, family) in families.iter().enumerate() {
        for (r, (o, _)) in family.rows.iter().enumerate() {
            by_type.entry(&o.gpu_type).or_default().push((o.at, f, r));
        }
    }
    for rows in by_type.values_mut() {
        rows.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    }
    let mut kept: Vec<Vec<usize>> = vec![Vec::new(); families.len()];
    let mut count = 0;
    for turn in 0.. {
        let mut any = false;
        for (_, f, r) in by_type.values().filter_map(|rows| rows.get(turn)) {
            any = true;
            if count < MAX_ROWS {
                kept[*f].push(*r);
                count += 1;
            }
        }
        if !any || count >= MAX_ROWS {
            break;
        }
    }
    let keep = |(family, mut rows): (&FamilyRows, Vec<usize>)| {
        rows.sort_unstable();
        FamilyRows { rows: rows.into_iter().map(|r| family.rows[r].clone()).collect() }
    };
    families.iter().zip(kept).map(keep).filter(|f| !f.rows.is_empty()).collect()
}

/// Families held out in folds; each is known on its best-watched configuration and predicted on its others. Rows of
/// one family are not independent: folds over rows would promise too much.
fn cross_validated(families: &[FamilyRows]) -> Option<f64> {
    let mut errors: Vec<f64> = Vec::new();
    for fold in 0..FOLDS {
        let split = |held: bool| {
            let mine = families.iter().enumerate().filter(move |(i, _)| (i % FOLDS == fold) == held);
            mine.map(|(_, f)| f.clone()).collect::<Vec<_>>()
        };
        let Some(fit) = Correction::fit_once(&split(false)) else { continue };
        for family in split(true).iter().filter(|f| f.rows.len() > 1) {
            let by_epochs =
                |(a, _): &&(Observed, f64), (b, _): &&(Observed, f64)| a.epochs.total_cmp(&b.epochs);
            let Some((anchor, at_anchor)) = family.rows.iter().max_by(by_epochs) else { continue };
            let offset = at_anchor - fit.of(anchor);
            let others = family.rows.iter().filter(|(o, _)| o != anchor);
            errors.extend(others.map(|(o, r)| (r - offset - fit.of(o)).abs()));
        }
    }
    interval(errors, MIN_ROWS)
}

/// Conformal: the sigma whose p10..p90 covers 80 % of these absolute errors.
pub(crate) fn interval(mut errors: Vec<f64>, at_least: usize) -> Option<f64> {
    if errors.len() < at_least.max(1) {
        return None;
    }
    errors.sort_by(f64::total_cmp);
    // The finite-sample rank of split conformal prediction: ceil((n + 1) 0.8).
    let rank = (errors.len() + 1) * 4 / 5;
    Some(errors[rank.min(errors.len() - 1)] / Z90)
}

fn levels(families: &[FamilyRows], correction: &Correction) -> Option<(f64, f64)> {
    let levels: Vec<f64> = families.iter().filter_map(|f| f.level(|o| correction.of(o))).collect();
    if levels.len() < 3 {
        return None;
    }
    let n = levels.len() as f64;
    let mean = levels.iter().sum::<f64>() / n;
    let variance = levels.iter().map(|l| (l - mean) * (l - mean)).sum::<f64>() / (n - 1.0);
    Some((mean, libm::sqrt(variance * (1.0 + 1.0 / n)).clamp(SIGMA.0, SIGMA.1)))
}
