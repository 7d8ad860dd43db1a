//! Trust in users' tables: one error variance, learned by a tenant.
//!
//! **In**: rows of a profile that were both given and measured by the system. **Out**: the error
//! variance of its table ([`TableTrust`]). The prior is one GPU type of a table that was right within
//! [`USUAL_TABLE`]. Expectation and maximisation over the types of all compared tables moves it. A tenant
//! with right tables keeps narrow intervals; one whose tables were off by a factor does not.

use std::collections::BTreeMap;

use andreas_model::GpuType;

use crate::physics::Quantity;
use crate::pool::Pooled;
use crate::samples::{AggregatedSample, ROW, USUAL_TABLE, table_samples};

/// Share of a table's error variance that all its rows have in common; the rest is of one GPU type.
pub(crate) const WHOLE_TABLE: f64 = 0.5;
/// Error of a table if the profile ran, but no observation can be compared with it (a factor 1.6 is
/// usual).
const UNCOMPARED_SIGMA: f64 = 0.5;
/// Errors are clipped here (log of ten): a mistaken unit.
const MAX_LOG_ERROR: f64 = std::f64::consts::LN_10;
/// Rounds of expectation and maximisation.
const ROUNDS: usize = 40;

/// Mean error of a table on one GPU type (log), and its variance from the measurement.
type TypeError = (f64, f64);

/// Trust in a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TableTrust {
    /// Error variance (log) that rows of one GPU type share.
    pub variance: f64,
    /// Whether a table of the tenant was compared with measurements.
    pub informed: bool,
}

impl Default for TableTrust {
    fn default() -> Self {
        Self { variance: USUAL_TABLE * USUAL_TABLE - ROW * ROW, informed: false }
    }
}

/// Errors of a table by GPU type, where its rows were measured.
fn errors(table: &[AggregatedSample], seen: &[AggregatedSample]) -> Vec<TypeError> {
    let mut types: BTreeMap<&GpuType, (f64, f64)> = BTreeMap::new();
    for seen in seen {
        let Some(given) = table.iter().find(|given| given.same_setting(seen)) else { continue };
        let weight = 1.0 / (seen.noise * seen.noise + ROW * ROW);
        let sums = types.entry(&seen.gpu_type).or_default();
        let error = (seen.log - given.log).clamp(-MAX_LOG_ERROR, MAX_LOG_ERROR);
        *sums = (sums.0 + weight * error, sums.1 + weight);
    }
    types.into_values().map(|(sum, weight)| (sum / weight, 1.0 / weight)).collect()
}

impl TableTrust {
    /// Standard deviation of one row's error (log).
    pub fn sigma(&self) -> f64 {
        libm::sqrt(self.variance + ROW * ROW)
    }

    /// From all profiles of a tenant.
    pub fn learn(pooled: &[Pooled<'_>], quantity: Quantity) -> Self {
        let of = |p: &Pooled<'_>| {
            let seen = if quantity == Quantity::Time { &p.times } else { &p.watts };
            errors(&table_samples(p.profile, quantity), seen)
        };
        Self::default().updated_with(&pooled.iter().flat_map(of).collect::<Vec<_>>())
    }

    /// The variance given these errors; `self` counts as one of them.
    fn updated_with(self, errors: &[TypeError]) -> Self {
        let mut variance = self.variance;
        for _ in 0..ROUNDS {
            let square = |(error, noise): &TypeError| {
                let part = variance / (variance + noise);
                part * part * error * error + part * noise
            };
            variance = (self.variance + errors.iter().map(square).sum::<f64>()) / (1.0 + errors.len() as f64);
        }
        Self { variance, informed: self.informed || !errors.is_empty() }
    }

    /// Posterior trust for one profile. Also stores its error variance (log) in each row of
    /// `table`.
    pub fn for_profile(self, table: &mut [AggregatedSample], seen: &[AggregatedSample]) -> Self {
        let errors = errors(table, seen);
        let mut it = self.updated_with(&errors);
        if errors.is_empty() && !seen.is_empty() {
            it.variance = it.variance.max(UNCOMPARED_SIGMA * UNCOMPARED_SIGMA);
        }
        for cell in table {
            cell.table = Some(it.variance);
        }
        it
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_table_that_was_off_by_two_is_enough_for_doubt_and_right_ones_leave_none() {
        let usual = TableTrust::default();
        assert!((usual.sigma() - USUAL_TABLE).abs() < 1e-12 && !usual.informed);
        let off = usual.updated_with(&[(0.69, 1e-4), (0.69, 1e-4)]);
        assert!(off.informed && off.sigma() > 0.35, "{off:?}");
        let right: Vec<TypeError> = (0..20).map(|i| (0.02 * f64::from(i % 3 - 1), 1e-4)).collect();
        assert!(usual.updated_with(&right).sigma() <= USUAL_TABLE, "{:?}", usual.updated_with(&right));
    }

    #[test]
    fn an_epoch_that_tells_little_teaches_little() {
        let one = |noise: f64| TableTrust::default().updated_with(&[(0.3, noise * noise)]).sigma();
        assert!(one(0.02) > 2.0 * one(0.6) && one(0.6) < 1.5 * USUAL_TABLE, "{} {}", one(0.02), one(0.6));
    }
}
