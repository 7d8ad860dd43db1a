//! Ratios of GPU types, from a tenant's profiles that ran on several: linfa's elastic net on
//! residuals of the analytic prior.
//!
//! Rows are intercepts of one profile on one type, relative to the analytic prior. They are
//! **centred within the profile**: epochs of different profiles are not comparable. Columns: the
//! type, and the extra gain of a large model or batch from a strong board. The penalty shrinks to
//! the analytic prior.

use std::collections::BTreeMap;

use andreas_core::GpuType;

use crate::regression::{elastic_net, median};

/// Bounds on the work: rows and types of one fit.
const MAX_ROWS: usize = 800;
const MAX_TYPES: usize = 24;
/// Scale of the size columns: a small scale makes the penalty on sizes stronger than on types.
const SIZES: f64 = 0.2;
/// Fewest profiles for a trend over sizes.
const FEWEST_SIZES: usize = 6;
/// Sizes are clipped at this many median distances from the median.
const SPREADS: f64 = 3.0;
/// An intercept of this variance has weight one half.
const HALF: f64 = 0.05;

/// A profile's intercept on a type relative to the analytic prior (log), and its covariates.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Level {
    pub gpu_type: GpuType,
    /// The analytic prior's log for the type.
    pub law: f64,
    pub level: f64,
    /// Variance of `level` from its own rows.
    pub variance: f64,
}

impl Level {
    /// Reliability (shrinkage factor) of the rows, given the variance between profiles.
    pub fn informed(&self, variance: f64) -> f64 {
        variance / (variance + self.variance)
    }
}

/// One profile on its types.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Levels<'a> {
    pub size: Size,
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
    by_type: BTreeMap<GpuType, f64>,
    /// Slopes over parameters and batch, and the sizes of the fit.
    slopes: [f64; 2],
    sizes: [Sizes; 2],
}

/// Median and clipping range of the sizes of a trend (logs): no extrapolation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sizes {
    middle: f64,
    furthest: f64,
}

impl Sizes {
    fn of(known: Vec<f64>) -> Self {
        if known.len() < FEWEST_SIZES {
            return Self::default();
        }
        let middle = median(known.clone()).unwrap_or_default();
        let away = median(known.into_iter().map(|v| (v - middle).abs()).collect());
        Self { middle, furthest: SPREADS * away.unwrap_or_default() }
    }

    /// Clipped distance of a size from the median.
    fn off(self, size: Option<f64>) -> f64 {
        size.map_or(0.0, |size| (size - self.middle).clamp(-self.furthest, self.furthest))
    }
}

impl Ratios {
    /// Whether profiles ran on this type beside others.
    pub fn covers(&self, gpu_type: &GpuType) -> bool {
        self.by_type.contains_key(gpu_type)
    }

    /// Whether no types were compared.
    pub fn is_empty(&self) -> bool {
        self.by_type.is_empty()
    }

    fn size_columns(&self, size: Size, law: f64) -> [f64; 2] {
        let [parameters, batch] = self.sizes;
        [parameters.off(size.parameters), batch.off(size.batch)].map(|off| SIZES * off * law)
    }

    /// Correction to the analytic prior's log for a type.
    pub fn of(&self, gpu_type: &GpuType, law: f64, size: Size) -> f64 {
        let Some(ratio) = self.by_type.get(gpu_type) else { return 0.0 };
        let columns = self.size_columns(size, law);
        ratio + columns.iter().zip(&self.slopes).map(|(x, slope)| x * slope).sum::<f64>()
    }

    /// From profiles on at least two types each; the analytic prior without such profiles.
    pub fn fit(families: &[Levels<'_>]) -> Self {
        Self::compare(families).unwrap_or_default()
    }

    fn compare(families: &[Levels<'_>]) -> Option<Self> {
        let mut comparing: Vec<&Levels<'_>> = families.iter().filter(|f| f.on.len() > 1).collect();
        while comparing.iter().map(|f| f.on.len()).sum::<usize>() > MAX_ROWS {
            comparing.pop();
        }
        let mut counts: BTreeMap<&GpuType, usize> = BTreeMap::new();
        for level in comparing.iter().flat_map(|f| f.on) {
            *counts.entry(&level.gpu_type).or_default() += 1;
        }
        // Rare types are dropped first.
        let mut types: Vec<(&GpuType, usize)> = counts.into_iter().collect();
        types.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        types.truncate(MAX_TYPES);
        if types.len() < 2 {
            return None;
        }
        let sizes =
            |of: fn(&Size) -> Option<f64>| Sizes::of(comparing.iter().filter_map(|f| of(&f.size)).collect());
        let mut it = Self { sizes: [sizes(|s| s.parameters), sizes(|s| s.batch)], ..Self::default() };
        let width = 2 + types.len();
        let (mut xs, mut ys) = (Vec::new(), Vec::new());
        for family in comparing {
            let row = |level: &Level| {
                let mut x = vec![0.0; width];
                x[..2].copy_from_slice(&it.size_columns(family.size, level.law));
                if let Some(i) = types.iter().position(|(t, _)| **t == level.gpu_type) {
                    x[2 + i] = 1.0;
                }
                x
            };
            let rows: Vec<Vec<f64>> = family.on.iter().map(row).collect();
            let mean = |of: &dyn Fn(usize) -> f64| weighted_mean(family.on, of);
            let mean_x: Vec<f64> = (0..width).map(|i| mean(&|row| rows[row][i])).collect();
            let mean_y = mean(&|row| family.on[row].level);
            for (x, level) in rows.iter().zip(family.on) {
                let root = libm::sqrt(level.informed(HALF));
                xs.extend(x.iter().zip(&mean_x).map(|(a, m)| (a - m) * root));
                ys.push((level.level - mean_y) * root);
            }
        }
        let found = elastic_net(xs, width, ys)?;
        it.slopes = [found[0], found[1]];
        it.by_type = types.iter().map(|(t, _)| (*t).clone()).zip(found[2..].iter().copied()).collect();
        Some(it)
    }

    /// A profile's centred residuals.
    pub fn residuals(&self, family: &Levels<'_>) -> Vec<f64> {
        let rest: Vec<f64> =
            family.on.iter().map(|l| l.level - self.of(&l.gpu_type, l.law, family.size)).collect();
        let mean = weighted_mean(family.on, &|i| rest[i]);
        rest.into_iter().map(|r| r - mean).collect()
    }
}

fn weighted_mean(on: &[Level], of: &dyn Fn(usize) -> f64) -> f64 {
    let total: f64 = on.iter().map(|l| l.informed(HALF)).sum();
    on.iter().enumerate().map(|(i, l)| l.informed(HALF) * of(i)).sum::<f64>() / total.max(1e-12)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(fast: f64, slow: f64) -> Vec<Level> {
        let on = |t: &str, law, level| Level { gpu_type: t.into(), law, level, variance: 0.01 };
        vec![on("fast", -0.2, fast), on("slow", 0.8, slow)]
    }

    #[test]
    fn types_are_compared_within_profiles() {
        let families: Vec<Vec<Level>> =
            (0..20).map(|i| levels(f64::from(i), f64::from(i) + 0.5 + 0.01 * f64::from(i % 3))).collect();
        let all: Vec<Levels<'_>> = families.iter().map(|on| Levels { size: Size::default(), on }).collect();
        let it = Ratios::fit(&all);
        let ratio =
            it.of(&"slow".into(), 0.8, Size::default()) - it.of(&"fast".into(), -0.2, Size::default());
        assert!((ratio - 0.5).abs() < 0.04, "{ratio}");
        let one_type = &families[0][..1];
        assert!(Ratios::fit(&[Levels { size: Size::default(), on: one_type }]).is_empty());
    }
}
