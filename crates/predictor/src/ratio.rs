//! Ratios of GPU types, from profiles that ran on several: linfa's elastic net on residuals of the
//! analytic prior.
//!
//! Rows are intercepts of one profile on one type, relative to the analytic prior. They are
//! **centred within the profile**: epochs of different profiles are not comparable. Columns: the
//! type, and the extra gain of a large model or batch from a strong board. The penalty shrinks to
//! the analytic prior. An earlier fit counts as pseudo-profiles, outlying namespaces have Huber
//! weights, and weights are capped (`weight_policy`). Trends over sizes are fitted within a tenant
//! only.

use std::collections::BTreeMap;
use std::sync::Arc;

use andreas_core::GpuType;

use crate::posterior::Found;
use crate::regression::{elastic_net, weighted_median};
use crate::weight_policy::{TenantWeight, WeightPolicy, capped};

/// Bounds on the work: rows and types of one fit.
const MAX_ROWS: usize = 800;
const MAX_TYPES: usize = 24;
/// Scale of the size columns: a small scale makes the penalty on sizes stronger than on types.
const SIZES: f64 = 0.2;
/// Least total weight of profiles for a trend over sizes.
const FEWEST_SIZES: f64 = 6.0;
/// Sizes are clipped at this many median distances from the median.
const SPREADS: f64 = 3.0;
/// Residuals are clipped at this many median deviations, in this many rounds.
const HUBER: f64 = 0.7;
const PULLS: usize = 6;

/// A profile's intercept on a type relative to the analytic prior (log), and its covariates.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Level {
    pub gpu_type: GpuType,
    /// The analytic prior's log for the type.
    pub law: f64,
    pub level: f64,
    /// Variance of `level` from its own rows.
    pub variance: f64,
    /// Time: limit exponent on the type, beyond the mean of all.
    pub limited: Found,
}

/// An intercept of this variance has weight one half.
const HALF: f64 = 0.05;

impl Level {
    /// Reliability (shrinkage factor) of the rows, given the variance between profiles.
    pub fn informed(&self, variance: f64) -> f64 {
        variance / (variance + self.variance)
    }
}

/// One profile on its types.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Levels<'a> {
    pub size: Size,
    pub tenant_weight: TenantWeight,
    pub on: &'a [Level],
}

/// Covariates of the type ratios: logs of parameters and of the reference batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Size {
    pub parameters: Option<f64>,
    pub batch: Option<f64>,
}

/// Fitted ratios relative to the analytic prior.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Ratios {
    /// The prior fit; the rest is relative to it.
    before: Option<Arc<Ratios>>,
    by_type: BTreeMap<GpuType, f64>,
    size: [f64; 2],
    /// Median and clipping range of the sizes in the fit: no extrapolation, and no outlier decides
    /// the trend.
    sizes: [Sizes; 2],
}

/// Range of sizes of a trend (logs).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sizes {
    middle: f64,
    furthest: f64,
}

impl Sizes {
    /// From sizes with weights; `None` below the total weight `fewest`.
    pub fn of(known: Vec<(f64, f64)>, fewest: f64) -> Option<Self> {
        if known.iter().map(|(_, weight)| weight).sum::<f64>() < fewest {
            return None;
        }
        let middle = weighted_median(known.clone())?;
        let away =
            weighted_median(known.into_iter().map(|(v, weight)| ((v - middle).abs(), weight)).collect())?;
        Some(Self { middle, furthest: SPREADS * away })
    }

    /// Clipped distance of a size from the median.
    pub fn off(self, size: f64) -> f64 {
        (size - self.middle).clamp(-self.furthest, self.furthest)
    }
}

impl Ratios {
    /// Whether profiles ran on this type beside others.
    pub fn covers(&self, gpu_type: &GpuType) -> bool {
        self.by_type.contains_key(gpu_type) || self.before.as_ref().is_some_and(|b| b.covers(gpu_type))
    }

    /// Whether no types were compared.
    pub fn is_empty(&self) -> bool {
        self.by_type.is_empty() && self.before.as_ref().is_none_or(|b| b.is_empty())
    }

    fn sizes(&self, size: Size, law: f64) -> [f64; 2] {
        let off = |value: Option<f64>, among: Sizes| value.map_or(0.0, |v| SIZES * among.off(v) * law);
        [off(size.parameters, self.sizes[0]), off(size.batch, self.sizes[1])]
    }

    /// Correction to the analytic prior's log for a type.
    pub fn of(&self, gpu_type: &GpuType, law: f64, size: Size) -> f64 {
        let sizes = self.sizes(size, law);
        let by_size = if self.by_type.contains_key(gpu_type) {
            self.size[0] * sizes[0] + self.size[1] * sizes[1]
        } else {
            0.0
        };
        let before = self.before.as_ref().map_or(0.0, |b| b.of(gpu_type, law, size));
        before + self.by_type.get(gpu_type).copied().unwrap_or(0.0) + by_size
    }

    /// From profiles on at least two types each, relative to the prior fit. Without such profiles,
    /// the prior fit.
    pub fn fit(before: &Self, families: &[Levels<'_>], policy: WeightPolicy) -> Self {
        let before =
            Self { before: (!before.is_empty()).then(|| Arc::new(before.clone())), ..Self::default() };
        before.beyond(families, policy).unwrap_or(before)
    }

    fn beyond(&self, families: &[Levels<'_>], policy: WeightPolicy) -> Option<Self> {
        let mut comparing: Vec<&Levels<'_>> = families.iter().filter(|f| f.on.len() > 1).collect();
        // Profiles with the lowest weight are dropped first: those of tenants with many.
        comparing.sort_by(|a, b| b.tenant_weight.weight.total_cmp(&a.tenant_weight.weight));
        while comparing.iter().map(|f| f.on.len()).sum::<usize>() > MAX_ROWS {
            comparing.pop();
        }
        let mut seen: BTreeMap<&GpuType, f64> = BTreeMap::new();
        for (weight, level) in comparing.iter().flat_map(|f| f.on.iter().map(|l| (f.tenant_weight.weight, l)))
        {
            *seen.entry(&level.gpu_type).or_default() += weight;
        }
        // Rare types are dropped first.
        let mut types: Vec<(&GpuType, f64)> = seen.into_iter().collect();
        types.sort_by(|a, b| b.1.total_cmp(&a.1));
        types.truncate(MAX_TYPES);
        let mut types: Vec<&GpuType> = types.into_iter().map(|(t, _)| t).collect();
        types.sort();
        if types.len() < 2 {
            return None;
        }
        let among = |of: fn(&Size) -> Option<f64>| {
            Sizes::of(
                comparing.iter().filter_map(|f| Some((of(&f.size)?, f.tenant_weight.weight))).collect(),
                FEWEST_SIZES,
            )
        };
        let sizes = [among(|s| s.parameters), among(|s| s.batch)];
        let mut it = Self { sizes: sizes.map(Option::unwrap_or_default), ..self.clone() };
        let used = |size: Size| Size {
            parameters: size.parameters.filter(|_| sizes[0].is_some()),
            batch: size.batch.filter(|_| sizes[1].is_some()),
        };
        let width = 2 + types.len();
        let row = |it: &Self, family: &Levels<'_>, level: &Level| {
            let mut x = vec![0.0; width];
            x[..2].copy_from_slice(&it.sizes(used(family.size), level.law));
            if let Some(i) = types.iter().position(|t| **t == level.gpu_type) {
                x[2 + i] = 1.0;
            }
            x
        };
        let mut targets: Vec<Vec<f64>> = comparing.iter().map(|f| self.rests(f)).collect();
        let words =
            |f: &Levels<'_>| f.tenant_weight.weight * f.on.iter().map(|l| l.informed(HALF)).sum::<f64>();
        let said: Vec<(TenantWeight, f64)> = comparing.iter().map(|f| (f.tenant_weight, words(f))).collect();
        let known = policy.anchor * types.len() as f64;
        let capped = capped(&said, known, policy);
        let weights: Vec<f64> =
            capped.iter().zip(&comparing).map(|(capped, f)| capped * f.tenant_weight.weight).collect();
        // linfa's penalty is relative to a mean over rows: low-weight rows must not increase it.
        let anchors = if policy.anchor > 0.0 { types.len() } else { 0 };
        let count = comparing.iter().map(|f| f.on.len()).sum::<usize>() + anchors;
        let heavy: f64 =
            weights.iter().zip(&comparing).map(|(w, f)| w * f.on.len() as f64).sum::<f64>() + known;
        let scale = count as f64 / heavy.max(1e-9);
        // One or two profiles show no outlier.
        let pulls = if comparing.len() < 3 { 1 } else { PULLS };
        for pull in 0..pulls {
            let (mut xs, mut ys) = (Vec::new(), Vec::new());
            for ((family, capped), targets) in comparing.iter().zip(&weights).zip(&targets) {
                let rows: Vec<Vec<f64>> = family.on.iter().map(|level| row(&it, family, level)).collect();
                let weights: Vec<f64> = family.on.iter().map(|l| l.informed(HALF)).collect();
                let n: f64 = weights.iter().sum();
                let mean_y = weights.iter().zip(targets).map(|(w, y)| w * y).sum::<f64>() / n;
                let mean = |i: usize| weights.iter().zip(&rows).map(|(w, x)| w * x[i]).sum::<f64>() / n;
                let mean_x: Vec<f64> = (0..width).map(mean).collect();
                for ((x, y), weight) in rows.iter().zip(targets).zip(&weights) {
                    let root = libm::sqrt(scale * capped * weight);
                    xs.extend(x.iter().zip(&mean_x).map(|(a, m)| (a - m) * root));
                    ys.push((y - mean_y) * root);
                }
            }
            // Pseudo-profiles on all types without deviation.
            for anchor in 0..anchors {
                let root = libm::sqrt(scale * policy.anchor);
                let at = |i: usize| if i == 2 + anchor { 1.0 } else { 0.0 } - 1.0 / types.len() as f64;
                xs.extend((0..width).map(|i| if i < 2 { 0.0 } else { at(i) * root }));
                ys.push(0.0);
            }
            let found = elastic_net(xs, width, ys)?;
            it.size = [found[0], found[1]];
            it.by_type = types.iter().map(|t| (**t).clone()).zip(found[2..].iter().copied()).collect();
            if pull + 1 < pulls {
                pull_in((self, &it), &comparing, &mut targets, policy);
            }
        }
        Some(it)
    }

    /// A profile's intercepts relative to this fit.
    fn rests(&self, family: &Levels<'_>) -> Vec<f64> {
        family.on.iter().map(|l| l.level - self.of(&l.gpu_type, l.law, family.size)).collect()
    }

    /// A profile's centred residuals.
    pub fn residuals(&self, family: &Levels<'_>) -> Vec<f64> {
        let rest = self.rests(family);
        let weights = family.on.iter().map(|l| l.informed(HALF));
        let total: f64 = weights.clone().sum();
        let mean = rest.iter().zip(weights).map(|(r, w)| r * w).sum::<f64>() / total.max(1e-12);
        rest.into_iter().map(|r| r - mean).collect()
    }
}

/// Clips outlying namespaces per type, all their profiles together.
fn pull_in(
    (before, fit): (&Ratios, &Ratios),
    families: &[&Levels<'_>],
    targets: &mut [Vec<f64>],
    policy: WeightPolicy,
) {
    let residuals: Vec<Vec<f64>> = families.iter().map(|f| fit.residuals(f)).collect();
    let mut off: BTreeMap<(usize, &GpuType), (f64, f64)> = BTreeMap::new();
    for (family, residuals) in families.iter().zip(&residuals) {
        for (level, residual) in family.on.iter().zip(residuals) {
            let (sum, weight) = off.entry((family.tenant_weight.of, &level.gpu_type)).or_default();
            *sum += level.informed(HALF) * residual;
            *weight += level.informed(HALF);
        }
    }
    let off: BTreeMap<_, f64> =
        off.into_iter().map(|(at, (sum, weight))| (at, sum / weight.max(1e-12))).collect();
    let types = fit.by_type.len();
    // Pseudo-profiles have residual 0: a single other tenant must not set the scale.
    let anchors = std::iter::repeat_n(0.0, (policy.anchor * types as f64) as usize);
    let mut sizes: Vec<f64> = off.values().map(|r| r.abs()).chain(anchors).collect();
    sizes.sort_by(f64::total_cmp);
    let most = HUBER * sizes.get(sizes.len() / 2).copied().unwrap_or(0.0).max(0.02);
    for (family, targets) in families.iter().zip(targets) {
        for ((level, rest), target) in family.on.iter().zip(before.rests(family)).zip(targets) {
            let off = off[&(family.tenant_weight.of, &level.gpu_type)];
            *target = rest - off + off.clamp(-most, most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(fast: f64, slow: f64) -> Vec<Level> {
        let on = |t: &str, law, level| Level {
            gpu_type: t.into(),
            law,
            level,
            variance: 0.01,
            limited: Found::default(),
        };
        vec![on("fast", -0.2, fast), on("slow", 0.8, slow)]
    }

    #[test]
    fn types_are_compared_within_families_and_one_liar_changes_little() {
        let families: Vec<Vec<Level>> =
            (0..20).map(|i| levels(f64::from(i), f64::from(i) + 0.5 + 0.01 * f64::from(i % 3))).collect();
        let fit = |extra: Option<Vec<Level>>| {
            let all: Vec<Vec<Level>> = families.iter().cloned().chain(extra).collect();
            let tenant_weight = |of| TenantWeight { of, weight: 1.0 };
            let all: Vec<Levels<'_>> = all
                .iter()
                .enumerate()
                .map(|(of, on)| Levels { size: Size::default(), tenant_weight: tenant_weight(of), on })
                .collect();
            let it = Ratios::fit(&Ratios::default(), &all, WeightPolicy::within_tenant(all.len()));
            it.of(&"slow".into(), 0.8, Size::default()) - it.of(&"fast".into(), -0.2, Size::default())
        };
        let honest = fit(None);
        assert!((honest - 0.5).abs() < 0.04, "{honest}");
        assert!((fit(Some(levels(0.0, -8.0))) - honest).abs() < 0.02);
        let one_type = levels(1.0, 1.0).remove(0);
        assert_eq!(
            Ratios::fit(
                &Ratios::default(),
                &[Levels { size: Size::default(), tenant_weight: TenantWeight::ONE, on: &[one_type] }],
                WeightPolicy::within_tenant(1),
            ),
            Ratios::default()
        );
    }
}
