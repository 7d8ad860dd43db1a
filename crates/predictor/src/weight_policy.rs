//! Caps on the weight of one profile in a pooled estimate.
//!
//! Two bounds. First, a profile has at most the median profile's total weight ([`shares`]). Second,
//! no profile decides more than its share of any single parameter ([`capped`]).

use std::collections::BTreeMap;

/// From this many on, an outlier may be false rather than rare.
pub(crate) const MANY: usize = 8;
/// Most evidence of one profile of a tenant, in multiples of its share: below [`MANY`] profiles,
/// and from there on.
const LOUDEST: (f64, f64) = (2.0, 1.0);
/// Huber thresholds in standard deviations: below [`MANY`] profiles, and from there on.
const FURTHEST: (f64, f64) = (1.5, 0.5);
/// Rounds of capping: a capped weight raises the share of the others.
const ROUNDS: usize = 24;

/// How profiles are weighted in one fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WeightPolicy {
    /// Largest share of a namespace in one parameter.
    pub most: f64,
    /// Huber threshold, standard deviations.
    pub furthest: f64,
    /// Pseudo-count of profiles for the prior fit of type ratios.
    pub anchor: f64,
}

impl WeightPolicy {
    /// Profiles of one tenant, each with its own weight.
    pub fn within_tenant(among: usize) -> Self {
        let (loudest, furthest) =
            if among < MANY { (LOUDEST.0, FURTHEST.0) } else { (LOUDEST.1, FURTHEST.1) };
        Self { most: loudest / among.max(1) as f64, furthest, anchor: 0.0 }
    }
}

/// Group that a profile belongs to (index), and the profile's weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TenantWeight {
    pub of: usize,
    pub weight: f64,
}

impl TenantWeight {
    /// A single profile.
    pub const ONE: Self = Self { of: 0, weight: 1.0 };
}

/// Weights of profiles, from their namespaces and their information.
pub(crate) fn shares(families: &[(&str, f64)]) -> Vec<TenantWeight> {
    let mut by_namespace: BTreeMap<&str, f64> = BTreeMap::new();
    for (namespace, information) in families {
        *by_namespace.entry(namespace).or_default() += information;
    }
    let mut sizes: Vec<f64> = by_namespace.values().copied().collect();
    sizes.sort_by(f64::total_cmp);
    let middle = sizes.get(sizes.len() / 2).copied().unwrap_or(0.0);
    let numbers: BTreeMap<&str, usize> = by_namespace.keys().copied().zip(0..).collect();
    let tenant_weight = |(namespace, _): &(&str, f64)| {
        let weight = (middle / by_namespace[namespace].max(1e-9)).min(1.0);
        TenantWeight { of: numbers[namespace], weight }
    };
    families.iter().map(tenant_weight).collect()
}

/// Cap factors of profiles by their evidence on one parameter; `known` is the prior's evidence.
pub(crate) fn capped(
    said: &[(TenantWeight, f64)],
    known: f64,
    WeightPolicy { most, .. }: WeightPolicy,
) -> Vec<f64> {
    let mut by_namespace: BTreeMap<usize, f64> = BTreeMap::new();
    for (tenant_weight, words) in said {
        *by_namespace.entry(tenant_weight.of).or_default() += words;
    }
    let mut total = known + by_namespace.values().sum::<f64>();
    if by_namespace.values().all(|words| *words <= most * total) {
        return vec![1.0; said.len()];
    }
    for _ in 0..ROUNDS {
        let before = total;
        total = known + by_namespace.values().map(|words| words.min(most * total)).sum::<f64>();
        if (before - total).abs() <= 1e-12 * total {
            break;
        }
    }
    said.iter()
        .map(|(tenant_weight, _)| (most * total / by_namespace[&tenant_weight.of].max(1e-12)).min(1.0))
        .collect()
}

/// Huber weights by namespace. Each row has a weight (one over a variance) and a residual. The rows
/// of a namespace are judged together, so that many profiles with the same error count as one
/// outlier.
pub(crate) fn huber_weights(
    rows: &[(TenantWeight, f64, f64)],
    WeightPolicy { furthest, .. }: WeightPolicy,
) -> Vec<f64> {
    let mut by_namespace: BTreeMap<usize, (f64, f64)> = BTreeMap::new();
    for (tenant_weight, weight, off) in rows {
        let sums = by_namespace.entry(tenant_weight.of).or_default();
        *sums = (sums.0 + weight, sums.1 + weight * off);
    }
    let of = |(tenant_weight, ..): &(TenantWeight, f64, f64)| {
        let (weight, sum) = by_namespace[&tenant_weight.of];
        let off = sum.abs() / libm::sqrt(weight.max(1e-12));
        if off > furthest { furthest / off } else { 1.0 }
    };
    rows.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(words: &[(usize, f64)], policy: WeightPolicy) -> Vec<f64> {
        let tenant_weight = |(of, words): &(usize, f64)| (TenantWeight { of: *of, weight: 1.0 }, *words);
        let said: Vec<(TenantWeight, f64)> = words.iter().map(tenant_weight).collect();
        capped(&said, 4.0, policy).iter().zip(&said).map(|(capped, (_, words))| capped * words).collect()
    }

    #[test]
    fn within_a_tenant_each_family_counts() {
        assert!((said(&[(0, 3.0)], WeightPolicy::within_tenant(2))[0] - 3.0).abs() < 1e-9);
        let all: Vec<(usize, f64)> = (0..20).map(|of| (of, if of == 0 { 50.0 } else { 1.0 })).collect();
        let said = said(&all, WeightPolicy::within_tenant(20));
        assert!((said[1] - 1.0).abs() < 1e-9 && (1.0..1.5).contains(&said[0]), "{said:?}");
    }

    #[test]
    fn many_families_of_one_mind_are_as_far_off_as_their_namespace() {
        let tenant_weight = |of| TenantWeight { of, weight: 1.0 };
        let mut rows: Vec<(TenantWeight, f64, f64)> = (0..4).map(|_| (tenant_weight(0), 1.0, 0.4)).collect();
        rows.push((tenant_weight(1), 1.0, 0.4));
        // Four equal residuals together are off by twice as many standard deviations as one.
        let huber_weights =
            huber_weights(&rows, WeightPolicy { furthest: 0.5, ..WeightPolicy::within_tenant(8) });
        assert!((huber_weights[0] - 0.625).abs() < 1e-9 && huber_weights[4] == 1.0, "{huber_weights:?}");
    }

    #[test]
    fn a_namespace_weighs_what_the_middle_one_does() {
        let families: Vec<(&str, f64)> =
            [("a", 1.0), ("b", 1.0), ("c", 1.0)].into_iter().chain((0..50).map(|_| ("z", 8.0))).collect();
        let weights_by_tenant = shares(&families);
        let z: f64 = weights_by_tenant.iter().filter(|v| v.of == 3).map(|v| 8.0 * v.weight).sum();
        assert!((z - 1.0).abs() < 1e-9 && weights_by_tenant[0].weight == 1.0);
    }
}
