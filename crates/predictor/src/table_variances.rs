//! How far a user's table may be wrong: the error variances of its rows, and their prior.

/// Prior error of a table, and of each of its rows alone (standard deviations of the log).
pub(crate) const USUAL: f64 = 0.05;
const USUAL_ROW: f64 = 0.01;

/// Error variances (log) that two rows of a table share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TableVariances {
    /// All rows of the table.
    pub table: f64,
    /// Rows of one GPU type, in addition.
    pub kind: f64,
}

/// Trust in a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TableTrust {
    pub doubt: TableVariances,
    /// Error of each row alone (variance of the log).
    pub row: f64,
    /// Whether a table of this namespace was compared with measurements.
    pub informed: bool,
}

impl Default for TableTrust {
    fn default() -> Self {
        let row = USUAL_ROW * USUAL_ROW;
        let shared = 0.5 * (USUAL * USUAL - row);
        Self { doubt: TableVariances { table: shared, kind: shared }, row, informed: false }
    }
}

impl TableTrust {
    /// Standard deviation of one row's error (log).
    pub fn sigma(&self) -> f64 {
        libm::sqrt(self.doubt.table + self.doubt.kind + self.row)
    }
}
