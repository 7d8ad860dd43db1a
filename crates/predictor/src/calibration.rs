//! Split conformal intervals: the factor on the curve's standard deviation that covers 90 % of the
//! errors of held-out profiles, by evidence.
//!
//! The curve's own variance is right only if the model is. A tenant's profiles are held out in folds
//! and asked what they would have been asked, with parts of their rows known. Every profile has the
//! same weight, however many rows it has, since its rows are not independent. Few profiles shrink to
//! factors that cover published tables ([`Factors::start`]).

use andreas_model::GpuType;
use andreas_model::normal::QUANTILE_95;

use crate::expected::Expected;
use crate::first_runs::{Run, first_runs};
use crate::physics::{Quantity, Setting};
use crate::population::Population;
use crate::posterior::ParameterEstimate;
use crate::quantity_model::{ProfileSamples, QuantityModel, QuantitySample};
use crate::spread::{place, spread};

/// Bounds on the work: most profiles held out, their rows that are known, GPU types of each, folds.
const ASKED: usize = 24;
const KNOWN: usize = 24;
const TYPES: usize = 4;
const FOLDS: usize = 4;
/// Folds of a profile's rows.
const TURNS: usize = 5;
/// Pseudo-count of profiles for the start value.
const PSEUDO: f64 = 4.0;
const BOUNDS: (f64, f64) = (0.35, 3.0);

/// A profile's evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// None on the queried GPU type.
    New,
    /// One or two settings on all types.
    First,
    /// Three to nine.
    Few,
    /// Ten or more.
    Many,
}

const BUCKETS: usize = 4;
/// From this many settings on, evidence is [`Evidence::Many`].
const MANY: usize = 10;

impl Evidence {
    /// From the number of settings seen on the type and in all.
    pub fn from_counts(here: usize, all: usize) -> Self {
        match (here, all) {
            (0, _) => Self::New,
            (_, ..=2) => Self::First,
            (_, 3..MANY) => Self::Few,
            _ => Self::Many,
        }
    }
}

/// Errors over standard deviations by evidence.
type Errors = [Vec<f64>; BUCKETS];

/// Factors on the standard deviation by evidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Factors([f64; BUCKETS]);

impl Factors {
    /// The factors while no profile has been fitted.
    pub fn start(quantity: Quantity) -> Self {
        match quantity {
            Quantity::Time => Self([1.55, 2.6, 1.9, 1.9]),
            Quantity::Power => Self([1.1, 1.2, 0.8, 0.7]),
        }
    }

    /// The factor for this much evidence.
    pub fn for_evidence(&self, evidence: Evidence) -> f64 {
        self.0[evidence as usize]
    }

    /// From a tenant's profiles.
    pub fn fit(model: &QuantityModel, profiles: &[ProfileSamples]) -> Self {
        let several: Vec<&ProfileSamples> = profiles.iter().filter(|f| f.samples.len() > 1).collect();
        let asked = spread(&several, ASKED);
        let mut errors: Vec<Errors> = Vec::new();
        for fold in 0..FOLDS.min(asked.len()) {
            let held: Vec<&&ProfileSamples> = asked.iter().skip(fold).step_by(FOLDS).collect();
            let others = model.members.iter().filter(|m| held.iter().all(|f| f.name != m.name));
            let population = Population::fit(model.quantity, &others.collect::<Vec<_>>());
            errors.extend(held.iter().map(|f| held_out_errors(model, model.expect_from(&population, f), f)));
        }
        let Self(start) = Self::start(model.quantity);
        Self(std::array::from_fn(|i| {
            factor(&errors.iter().map(|e| e[i].as_slice()).collect::<Vec<_>>(), start[i])
        }))
    }
}

/// The factor that covers 90 % of the next profile's errors, shrunk to `start`.
fn factor(profiles: &[&[f64]], start: f64) -> f64 {
    let sizes = |errors: &&[f64]| {
        let finite: Vec<f64> = errors.iter().map(|e| e.abs()).filter(|e| e.is_finite()).collect();
        let weight = 1.0 / finite.len() as f64;
        finite.into_iter().map(move |size| (size, weight))
    };
    let mut rows: Vec<(f64, f64)> = profiles.iter().flat_map(sizes).collect();
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let n = rows.iter().map(|(_, weight)| weight).sum::<f64>();
    let wanted = 0.9 * n - 1e-9;
    let mut below = 0.0;
    let at = rows.iter().find(|(_, weight)| {
        below += weight;
        below >= wanted
    });
    let Some((at, _)) = at.or(rows.last()) else { return start };
    ((n * at / QUANTILE_95 + PSEUDO * start) / (n + PSEUDO)).clamp(BOUNDS.0, BOUNDS.1)
}

/// Errors of a held-out profile by evidence, with `expected` as prior.
fn held_out_errors(model: &QuantityModel, expected: Expected, profile: &ProfileSamples) -> Errors {
    let errors = |rows: &[QuantitySample], asked: &[QuantitySample]| {
        let level = match model.quantity {
            Quantity::Time => model.free_level(rows, &expected),
            Quantity::Power => ParameterEstimate::default(),
        };
        let curve = model.curve(rows, expected.clone(), level);
        let error = |sample: &QuantitySample| {
            let (mean, variance) = curve.predict_log(sample);
            // Intervals are for the next observation: these errors include measurement noise.
            (sample.log - mean) / libm::sqrt(variance)
        };
        asked.iter().map(error).collect::<Vec<f64>>()
    };
    let mut found = Errors::default();
    let mut types: Vec<&GpuType> = profile.samples.iter().map(|s| &s.gpu_type).collect();
    types.sort();
    types.dedup();
    for gpu_type in types.into_iter().take(TYPES) {
        let (here, others) = split_by(&profile.samples, |_, s| s.gpu_type == *gpu_type);
        let (here, others) = (spread(&here, KNOWN), spread(&others, KNOWN));
        let runs: Vec<Run> = here.iter().map(run).collect();
        // Evidence as it arrives: first runs, with and without runs on other types.
        for known in [0, 1, 2, 4].into_iter().filter(|known| *known < here.len()) {
            let first = first_runs(&runs, known);
            let (rows, asked) = split_by(&here, |i, _| first.contains(&i));
            if !others.is_empty() {
                let bucket = &mut found[Evidence::from_counts(known, known + others.len()) as usize];
                bucket.extend(errors(&[others.as_slice(), &rows].concat(), &asked));
            }
            // Without any row, times depend on the intercept alone.
            if known > 0 || model.quantity == Quantity::Power {
                found[Evidence::from_counts(known, known) as usize].extend(errors(&rows, &asked));
            }
        }
        for turn in 0..TURNS {
            // With one row left out, its neighbours would make it too easy.
            let (asked, rows) = split_by(&here, |i, _| (place(i) * TURNS as f64) as usize == turn);
            if rows.len() > 4 {
                let rows = [others.as_slice(), &rows].concat();
                found[Evidence::from_counts(1, rows.len()) as usize].extend(errors(&rows, &asked));
            }
        }
    }
    found
}

/// Splits samples by a predicate.
fn split_by(
    samples: &[QuantitySample],
    is: impl Fn(usize, &QuantitySample) -> bool,
) -> (Vec<QuantitySample>, Vec<QuantitySample>) {
    let of = |wanted: bool| {
        let picked = samples.iter().enumerate().filter(|(i, sample)| is(*i, sample) == wanted);
        picked.map(|(_, sample)| sample.clone()).collect()
    };
    (of(true), of(false))
}

fn run(sample: &QuantitySample) -> Run {
    let Setting { gpus, nodes, batch, depth, .. } = sample.setting;
    let ln2 = std::f64::consts::LN_2;
    Run { gpus: gpus * ln2, nodes: nodes * ln2, batch, limit: depth }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_profile_is_covered_nine_times_in_ten() {
        use rand::RngExt;
        use rand_chacha::rand_core::SeedableRng;
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(1);
        // given: profiles whose errors differ by a factor of 1, 1.3 and 2.2
        for (spread, profiles, rows) in [(0.0, 20, 8), (0.25, 20, 8), (0.8, 30, 8), (0.8, 30, 1)] {
            let mut normal = || {
                let (u, angle): (f64, f64) = (random.random(), random.random());
                libm::sqrt(-2.0 * libm::log(1.0 - u)) * libm::cos(angle * std::f64::consts::TAU)
            };
            let mut profile = || {
                let scale = libm::exp(spread * normal());
                (0..rows).map(|_| scale * normal()).collect::<Vec<f64>>()
            };
            let covered = (0..400).map(|_| {
                let known: Vec<Vec<f64>> = (0..profiles).map(|_| profile()).collect();
                let factor = factor(&known.iter().map(Vec::as_slice).collect::<Vec<_>>(), 1.0);
                profile().iter().filter(|e| e.abs() <= factor * QUANTILE_95).count() as f64 / f64::from(rows)
            });
            let covered = covered.sum::<f64>() / 400.0;
            assert!((0.86..0.96).contains(&covered), "{spread} {profiles} {rows}: {covered}");
        }
    }

    #[test]
    fn without_errors_the_start_stands_and_no_error_breaks_it() {
        assert_eq!(factor(&[], 1.3), 1.3);
        assert_eq!(factor(&[&[f64::NAN, f64::INFINITY]], 1.3), 1.3);
        assert_eq!(factor(&[&[1e300; 40]], 1.3), BOUNDS.1);
        let model = QuantityModel::fit(Quantity::Time, &[]);
        assert_eq!(Factors::fit(&model, &[]), Factors::start(Quantity::Time));
    }
}
