//! Converts configurations to settings, and infers what a table means by batch and epoch.
//!
//! By the API, the batch is global and an epoch is a fixed number of samples. Other tables may mean
//! the batch per GPU, or a fixed number of steps. If several batches were run, the semantics with
//! the highest evidence over all profiles of the table are used. Names with a namespace come from a
//! cluster and always have the API's semantics; they are not part of this choice.

use std::collections::BTreeMap;

use crate::analytic_prior::AnalyticPrior;
use crate::physics::{Quantity, Setting};
use crate::quantity_model::QuantitySample;
use crate::samples::AggregatedSample;

/// What a table means by batch and epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatchSemantics {
    /// The batch is per GPU.
    pub per_gpu: bool,
    /// An epoch is a fixed number of steps.
    pub steps: bool,
}

impl BatchSemantics {
    pub const ALL: [Self; 4] = [
        Self { per_gpu: false, steps: false },
        Self { per_gpu: true, steps: false },
        Self { per_gpu: false, steps: true },
        Self { per_gpu: true, steps: true },
    ];
}

/// Tenant, and the tenant's name of a model.
pub(crate) type Model<'a> = (&'a str, Option<&'a str>);

/// Reference batches per model, per GPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scale {
    pub reading: BatchSemantics,
    /// By tenant and model.
    usual: BTreeMap<String, BTreeMap<String, f64>>,
    /// For profiles without a known batch: one value for all, so that their intercepts can be
    /// compared.
    unknown: Option<f64>,
}

/// Reference batch of a profile, in logs. If unknown it is 1, and only its split over GPUs counts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ReferenceBatch {
    /// Per GPU.
    pub per_gpu: f64,
    /// Over all GPUs, for rows without a batch.
    global: f64,
    /// Some row gives a batch.
    pub known: bool,
}

fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn usual(cells: &[AggregatedSample], reading: BatchSemantics, batch: Option<f64>) -> ReferenceBatch {
    let ln = |cell: &AggregatedSample| cell.batch.map(libm::log);
    let gpus = |cell: &AggregatedSample| libm::log(f64::from(cell.gpus.max(1)));
    let known: Vec<f64> = cells.iter().filter_map(ln).collect();
    let asked = || batch.filter(|b| b.is_finite() && *b > 0.0).map(libm::log);
    let global = middle(known.clone()).or_else(asked);
    let share = |cell: &AggregatedSample| {
        let batch = ln(cell).or(global).unwrap_or(0.0);
        if reading.per_gpu && global.is_some() { batch } else { batch - gpus(cell) }
    };
    // A batch seen on one GPU only, or not at all, is assumed to be meant for about two.
    let single = cells.iter().all(|c| c.gpus <= 1) && known.iter().all(|b| (b - known[0]).abs() < 1e-9);
    let meant = if single && !(reading.per_gpu && global.is_some()) { std::f64::consts::LN_2 } else { 0.0 };
    let per_gpu = middle(cells.iter().map(share).collect()).or(global).unwrap_or(0.0) - meant;
    ReferenceBatch { per_gpu, global: global.unwrap_or(0.0), known: global.is_some() }
}

impl Scale {
    /// From each profile's model and aggregated samples.
    pub fn new(families: &[(Model<'_>, &[AggregatedSample])], reading: BatchSemantics) -> Self {
        let mut by_model: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
        for ((owner, model), cells) in families {
            if let Some(model) = model {
                let usual = usual(cells, reading, None);
                if usual.known {
                    by_model.entry((owner, model)).or_default().push(usual.per_gpu);
                }
            }
        }
        let all = families.iter().map(|(_, cells)| usual(cells, reading, None));
        let unknown = middle(all.filter(|u| !u.known).map(|u| u.per_gpu).collect());
        let mut usual: BTreeMap<String, BTreeMap<String, f64>> = BTreeMap::new();
        for ((owner, model), all) in by_model {
            let of_owner = usual.entry(owner.to_owned()).or_default();
            of_owner.extend(middle(all).map(|middle| (model.to_owned(), middle)));
        }
        Self { reading, usual, unknown }
    }

    /// Reference batch of a profile: of its model, else its own, else the query's.
    pub fn usual(
        &self,
        (owner, model): Model<'_>,
        cells: &[AggregatedSample],
        batch: Option<f64>,
    ) -> ReferenceBatch {
        let own = usual(cells, self.reading, batch);
        if !own.known {
            return ReferenceBatch { per_gpu: self.unknown.unwrap_or(own.per_gpu), ..own };
        }
        let of_model = model.filter(|_| own.known).and_then(|m| self.usual.get(owner)?.get(m).copied());
        ReferenceBatch { per_gpu: of_model.unwrap_or(own.per_gpu), ..own }
    }

    /// The sample as a curve of this quantity takes it. `draw`: logs of one GPU's draw without and
    /// with the limit.
    pub fn spot(
        &self,
        law: &AnalyticPrior,
        quantity: Quantity,
        cell: &AggregatedSample,
        usual: ReferenceBatch,
        draw: Option<(f64, f64)>,
    ) -> QuantitySample {
        let said = cell.batch.map_or(usual.global, libm::log);
        let all =
            if self.reading.per_gpu && usual.known { libm::log(f64::from(cell.gpus.max(1))) } else { 0.0 };
        let batch = (said + all - usual.per_gpu).clamp(-14.0, 14.0);
        let board = law.board(&cell.gpu_type);
        let depth = cell.limit.map_or(0.0, |w| libm::log((w / board.max).clamp(0.05, 1.0)));
        let limit = match quantity {
            Quantity::Power => cell.limit.map_or(f64::INFINITY, |w| libm::log(w.max(0.05 * board.max))),
            Quantity::Time => draw.map_or(0.0, |(free, limited)| law.taken(&cell.gpu_type, free, limited)),
        };
        let setting = Setting {
            gpus: libm::log2(f64::from(cell.gpus.max(1))),
            nodes: libm::log2(f64::from(cell.nodes.max(1))),
            batch,
            limit,
            depth,
            ..Setting::default()
        };
        QuantitySample {
            gpu_type: cell.gpu_type.clone(),
            law: match quantity {
                Quantity::Time => law.log_type(&cell.gpu_type),
                Quantity::Power => law.log_watts(&cell.gpu_type, cell.gpus, cell.nodes),
            },
            setting,
            log: cell.log - self.offset(quantity, batch),
            noise: cell.noise,
            table: cell.table,
        }
    }

    /// Add this to a curve's value: if an epoch is a number of steps, it grows with the batch.
    pub fn offset(&self, quantity: Quantity, batch: f64) -> f64 {
        if self.reading.steps && quantity == Quantity::Time { batch } else { 0.0 }
    }
}
