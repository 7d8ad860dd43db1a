//! Who is heard how much where families teach each other: nobody decides more than a part of anything.
//!
//! Two bounds. Over all, a namespace weighs what the middle one does, however many families it has and however sure they are
//! ([`shares`]). And of each single thing that is learnt, however few know of it, it says its part at most ([`capped`]): among
//! strangers a sixty-fourth, so that what few namespaces know stays near to what is thought without them; at home, and in a table that
//! somebody brought, as much as it knows beside the others.

use std::collections::BTreeMap;

/// Namespaces from which on one may be a lie rather than a rare thing.
pub(crate) const MANY: usize = 8;
/// How many times its part a family of a table may say of one thing: among few, and among many.
const LOUDEST: (f64, f64) = (2.0, 1.0);
/// What a strange namespace may decide of one thing: several things come together in one prediction.
const TENANT_SHARE: f64 = 1.0 / 64.0;
/// Who is further off than this many standard deviations counts less: among few, where an odd one is rather a rare one, and among
/// many or strangers, where it may be a lie.
const FURTHEST: (f64, f64) = (1.5, 0.5);
/// Families that what was thought before counts for, where types are compared.
const ANCHOR: f64 = 4.0;
/// Rounds of lowering voices: who is lowered makes the others louder.
const ROUNDS: usize = 24;

/// How families are heard in one fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WeightPolicy {
    /// What a namespace may decide of one thing.
    pub most: f64,
    /// Beyond so many standard deviations it counts less.
    pub furthest: f64,
    /// Families that what was thought before counts for, where types are compared.
    pub anchor: f64,
    /// Namespaces that know nothing of each other. No trend over sizes of models and batches is looked for then: whoever lies far out
    /// would be it.
    pub isolated: bool,
}

impl WeightPolicy {
    /// Families of one owner: each of so many counts for itself. `known` tells whether something was known before them.
    pub fn within_tenant(among: usize, known: bool) -> Self {
        let (loudest, furthest) =
            if among < MANY { (LOUDEST.0, FURTHEST.0) } else { (LOUDEST.1, FURTHEST.1) };
        let anchor = if known { ANCHOR } else { 0.0 };
        Self { most: loudest / among.max(1) as f64, furthest, anchor, isolated: false }
    }

    /// Namespaces that are strangers to each other.
    pub fn between_tenants() -> Self {
        Self { most: TENANT_SHARE, furthest: FURTHEST.1, anchor: ANCHOR, isolated: true }
    }
}

/// Who a family speaks for (a number), and how much the family weighs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TenantWeight {
    pub of: usize,
    pub weight: f64,
}

impl TenantWeight {
    /// Somebody alone.
    pub const ONE: Self = Self { of: 0, weight: 1.0 };
}

/// Voices of families, by their namespaces and how much they know in all.
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

/// What each family's word is multiplied with, by how much each says of one thing; `known` is what is known without them.
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

/// What each row's word is multiplied with where a namespace as a whole is off: rows have their weight (one over a variance) and
/// what they are off by. Far off a namespace weighs less (Huber): its rows together, for many of one
/// mind must not pass for many.
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
    fn another_tenant_decides_at_most_a_sixty_fourth() {
        // Namespaces that say one each, and one that says a thousand in ten families.
        for isolated in [0, 3, 20, 100] {
            let mut words: Vec<(usize, f64)> = (0..isolated).map(|of| (of, 1.0)).collect();
            words.extend((0..10).map(|_| (isolated, 100.0)));
            let said = said(&words, WeightPolicy::between_tenants());
            let (honest, loud): (f64, f64) = (said[..isolated].iter().sum(), said[isolated..].iter().sum());
            assert!(loud / (loud + honest + 4.0) < TENANT_SHARE + 1e-6, "{isolated}: {loud} {honest}");
        }
    }

    #[test]
    fn within_a_tenant_each_family_counts() {
        assert!((said(&[(0, 3.0)], WeightPolicy::within_tenant(2, false))[0] - 3.0).abs() < 1e-9);
        let all: Vec<(usize, f64)> = (0..20).map(|of| (of, if of == 0 { 50.0 } else { 1.0 })).collect();
        let said = said(&all, WeightPolicy::within_tenant(20, false));
        assert!((said[1] - 1.0).abs() < 1e-9 && (1.0..1.5).contains(&said[0]), "{said:?}");
    }

    #[test]
    fn many_families_of_one_mind_are_as_far_off_as_their_namespace() {
        let tenant_weight = |of| TenantWeight { of, weight: 1.0 };
        let mut rows: Vec<(TenantWeight, f64, f64)> = (0..4).map(|_| (tenant_weight(0), 1.0, 0.4)).collect();
        rows.push((tenant_weight(1), 1.0, 0.4));
        // Four that are off by as much are off by twice as many standard deviations as one.
        let huber_weights =
            huber_weights(&rows, WeightPolicy { furthest: 0.5, ..WeightPolicy::between_tenants() });
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
