//! What is known of a family, one cell for each configuration: its observations together, and the rows of its table.

use andreas_core::{Configuration, GpuCount, GpuType};

use crate::physics::Quantity;
use crate::screen::{MAX_EPOCH, MAX_WATTS, MIN_EPOCH, screen};
use crate::spread::spread;
use crate::table_trust::{TableTrust, TableVariances};
use crate::{Observation, Profile};

/// Observations of a family that are read, newest first: a bound on the work, far above what a profile keeps.
const MAX_ROWS: usize = 20_000;
/// Rows of a table that are read.
const MAX_GIVEN: usize = 256;
/// Configurations of a family that its curve rests on.
pub(crate) const MAX_CELLS: usize = 240;
/// How far one epoch is from the mean of its run: warm-up, shared storage, neighbours (standard deviation of the log).
pub(crate) const EPOCH_SPREAD: f64 = 0.15;

/// One configuration of a family with its value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AggregatedSample {
    pub gpu_type: GpuType,
    pub gpus: u32,
    pub nodes: u32,
    /// Samples of a global batch, where the row says so.
    pub batch: Option<f64>,
    /// Power limit of a GPU, watts.
    pub limit: Option<f64>,
    /// Log of the value.
    pub log: f64,
    /// Standard deviation of the log, by how little was watched.
    pub noise: f64,
    /// From the user's table.
    pub table: Option<TableVariances>,
    /// Epochs watched.
    pub epochs: f64,
    /// Newest row.
    pub at: f64,
}

impl AggregatedSample {
    /// Where a question is: no value yet.
    pub fn asked(c: &Configuration, gpus: Option<GpuCount>, batch: Option<f64>) -> Self {
        Self {
            gpu_type: c.gpu_type.clone(),
            gpus: gpus.unwrap_or(c.total_gpus()).0.max(1),
            nodes: c.nodes.max(1),
            batch: batch.filter(|b| b.is_finite() && *b > 0.0),
            limit: c.limit.map(|w| w.0).filter(|w| w.is_finite() && *w > 0.0),
            log: 0.0,
            noise: 0.0,
            table: None,
            epochs: 0.0,
            at: 0.0,
        }
    }

    /// Whether both are of one configuration, batch and limit.
    pub fn is(&self, other: &Self) -> bool {
        self.gpus == other.gpus && self.is_beside(other)
    }

    /// Whether they differ in their number of GPUs at most.
    pub fn is_beside(&self, other: &Self) -> bool {
        self.gpu_type == other.gpu_type
            && self.nodes == other.nodes
            && same(self.batch, other.batch)
            && same(self.limit, other.limit)
    }
}

fn same(a: Option<f64>, b: Option<f64>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-9 * a.abs().max(b.abs()),
        (None, None) => true,
        _ => false,
    }
}

fn value(row: &Observation, quantity: Quantity) -> Option<f64> {
    match quantity {
        Quantity::Time => row.epoch.map(|s| libm::log(s.0)),
        Quantity::Power => row.watts_per_gpu.map(|w| libm::log(w.0)),
    }
}

/// The cells of a family's observations, in an order that does not depend on theirs.
pub(crate) fn observed<'a>(
    rows: impl IntoIterator<Item = &'a Observation>,
    quantity: Quantity,
    batch: Option<f64>,
) -> Vec<AggregatedSample> {
    let sane = rows.into_iter().filter(|row| screen(row).is_ok());
    let mut rows: Vec<(AggregatedSample, f64)> =
        sane.filter_map(|row| Some((cell(row, quantity, batch)?, row.epochs))).collect();
    rows.sort_by(|(a, _), (b, _)| b.at.total_cmp(&a.at).then(order(a, b)));
    rows.truncate(MAX_ROWS);
    rows.sort_by(|(a, _), (b, _)| order(a, b));
    let cells = rows.chunk_by(|(a, _), (b, _)| order_of_place(a, b).is_eq()).map(together).collect();
    thinned(cells)
}

fn cell(row: &Observation, quantity: Quantity, batch: Option<f64>) -> Option<AggregatedSample> {
    let c = &row.configuration;
    Some(AggregatedSample {
        gpu_type: c.gpu_type.clone(),
        gpus: row.gpus.unwrap_or(c.total_gpus()).0,
        nodes: c.nodes,
        batch: row.batch.or(batch).filter(|b| b.is_finite() && *b > 0.0),
        limit: c.limit.map(|w| w.0),
        log: value(row, quantity)?,
        noise: 0.0,
        table: None,
        epochs: row.epochs.min(1e6),
        at: row.at.0,
    })
}

fn order_of_place(a: &AggregatedSample, b: &AggregatedSample) -> std::cmp::Ordering {
    let number = |x: Option<f64>| x.unwrap_or(-1.0);
    (&a.gpu_type, a.gpus, a.nodes)
        .cmp(&(&b.gpu_type, b.gpus, b.nodes))
        .then(number(a.batch).total_cmp(&number(b.batch)))
        .then(number(a.limit).total_cmp(&number(b.limit)))
}

fn order(a: &AggregatedSample, b: &AggregatedSample) -> std::cmp::Ordering {
    order_of_place(a, b).then(a.log.total_cmp(&b.log)).then(a.epochs.total_cmp(&b.epochs))
}

/// One cell of rows in order of their value: the weighted median, and the noise that their epochs leave.
fn together(rows: &[(AggregatedSample, f64)]) -> AggregatedSample {
    let total: f64 = rows.iter().map(|(c, _)| c.epochs).sum();
    let mut below = 0.0;
    let mut log = rows[0].0.log;
    for (row, _) in rows {
        below += row.epochs;
        log = row.log;
        if below >= total / 2.0 {
            break;
        }
    }
    let square = rows.iter().map(|(c, _)| c.epochs * (c.log - log) * (c.log - log)).sum::<f64>() / total;
    let spread = libm::sqrt(square).max(EPOCH_SPREAD);
    let at = rows.iter().map(|(c, _)| c.at).fold(f64::NEG_INFINITY, f64::max);
    let noise = spread / libm::sqrt(total.max(0.05));
    AggregatedSample { log, noise, epochs: total, at, ..rows[0].0.clone() }
}

/// At most [`MAX_CELLS`]: the newest; of cells of one age some of every part.
fn thinned(mut cells: Vec<AggregatedSample>) -> Vec<AggregatedSample> {
    if cells.len() <= MAX_CELLS {
        return cells;
    }
    let newest = cells.iter().map(|c| c.at).fold(f64::NEG_INFINITY, f64::max);
    if cells.iter().all(|c| c.at >= newest) {
        return spread(&cells, MAX_CELLS);
    }
    cells.sort_by(|a, b| b.at.total_cmp(&a.at).then(order(a, b)));
    cells.truncate(MAX_CELLS);
    cells.sort_by(order);
    cells
}

/// The cells of the user's table; of rows for one configuration the first counts.
pub(crate) fn given(profile: &Profile, quantity: Quantity) -> Vec<AggregatedSample> {
    let usual = TableTrust::default();
    let mut cells: Vec<AggregatedSample> = Vec::new();
    for row in profile.given.iter().take(MAX_GIVEN) {
        let (gpus, nodes) = (row.gpus.0, row.nodes.unwrap_or(1));
        let (value, low, high) = match quantity {
            Quantity::Time => (row.epoch.map(|s| s.0), MIN_EPOCH, MAX_EPOCH),
            Quantity::Power => (row.power.map(|w| w.0 / f64::from(gpus)), 0.1, MAX_WATTS),
        };
        let Some(value) = value.filter(|v| v.is_finite() && *v > 0.0) else { continue };
        if gpus == 0 || nodes == 0 {
            continue;
        }
        let cell = AggregatedSample {
            gpu_type: row.gpu_type.clone(),
            gpus,
            nodes,
            batch: profile.features.batch.filter(|b| b.is_finite() && *b > 0.0),
            limit: None,
            log: libm::log(value.clamp(low, high)),
            noise: libm::sqrt(usual.row),
            table: Some(usual.doubt),
            epochs: 0.0,
            at: f64::NEG_INFINITY,
        };
        if !cells.iter().any(|c| order_of_place(c, &cell).is_eq()) {
            cells.push(cell);
        }
    }
    cells
}
