//! Error variances of users' tables, learned by namespace.
//!
//! **In**: rows of a profile that were both given and measured by the system. **Out**: the error
//! variances of its table ([`TableTrust`]): of the whole table, of its rows of one GPU type, and of
//! single rows. They are found by expectation and maximisation in a fixed number of rounds. The
//! prior is [`PSEUDO`] tables that were right within [`USUAL`](crate::table_variances::USUAL). A
//! namespace with right tables keeps narrow intervals; one whose tables were off by a factor does
//! not. Other namespaces' tables have no influence.
//!
//! A bias common to all tables of a namespace is not corrected (ADR 6).

use std::collections::BTreeMap;

use crate::physics::Quantity;
use crate::pool::{Pooled, owner};
use crate::samples::{AggregatedSample, given};
use crate::table_variances::TableTrust;

/// Pseudo-count of compared tables.
const PSEUDO: f64 = 1.0;
/// Shared error of a table if no observation can be compared with it (log; a factor 1.6 is usual).
const UNCOMPARED: f64 = 0.5;
/// Errors are clipped here (log of ten): a mistaken unit.
const FURTHEST: f64 = std::f64::consts::LN_10;
/// Rounds of expectation and maximisation.
const ROUNDS: usize = 40;

/// Residual of a table row that was also measured.
#[derive(Clone, Debug)]
struct TableResidual {
    /// Index of the GPU type.
    kind: usize,
    /// Log of measured over given.
    log: f64,
    /// Variance of the measurement.
    noise: f64,
}

/// Residuals of rows that were both given and measured, ordered by type.
fn gaps(table: &[AggregatedSample], seen: &[AggregatedSample]) -> Vec<TableResidual> {
    let mut type_index: Vec<&str> = table.iter().map(|c| c.gpu_type.as_str()).collect();
    type_index.sort_unstable();
    type_index.dedup();
    let gap = |seen: &AggregatedSample| {
        let given = table.iter().find(|given| given.is(seen))?;
        let kind = type_index.binary_search(&given.gpu_type.as_str()).ok()?;
        let log = (seen.log - given.log).clamp(-FURTHEST, FURTHEST);
        Some(TableResidual { kind, log, noise: seen.noise * seen.noise })
    };
    let mut gaps: Vec<TableResidual> = seen.iter().filter_map(gap).collect();
    gaps.sort_by_key(|gap| gap.kind);
    gaps
}

/// Sum and count of expected squares.
#[derive(Clone, Copy, Default)]
struct Squares {
    sum: f64,
    count: f64,
}

impl Squares {
    fn add(&mut self, mean: f64, variance: f64) {
        self.sum += mean * mean + variance;
        self.count += 1.0;
    }

    /// Their mean, with [`PSEUDO`] squares of the prior.
    fn mean(self, usual: f64) -> f64 {
        (PSEUDO * usual + self.sum) / (PSEUDO + self.count)
    }
}

impl TableTrust {
    /// Posterior variances given the residuals.
    fn taught(self, families: &[Vec<TableResidual>]) -> Self {
        let mut it = self;
        for _ in 0..ROUNDS {
            let mut sums = [Squares::default(); 3];
            families.iter().filter(|gaps| !gaps.is_empty()).for_each(|gaps| it.expect(gaps, &mut sums));
            let [table, kind, row] = sums;
            it.informed |= table.count > 0.0;
            it.doubt.table = table.mean(self.doubt.table);
            it.doubt.kind = kind.mean(self.doubt.kind);
            it.row = row.mean(self.row);
        }
        it
    }

    /// Adds the expected squared errors of a table, of its types and of its rows.
    fn expect(&self, table: &[TableResidual], [tables, type_index, rows]: &mut [Squares; 3]) {
        let doubt = self.doubt;
        // Mean and variance of a type's residuals.
        let of_type = |gaps: &[TableResidual]| {
            let weight: f64 = gaps.iter().map(|g| 1.0 / (self.row + g.noise)).sum();
            (gaps.iter().map(|g| g.log / (self.row + g.noise)).sum::<f64>() / weight, 1.0 / weight)
        };
        let groups = || table.chunk_by(|a, b| a.kind == b.kind);
        let types: Vec<(f64, f64)> = groups().map(of_type).collect();
        let weight: f64 = types.iter().map(|(_, rest)| 1.0 / (doubt.kind + rest)).sum();
        let mean = types.iter().map(|(mean, rest)| mean / (doubt.kind + rest)).sum::<f64>() / weight;
        let part = doubt.table / (doubt.table + 1.0 / weight);
        let (shared, unsure) = (part * mean, part / weight);
        tables.add(shared, unsure);
        for (gaps, (mean, rest)) in groups().zip(&types) {
            let part = doubt.kind / (doubt.kind + rest);
            let own = part * (mean - shared);
            type_index.add(own, part * rest + part * part * unsure);
            let around = part * rest + (1.0 - part) * (1.0 - part) * unsure;
            for gap in gaps {
                let part = self.row / (self.row + gap.noise);
                rows.add(part * (gap.log - shared - own), part * gap.noise + part * part * around);
            }
        }
    }

    /// Sets error variances of the rows of a profile's table, given the profile's own observations.
    pub fn read(self, table: &mut [AggregatedSample], seen: &[AggregatedSample]) -> Self {
        let gaps = gaps(table, seen);
        let mut it = self;
        if !gaps.is_empty() {
            it = self.taught(&[gaps]);
        } else if !seen.is_empty() {
            it.doubt.table = it.doubt.table.max(UNCOMPARED * UNCOMPARED);
        }
        for cell in table {
            cell.noise = libm::sqrt(it.row);
            cell.table = Some(it.doubt);
        }
        it
    }
}

/// Trust in tables of one quantity, by tenant.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableTrusts(BTreeMap<String, TableTrust>);

impl TableTrusts {
    /// From all pooled profiles: bounded, and without self-reported rows.
    pub fn learn(pooled: &[Pooled<'_>], quantity: Quantity) -> Self {
        let mut owners: BTreeMap<&str, Vec<Vec<TableResidual>>> = BTreeMap::new();
        for family in pooled.iter().filter(|p| !p.profile.given.is_empty()) {
            let seen = if quantity == Quantity::Time { &family.times } else { &family.watts };
            let gaps = gaps(&given(family.profile, quantity), seen);
            if !gaps.is_empty() {
                owners.entry(owner(&family.profile.name)).or_default().push(gaps);
            }
        }
        let of = |(owner, families): (&str, Vec<Vec<TableResidual>>)| {
            (owner.to_owned(), TableTrust::default().taught(&families))
        };
        Self(owners.into_iter().map(of).collect())
    }

    /// Trust in a profile's table before observations of the profile.
    pub fn of(&self, name: &str) -> TableTrust {
        self.0.get(owner(name)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table_variances::USUAL;

    /// A table with these errors on two types, each measured on two rows for a hundred epochs.
    fn table(on_one: f64, on_other: f64) -> Vec<TableResidual> {
        let gap = |kind, log| TableResidual { kind, log, noise: 0.015 * 0.015 };
        vec![gap(0, on_one - 0.01), gap(0, on_one + 0.01), gap(1, on_other - 0.01), gap(1, on_other + 0.01)]
    }

    #[test]
    fn one_table_that_was_off_by_two_is_enough_for_doubt_and_right_ones_leave_none() {
        let usual = TableTrust::default();
        assert!((usual.sigma() - USUAL).abs() < 1e-12 && !usual.informed);
        let off = usual.taught(&[table(0.69, 0.69)]);
        assert!(off.informed && off.sigma() > 0.35 && off.doubt.table > 4.0 * off.doubt.kind, "{off:?}");
        let right: Vec<Vec<TableResidual>> =
            (0..10).map(|i| table(0.02 * f64::from(i % 3 - 1), 0.02 * f64::from(i % 2))).collect();
        assert!(usual.taught(&right).sigma() <= USUAL, "{:?}", usual.taught(&right));
    }

    #[test]
    fn errors_of_tables_and_of_types_are_separated() {
        // given: tables off by 0.5 up or down, or types off by that in tables that are right on
        // average
        let sign = |i: i32| if i % 2 == 0 { 0.5 } else { -0.5 };
        let tables: Vec<Vec<TableResidual>> = (0..12).map(|i| table(sign(i), sign(i))).collect();
        let types: Vec<Vec<TableResidual>> = (0..12).map(|i| table(sign(i), -sign(i))).collect();
        let (tables, types) =
            (TableTrust::default().taught(&tables).doubt, TableTrust::default().taught(&types).doubt);
        assert!((0.4..0.6).contains(&libm::sqrt(tables.table)) && tables.kind < 0.01, "{tables:?}");
        assert!((0.4..0.6).contains(&libm::sqrt(types.kind)) && types.table < 0.01, "{types:?}");
    }

    #[test]
    fn an_epoch_that_tells_little_teaches_little() {
        let one = |noise: f64| {
            TableTrust::default().taught(&[vec![TableResidual { kind: 0, log: 0.3, noise: noise * noise }]])
        };
        assert!(one(0.02).sigma() > 2.0 * one(0.6).sigma(), "{:?} {:?}", one(0.02), one(0.6));
        assert!(one(0.6).sigma() < 1.5 * USUAL, "{:?}", one(0.6));
    }
}
