//! Errors of the predictor on a table of measurements: hold rows out, predict them, compare.
//!
//! **In**: rows ([`Sample`]); each profile is one job. **Out**: for each [`Setting`], the errors of
//! this predictor and of baselines on the same splits ([`Outcome`]), and the coverage of the 90
//! % interval. Jobs are held out whole; no method sees the rows it must predict.

mod baselines;
mod floor;
mod splits;
pub mod table;

use std::collections::BTreeMap;

use crate::table::{Sample, profiles};
use andreas_predictor::{GpuModel, Predictor};

pub use baselines::Baseline;
pub use floor::floor;
pub use splits::{Half, HoldOut, Setting, TrainTestSplit, splits};

/// One prediction beside its true value.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Job.
    pub profile: String,
    /// True and predicted epoch time, seconds.
    pub epoch: Option<(f64, f64)>,
    /// Whether the true epoch time lies in the 90 % interval.
    pub epoch_inside: bool,
    /// True and predicted draw, watts.
    pub power: Option<(f64, f64)>,
    /// Whether the true draw lies in the 90 % interval.
    pub power_inside: bool,
}

/// All answers of one method in one setting.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Ordered by job.
    pub answers: Vec<Answer>,
}

fn relative((truth, predicted): (f64, f64)) -> f64 {
    (predicted / truth - 1.0).abs()
}

/// Median of values; NaN if there are none.
pub fn median(mut values: Vec<f64>) -> f64 {
    andreas_predictor::progress::median(&mut values).unwrap_or(f64::NAN)
}

impl Outcome {
    /// Absolute relative errors of times.
    pub fn epoch_errors(&self) -> Vec<f64> {
        self.answers.iter().filter_map(|a| a.epoch).map(relative).collect()
    }

    /// Absolute relative errors of draws.
    pub fn power_errors(&self) -> Vec<f64> {
        self.answers.iter().filter_map(|a| a.power).map(relative).collect()
    }

    /// Absolute relative errors of energy (time times draw).
    pub fn energy_errors(&self) -> Vec<f64> {
        let both = self.answers.iter().filter_map(|a| Some((a.epoch?, a.power?)));
        both.map(|((t, s), (w, v))| relative((t * w, s * v))).collect()
    }

    /// Coverage of the 90 % interval, averaged over jobs; of draws if `power`, else of times.
    pub fn coverage(&self, power: bool) -> f64 {
        let jobs = self.coverage_by_job(power);
        jobs.iter().sum::<f64>() / jobs.len().max(1) as f64
    }

    /// Standard error of [`Self::coverage`], by jobs, since rows of one job are not independent.
    /// NaN below two jobs.
    pub fn coverage_error(&self, power: bool) -> f64 {
        let jobs = self.coverage_by_job(power);
        let (n, mean) = (jobs.len() as f64, self.coverage(power));
        let square = jobs.iter().map(|c| (c - mean) * (c - mean)).sum::<f64>();
        if n < 2.0 { f64::NAN } else { (square / (n - 1.0) / n).sqrt() }
    }

    /// Coverage of the 90 % interval, one value in 0..=1 per job.
    fn coverage_by_job(&self, power: bool) -> Vec<f64> {
        let mut jobs: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        for a in &self.answers {
            let (asked, inside) =
                if power { (a.power.is_some(), a.power_inside) } else { (a.epoch.is_some(), a.epoch_inside) };
            if asked {
                let job = jobs.entry(&a.profile).or_default();
                *job = (job.0 + f64::from(u8::from(inside)), job.1 + 1.0);
            }
        }
        jobs.values().map(|(inside, all)| inside / all).collect()
    }

    /// Adds the answers of another table. Its jobs stay distinct even if names are the same.
    pub fn join(&mut self, table: &str, other: Self) {
        let named = |a: Answer| Answer { profile: format!("{table}: {}", a.profile), ..a };
        self.answers.extend(other.answers.into_iter().map(named));
    }

    /// Number of jobs with answers.
    pub fn jobs(&self) -> usize {
        self.by_job().len()
    }

    /// Answers by job.
    pub fn by_job(&self) -> BTreeMap<&str, Self> {
        let mut jobs: BTreeMap<&str, Self> = BTreeMap::new();
        for a in &self.answers {
            jobs.entry(&a.profile).or_default().answers.push(a.clone());
        }
        jobs
    }
}

/// Answers of this predictor.
pub fn evaluate(splits: &[TrainTestSplit<'_>], gpus: &[GpuModel]) -> Outcome {
    let mut answers = Vec::new();
    for split in splits {
        let known = profiles(split.train.iter().copied());
        let population: Vec<_> = known.values().cloned().collect();
        let predictor = Predictor::fit(gpus, &population);
        let Some(first) = split.test.first() else { continue };
        let profile = known.get(&first.profile).cloned().unwrap_or_else(|| first.unseen());
        let queries: Vec<_> = split.test.iter().map(|s| s.query()).collect();
        for (sample, p) in split.test.iter().zip(predictor.answer(&profile, None, &queries)) {
            let inside = |e: &andreas_predictor::LogNormal, truth: Option<f64>| {
                truth.is_some_and(|t| (e.low()..=e.high()).contains(&t))
            };
            answers.push(Answer {
                profile: sample.profile.clone(),
                epoch: sample.epoch_s.map(|t| (t, p.epoch.median)),
                epoch_inside: inside(&p.epoch, sample.epoch_s),
                power: sample.power_w.map(|w| (w, p.power.median)),
                power_inside: inside(&p.power, sample.power_w),
            });
        }
    }
    Outcome { answers }
}

/// Answers of a baseline (times only).
pub fn evaluate_baseline(splits: &[TrainTestSplit<'_>], baseline: Baseline) -> Outcome {
    let answer = |split: &TrainTestSplit<'_>, sample: &Sample| Answer {
        profile: sample.profile.clone(),
        epoch: sample.epoch_s.map(|t| (t, baseline.answer(split, sample))),
        epoch_inside: false,
        power: None,
        power_inside: false,
    };
    let answers = splits.iter().flat_map(|q| q.test.iter().map(move |s| answer(q, s)));
    Outcome { answers: answers.collect() }
}
