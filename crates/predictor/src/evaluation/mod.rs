//! How far off predictions are on a table of measurements: what is known is held back, asked, and compared.
//!
//! **In**: rows ([`Sample`]), each profile being one job. **Out**: for each [`Setting`] the errors of this predictor and of
//! baselines on the same questions ([`Outcome`]), and how often the truth lay in the interval of 90 %. Jobs are held out
//! whole; nothing of what is asked is seen by whoever is asked.

mod baselines;
mod floor;
mod questions;

use std::collections::BTreeMap;

use crate::table::{Sample, boards, profiles};
use crate::{GpuModel, Predictor, Source};

pub use baselines::Baseline;
pub use floor::{Floor, floor};
pub use questions::{HoldOut, Question, Setting, questions};

/// One answer beside the truth.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The job.
    pub profile: String,
    /// Truth and prediction of the epoch's time, seconds.
    pub epoch: Option<(f64, f64)>,
    /// Whether the truth lay in the interval of 90 %.
    pub epoch_inside: bool,
    /// Truth and prediction of the draw, watts.
    pub power: Option<(f64, f64)>,
    /// Whether the truth lay in the interval of 90 %.
    pub power_inside: bool,
    /// What the time rests on; baselines have none.
    pub source: Option<Source>,
}

/// All answers of one setting by one method.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// In order of the jobs.
    pub answers: Vec<Answer>,
}

fn relative((truth, said): (f64, f64)) -> f64 {
    (said / truth - 1.0).abs()
}

/// Median of values; NaN of none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

impl Outcome {
    /// Absolute errors of times, as a part of the truth.
    pub fn epoch_errors(&self) -> Vec<f64> {
        self.answers.iter().filter_map(|a| a.epoch).map(relative).collect()
    }

    /// Absolute errors of draws.
    pub fn power_errors(&self) -> Vec<f64> {
        self.answers.iter().filter_map(|a| a.power).map(relative).collect()
    }

    /// Absolute errors of energy: time and draw together.
    pub fn energy_errors(&self) -> Vec<f64> {
        let both = self.answers.iter().filter_map(|a| Some((a.epoch?, a.power?)));
        both.map(|((t, s), (w, v))| relative((t * w, s * v))).collect()
    }

    /// How many of a job's truths lay inside, the jobs' mean; of times, or of draws.
    pub fn coverage(&self, power: bool) -> f64 {
        let jobs = self.coverages(power);
        jobs.iter().sum::<f64>() / jobs.len().max(1) as f64
    }

    /// The standard error of [`Self::coverage`], by jobs: rows of one job are right or wrong together. NaN below two.
    pub fn coverage_error(&self, power: bool) -> f64 {
        let jobs = self.coverages(power);
        let (n, mean) = (jobs.len() as f64, self.coverage(power));
        let square = jobs.iter().map(|c| (c - mean) * (c - mean)).sum::<f64>();
        if n < 2.0 { f64::NAN } else { (square / (n - 1.0) / n).sqrt() }
    }

    fn coverages(&self, power: bool) -> Vec<f64> {
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

    /// Takes in the answers of another table, whose jobs are others even where their names are the same.
    pub fn join(&mut self, table: &str, other: Self) {
        let named = |a: Answer| Answer { profile: format!("{table}: {}", a.profile), ..a };
        self.answers.extend(other.answers.into_iter().map(named));
    }

    /// How many jobs were asked.
    pub fn jobs(&self) -> usize {
        self.by_job().len()
    }

    /// The jobs' own answers.
    pub fn by_job(&self) -> BTreeMap<&str, Self> {
        let mut jobs: BTreeMap<&str, Self> = BTreeMap::new();
        for a in &self.answers {
            jobs.entry(&a.profile).or_default().answers.push(a.clone());
        }
        jobs
    }
}

/// This predictor on some questions.
pub fn ask(questions: &[Question<'_>], gpus: &[GpuModel]) -> Outcome {
    let mut answers = Vec::new();
    for question in questions {
        let known = profiles(question.known.iter().copied());
        let population: Vec<_> = known.values().cloned().collect();
        let predictor = Predictor::fit(gpus, &population);
        let Some(first) = question.asked.first() else { continue };
        let profile = known.get(&first.profile).cloned().unwrap_or_else(|| first.unseen());
        let queries: Vec<_> = question.asked.iter().map(|s| s.query()).collect();
        for (sample, p) in question.asked.iter().zip(predictor.answer(&profile, None, &queries)) {
            let inside = |e: &crate::Estimate, truth: Option<f64>| {
                truth.is_some_and(|t| (e.low()..=e.high()).contains(&t))
            };
            answers.push(Answer {
                profile: sample.profile.clone(),
                epoch: sample.epoch_s.map(|t| (t, p.epoch.median)),
                epoch_inside: inside(&p.epoch, sample.epoch_s),
                power: sample.power_w.map(|w| (w, p.power.median)),
                power_inside: inside(&p.power, sample.power_w),
                source: Some(p.epoch.source),
            });
        }
    }
    Outcome { answers }
}

/// A baseline on the same questions (times only).
pub fn ask_baseline(questions: &[Question<'_>], baseline: Baseline) -> Outcome {
    let mut answers = Vec::new();
    for question in questions {
        for (sample, said) in question.asked.iter().zip(baseline.answer(question)) {
            answers.push(Answer {
                profile: sample.profile.clone(),
                epoch: sample.epoch_s.map(|t| (t, said)),
                epoch_inside: false,
                power: None,
                power_inside: false,
                source: None,
            });
        }
    }
    Outcome { answers }
}

/// The GPU types of a table.
pub fn models(
    samples: &[Sample],
    board: impl Fn(&str) -> Option<(andreas_core::Watts, andreas_core::Watts)>,
) -> Vec<GpuModel> {
    boards(samples, board)
}
