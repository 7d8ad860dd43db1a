//! Simpler predictors to compare with.

use super::TrainTestSplit;
use crate::table::Sample;
use andreas_predictor::Cholesky;

andreas_model::names! {
    /// A simpler way to predict times.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Baseline {
        /// Geometric mean of the job's rows on the type, else of the job's rows, else of all rows.
        Constant = "constant",
        /// Amdahl's law with a serial part of a tenth, fitted to the job's rows; types by their mean
        /// ratio.
        Amdahl,
        /// A step of `a + b x batch per GPU + c [nodes > 1] + d (GPUs - 2)` for each job and type, by
        /// relative least squares. Needs four rows of the job on the type.
        Physics = "plain physics",
    }
}

impl Baseline {
    pub(super) fn answer(self, split: &TrainTestSplit<'_>, s: &Sample) -> f64 {
        let scaling = |s: &Sample| (0.1 + 0.9 / f64::from(s.gpus)).ln();
        match self {
            Self::Constant => intercept(split, s, |_| 0.0).exp(),
            Self::Amdahl => (intercept(split, s, scaling) + scaling(s)).exp(),
            Self::Physics => physics(split, s).unwrap_or(f64::NAN),
        }
    }
}

/// Mean log of the nearest known rows, less the scaling law.
fn intercept(split: &TrainTestSplit<'_>, s: &Sample, law: impl Fn(&Sample) -> f64) -> f64 {
    let of = |keep: &dyn Fn(&Sample) -> bool| {
        let rows = split.train.iter().filter(|k| keep(k));
        let values: Vec<f64> = rows.filter_map(|k| Some(k.epoch_s?.ln() - law(k))).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let here = of(&|k| k.gpu_type == s.gpu_type);
    of(&|k| k.profile == s.profile && k.gpu_type == s.gpu_type)
        // Other types of the job, corrected by the mean ratio of the types.
        .or_else(|| Some(of(&|k| k.profile == s.profile)? + here? - of(&|_| true)?))
        .or(here)
        .or_else(|| of(&|_| true))
        .unwrap_or(0.0)
}

fn physics(split: &TrainTestSplit<'_>, s: &Sample) -> Option<f64> {
    let own: Vec<&&Sample> =
        split.train.iter().filter(|k| k.profile == s.profile && k.gpu_type == s.gpu_type).collect();
    if own.len() < 4 {
        return None;
    }
    let columns = |k: &Sample| {
        let gpus = f64::from(k.gpus);
        let across = f64::from(u8::from(k.nodes > 1));
        [1.0, k.batch.unwrap_or(1.0) / gpus, across, (gpus - 2.0).max(0.0)]
    };
    // Columns are scaled to one size, so that the ridge affects all alike.
    let largest: [f64; 4] = std::array::from_fn(|i| own.iter().map(|k| columns(k)[i]).fold(1e-12, f64::max));
    let scaled = |k: &Sample| -> [f64; 4] { std::array::from_fn(|i| columns(k)[i] / largest[i]) };
    let (mut square, mut right) = (vec![0.0; 16], vec![0.0; 4]);
    for k in own {
        // An epoch is a fixed number of samples, so step time is epoch time times batch.
        let step = k.epoch_s? * k.batch.unwrap_or(1.0);
        let x = scaled(k).map(|x| x / step * 1e3);
        for i in 0..4 {
            right[i] += x[i] * 1e3;
            (0..=i).for_each(|j| square[i * 4 + j] += x[i] * x[j]);
        }
    }
    // A ridge too small to matter makes constant columns solvable.
    (0..4).for_each(|i| square[i * 4 + i] += 1e-6);
    Cholesky::new(4, square)?.solve(&mut right);
    let predicted: f64 = scaled(s).iter().zip(&right).map(|(a, b)| a * b).sum();
    Some(predicted.max(1e-9) / s.batch.unwrap_or(1.0))
}
