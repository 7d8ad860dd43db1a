//! Accuracy of predictions, and the namespaces of observations that the last fit refused.
//!
//! **In**: each attempt's measurement with its prediction, and fits. **Out**: rolling error and coverage by
//! quantity, GPU type and source, and namespaces with rows refused by the last fit. Bounded: [`MAX_TYPES`]
//! types, four sources, [`WINDOW`] errors of each, [`MAX_REFUSED`] namespaces.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use andreas_predictor::LogNormal;
use prometheus_client::encoding::DescriptorEncoder;

use super::list;
use super::totals::{MAX_TYPES, OTHER, bounded};
use crate::predict::Fit;

/// Errors kept per series.
const WINDOW: usize = 200;

/// Namespaces listed with refused rows: those with the most.
const MAX_REFUSED: usize = 20;

/// A predicted quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quantity {
    /// Time of an epoch.
    Epoch,
    /// Draw of the gang.
    Power,
}

impl Quantity {
    fn as_str(self) -> &'static str {
        match self {
            Self::Epoch => "epoch",
            Self::Power => "power",
        }
    }
}

#[derive(Debug, Default)]
struct Checked {
    /// Error relative to the measurement, and whether the interval covered it.
    last: VecDeque<(f64, bool)>,
}

/// Checked predictions and the last fit.
#[derive(Debug, Default)]
pub struct Learning {
    types: BTreeSet<String>,
    checked: BTreeMap<(Quantity, String, &'static str), Checked>,
    fit: Option<Fit>,
}

impl Learning {
    /// Compares a prediction with its measurement.
    pub fn check(&mut self, quantity: Quantity, gpu_type: &str, predicted: &LogNormal, truth: f64) {
        let error = (predicted.median / truth - 1.0).abs();
        if !(error.is_finite() && truth > 0.0) {
            return;
        }
        let key = (quantity, bounded(gpu_type, &mut self.types, MAX_TYPES), predicted.source.as_str());
        let checked = self.checked.entry(key).or_default();
        checked.last.push_back((error, (predicted.low()..=predicted.high()).contains(&truth)));
        if checked.last.len() > WINDOW {
            checked.last.pop_front();
        }
    }

    /// The predictor has been fitted.
    pub fn fitted(&mut self, fit: &Fit) {
        self.fit = Some(fit.clone());
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        fn labels<'a>(key: &'a (Quantity, String, &'static str)) -> [(&'static str, &'a str); 3] {
            [("quantity", key.0.as_str()), ("gpu_type", &key.1), ("source", key.2)]
        }
        let mean = |checked: &Checked, of: fn(&(f64, bool)) -> f64| {
            checked.last.iter().map(of).sum::<f64>() / checked.last.len().max(1) as f64
        };
        list::MAPE.encode(encoder, |values| {
            let each = |(key, checked)| values.write(&labels(key), mean(checked, |(error, _)| *error));
            self.checked.iter().try_for_each(each)
        })?;
        list::COVERAGE.encode(encoder, |values| {
            let inside = |(_, inside): &(f64, bool)| f64::from(u8::from(*inside));
            self.checked
                .iter()
                .try_for_each(|(key, checked)| values.write(&labels(key), mean(checked, inside)))
        })?;
        let Some(fit) = &self.fit else { return Ok(()) };
        list::FIT_REFUSED_OF.encode(encoder, |values| {
            let mut most: Vec<(&str, u64)> =
                fit.refused.iter().map(|(namespace, rows)| (namespace.as_str(), *rows)).collect();
            most.sort_by(|(a, n), (b, m)| m.cmp(n).then(a.cmp(b)));
            let others = most.split_off(most.len().min(MAX_REFUSED));
            most.extend((!others.is_empty()).then(|| (OTHER, others.iter().map(|(_, rows)| rows).sum())));
            let each =
                |(namespace, rows): (&str, u64)| values.write(&[("job_namespace", namespace)], rows as f64);
            most.into_iter().try_for_each(each)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use andreas_predictor::Source;

    #[test]
    fn error_and_coverage_roll_and_types_are_bounded() {
        let mut learning = Learning::default();
        let predicted = LogNormal { median: 100.0, sigma: 0.1, source: Source::Observed };
        for n in 0..300 {
            // The first hundred were off by a half, outside the interval; the rest by a tenth, inside.
            let truth = if n < 100 { 200.0 } else { 100.0 / 1.1 };
            learning.check(Quantity::Epoch, "A", &predicted, truth);
        }
        let checked = &learning.checked[&(Quantity::Epoch, "A".to_owned(), "Observed")];
        assert_eq!(checked.last.len(), WINDOW);
        assert!(checked.last.iter().all(|(error, inside)| (error - 0.1).abs() < 1e-9 && *inside));
        for (n, truth) in [f64::NAN, 0.0, -1.0, 1.0].into_iter().cycle().take(200).enumerate() {
            learning.check(Quantity::Power, &format!("type-{n}"), &predicted, truth);
        }
        assert!(learning.checked.len() <= MAX_TYPES + 2, "{}", learning.checked.len());
    }
}
