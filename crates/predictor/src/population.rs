//! Prior of a profile from all other profiles: empirical Bayes over the parameters of their curves.
//!
//! Each profile gives its parameters with their uncertainty ([`FittedProfile`]). A few rounds of
//! expectation and maximisation give their means and variances. The start values (from published tables)
//! enter as pseudo-profiles, and outliers have Huber weights. Profiles of one model are closer to each other than to the rest: a profile's
//! prior is pulled towards its siblings.

use std::collections::BTreeMap;
use std::sync::Arc;

use andreas_core::GpuType;

use crate::curve_prior::Prior;
use crate::expected::Expected;
use crate::physics::{LEVEL, LIMITED, P, Quantity};
use crate::posterior::Found;
use crate::ratio::{Level, Levels, Ratios, Size};
use crate::spread::spread;
use crate::weight_policy::{MANY, TenantWeight, WeightPolicy, capped, huber_weights, shares};

/// Most profiles of one tenant in a fit.
const FAMILIES: usize = 512;
/// Pseudo-count of profiles for the start values.
const PSEUDO: f64 = 4.0;
/// Rounds of expectation and maximisation.
const ROUNDS: usize = 24;
/// Outlier scores (standard deviations) from which a profile counts less, and not at all. Used with
/// many profiles, and between tenants.
const ODD: f64 = 2.0;
const ALIEN: f64 = 3.0;
/// Squared residuals are clipped at this multiple of the variance.
const FAR: f64 = 4.0;
/// Least variance of a type's intercept in the outlier score.
const LIKELY_TYPE: f64 = 0.02;
/// Variance of a type's intercept beyond the analytic prior, for types without data (published
/// tables: off by 38 %).
const UNKNOWN_TYPE: f64 = 0.17;
/// A parameter with this variance was not measured.
const UNMEASURED: f64 = 1e3;
/// Prior share of the variance that remains between profiles of one model.
const SIBLINGS: f64 = 0.4;

/// An observed profile with its fitted parameters.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FittedProfile {
    pub name: String,
    pub namespace: String,
    pub model: Option<String>,
    pub size: Size,
    pub found: [Found; P],
    /// Its intercepts by type, relative to the analytic prior.
    pub on: Vec<Level>,
}

/// Prior of the next profile.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Population {
    prior: Prior,
    ratios: Ratios,
    /// By type: limit-exponent offset beyond the mean of all (log).
    bent: Arc<BTreeMap<GpuType, f64>>,
    /// Share of the variances that remains between profiles of one model.
    siblings: f64,
    /// Variance of a type's intercept, for types with data.
    type_variance: f64,
}

impl Population {
    /// From one tenant's profiles, each with its own weight.
    pub fn fit(quantity: Quantity, own: &[&FittedProfile]) -> Self {
        let own = &spread(own, FAMILIES);
        let start = Self::new(quantity);
        let mut it = Self::weighed(quantity, &start, own, WeightPolicy::within_tenant(own.len()));
        it.siblings = it.sibling_share(own);
        it
    }

    /// The start values.
    pub fn new(quantity: Quantity) -> Self {
        let within = quantity.within();
        Self {
            prior: Prior { mean: quantity.means(), own: quantity.between(), within },
            ratios: Ratios::default(),
            bent: Arc::default(),
            siblings: SIBLINGS,
            type_variance: within[LEVEL],
        }
    }

    fn weighed(
        quantity: Quantity,
        before: &Self,
        members: &[&FittedProfile],
        policy: WeightPolicy,
    ) -> Self {
        let known: Vec<(&str, f64)> =
            members.iter().map(|m| (m.name.as_str(), information(m, quantity))).collect();
        let mut weights_by_tenant = shares(&known);
        let mut it = before.clone();
        if members.is_empty() {
            return it;
        }
        it.weigh_all(quantity, members, &weights_by_tenant, policy);
        if members.len() >= MANY {
            // Strong outliers are dropped where there are enough profiles to compare.
            for (member, tenant_weight) in members.iter().zip(&mut weights_by_tenant) {
                tenant_weight.weight *=
                    ((ALIEN - it.oddness(quantity, member)) / (ALIEN - ODD)).clamp(0.0, 1.0);
            }
            it = before.clone();
            it.weigh_all(quantity, members, &weights_by_tenant, policy);
        }
        it
    }

    /// `self` is the prior.
    fn weigh_all(
        &mut self,
        quantity: Quantity,
        members: &[&FittedProfile],
        weights_by_tenant: &[TenantWeight],
        policy: WeightPolicy,
    ) {
        self.ratios = Ratios::fit(&self.ratios, &levels(members, weights_by_tenant), policy);
        if quantity == Quantity::Time {
            self.bent = Arc::new(self.bent(members, weights_by_tenant, policy));
        }
        let informed = |p: &usize| quantity == Quantity::Power || *p != LEVEL;
        for p in (0..P).filter(informed) {
            let found: Vec<(TenantWeight, Found)> =
                members.iter().zip(weights_by_tenant).map(|(m, v)| (*v, m.found[p])).collect();
            (self.prior.mean[p], self.prior.own[p]) =
                weigh(self.prior.mean[p], self.prior.own[p], &found, policy);
        }
        self.type_variance = self.type_spread(&levels(members, weights_by_tenant), policy);
    }

    /// Limit-exponent offsets by type, shrunk to the prior. Clocks follow power in a way of the
    /// board, whatever the workload.
    fn bent(
        &self,
        members: &[&FittedProfile],
        weights_by_tenant: &[TenantWeight],
        policy: WeightPolicy,
    ) -> BTreeMap<GpuType, f64> {
        let mut types: BTreeMap<&GpuType, Vec<(TenantWeight, Found)>> = BTreeMap::new();
        for (member, tenant_weight) in members.iter().zip(weights_by_tenant) {
            for level in member.on.iter().filter(|l| l.limited.variance < UNMEASURED) {
                types.entry(&level.gpu_type).or_default().push((*tenant_weight, level.limited));
            }
        }
        let usual = 1.0 / self.prior.within[LIMITED];
        let mut all = BTreeMap::clone(&self.bent);
        for (gpu_type, found) in types {
            let before = all.get(gpu_type).copied().unwrap_or(0.0);
            let spread = |f: &Found| self.prior.own[LIMITED] + f.variance;
            let said: Vec<(TenantWeight, f64)> =
                found.iter().map(|(v, f)| (*v, v.weight / spread(f))).collect();
            let capped = capped(&said, usual, policy);
            let mut mean = before;
            for _ in 0..ROUNDS {
                let off: Vec<(TenantWeight, f64, f64)> =
                    found.iter().zip(&said).map(|((_, f), (v, words))| (*v, *words, f.mean - mean)).collect();
                let (mut sum, mut total) = (usual * before, usual);
                for (i, huber_weights) in huber_weights(&off, policy).into_iter().enumerate() {
                    let weight = said[i].1 * capped[i] * huber_weights;
                    (sum, total) = (sum + weight * found[i].1.mean, total + weight);
                }
                mean = sum / total;
            }
            all.insert(gpu_type.clone(), mean);
        }
        all
    }

    /// Variance of a type's intercept between profiles; large squares are clipped.
    fn type_spread(&self, families: &[Levels<'_>], policy: WeightPolicy) -> f64 {
        let comparing: Vec<&Levels<'_>> =
            families.iter().filter(|f| f.on.len() > 1 && f.tenant_weight.weight > 0.0).collect();
        let words = |f: &Levels<'_>| {
            let informed = f.on.iter().map(|l| l.informed(self.type_variance)).sum::<f64>();
            f.tenant_weight.weight * informed / f.on.len() as f64
        };
        let said: Vec<(TenantWeight, f64)> = comparing.iter().map(|f| (f.tenant_weight, words(f))).collect();
        let capped = capped(&said, PSEUDO, policy);
        let residuals: Vec<Vec<f64>> = comparing.iter().map(|f| self.ratios.residuals(f)).collect();
        let mut found = self.type_variance;
        for _ in 0..ROUNDS {
            let mut squares = (PSEUDO * self.type_variance, PSEUDO);
            for (i, family) in comparing.iter().enumerate() {
                let rows = residuals[i].iter().zip(family.on);
                let square: f64 = rows.map(|(r, l)| (r * r - l.variance).clamp(0.0, FAR * found)).sum();
                let informed = said[i].1 * capped[i];
                squares =
                    (squares.0 + informed * square, squares.1 + informed * (family.on.len() as f64 - 1.0));
            }
            found = (squares.0 / squares.1).clamp(0.004, 0.5);
        }
        found
    }

    /// Outlier score: the largest distance from the others, in standard deviations.
    fn oddness(&self, quantity: Quantity, member: &FittedProfile) -> f64 {
        let first = if quantity == Quantity::Power { 0 } else { 1 };
        let odd = |p: usize| {
            let f = member.found[p];
            let spread = self.prior.own[p] + f.variance;
            if spread > 0.0 { (f.mean - self.prior.mean[p]).abs() / libm::sqrt(spread) } else { 0.0 }
        };
        let family = Levels { size: member.size, tenant_weight: TenantWeight::ONE, on: &member.on };
        let residuals = self.ratios.residuals(&family).into_iter().zip(&member.on);
        let on =
            residuals.map(|(r, l)| r.abs() / libm::sqrt(self.type_variance.max(LIKELY_TYPE) + l.variance));
        (first..P).map(odd).chain(on).fold(0.0, f64::max)
    }

    /// Variance between siblings over variance between all profiles.
    fn sibling_share(&self, members: &[&FittedProfile]) -> f64 {
        let mut models: BTreeMap<&str, Vec<&FittedProfile>> = BTreeMap::new();
        for member in members {
            if let Some(model) = &member.model {
                models.entry(model).or_default().push(member);
            }
        }
        let (mut among, mut all) = (SIBLINGS * 6.0, 6.0);
        for family in models.values().filter(|f| f.len() > 1) {
            for p in 1..P {
                let total = self.prior.own[p];
                let known: Vec<&&FittedProfile> =
                    family.iter().filter(|m| m.found[p].variance < 0.5 * total).collect();
                if known.len() < 2 || total <= 0.0 {
                    continue;
                }
                let n = known.len() as f64;
                let mean = known.iter().map(|m| m.found[p].mean).sum::<f64>() / n;
                let square: f64 =
                    known.iter().map(|m| (m.found[p].mean - mean) * (m.found[p].mean - mean)).sum();
                among += (square / total).min(4.0 * (n - 1.0));
                all += n - 1.0;
            }
        }
        (among / all).clamp(0.1, 1.0)
    }

    /// Prior of a profile; `siblings` are the tenant's other profiles of the same model.
    pub fn expect(&self, quantity: Quantity, size: Size, siblings: &[&FittedProfile]) -> Expected {
        let mut prior = self.prior;
        prior.within[LEVEL] = if self.ratios.is_empty() { UNKNOWN_TYPE } else { self.type_variance };
        let mut by_type: BTreeMap<GpuType, Vec<(f64, f64)>> = BTreeMap::new();
        let mut level = None;
        if !siblings.is_empty() {
            let first = if quantity == Quantity::Power { 0 } else { 1 };
            for p in first..P {
                let among = self.siblings * prior.own[p];
                let (start, sure) = (prior.mean[p], 1.0 / prior.own[p].max(1e-9));
                let found =
                    siblings.iter().map(|m| (m.found[p].mean, 1.0 / (m.found[p].variance + among).max(1e-9)));
                let (mean, total) = pulled(start, sure, &found.collect::<Vec<_>>());
                prior.mean[p] = mean;
                prior.own[p] = among + 1.0 / total;
            }
            for member in siblings.iter().filter(|m| m.on.len() > 1) {
                let family = Levels { size: member.size, tenant_weight: TenantWeight::ONE, on: &member.on };
                for (l, residual) in member.on.iter().zip(self.ratios.residuals(&family)) {
                    let informed = l.informed(self.type_variance);
                    by_type.entry(l.gpu_type.clone()).or_default().push((residual, informed));
                }
            }
            level = Some(level_of(siblings));
            if by_type.len() > 1 {
                prior.within[LEVEL] *= (self.siblings + 1.0 / (1.0 + siblings.len() as f64)).min(1.0);
            }
        }
        // A prior at zero: it pulls a single sibling more than many.
        let of_type = |found: Vec<(f64, f64)>| pulled(0.0, self.siblings, &found).0;
        let siblings = by_type.into_iter().map(|(t, found)| (t, of_type(found))).collect();
        Expected {
            prior,
            ratios: self.ratios.clone(),
            bent: Arc::clone(&self.bent),
            size,
            siblings,
            level,
        }
    }

    /// Variance of a type's intercept if only the analytic prior is known.
    pub fn unknown_type() -> f64 {
        UNKNOWN_TYPE
    }
}

/// Weighted mean with the prior `start` of weight `sure`; and the total weight.
fn pulled(start: f64, sure: f64, found: &[(f64, f64)]) -> (f64, f64) {
    let total = sure + found.iter().map(|(_, weight)| weight).sum::<f64>();
    let sum = sure * start + found.iter().map(|(value, weight)| weight * value).sum::<f64>();
    (sum / total, total)
}

fn level_of(siblings: &[&FittedProfile]) -> Found {
    let n = siblings.len() as f64;
    let mean = siblings.iter().map(|m| m.found[LEVEL].mean).sum::<f64>() / n;
    let off = |m: &FittedProfile| m.found[LEVEL].mean - mean;
    let square: f64 = siblings.iter().map(|m| off(m) * off(m)).sum();
    // As half a sibling off by a factor 2: the same model may have other data.
    Found { mean, variance: (square + 0.5) / n * (1.0 + 1.0 / n) }
}

fn levels<'a>(members: &[&'a FittedProfile], weights_by_tenant: &[TenantWeight]) -> Vec<Levels<'a>> {
    members
        .iter()
        .zip(weights_by_tenant)
        .map(|(m, v)| Levels { size: m.size, tenant_weight: *v, on: &m.on })
        .collect()
}

/// Information of a profile's rows about its parameters and its types.
fn information(member: &FittedProfile, quantity: Quantity) -> f64 {
    let between = quantity.between();
    let informed =
        |p: usize| if between[p] > 0.0 { between[p] / (between[p] + member.found[p].variance) } else { 0.0 };
    let on = member.on.iter().map(|l| l.informed(UNKNOWN_TYPE)).sum::<f64>();
    (1..P).map(informed).sum::<f64>() + on
}

/// Mean and variance of a parameter over profiles with uncertain values: expectation and
/// maximisation.
fn weigh(
    start: f64,
    start_variance: f64,
    found: &[(TenantWeight, Found)],
    policy: WeightPolicy,
) -> (f64, f64) {
    if start_variance <= 0.0 {
        return (start, start_variance);
    }
    let (mut mean, mut variance) = (start, start_variance);
    for _ in 0..ROUNDS {
        let usual = PSEUDO / (2.0 * variance);
        let (mut sum, mut total) = (start * usual, usual);
        let (mut square, mut count) = (PSEUDO * start_variance, PSEUDO);
        let said: Vec<(TenantWeight, f64)> = found
            .iter()
            .map(|(tenant_weight, f)| (*tenant_weight, tenant_weight.weight / (variance + f.variance)))
            .collect();
        let off: Vec<(TenantWeight, f64, f64)> = found
            .iter()
            .zip(&said)
            .map(|((_, f), (tenant_weight, words))| (*tenant_weight, *words, f.mean - mean))
            .collect();
        let capped = capped(&said, usual, policy);
        for (((tenant_weight, f), capped), huber) in found.iter().zip(capped).zip(huber_weights(&off, policy))
        {
            let spread = variance + f.variance;
            let share = tenant_weight.weight * capped;
            (sum, total) = (sum + share * huber * f.mean / spread, total + share * huber / spread);
            // The profile's posterior value: the less information it has, the nearer to the mean.
            let informed = variance / spread;
            let moved = informed * huber * (f.mean - mean);
            square += share * (moved * moved + variance * (1.0 - informed));
            count += share;
        }
        mean = sum / total;
        variance = (square / count).clamp(0.02 * start_variance, 3.0 * start_variance);
    }
    (mean, variance)
}

#[cfg(test)]
mod tests;
