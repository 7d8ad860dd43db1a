//! How far the tables that users give are from what is then measured, learnt by namespace.
//!
//! **In**: rows of a family that were both given and measured by the system. **Out**: how much its table, and those of other families of
//! the same namespace, are off ([`TableTrust`]): an error that a whole table shares, one that its rows of a GPU type share, and one of each row.
//! Their variances are found by expectation and maximisation in a fixed number of rounds, as if [`PSEUDO`] tables had been right within
//! [`USUAL`] before: a namespace whose tables are right keeps narrow intervals, one whose tables were off by a factor does not. No namespace
//! says anything of another's tables.
//!
//! That all tables of a namespace are off the same way is not taken off them: see the decision record of the predictor.

use std::collections::BTreeMap;

use crate::physics::Quantity;
use crate::pool::{Pooled, owner};
use crate::samples::{AggregatedSample, given};

/// Tables that are thought to have been compared before any was.
const PSEUDO: f64 = 1.0;
/// How far a table is off of which nothing is known (standard deviation of the log), and each of its rows alone.
const USUAL: f64 = 0.05;
const USUAL_ROW: f64 = 0.01;
/// The error that all rows of a table share with none of which anything that was seen can be compared: wrong by a factor 1.6 is usual.
const UNCOMPARED: f64 = 0.5;
/// Errors beyond this (log: a factor of ten) count as this: somebody mistook a unit.
const FURTHEST: f64 = std::f64::consts::LN_10;
/// Rounds of expectation and maximisation.
const ROUNDS: usize = 40;

/// What two rows of one table have in common of their errors (variances of the log).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TableVariances {
    /// All rows.
    pub table: f64,
    /// Rows of one GPU type, beyond that.
    pub kind: f64,
}

/// How far tables are to be trusted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TableTrust {
    pub doubt: TableVariances,
    /// Of each row alone (variance of the log).
    pub row: f64,
    /// Whether a table of this namespace was ever compared with what was measured.
    pub informed: bool,
}

impl Default for TableTrust {
    fn default() -> Self {
        let row = USUAL_ROW * USUAL_ROW;
        let shared = 0.5 * (USUAL * USUAL - row);
        Self { doubt: TableVariances { table: shared, kind: shared }, row, informed: false }
    }
}

/// A row of a table that was measured too.
#[derive(Clone, Debug)]
struct TableResidual {
    /// Equal where the types are.
    kind: usize,
    /// Log of measured over given.
    log: f64,
    /// Variance of what was measured.
    noise: f64,
}

/// Rows of a family that were both given and measured, in order of their types.
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

/// A sum of expected squares, and of how many.
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

    /// Their mean, as if some had been usual.
    fn mean(self, usual: f64) -> f64 {
        (PSEUDO * usual + self.sum) / (PSEUDO + self.count)
    }
}

impl TableTrust {
    /// What families' rows make of it.
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

    /// Adds the squares that a table's errors are expected to have, of the table, of its types, of its rows.
    fn expect(&self, table: &[TableResidual], [tables, type_index, rows]: &mut [Squares; 3]) {
        let doubt = self.doubt;
        // Means of types, and their variances around table and type.
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

    /// Standard deviation of the error of one row (log).
    pub fn sigma(&self) -> f64 {
        libm::sqrt(self.doubt.table + self.doubt.kind + self.row)
    }

    /// Marks the rows of a family's table by how far they are to be trusted, after what was seen of the family itself.
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

/// Of one quantity, by owner.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableTrusts(BTreeMap<String, TableTrust>);

impl TableTrusts {
    /// From all families that are pooled: bounded, and nothing in them is a job's own word.
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

    /// Of a family's table, before anything was seen of the family.
    pub fn of(&self, name: &str) -> TableTrust {
        self.0.get(owner(name)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table that is off by so much on one type and on another, each measured on two rows for a hundred epochs.
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
        // given: tables off by 0.5 up or down, or types off by that within tables that are right on the whole
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
