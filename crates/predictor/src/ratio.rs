//! How GPU types compare, from families that ran on several: linfa's elastic net on what the law misses.
//!
//! Rows are levels of one family on one type against the law, **centred within the family**: an epoch of one family
//! has nothing to do with an epoch of another. Columns: the type, and how much more a large model or batch gains from a
//! strong board. The penalty pulls towards the law; rows far off what the others say are pulled in (Huber), and no
//! namespace weighs more than its share.

use std::collections::BTreeMap;

use andreas_core::GpuType;

use crate::posterior::Found;
use crate::regression::elastic_net;

/// Bounds on the work: rows of one fit, types told apart.
const MAX_ROWS: usize = 800;
const MAX_TYPES: usize = 24;
/// Sizes are told less than types: small columns, dear coefficients.
const SIZES: f64 = 0.2;
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
    pub fn told(&self, variance: f64) -> f64 {
        variance / (variance + self.variance)
    }
}

/// One family on its types.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Levels<'a> {
    pub size: Size,
    pub weight: f64,
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
    pub fn bulk(self, base: f64) -> Option<f64> {
        Some(self.parameters? - (base - self.samples.unwrap_or(EPOCH_SAMPLES) + self.batch?))
    }
}

/// What the families show beyond the law.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Ratios {
    by_type: BTreeMap<GpuType, f64>,
    size: [f64; 2],
    means: [f64; 2],
}

impl Ratios {
    /// Whether families ran on this type beside others.
    pub fn covers(&self, gpu_type: &GpuType) -> bool {
        self.by_type.contains_key(gpu_type)
    }

    fn sizes(&self, size: Size, law: f64) -> [f64; 2] {
        let off =
            |value: Option<f64>, mean: f64| value.map_or(0.0, |v| SIZES * (v - mean).clamp(-4.0, 4.0) * law);
        [off(size.parameters, self.means[0]), off(size.batch, self.means[1])]
    }

    /// What to add to the law's log for a type.
    pub fn of(&self, gpu_type: &GpuType, law: f64, size: Size) -> f64 {
        let sizes = self.sizes(size, law);
        let by_size =
            if self.covers(gpu_type) { self.size[0] * sizes[0] + self.size[1] * sizes[1] } else { 0.0 };
        self.by_type.get(gpu_type).copied().unwrap_or(0.0) + by_size
    }

    /// From families on at least two types each; empty where there are none.
    pub fn fit(families: &[Levels<'_>]) -> Self {
        let mut comparing: Vec<&Levels<'_>> = families.iter().filter(|f| f.on.len() > 1).collect();
        while comparing.iter().map(|f| f.on.len()).sum::<usize>() > MAX_ROWS {
            comparing.pop();
        }
        let mut seen: BTreeMap<&GpuType, usize> = BTreeMap::new();
        for level in comparing.iter().flat_map(|f| f.on) {
            *seen.entry(&level.gpu_type).or_default() += 1;
        }
        let types: Vec<&GpuType> = seen.into_keys().take(MAX_TYPES).collect();
        if types.len() < 2 {
            return Self::default();
        }
        let mean = |of: fn(&Size) -> Option<f64>| {
            let known: Vec<f64> = comparing.iter().filter_map(|f| of(&f.size)).collect();
            // Too few sizes tell no trend from chance.
            (known.len() >= 6).then(|| known.iter().sum::<f64>() / known.len() as f64)
        };
        let sizes = [mean(|s| s.parameters), mean(|s| s.batch)];
        let mut it = Self { means: sizes.map(|m| m.unwrap_or(0.0)), ..Self::default() };
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
        let mut targets: Vec<Vec<f64>> =
            comparing.iter().map(|f| f.on.iter().map(|l| l.level).collect()).collect();
        for pull in 0..PULLS {
            let (mut xs, mut ys) = (Vec::new(), Vec::new());
            for (family, targets) in comparing.iter().zip(&targets) {
                let rows: Vec<Vec<f64>> = family.on.iter().map(|level| row(&it, family, level)).collect();
                let weights: Vec<f64> = family.on.iter().map(|l| l.told(HALF)).collect();
                let n: f64 = weights.iter().sum();
                let mean_y = weights.iter().zip(targets).map(|(w, y)| w * y).sum::<f64>() / n;
                let mean = |i: usize| weights.iter().zip(&rows).map(|(w, x)| w * x[i]).sum::<f64>() / n;
                let mean_x: Vec<f64> = (0..width).map(mean).collect();
                for ((x, y), weight) in rows.iter().zip(targets).zip(&weights) {
                    let root = libm::sqrt(family.weight * weight);
                    xs.extend(x.iter().zip(&mean_x).map(|(a, m)| (a - m) * root));
                    ys.push((y - mean_y) * root);
                }
            }
            let Some(found) = elastic_net(xs, width, ys) else { return Self::default() };
            it.size = [found[0], found[1]];
            it.by_type = types.iter().map(|t| (**t).clone()).zip(found[2..].iter().copied()).collect();
            if pull + 1 < PULLS {
                pull_in(&it, &comparing, &mut targets);
            }
        }
        it
    }

    /// What a family's levels differ by from what is expected of it.
    pub fn residuals(&self, family: &Levels<'_>) -> Vec<f64> {
        let rest: Vec<f64> =
            family.on.iter().map(|l| l.level - self.of(&l.gpu_type, l.law, family.size)).collect();
        let weights = family.on.iter().map(|l| l.told(HALF));
        let total: f64 = weights.clone().sum();
        let mean = rest.iter().zip(weights).map(|(r, w)| r * w).sum::<f64>() / total.max(1e-12);
        rest.into_iter().map(|r| r - mean).collect()
    }
}

fn pull_in(fit: &Ratios, families: &[&Levels<'_>], targets: &mut [Vec<f64>]) {
    let residuals: Vec<Vec<f64>> = families.iter().map(|f| fit.residuals(f)).collect();
    let mut sizes: Vec<f64> = residuals.iter().flatten().map(|r| r.abs()).collect();
    sizes.sort_by(f64::total_cmp);
    let most = HUBER * sizes.get(sizes.len() / 2).copied().unwrap_or(0.0).max(0.02);
    for ((family, residuals), targets) in families.iter().zip(&residuals).zip(targets) {
        for ((level, residual), target) in family.on.iter().zip(residuals).zip(targets) {
            *target = level.level - residual + residual.clamp(-most, most);
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
            let all: Vec<Levels<'_>> =
                all.iter().map(|on| Levels { size: Size::default(), weight: 1.0, on }).collect();
            let it = Ratios::fit(&all);
            it.of(&"slow".into(), 0.8, Size::default()) - it.of(&"fast".into(), -0.2, Size::default())
        };
        let honest = fit(None);
        assert!((honest - 0.5).abs() < 0.04, "{honest}");
        assert!((fit(Some(levels(0.0, -8.0))) - honest).abs() < 0.02);
        let one_type = levels(1.0, 1.0).remove(0);
        assert_eq!(
            Ratios::fit(&[Levels { size: Size::default(), weight: 1.0, on: &[one_type] }]),
            Ratios::default()
        );
    }
}
