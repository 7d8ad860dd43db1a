//! From configurations to settings: what a batch is measured by, and what a table means by its batch and by its epoch.
//!
//! The batch is the global one and an epoch a fixed number of samples; so says the API. Tables made elsewhere may mean the
//! batch of one GPU, or a fixed number of steps. Where several batches were run the data tell which: the reading under
//! which a table's curves are likelier is taken, for all its families together. Names with a namespace come from a cluster, where
//! the API's meaning is the only one: they do not vote.

use std::collections::BTreeMap;

use crate::analytic_prior::AnalyticPrior;
use crate::physics::{Quantity, Setting};
use crate::quantity_model::QuantitySample;
use crate::samples::AggregatedSample;

/// What a table means by batch and epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatchSemantics {
    /// The batch is that of one GPU.
    pub per_gpu: bool,
    /// An epoch is a fixed number of steps, whatever the batch.
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

/// A model as its owner names it.
pub(crate) type Model<'a> = (&'a str, Option<&'a str>);

/// What batches are measured by: each model's usual batch on one GPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scale {
    pub reading: BatchSemantics,
    /// By owner and model.
    usual: BTreeMap<String, BTreeMap<String, f64>>,
    /// Of families of which no batch is known: one for all, or their levels could not be compared.
    unknown: Option<f64>,
}

/// A family's usual batch, in logs. Where none is known it is 1: what counts is how it is shared out.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ReferenceBatch {
    /// Of one GPU.
    pub per_gpu: f64,
    /// Of all GPUs together, for rows that do not say.
    global: f64,
    /// Some row says.
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
    // One batch that was only seen on one GPU, or not at all, is thought to be meant for about two.
    let single = cells.iter().all(|c| c.gpus <= 1) && known.iter().all(|b| (b - known[0]).abs() < 1e-9);
    let meant = if single && !(reading.per_gpu && global.is_some()) { std::f64::consts::LN_2 } else { 0.0 };
    let per_gpu = middle(cells.iter().map(share).collect()).or(global).unwrap_or(0.0) - meant;
    ReferenceBatch { per_gpu, global: global.unwrap_or(0.0), known: global.is_some() }
}

impl Scale {
    /// From each family's model and cells.
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

    /// The usual batch of a family: its model's, else its own, else the one that is asked.
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

    /// The cell as a curve of this quantity takes it, by the free draw of one GPU and its draw under the limit (logs).
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

    /// What to add to a curve's value: where an epoch is a number of steps, it is longer by the batch.
    pub fn offset(&self, quantity: Quantity, batch: f64) -> f64 {
        if self.reading.steps && quantity == Quantity::Time { batch } else { 0.0 }
    }
}
