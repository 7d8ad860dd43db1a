//! A family's own cells, given and seen, and what an answer rests on.

use crate::Source;
use crate::quantity_model::{Curve, QuantitySample};
use crate::samples::AggregatedSample;
use crate::table_trust::TableTrust;

/// What was seen of a configuration that its table has counts more than the table where its noise is below this (log).
const TABLE_SPREAD: f64 = 0.25;

/// One quantity of one answer (log).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value {
    pub log: f64,
    pub sigma: f64,
    pub source: Source,
}

/// A family's cells by where they come from.
pub(crate) struct Known<'a> {
    /// First in the family's curve, in this order.
    pub table: &'a [AggregatedSample],
    pub seen: &'a [AggregatedSample],
    pub trust: TableTrust,
}

impl Known<'_> {
    /// The table is taken at its word: nothing was seen of this family, nor how far tables of its namespace are off.
    pub fn stands(&self) -> bool {
        self.seen.is_empty() && !self.trust.informed
    }

    /// The user's word, where nothing was observed to the contrary.
    pub fn as_given(&self, cell: &AggregatedSample) -> Option<Value> {
        let given = self.table.iter().find(|c| c.is(cell)).filter(|_| self.stands())?;
        Some(Value { log: given.log, sigma: self.trust.sigma(), source: Source::UserGiven })
    }

    /// The user's word where tables of the namespace were off: the curve, which weighs it against what families of the model show, and
    /// what the row says beyond the curve. `spot` is where the cell is, `offset` what to add to the curve.
    pub fn as_corrected(
        &self,
        curve: &Curve,
        spot: &QuantitySample,
        offset: f64,
        cell: &AggregatedSample,
    ) -> Option<Value> {
        let row = self.table.iter().position(|c| c.is(cell)).filter(|_| self.seen.is_empty())?;
        let (detail, left) = curve.posterior.detail(row)?;
        let (mean, variance) = curve.at(spot);
        let variance = (variance - curve.posterior.scatter() + left).max(0.0);
        let sigma = libm::sqrt(variance).clamp(0.01, 3.0);
        Some(Value { log: mean + offset + detail, sigma, source: Source::UserGiven })
    }

    /// Cells that differ in GPUs alone.
    pub fn beside<'b>(&'b self, cell: &'b AggregatedSample) -> impl Iterator<Item = &'b AggregatedSample> {
        self.seen.iter().chain(self.table).filter(|c| c.is_beside(cell))
    }

    /// What an answer of the curve rests on, of whose rows `count` are on the type.
    pub fn source(&self, cell: &AggregatedSample, count: usize) -> Source {
        if let Some(seen) = self.seen.iter().find(|s| s.is(cell)) {
            let trust = TABLE_SPREAD * TABLE_SPREAD / (TABLE_SPREAD * TABLE_SPREAD + seen.noise * seen.noise);
            if trust >= 0.5 || !self.table.iter().any(|t| t.is(cell)) {
                return Source::Observed;
            }
        }
        let on_type = |cells: &[AggregatedSample]| cells.iter().any(|s| s.gpu_type == cell.gpu_type);
        if self.table.iter().any(|t| t.is(cell)) {
            return Source::UserGiven;
        }
        match count {
            0 => Source::Regression,
            _ if on_type(self.seen) => Source::Observed,
            _ => Source::UserGiven,
        }
    }
}
