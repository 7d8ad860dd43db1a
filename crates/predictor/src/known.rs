//! A profile's own evidence, given and observed, and the source of an answer.

use crate::Source;
use crate::curve_prior::RESIDUAL_VARIANCE;
use crate::quantity_model::{Curve, QuantitySample};
use crate::samples::AggregatedSample;
use crate::table_trust::TableTrust;

/// An observation counts more than the table row of its configuration if its noise (log) is below
/// this.
const TABLE_SPREAD: f64 = 0.25;

/// One quantity of an answer (log).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value {
    pub log: f64,
    pub sigma: f64,
    pub source: Source,
}

/// A profile's evidence by origin.
pub(crate) struct Known {
    pub table: Vec<AggregatedSample>,
    pub seen: Vec<AggregatedSample>,
    pub trust: TableTrust,
    /// Variance between runs.
    pub runs: f64,
}

impl Known {
    /// All rows, in the order of the curve: the table first.
    pub fn rows(&self) -> impl Iterator<Item = &AggregatedSample> {
        self.table.iter().chain(&self.seen)
    }

    /// Whether the table is used as it is: no observation of this profile, and no table of its
    /// tenant was compared with measurements.
    pub fn is_used_as_given(&self) -> bool {
        self.seen.is_empty() && !self.trust.informed
    }

    /// The table's value, if the table is used as it is.
    pub fn given_value(&self, cell: &AggregatedSample) -> Option<Value> {
        let given = self.table.iter().find(|c| c.same_setting(cell)).filter(|_| self.is_used_as_given())?;
        Some(Value { log: given.log, sigma: self.trust.sigma(), source: Source::UserGiven })
    }

    /// The table's value if tables of the tenant were off: the curve, which weighs the row
    /// against profiles of the model, plus the row's own residual. `sample` is the row's setting.
    pub fn as_corrected(
        &self,
        curve: &Curve,
        sample: &QuantitySample,
        cell: &AggregatedSample,
    ) -> Option<Value> {
        let row = self.table.iter().position(|c| c.same_setting(cell)).filter(|_| self.seen.is_empty())?;
        let (detail, left) = curve.posterior.row_residual(row)?;
        let (mean, variance) = curve.predict_log(sample);
        let variance = (variance - RESIDUAL_VARIANCE + left).max(0.0);
        let sigma = libm::sqrt(variance).clamp(0.01, 3.0);
        Some(Value { log: mean + detail, sigma, source: Source::UserGiven })
    }

    /// Evidence on the same configuration with other numbers of GPUs.
    pub fn at_other_gpu_counts<'b>(
        &'b self,
        cell: &'b AggregatedSample,
    ) -> impl Iterator<Item = &'b AggregatedSample> {
        self.seen.iter().chain(&self.table).filter(|c| c.differs_in_gpus_only(cell))
    }

    /// Source of the curve's answer; `count` rows are on the type.
    pub fn source(&self, cell: &AggregatedSample, count: usize) -> Source {
        if let Some(seen) = self.seen.iter().find(|s| s.same_setting(cell)) {
            let trust = TABLE_SPREAD * TABLE_SPREAD / (TABLE_SPREAD * TABLE_SPREAD + seen.noise * seen.noise);
            if trust >= 0.5 || !self.table.iter().any(|t| t.same_setting(cell)) {
                return Source::Observed;
            }
        }
        let on_type = |cells: &[AggregatedSample]| cells.iter().any(|s| s.gpu_type == cell.gpu_type);
        if self.table.iter().any(|t| t.same_setting(cell)) {
            return Source::UserGiven;
        }
        match count {
            0 => Source::Regression,
            _ if on_type(&self.seen) => Source::Observed,
            _ => Source::UserGiven,
        }
    }
}
