//! Prior of a profile from the tenant's other profiles: empirical Bayes over the parameters of their
//! curves.
//!
//! Each profile gives its parameters with their uncertainty ([`FittedProfile`]). A few rounds of
//! expectation and maximisation give their means and variances. The start values (from published
//! tables) enter as pseudo-profiles, and outliers have Huber weights. Profiles of one model are
//! closer to each other than to the rest: a profile's prior is pulled towards its siblings.

use std::collections::BTreeMap;

use andreas_model::GpuType;

use crate::curve_prior::Prior;
use crate::expected::Expected;
use crate::physics::{INTERCEPT, P, Quantity};
use crate::posterior::ParameterEstimate;
use crate::ratio::{Level, Ratios};
use crate::spread::spread;

/// Most profiles in a fit.
const MAX_PROFILES: usize = 512;
/// Pseudo-count of profiles for the start values.
const PSEUDO: f64 = 4.0;
/// Rounds of expectation and maximisation.
const ROUNDS: usize = 24;
/// Profiles beyond this many standard deviations get less weight.
const HUBER: f64 = 1.5;
/// Squared residuals are clipped at this multiple of the variance.
const FAR: f64 = 4.0;
/// Variance of a type's intercept beyond the analytic prior, for types without data (published
/// tables: off by 38 %).
pub(crate) const UNKNOWN_TYPE: f64 = 0.17;
/// Share of the variance that remains between profiles of one model.
const SIBLINGS: f64 = 0.4;

/// An observed profile with its fitted parameters.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FittedProfile {
    pub name: String,
    pub model: Option<String>,
    pub found: [ParameterEstimate; P],
    /// Its intercepts by type, relative to the analytic prior.
    pub on: Vec<Level>,
}

/// Prior of the next profile.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Population {
    prior: Prior,
    ratios: Ratios,
    /// Variance of a type's intercept, for types with data.
    type_variance: f64,
}

/// The first parameter that profiles share: times of different profiles have free intercepts.
fn first(quantity: Quantity) -> usize {
    if quantity == Quantity::Power { 0 } else { 1 }
}

impl Population {
    /// The start values.
    pub fn new(quantity: Quantity) -> Self {
        let within = quantity.gpu_type_variances();
        Self {
            prior: Prior { mean: quantity.means(), own: quantity.profile_variances(), within },
            ratios: Ratios::default(),
            type_variance: within[INTERCEPT],
        }
    }

    /// From one tenant's profiles.
    pub fn fit(quantity: Quantity, members: &[&FittedProfile]) -> Self {
        let members = spread(members, MAX_PROFILES);
        let mut it = Self::new(quantity);
        let levels: Vec<&[Level]> = members.iter().map(|m| m.on.as_slice()).collect();
        it.ratios = Ratios::fit(&levels);
        for p in first(quantity)..P {
            let found: Vec<ParameterEstimate> = members.iter().map(|m| m.found[p]).collect();
            (it.prior.mean[p], it.prior.own[p]) = weigh(it.prior.mean[p], it.prior.own[p], &found);
        }
        it.type_variance = it.type_spread(&levels);
        it
    }

    /// Variance of a type's intercept between profiles; large squares are clipped.
    fn type_spread(&self, profiles: &[&[Level]]) -> f64 {
        let comparing: Vec<(&[Level], Vec<f64>)> =
            profiles.iter().filter(|on| on.len() > 1).map(|on| (*on, self.ratios.residuals(on))).collect();
        let mut found = self.type_variance;
        for _ in 0..ROUNDS {
            let mut squares = (PSEUDO * self.type_variance, PSEUDO);
            for (on, residuals) in &comparing {
                let types = on.len() as f64;
                let informed = on.iter().map(|l| l.informed(self.type_variance)).sum::<f64>() / types;
                let rows = residuals.iter().zip(*on);
                let square: f64 = rows.map(|(r, l)| (r * r - l.variance).clamp(0.0, FAR * found)).sum();
                squares = (squares.0 + informed * square, squares.1 + informed * (types - 1.0));
            }
            found = (squares.0 / squares.1).clamp(0.004, 0.5);
        }
        found
    }

    /// Prior of a profile; `siblings` are the other profiles of the same model.
    pub fn expect(&self, quantity: Quantity, siblings: &[&FittedProfile]) -> Expected {
        let mut prior = self.prior;
        prior.within[INTERCEPT] = if self.ratios.is_empty() { UNKNOWN_TYPE } else { self.type_variance };
        let mut by_type: BTreeMap<GpuType, Vec<(f64, f64)>> = BTreeMap::new();
        if !siblings.is_empty() {
            for p in first(quantity)..P {
                let among = SIBLINGS * prior.own[p];
                let (start, sure) = (prior.mean[p], 1.0 / prior.own[p].max(1e-9));
                let found =
                    siblings.iter().map(|m| (m.found[p].mean, 1.0 / (m.found[p].variance + among).max(1e-9)));
                let (mean, total) = shrunk_mean(start, sure, &found.collect::<Vec<_>>());
                prior.mean[p] = mean;
                prior.own[p] = among + 1.0 / total;
            }
            for member in siblings.iter().filter(|m| m.on.len() > 1) {
                for (l, residual) in member.on.iter().zip(self.ratios.residuals(&member.on)) {
                    let informed = l.informed(self.type_variance);
                    by_type.entry(l.gpu_type.clone()).or_default().push((residual, informed));
                }
            }
            if by_type.len() > 1 {
                prior.within[INTERCEPT] *= (SIBLINGS + 1.0 / (1.0 + siblings.len() as f64)).min(1.0);
            }
        }
        // A prior at zero: it pulls a single sibling more than many.
        let of_type = |found: Vec<(f64, f64)>| shrunk_mean(0.0, SIBLINGS, &found).0;
        Expected {
            prior,
            ratios: self.ratios.clone(),
            siblings: by_type.into_iter().map(|(t, found)| (t, of_type(found))).collect(),
            level: (!siblings.is_empty()).then(|| common_intercept(siblings)),
        }
    }
}

/// Weighted mean with the prior `start` of weight `sure`; and the total weight.
fn shrunk_mean(start: f64, sure: f64, found: &[(f64, f64)]) -> (f64, f64) {
    let total = sure + found.iter().map(|(_, weight)| weight).sum::<f64>();
    let sum = sure * start + found.iter().map(|(value, weight)| weight * value).sum::<f64>();
    (sum / total, total)
}

fn common_intercept(siblings: &[&FittedProfile]) -> ParameterEstimate {
    let n = siblings.len() as f64;
    let mean = siblings.iter().map(|m| m.found[INTERCEPT].mean).sum::<f64>() / n;
    let off = |m: &FittedProfile| m.found[INTERCEPT].mean - mean;
    let square: f64 = siblings.iter().map(|m| off(m) * off(m)).sum();
    // As half a sibling off by a factor 2: the same model may have other data.
    ParameterEstimate { mean, variance: (square + 0.5) / n * (1.0 + 1.0 / n) }
}

/// Mean and variance of a parameter over profiles with uncertain values: expectation and
/// maximisation.
fn weigh(start: f64, start_variance: f64, found: &[ParameterEstimate]) -> (f64, f64) {
    if start_variance <= 0.0 {
        return (start, start_variance);
    }
    let (mut mean, mut variance) = (start, start_variance);
    for _ in 0..ROUNDS {
        let usual = PSEUDO / (2.0 * variance);
        let (mut sum, mut total) = (start * usual, usual);
        let (mut square, mut count) = (PSEUDO * start_variance, PSEUDO);
        for f in found {
            let spread = variance + f.variance;
            let huber = (HUBER * libm::sqrt(spread) / (f.mean - mean).abs().max(1e-12)).min(1.0);
            (sum, total) = (sum + huber * f.mean / spread, total + huber / spread);
            // The profile's posterior value: the less information it has, the nearer to the mean.
            let informed = variance / spread;
            let moved = informed * huber * (f.mean - mean);
            square += moved * moved + variance * (1.0 - informed);
            count += 1.0;
        }
        mean = sum / total;
        variance = (square / count).clamp(0.02 * start_variance, 3.0 * start_variance);
    }
    (mean, variance)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(i: usize, overhead: f64) -> FittedProfile {
        let mut found = [ParameterEstimate { mean: 0.0, variance: 0.01 }; P];
        found[1].mean = overhead;
        FittedProfile { name: format!("lab/{i}"), model: None, found, on: Vec::new() }
    }

    #[test]
    fn many_profiles_move_the_prior_and_one_outlier_does_not() {
        let fit = |members: &[FittedProfile]| {
            let population = Population::fit(Quantity::Time, &members.iter().collect::<Vec<_>>());
            population.expect(Quantity::Time, &[]).prior
        };
        let mut members: Vec<FittedProfile> =
            (0..12).map(|i| member(i, 0.5 + 0.05 * (i % 3) as f64)).collect();
        let honest = fit(&members);
        assert!(honest.mean[1] > 0.19 && honest.own[1] < Quantity::Time.profile_variances()[1], "{honest:?}");
        members.push(member(99, -5.0));
        assert!((fit(&members).mean[1] - honest.mean[1]).abs() < 0.1, "{:?}", fit(&members));
    }
}
