//! Converts configurations to settings of the curve, relative to a reference batch.
//!
//! The batch is global, and an epoch is a fixed number of samples.

use std::collections::BTreeMap;

use crate::analytic_prior::AnalyticPrior;
use crate::physics::{Quantity, Setting};
use crate::quantity_model::QuantitySample;
use crate::regression::median;
use crate::samples::AggregatedSample;

/// Reference batches per GPU (logs), of one tenant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scale {
    by_model: BTreeMap<String, f64>,
    /// For profiles without a known batch: one value for all, so that their intercepts can be
    /// compared.
    unknown: Option<f64>,
}

/// Reference batch of a profile, in logs. If unknown it is 1, and only its split over GPUs counts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ReferenceBatch {
    pub per_gpu: f64,
    /// Over all GPUs, for rows without a batch.
    global: f64,
    /// Some row gives a batch.
    pub known: bool,
}

fn reference(cells: &[AggregatedSample], batch: Option<f64>) -> ReferenceBatch {
    let ln = |cell: &AggregatedSample| cell.batch.map(libm::log);
    let gpus = |cell: &AggregatedSample| libm::log(f64::from(cell.gpus.max(1)));
    let known: Vec<f64> = cells.iter().filter_map(ln).collect();
    let asked = || batch.filter(|b| b.is_finite() && *b > 0.0).map(libm::log);
    let global = median(known.clone()).or_else(asked);
    let share = |cell: &AggregatedSample| ln(cell).or(global).unwrap_or(0.0) - gpus(cell);
    // A batch seen on one GPU only, or not at all, is assumed to be meant for about two.
    let single = cells.iter().all(|c| c.gpus <= 1) && known.iter().all(|b| (b - known[0]).abs() < 1e-9);
    let meant = if single { std::f64::consts::LN_2 } else { 0.0 };
    let per_gpu = median(cells.iter().map(share).collect()).or(global).unwrap_or(0.0) - meant;
    ReferenceBatch { per_gpu, global: global.unwrap_or(0.0), known: global.is_some() }
}

impl Scale {
    /// From each profile's model and aggregated samples.
    pub fn new<'a>(profiles: impl Iterator<Item = (Option<&'a str>, &'a [AggregatedSample])>) -> Self {
        let mut by_model: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        let mut unknown = Vec::new();
        for (model, cells) in profiles {
            match (reference(cells, None), model) {
                (own, Some(model)) if own.known => by_model.entry(model).or_default().push(own.per_gpu),
                (own, _) if !own.known => unknown.push(own.per_gpu),
                _ => {}
            }
        }
        let by_model = by_model.into_iter().filter_map(|(model, all)| Some((model.to_owned(), median(all)?)));
        Self { by_model: by_model.collect(), unknown: median(unknown) }
    }

    /// Reference batch of a profile: of its model, else its own, else the query's.
    pub fn reference_batch(
        &self,
        model: Option<&str>,
        cells: &[AggregatedSample],
        batch: Option<f64>,
    ) -> ReferenceBatch {
        let own = reference(cells, batch);
        if !own.known {
            return ReferenceBatch { per_gpu: self.unknown.unwrap_or(own.per_gpu), ..own };
        }
        let of_model = model.and_then(|model| self.by_model.get(model).copied());
        ReferenceBatch { per_gpu: of_model.unwrap_or(own.per_gpu), ..own }
    }
}

impl ReferenceBatch {
    /// The sample as a curve of this quantity takes it. `draw`: logs of one GPU's draw without and
    /// with the limit.
    pub fn sample(
        self,
        law: &AnalyticPrior,
        quantity: Quantity,
        cell: &AggregatedSample,
        draw: Option<(f64, f64)>,
    ) -> QuantitySample {
        let batch = cell.batch.map_or(self.global, libm::log) - self.per_gpu;
        let board = law.board(&cell.gpu_type);
        let limit = match quantity {
            Quantity::Power => cell.limit.map_or(f64::INFINITY, |w| libm::log(w.max(0.05 * board.max))),
            Quantity::Time => {
                draw.map_or(0.0, |(free, limited)| law.draw_reduction(&cell.gpu_type, free, limited))
            }
        };
        let setting = Setting {
            gpus: libm::log2(f64::from(cell.gpus.max(1))),
            nodes: libm::log2(f64::from(cell.nodes.max(1))),
            batch: batch.clamp(-14.0, 14.0),
            limit,
            depth: cell.limit.map_or(0.0, |w| libm::log((w / board.max).clamp(0.05, 1.0))),
            ..Setting::default()
        };
        QuantitySample {
            gpu_type: cell.gpu_type.clone(),
            law: match quantity {
                Quantity::Time => law.log_type(&cell.gpu_type),
                Quantity::Power => law.log_watts(&cell.gpu_type, cell.gpus, cell.nodes),
            },
            setting,
            log: cell.log,
            noise: cell.noise,
            table: cell.table,
        }
    }
}
