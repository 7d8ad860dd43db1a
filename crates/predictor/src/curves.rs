//! A profile's two curves, and the answers they give.

use andreas_model::GpuType;

use crate::Source;
use crate::analytic_prior::AnalyticPrior;
use crate::calibration::{Evidence, Factors};
use crate::guard::guarded;
use crate::known::{Known, Value};
use crate::physics::Quantity;
use crate::quantity_model::{Curve, QuantitySample};
use crate::samples::AggregatedSample;
use crate::scale::ReferenceBatch;

/// A profile's curves of time and of one GPU's draw.
pub(crate) struct Curves<'a> {
    pub law: &'a AnalyticPrior,
    /// Calibration factors of times and watts.
    pub factors: [Factors; 2],
    pub reference: ReferenceBatch,
    pub time: Curve,
    pub watts: Curve,
    /// Standard deviation and source of the intercept of times without rows.
    pub unseen: (f64, Source),
}

impl Curves<'_> {
    fn sample(&self, cell: &AggregatedSample) -> QuantitySample {
        let draws = draws(self.law, self.reference, &self.watts, cell);
        self.reference.sample(self.law, Quantity::Time, cell, draws)
    }

    /// Time of an epoch.
    pub fn time_of(&self, known: &Known, cell: &AggregatedSample) -> Value {
        if let Some(value) = known.given_value(cell) {
            return value;
        }
        let sample = self.sample(cell);
        if let Some(value) = known.as_corrected(&self.time, &sample, cell) {
            return value;
        }
        let (_, variance) = self.time.predict_log(&sample);
        let stand = |c: &AggregatedSample| {
            if known.is_used_as_given() {
                return (c.gpus, c.log);
            }
            let sample = self.sample(c);
            let corrected = known.as_corrected(&self.time, &sample, c);
            (c.gpus, corrected.map_or_else(|| self.time.mean(&sample), |value| value.log))
        };
        let mut standing: Vec<(u32, f64)> = known.at_other_gpu_counts(cell).map(stand).collect();
        standing.sort_by_key(|(gpus, _)| *gpus);
        standing.dedup_by_key(|(gpus, _)| *gpus);
        let log = monotone_projection(&self.time, cell, &standing, |c| self.sample(c));
        let sigma = calibrated_sigma(self.factors[0], &self.time, &cell.gpu_type, variance);
        if self.time.counts.is_empty() {
            let (unseen, source) = self.unseen;
            let sigma = if source == Source::Prior { unseen } else { sigma.max(unseen) };
            return Value { log, sigma, source };
        }
        Value { log, sigma, source: known.source(cell, self.time.count(&cell.gpu_type)) }
    }

    /// Draw of one GPU.
    pub fn power_of(&self, known: &Known, cell: &AggregatedSample) -> Value {
        if let Some(value) = known.given_value(cell) {
            return value;
        }
        let sample = self.reference.sample(self.law, Quantity::Power, cell, None);
        if let Some(value) = known.as_corrected(&self.watts, &sample, cell) {
            return value;
        }
        let (mut log, variance) = self.watts.predict_log(&sample);
        let sigma = calibrated_sigma(self.factors[1], &self.watts, &cell.gpu_type, variance);
        let source = if self.watts.counts.is_empty() {
            if self.watts.expected.covers(&cell.gpu_type) { Source::Regression } else { Source::Prior }
        } else {
            known.source(cell, self.watts.count(&cell.gpu_type))
        };
        // A measured configuration keeps its value, even above the nameplate.
        if !known.rows().any(|c| c.same_setting(cell)) {
            let board = self.law.board(&cell.gpu_type);
            let floor = libm::log(board.idle.max(0.5));
            log = log.clamp(floor, libm::log(board.max).max(floor) + 0.05);
        }
        Value { log, sigma, source }
    }
}

/// Standard deviation of the natural log, scaled by the calibration factor for this much evidence, in
/// 0.01..=3.
fn calibrated_sigma(factors: Factors, curve: &Curve, gpu_type: &GpuType, variance: f64) -> f64 {
    let evidence = Evidence::from_counts(curve.count(gpu_type), curve.counts.values().sum());
    (factors.for_evidence(evidence) * libm::sqrt(variance)).clamp(0.01, 3.0)
}

/// Log time of a configuration on the monotone projection of a curve; `known` are counts of GPUs with their log times.
pub(crate) fn monotone_projection(
    curve: &Curve,
    cell: &AggregatedSample,
    known: &[(u32, f64)],
    sample: impl Fn(&AggregatedSample) -> QuantitySample,
) -> f64 {
    if curve.has_evidence_near(&cell.gpu_type, cell.gpus) {
        return curve.mean(&sample(cell));
    }
    guarded(cell.nodes, cell.gpus, known, |gpus| {
        curve.mean(&sample(&AggregatedSample { gpus, ..cell.clone() }))
    })
}

/// Logs of one GPU's draw without a limit and with the sample's; `None` without a limit.
pub(crate) fn draws(
    law: &AnalyticPrior,
    reference: ReferenceBatch,
    watts: &Curve,
    cell: &AggregatedSample,
) -> Option<(f64, f64)> {
    let at = |limit: Option<f64>| {
        let cell = AggregatedSample { limit, ..cell.clone() };
        watts.mean(&reference.sample(law, Quantity::Power, &cell, None))
    };
    let limit = cell.limit?;
    let free = at(None);
    Some((free, at(Some(limit)).min(free)))
}
