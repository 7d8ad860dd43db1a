//! How GPU types compare, from families that ran on several: linfa's elastic net on what the law misses.
//!
//! Rows are levels of one family on one type against the law, **centred within the family**: an epoch of one family
//! has nothing to do with an epoch of another. Columns: the type, and how much more a large model or batch gains from a
//! strong board. The penalty pulls towards the law; what was thought before counts as so many families,
//! namespaces far off what the others say are pulled in (Huber), and none is heard more than its part (`weights_by_tenant`). Trends over sizes
//! are looked for among an owner's families only.

use std::collections::BTreeMap;
use std::sync::Arc;

use andreas_core::GpuType;

use crate::posterior::Found;
use crate::regression::{elastic_net, weighted_median};
use crate::weight_policy::{TenantWeight, WeightPolicy, capped};

/// Bounds on the work: rows of one fit, types told apart.
const MAX_ROWS: usize = 800;
const MAX_TYPES: usize = 24;
/// Sizes are told less than types: small columns, dear coefficients.
const SIZES: f64 = 0.2;
/// Families, by weight, that a trend over sizes takes at least.
const FEWEST_SIZES: f64 = 6.0;
/// Sizes further than so many median distances from the middle one count as if they were there.
const SPREADS: f64 = 3.0;
/// Residuals beyond this many median deviations are pulled in, this many times over.
const HUBER: f64 = 0.7;
const PULLS: usize = 6;

/// A family's level on a type beyond the law (log), and what may bear on it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Level {
    pub gpu_type: GpuType,
    /// The law's log for the type: how strong it is thought to be.
    pub law: f64,
    pub level: f64,
    /// Of what its own rows say.
    pub variance: f64,
    /// Time: how a limit stretches it there, beyond the mean of all.
    pub limited: Found,
}

/// A level of this variance counts half.
const HALF: f64 = 0.05;

impl Level {
    /// How much the rows say of it beside what families differ by.
    pub fn informed(&self, variance: f64) -> f64 {
        variance / (variance + self.variance)
    }
}

/// One family on its types.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Levels<'a> {
    pub size: Size,
    pub tenant_weight: TenantWeight,
    pub on: &'a [Level],
}

/// What bears on the ratio of types: logs of parameters and of the usual batch, 0 where unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Size {
    pub parameters: Option<f64>,
    pub batch: Option<f64>,
    /// Log of the samples of an epoch.
    pub samples: Option<f64>,
}

/// Samples of an epoch where nobody says.
const EPOCH_SAMPLES: f64 = 11.5;

impl Size {
    /// Log of the parameters over the time of a step, `base` being that of an epoch.
    pub fn intensity(self, base: f64) -> Option<f64> {
        Some(self.parameters? - (base - self.samples.unwrap_or(EPOCH_SAMPLES) + self.batch?))
    }
}

/// What the families show beyond the law.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Ratios {
    /// What was thought before them; the rest is beyond it.
    before: Option<Arc<Ratios>>,
    by_type: BTreeMap<GpuType, f64>,
    size: [f64; 2],
    /// The middle size and how far from it counts, of those that were compared: beyond them a trend is a guess, and one family far
    /// out would be the trend.
    sizes: [Sizes; 2],
}

/// Where sizes lie that a trend is found over (logs).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sizes {
    middle: f64,
    furthest: f64,
}

impl Sizes {
    /// Of sizes with their weights; `None` where fewer tell than asked: no trend is told from chance then.
    pub fn of(known: Vec<(f64, f64)>, fewest: f64) -> Option<Self> {
        if known.iter().map(|(_, weight)| weight).sum::<f64>() < fewest {
            return None;
        }
        let middle = weighted_median(known.clone())?;
        let away =
            weighted_median(known.into_iter().map(|(v, weight)| ((v - middle).abs(), weight)).collect())?;
        Some(Self { middle, furthest: SPREADS * away })
    }

    /// How far a size is from the middle one.
    pub fn off(self, size: f64) -> f64 {
        (size - self.middle).clamp(-self.furthest, self.furthest)
    }
}

impl Ratios {
    /// Whether families ran on this type beside others.
    pub fn covers(&self, gpu_type: &GpuType) -> bool {
        self.by_type.contains_key(gpu_type) || self.before.as_ref().is_some_and(|b| b.covers(gpu_type))
    }

    /// Whether nobody compared any types.
    pub fn is_empty(&self) -> bool {
        self.by_type.is_empty() && self.before.as_ref().is_none_or(|b| b.is_empty())
    }

    fn sizes(&self, size: Size, law: f64) -> [f64; 2] {
        let off = |value: Option<f64>, among: Sizes| value.map_or(0.0, |v| SIZES * among.off(v) * law);
        [off(size.parameters, self.sizes[0]), off(size.batch, self.sizes[1])]
    }

    /// What to add to the law's log for a type.
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

    /// From families on at least two types each, beyond what was thought before; that alone where there are none.
    pub fn fit(before: &Self, families: &[Levels<'_>], policy: WeightPolicy) -> Self {
        let before =
            Self { before: (!before.is_empty()).then(|| Arc::new(before.clone())), ..Self::default() };
        before.beyond(families, policy).unwrap_or(before)
    }

    fn beyond(&self, families: &[Levels<'_>], policy: WeightPolicy) -> Option<Self> {
        let mut comparing: Vec<&Levels<'_>> = families.iter().filter(|f| f.on.len() > 1).collect();
        // Who has many families has them weigh little: those go first.
        comparing.sort_by(|a, b| b.tenant_weight.weight.total_cmp(&a.tenant_weight.weight));
        while comparing.iter().map(|f| f.on.len()).sum::<usize>() > MAX_ROWS {
            comparing.pop();
        }
        let mut seen: BTreeMap<&GpuType, f64> = BTreeMap::new();
        for (weight, level) in comparing.iter().flat_map(|f| f.on.iter().map(|l| (f.tenant_weight.weight, l)))
        {
            *seen.entry(&level.gpu_type).or_default() += weight;
        }
        // Types that hardly anybody has go first.
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
        let sizes = [among(|s| s.parameters), among(|s| s.batch)].map(|s| s.filter(|_| !policy.isolated));
        let mut it = Self { sizes: sizes.map(Option::unwrap_or_default), ..self.clone() };
        let used = |size: Size| Size {
            parameters: size.parameters.filter(|_| sizes[0].is_some()),
            batch: size.batch.filter(|_| sizes[1].is_some()),
            ..size
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
        // The penalty is for a mean over the rows: rows that hardly weigh must not make it dearer.
        let anchors = if policy.anchor > 0.0 { types.len() } else { 0 };
        let count = comparing.iter().map(|f| f.on.len()).sum::<usize>() + anchors;
        let heavy: f64 =
            weights.iter().zip(&comparing).map(|(w, f)| w * f.on.len() as f64).sum::<f64>() + known;
        let scale = count as f64 / heavy.max(1e-9);
        // Of one or two nobody is the odd one.
        let pulls = if comparing.len() < 3 && !policy.isolated { 1 } else { PULLS };
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
            // As if families on all types had shown nothing new.
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

    /// A family's levels beyond what is thought of them.
    fn rests(&self, family: &Levels<'_>) -> Vec<f64> {
        family.on.iter().map(|l| l.level - self.of(&l.gpu_type, l.law, family.size)).collect()
    }

    /// What a family's levels differ by from what is expected of it.
    pub fn residuals(&self, family: &Levels<'_>) -> Vec<f64> {
        let rest = self.rests(family);
        let weights = family.on.iter().map(|l| l.informed(HALF));
        let total: f64 = weights.clone().sum();
        let mean = rest.iter().zip(weights).map(|(r, w)| r * w).sum::<f64>() / total.max(1e-12);
        rest.into_iter().map(|r| r - mean).collect()
    }
}

/// Namespaces that are off on a type are pulled in, all their families together.
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
    // What was thought before is off by nothing: one stranger alone is no measure of itself.
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
            let it = Ratios::fit(&Ratios::default(), &all, WeightPolicy::within_tenant(all.len(), false));
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
                WeightPolicy::within_tenant(1, false),
            ),
            Ratios::default()
        );
    }
}
