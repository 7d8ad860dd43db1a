//! Simpler predictors to compare with.

use std::collections::BTreeMap;

use linfa::Dataset;
use linfa::traits::Fit;
use linfa_elasticnet::ElasticNet;
use ndarray::{Array1, Array2};

use super::Question;
use crate::linear::Cholesky;
use crate::table::Sample;

/// A simpler way to predict times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// Geometric mean of the job's rows on the type, else of the job's rows, else of all rows.
    Constant,
    /// Amdahl's law with a serial part of a tenth, fitted to the job's rows; types by their mean
    /// ratio.
    Amdahl,
    /// Least squares of log time on logs of GPUs, nodes, batch, limit and parameters, with
    /// indicator columns for types and jobs.
    Ols,
    /// linfa's elastic net on the same columns, centred.
    ElasticNet,
    /// A step of `a + b x batch per GPU + c [nodes > 1] + d (GPUs - 2)` for each job and type, by
    /// relative least squares. Needs four rows of the job on the type.
    Physics,
}

impl Baseline {
    /// All baselines.
    pub const ALL: [Self; 5] = [Self::Constant, Self::Amdahl, Self::Ols, Self::ElasticNet, Self::Physics];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::Amdahl => "Amdahl",
            Self::Ols => "OLS",
            Self::ElasticNet => "elastic net",
            Self::Physics => "plain physics",
        }
    }

    pub(super) fn answer(self, question: &Question<'_>) -> Vec<f64> {
        let asked = &question.asked;
        match self {
            Self::Constant => asked.iter().map(|s| level(question, s, |_| 0.0).exp()).collect(),
            Self::Amdahl => {
                let scaling = |s: &Sample| (0.1 + 0.9 / f64::from(s.gpus)).ln();
                asked.iter().map(|s| (level(question, s, scaling) + scaling(s)).exp()).collect()
            }
            Self::Ols | Self::ElasticNet => regression(question, self == Self::ElasticNet),
            Self::Physics => asked.iter().map(|s| physics(question, s).unwrap_or(f64::NAN)).collect(),
        }
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Mean log of the nearest known rows, less the scaling law.
fn level(question: &Question<'_>, s: &Sample, law: impl Fn(&Sample) -> f64) -> f64 {
    let off = |k: &&&Sample| k.epoch_s.map(|t| t.ln() - law(k));
    let of = |keep: &dyn Fn(&Sample) -> bool| {
        mean(&question.known.iter().filter(|k| keep(k)).filter_map(|k| off(&k)).collect::<Vec<_>>())
    };
    of(&|k| k.profile == s.profile && k.gpu_type == s.gpu_type)
        .or_else(|| {
            // Other types of the job, corrected by the mean ratio of the types.
            let own = of(&|k| k.profile == s.profile)?;
            let (here, all) = (of(&|k| k.gpu_type == s.gpu_type)?, of(&|_| true)?);
            Some(own + here - all)
        })
        .or_else(|| of(&|k| k.gpu_type == s.gpu_type))
        .or_else(|| of(&|_| true))
        .unwrap_or(0.0)
}

fn regression(question: &Question<'_>, net: bool) -> Vec<f64> {
    let mut words: BTreeMap<&str, usize> = BTreeMap::new();
    for s in &question.known {
        for word in [s.gpu_type.as_str(), s.profile.as_str()] {
            let next = words.len();
            words.entry(word).or_insert(next);
        }
    }
    let width = 5 + words.len();
    let columns = |s: &Sample| {
        let mut x = vec![0.0; width];
        let log = |v: Option<f64>| v.map_or(0.0, f64::ln);
        x[0] = f64::from(s.gpus).ln();
        x[1] = f64::from(s.nodes).ln();
        (x[2], x[3], x[4]) = (log(s.batch), log(s.power_limit_w), log(s.params_m));
        for word in [s.gpu_type.as_str(), s.profile.as_str()] {
            if let Some(i) = words.get(word) {
                x[5 + i] = 1.0;
            }
        }
        x
    };
    let rows: Vec<(Vec<f64>, f64)> =
        question.known.iter().filter_map(|s| Some((columns(s), s.epoch_s?.ln()))).collect();
    let n = rows.len() as f64;
    let centre: Vec<f64> = (0..width).map(|i| rows.iter().map(|(x, _)| x[i]).sum::<f64>() / n).collect();
    let middle = rows.iter().map(|(_, y)| y).sum::<f64>() / n;
    let centred = |x: &[f64]| x.iter().zip(&centre).map(|(a, m)| a - m).collect::<Vec<_>>();
    let xs: Vec<Vec<f64>> = rows.iter().map(|(x, _)| centred(x)).collect();
    let ys: Vec<f64> = rows.iter().map(|(_, y)| y - middle).collect();
    let found = if net { elastic_net(&xs, &ys, width) } else { least_squares(&xs, &ys, width) };
    let found = found.unwrap_or_else(|| vec![0.0; width]);
    let say = |s: &&Sample| middle + centred(&columns(s)).iter().zip(&found).map(|(a, b)| a * b).sum::<f64>();
    question.asked.iter().map(|s| say(s).exp()).collect()
}

fn elastic_net(xs: &[Vec<f64>], ys: &[f64], width: usize) -> Option<Vec<f64>> {
    let x = Array2::from_shape_vec((ys.len(), width), xs.concat()).ok()?;
    let params = ElasticNet::params().penalty(1e-3).l1_ratio(0.2).with_intercept(false).max_iterations(300);
    Some(params.fit(&Dataset::new(x, Array1::from_vec(ys.to_vec()))).ok()?.hyperplane().to_vec())
}

/// A ridge too small to matter makes indicator columns solvable.
fn least_squares(xs: &[Vec<f64>], ys: &[f64], width: usize) -> Option<Vec<f64>> {
    let mut square = vec![0.0; width * width];
    let mut right = vec![0.0; width];
    for (x, y) in xs.iter().zip(ys) {
        for i in 0..width {
            right[i] += x[i] * y;
            for j in 0..=i {
                square[i * width + j] += x[i] * x[j];
            }
        }
    }
    for i in 0..width {
        square[i * width + i] += 1e-6;
    }
    Cholesky::new(width, square)?.solve(&mut right);
    Some(right)
}

fn physics(question: &Question<'_>, s: &Sample) -> Option<f64> {
    let own: Vec<&&Sample> =
        question.known.iter().filter(|k| k.profile == s.profile && k.gpu_type == s.gpu_type).collect();
    if own.len() < 4 {
        return None;
    }
    // An epoch is a fixed number of samples, so step time is epoch time times batch.
    let step = |k: &Sample| k.epoch_s.map(|t| t * k.batch.unwrap_or(1.0));
    let columns = |k: &Sample| {
        let g = f64::from(k.gpus);
        let across = f64::from(u8::from(k.nodes > 1));
        vec![1.0, k.batch.unwrap_or(1.0) / g, across, (g - 2.0).max(0.0)]
    };
    // Columns are scaled to one size, so that the ridge affects all alike.
    let largest: Vec<f64> = (0..4).map(|i| own.iter().map(|k| columns(k)[i]).fold(1e-12, f64::max)).collect();
    let scaled = |k: &Sample| columns(k).iter().zip(&largest).map(|(x, m)| x / m).collect::<Vec<_>>();
    let rows: Vec<(Vec<f64>, f64)> = own.iter().filter_map(|k| Some((scaled(k), step(k)?))).collect();
    let xs: Vec<Vec<f64>> = rows.iter().map(|(x, y)| x.iter().map(|a| a / y * 1e3).collect()).collect();
    let found = least_squares(&xs, &vec![1e3; rows.len()], 4)?;
    let said: f64 = scaled(s).iter().zip(&found).map(|(a, b)| a * b).sum();
    Some(said.max(1e-9) / s.batch.unwrap_or(1.0))
}
