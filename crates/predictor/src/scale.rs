//! From configurations to settings: what a batch is measured by, and what a table means by its batch and by its epoch.
//!
//! The batch is the global one and an epoch a fixed number of samples; so says the API. Tables made elsewhere may mean the
//! batch of one GPU, or a fixed number of steps. Where several batches were run the data tell which: the reading under
//! which the curves are likelier is taken, for all families together.

use std::collections::BTreeMap;

use crate::cells::Cell;
use crate::law::Law;
use crate::physics::{Quantity, Setting};
use crate::stage::Spot;

/// What a table means by batch and epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// The batch is that of one GPU.
    pub per_gpu: bool,
    /// An epoch is a fixed number of steps, whatever the batch.
    pub steps: bool,
}

impl Reading {
    pub const ALL: [Self; 4] = [
        Self { per_gpu: false, steps: false },
        Self { per_gpu: true, steps: false },
        Self { per_gpu: false, steps: true },
        Self { per_gpu: true, steps: true },
    ];
}

/// What batches are measured by: each model's usual batch on one GPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scale {
    pub reading: Reading,
    usual: BTreeMap<String, f64>,
}

fn per_gpu(cell: &Cell, reading: Reading) -> Option<f64> {
    let batch = cell.batch?;
    Some(libm::log(if reading.per_gpu { batch } else { batch / f64::from(cell.gpus.max(1)) }))
}

fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Log of the usual batch of one GPU.
pub(crate) fn usual<'a>(cells: impl IntoIterator<Item = &'a Cell>, reading: Reading) -> Option<f64> {
    middle(cells.into_iter().filter_map(|c| per_gpu(c, reading)).collect())
}

impl Scale {
    /// From each family's model and cells.
    pub fn new(families: &[(Option<&str>, &[Cell])], reading: Reading) -> Self {
        let mut by_model: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (model, cells) in families {
            if let (Some(model), Some(usual)) = (model, usual(*cells, reading)) {
                by_model.entry(model).or_default().push(usual);
            }
        }
        let usual = by_model.into_iter().filter_map(|(model, all)| Some((model.to_owned(), middle(all)?)));
        Self { reading, usual: usual.collect() }
    }

    /// Log of the usual batch of a family on one GPU; 0 where no batch is known.
    pub fn usual(&self, model: Option<&str>, cells: &[Cell], batch: Option<f64>) -> f64 {
        let of_model = model.and_then(|m| self.usual.get(m).copied());
        let asked = || batch.filter(|b| b.is_finite() && *b > 0.0).map(libm::log);
        of_model.or_else(|| usual(cells, self.reading)).or_else(asked).unwrap_or(0.0)
    }

    /// The cell as a curve of this quantity takes it, by the free draw of one GPU and its draw under the limit (logs).
    pub fn spot(&self, law: &Law, quantity: Quantity, cell: &Cell, usual: f64, draw: Option<(f64, f64)>) -> Spot {
        let global = cell.batch.map(|b| if self.reading.per_gpu { b * f64::from(cell.gpus.max(1)) } else { b });
        let batch = global.map_or(0.0, |b| (libm::log(b) - usual).clamp(-14.0, 14.0));
        let board = law.board(&cell.gpu_type);
        let depth = cell.limit.map_or(0.0, |w| libm::log((w / board.max).clamp(0.05, 1.0)));
        let limit = match quantity {
            Quantity::Power => cell.limit.map_or(f64::INFINITY, |w| libm::log(w.max(0.05 * board.max))),
            Quantity::Time => draw.map_or(0.0, |(free, limited)| law.taken(&cell.gpu_type, free, limited)),
        };
        let setting = Setting {
            kind: 0,
            gpus: libm::log2(f64::from(cell.gpus.max(1))),
            nodes: libm::log2(f64::from(cell.nodes.max(1))),
            batch,
            limit,
            depth,
            base: 0.0,
        };
        Spot {
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
