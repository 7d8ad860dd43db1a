//! Ratios of GPU types, from a tenant's profiles that ran on several: linfa's elastic net on
//! residuals of the analytic prior.
//!
//! Rows are intercepts of one profile on one type, relative to the analytic prior. They are
//! **centred within the profile**: epochs of different profiles are not comparable. There is a column
//! per type. The penalty shrinks to the analytic prior.

use std::collections::BTreeMap;

use andreas_model::GpuType;

use crate::regression::elastic_net;

/// Bounds on the work: rows and types of one fit.
const MAX_ROWS: usize = 800;
const MAX_TYPES: usize = 24;
/// An intercept of this variance has weight one half.
const HALF: f64 = 0.05;

/// A profile's intercept on a type relative to the analytic prior (log).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Level {
    pub gpu_type: GpuType,
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

/// Fitted ratios relative to the analytic prior.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Ratios(BTreeMap<GpuType, f64>);

impl Ratios {
    /// Whether profiles ran on this type beside others.
    pub fn covers(&self, gpu_type: &GpuType) -> bool {
        self.0.contains_key(gpu_type)
    }

    /// Whether no types were compared.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Correction to the analytic prior's log for a type.
    pub fn correction(&self, gpu_type: &GpuType) -> f64 {
        self.0.get(gpu_type).copied().unwrap_or(0.0)
    }

    /// From profiles on at least two types each; the analytic prior without such profiles.
    pub fn fit(profiles: &[&[Level]]) -> Self {
        Self::compare(profiles).unwrap_or_default()
    }

    fn compare(profiles: &[&[Level]]) -> Option<Self> {
        let mut comparing: Vec<&[Level]> = profiles.iter().copied().filter(|on| on.len() > 1).collect();
        while comparing.iter().map(|on| on.len()).sum::<usize>() > MAX_ROWS {
            comparing.pop();
        }
        let mut counts: BTreeMap<&GpuType, usize> = BTreeMap::new();
        for level in comparing.iter().copied().flatten() {
            *counts.entry(&level.gpu_type).or_default() += 1;
        }
        // Rare types are dropped first.
        let mut types: Vec<(&GpuType, usize)> = counts.into_iter().collect();
        types.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        types.truncate(MAX_TYPES);
        if types.len() < 2 {
            return None;
        }
        let (mut xs, mut ys) = (Vec::new(), Vec::new());
        for on in comparing {
            let is = |row: usize, i: usize| if on[row].gpu_type == *types[i].0 { 1.0 } else { 0.0 };
            let means: Vec<f64> = (0..types.len()).map(|i| weighted_mean(on, |row| is(row, i))).collect();
            let mean = weighted_mean(on, |row| on[row].level);
            for (row, level) in on.iter().enumerate() {
                let root = libm::sqrt(level.informed(HALF));
                xs.extend(means.iter().enumerate().map(|(i, m)| (is(row, i) - m) * root));
                ys.push((level.level - mean) * root);
            }
        }
        let found = elastic_net(xs, types.len(), ys)?;
        Some(Self(types.into_iter().map(|(t, _)| t.clone()).zip(found).collect()))
    }

    /// A profile's centred residuals.
    pub fn residuals(&self, on: &[Level]) -> Vec<f64> {
        let rest: Vec<f64> = on.iter().map(|l| l.level - self.correction(&l.gpu_type)).collect();
        let mean = weighted_mean(on, |i| rest[i]);
        rest.into_iter().map(|r| r - mean).collect()
    }
}

fn weighted_mean(on: &[Level], of: impl Fn(usize) -> f64) -> f64 {
    let total: f64 = on.iter().map(|l| l.informed(HALF)).sum();
    on.iter().enumerate().map(|(i, l)| l.informed(HALF) * of(i)).sum::<f64>() / total.max(1e-12)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(fast: f64, slow: f64) -> Vec<Level> {
        let on = |t: &str, level| Level { gpu_type: t.into(), level, variance: 0.01 };
        vec![on("fast", fast), on("slow", slow)]
    }

    #[test]
    fn types_are_compared_within_profiles() {
        let profiles: Vec<Vec<Level>> =
            (0..20).map(|i| levels(f64::from(i), f64::from(i) + 0.5 + 0.01 * f64::from(i % 3))).collect();
        let it = Ratios::fit(&profiles.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let ratio = it.correction(&"slow".into()) - it.correction(&"fast".into());
        assert!((ratio - 0.5).abs() < 0.04, "{ratio}");
        assert!(Ratios::fit(&[&profiles[0][..1]]).is_empty());
    }
}
