//! Placement effects: what profiles share on one placement beyond physics. Causes are a slow link,
//! boards that share their lanes, or another machine behind the same GPU type.
//!
//! Placements on one node only: between nodes the effect could not be told from a profile's own
//! synchronisation. Fitted from profiles with several placements on a type, each with its own
//! intercept. Effects are shrunk to zero, outliers have Huber weights, and effects within their
//! standard error are dropped.

use std::collections::BTreeMap;
use std::sync::Arc;

use andreas_core::GpuType;

use crate::weight_policy::{TenantWeight, WeightPolicy, capped};

/// Prior standard deviation of an effect.
const USUAL: f64 = 0.15;
/// Effects below this, or below their own standard error, are treated as chance.
const SMALL: f64 = 0.03;
/// Pseudo-count of profiles for the prior when weights are capped.
const BEFORE: f64 = 2.0;
/// Largest effect (log).
const LARGEST: f64 = 1.5;
/// Rows beyond this many standard deviations get less weight.
const HUBER: f64 = 1.0;
/// Mean square of a standard normal value clipped at two.
const WITHIN_TWO: f64 = 0.92;
const ROUNDS: usize = 8;
/// Least total weight of profiles for an effect.
const FAMILIES: f64 = 2.0;
/// Bound on the work: most placements per type.
const MAX_PLACES: usize = 64;

/// Nodes and GPUs in total.
pub(crate) type Place = (u32, u32);

/// A row's residual from its profile's own physics.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlacementResidual {
    pub gpu_type: GpuType,
    pub at: Place,
    /// Log of the time over the physics' value.
    pub residual: f64,
    /// All rows of a placement together have weight one.
    pub weight: f64,
}

/// Effects by type and placement.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Places {
    /// The prior; `found` is relative to it.
    before: Option<Arc<Places>>,
    found: BTreeMap<GpuType, BTreeMap<Place, f64>>,
}

/// Nodes and GPUs of a setting, from their doublings.
pub(crate) fn at(nodes: f64, gpus: f64) -> Place {
    let count = |doublings: f64| libm::round(libm::exp2(doublings.clamp(0.0, 16.0))) as u32;
    (count(nodes), count(gpus))
}

impl Places {
    /// From profiles with their weights, relative to the prior.
    pub fn fit(
        before: &Arc<Self>,
        families: &[(TenantWeight, &[PlacementResidual])],
        policy: WeightPolicy,
    ) -> Self {
        let mut types: Vec<&GpuType> =
            families.iter().flat_map(|(_, rows)| rows.iter().map(|r| &r.gpu_type)).collect();
        types.sort();
        types.dedup();
        let of_type = |gpu_type: &GpuType| {
            let on = |rows: &'_ [PlacementResidual]| {
                let here = rows.iter().filter(|r| r.gpu_type == *gpu_type);
                let beyond = |r: &PlacementResidual| PlacementResidual {
                    residual: r.residual - before.of(gpu_type, r.at),
                    ..r.clone()
                };
                here.map(beyond).collect::<Vec<_>>()
            };
            let all = families.iter().map(|(tenant_weight, rows)| (*tenant_weight, on(rows)));
            // One placement alone cannot be told from the profile's intercept.
            let several = |rows: &[PlacementResidual]| rows.iter().any(|r| r.at != rows[0].at);
            let telling: Vec<(TenantWeight, Vec<PlacementResidual>)> =
                all.filter(|(tenant_weight, rows)| tenant_weight.weight > 0.0 && several(rows)).collect();
            shared(&telling, policy)
        };
        let found =
            types.into_iter().map(|t| (t.clone(), of_type(t))).filter(|(_, shared)| !shared.is_empty());
        Self { found: found.collect(), before: Some(Arc::clone(before)).filter(|b| **b != Self::default()) }
    }

    /// Effect of a placement: linear in doublings between known ones with as many nodes, constant
    /// beyond them.
    pub fn of(&self, gpu_type: &GpuType, at: Place) -> f64 {
        let before = self.before.as_ref().map_or(0.0, |b| b.of(gpu_type, at));
        before + self.found.get(gpu_type).map_or(0.0, |shared| between(shared, at))
    }
}

fn between(shared: &BTreeMap<Place, f64>, at: Place) -> f64 {
    let below = shared.range((at.0, 0)..=at).next_back();
    let above = shared.range(at..=(at.0, u32::MAX)).next();
    match (below, above) {
        (Some((a, x)), Some((b, y))) if a.1 < b.1 => {
            let log = |to: u32| libm::log2(f64::from(to) / f64::from(a.1));
            x + (y - x) * log(at.1) / log(b.1)
        }
        (Some((_, x)), _) | (None, Some((_, x))) => *x,
        (None, None) => 0.0,
    }
}

fn shared(families: &[(TenantWeight, Vec<PlacementResidual>)], policy: WeightPolicy) -> BTreeMap<Place, f64> {
    let mut said: BTreeMap<Place, Vec<(TenantWeight, f64)>> = BTreeMap::new();
    for (tenant_weight, rows) in families {
        for row in rows {
            said.entry(row.at).or_default().push((*tenant_weight, tenant_weight.weight * row.weight));
        }
    }
    // Cap factor per placement and tenant.
    let mut parts: BTreeMap<(Place, usize), f64> = BTreeMap::new();
    for (at, said) in &said {
        let capped = capped(said, BEFORE, policy);
        parts.extend(
            said.iter().zip(capped).map(|((tenant_weight, _), part)| ((*at, tenant_weight.of), part)),
        );
    }
    let full = |tenant_weight: &TenantWeight, row: &PlacementResidual| {
        tenant_weight.weight * row.weight * parts[&(row.at, tenant_weight.of)]
    };
    let mut weights: BTreeMap<Place, f64> = BTreeMap::new();
    for (tenant_weight, rows) in families {
        for row in rows {
            *weights.entry(row.at).or_default() += full(tenant_weight, row);
        }
    }
    let mut found: BTreeMap<Place, f64> = weights.keys().take(MAX_PLACES).map(|at| (*at, 0.0)).collect();
    let mut spread = USUAL * USUAL;
    let mut errors: BTreeMap<Place, f64> = BTreeMap::new();
    for _ in 0..ROUNDS {
        let mut sums: BTreeMap<Place, (f64, f64)> = BTreeMap::new();
        let mut squares = (1e-6, 1e-6);
        for (tenant_weight, rows) in families {
            let of = |row: &PlacementResidual| found.get(&row.at).copied().unwrap_or(0.0);
            let total: f64 = rows.iter().map(|r| r.weight).sum();
            let level = rows.iter().map(|r| r.weight * (r.residual - of(r))).sum::<f64>() / total.max(1e-9);
            for row in rows {
                let off = (row.residual - of(row) - level).abs();
                let most = HUBER * libm::sqrt(spread);
                let full = full(tenant_weight, row);
                let near = off.min(2.0 * most);
                squares = (squares.0 + full * near * near, squares.1 + WITHIN_TWO * full);
                let weight = full * if off > most { most / off } else { 1.0 };
                let sum = sums.entry(row.at).or_default();
                sum.0 += weight * (row.residual - level);
                sum.1 += weight;
            }
        }
        spread = (squares.0 / squares.1).clamp(1e-4, 0.25);
        for (at, value) in &mut found {
            let (sum, square) = sums.get(at).copied().unwrap_or_default();
            errors.insert(*at, libm::sqrt(spread / square.max(1e-9)));
            *value = (sum / (square + spread / (USUAL * USUAL))).clamp(-LARGEST, LARGEST);
        }
    }
    for (at, value) in &mut found {
        let enough = weights.get(at).is_some_and(|w| *w >= FAMILIES);
        let chance = (errors.get(at).copied().unwrap_or(1.0)).max(SMALL);
        *value = if enough { value.signum() * (value.abs() - chance).max(0.0) } else { 0.0 };
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(level: f64, off: f64) -> Vec<PlacementResidual> {
        let row = |gpus: u32, residual: f64| PlacementResidual {
            gpu_type: "T4".into(),
            at: (1, gpus),
            residual: level + residual,
            weight: 1.0,
        };
        vec![row(1, 0.01), row(2, off), row(4, -0.01), row(8, 0.0)]
    }

    #[test]
    fn what_most_families_show_on_a_placement_is_shared_and_one_liar_changes_little() {
        let mut families: Vec<Vec<PlacementResidual>> = (0..8).map(|i| family(f64::from(i), 0.4)).collect();
        let fit = |families: &[Vec<PlacementResidual>]| {
            let tenant_weight = |of| TenantWeight { of, weight: 1.0 };
            let all: Vec<(TenantWeight, &[PlacementResidual])> =
                families.iter().enumerate().map(|(of, rows)| (tenant_weight(of), rows.as_slice())).collect();
            Places::fit(&Arc::default(), &all, WeightPolicy::within_tenant(families.len()))
        };
        let honest = fit(&families);
        let (two, eight) = (honest.of(&"T4".into(), (1, 2)), honest.of(&"T4".into(), (1, 8)));
        assert!((0.25..0.42).contains(&(two - eight)), "{two} {eight}");
        let between = honest.of(&"T4".into(), (1, 3));
        assert!(between < two && between > honest.of(&"T4".into(), (1, 4)), "{between}");
        assert_eq!(honest.of(&"T4".into(), (2, 2)), 0.0);
        families.push(family(0.0, -9.0));
        let after = fit(&families);
        let moved = after.of(&"T4".into(), (1, 2)) - after.of(&"T4".into(), (1, 8)) - (two - eight);
        assert!(moved.abs() < 0.08, "{moved}");
    }

    #[test]
    fn one_family_alone_shares_nothing() {
        let rows = family(0.0, 0.5);
        assert_eq!(
            Places::fit(
                &Arc::default(),
                &[(TenantWeight::ONE, &rows)],
                WeightPolicy::within_tenant(1)
            )
            .of(&"T4".into(), (1, 2)),
            0.0
        );
    }
}
