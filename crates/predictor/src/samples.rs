//! A profile's evidence: one aggregated sample per configuration, from observations and table rows.

use andreas_model::{Configuration, GpuCount, GpuType};

use crate::physics::Quantity;
use crate::runs::{EPOCH_SPREAD, RunSpread};
use crate::screen::{MAX_EPOCH, MAX_WATTS, MIN_EPOCH, screen};
use crate::spread::spread;
use crate::{Observation, Profile};

/// Most observations read of a profile, newest first. Bounds the work; far above what a profile
/// keeps.
const MAX_ROWS: usize = 20_000;
/// Most rows read of a table.
const MAX_TABLE_ROWS: usize = 256;
/// Most configurations a profile's curve uses.
pub(crate) const MAX_CELLS: usize = 240;

/// Usual error of a user's table, and of each of its rows alone (standard deviations of the log).
pub(crate) const USUAL_TABLE: f64 = 0.05;
pub(crate) const ROW: f64 = 0.01;

/// One configuration of a profile with its value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AggregatedSample {
    pub gpu_type: GpuType,
    pub gpus: u32,
    pub nodes: u32,
    /// Samples of a global batch, if the row has it.
    pub batch: Option<f64>,
    /// Power limit of one GPU, watts.
    pub limit: Option<f64>,
    /// Log of the value.
    pub log: f64,
    /// Standard deviation of the log; smaller with more epochs.
    pub noise: f64,
    /// Error variance, if it is a row of the user's table.
    pub table: Option<f64>,
    /// Epochs observed.
    pub epochs: f64,
    /// Time of the newest row.
    pub at: f64,
}

impl AggregatedSample {
    /// A query: no value yet.
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

    /// Same configuration, batch and limit.
    pub fn same_setting(&self, other: &Self) -> bool {
        self.gpus == other.gpus && self.differs_in_gpus_only(other)
    }

    /// Same except for the number of GPUs.
    pub fn differs_in_gpus_only(&self, other: &Self) -> bool {
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

/// Aggregated samples of a profile's observations, independent of row order; `runs` is the variance between runs.
pub(crate) fn observed<'a>(
    rows: impl IntoIterator<Item = &'a Observation>,
    quantity: Quantity,
    batch: Option<f64>,
    runs: f64,
) -> Vec<AggregatedSample> {
    let rows = cells(rows, quantity, batch);
    let merged = rows.chunk_by(same_configuration).map(|rows| merged(rows, runs));
    spread(&merged.collect::<Vec<_>>(), MAX_CELLS)
}

/// How far a profile's runs on one configuration differ in their times.
pub(crate) fn run_spread<'a>(
    rows: impl IntoIterator<Item = &'a Observation>,
    batch: Option<f64>,
) -> RunSpread {
    let rows = cells(rows, Quantity::Time, batch);
    let of = |rows: &[(AggregatedSample, f64)]| {
        RunSpread::from_rows(rows.iter().map(|(c, epochs)| (c.log, *epochs)))
    };
    rows.chunk_by(same_configuration).map(of).fold(RunSpread::default(), RunSpread::and)
}

/// One for each row with its epochs, by place and value.
fn cells<'a>(
    rows: impl IntoIterator<Item = &'a Observation>,
    quantity: Quantity,
    batch: Option<f64>,
) -> Vec<(AggregatedSample, f64)> {
    let sane = rows.into_iter().filter(|row| screen(row).is_ok());
    let mut rows: Vec<(AggregatedSample, f64)> =
        sane.filter_map(|row| Some((cell(row, quantity, batch)?, row.epochs))).collect();
    rows.sort_by(|(a, _), (b, _)| b.at.total_cmp(&a.at).then(compare(a, b)));
    rows.truncate(MAX_ROWS);
    rows.sort_by(|(a, _), (b, _)| compare(a, b));
    rows
}

fn same_configuration((a, _): &(AggregatedSample, f64), (b, _): &(AggregatedSample, f64)) -> bool {
    compare_configurations(a, b).is_eq()
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

/// Order by GPU type, GPUs, nodes, batch and power limit. A missing number comes first.
fn compare_configurations(a: &AggregatedSample, b: &AggregatedSample) -> std::cmp::Ordering {
    let number = |x: Option<f64>| x.unwrap_or(-1.0);
    (&a.gpu_type, a.gpus, a.nodes)
        .cmp(&(&b.gpu_type, b.gpus, b.nodes))
        .then(number(a.batch).total_cmp(&number(b.batch)))
        .then(number(a.limit).total_cmp(&number(b.limit)))
}

/// Order by configuration, then by value and epochs.
fn compare(a: &AggregatedSample, b: &AggregatedSample) -> std::cmp::Ordering {
    compare_configurations(a, b).then(a.log.total_cmp(&b.log)).then(a.epochs.total_cmp(&b.epochs))
}

/// One aggregated sample of rows sorted by value: weighted median, and noise by runs and epochs.
fn merged(rows: &[(AggregatedSample, f64)], runs: f64) -> AggregatedSample {
    let weight = |c: &AggregatedSample| 1.0 / (runs + EPOCH_SPREAD * EPOCH_SPREAD / c.epochs.max(1e-9));
    let epochs: f64 = rows.iter().map(|(c, _)| c.epochs).sum();
    let total: f64 = rows.iter().map(|(c, _)| weight(c)).sum();
    let mut below = 0.0;
    let mut log = rows[0].0.log;
    for (row, _) in rows {
        below += weight(row);
        log = row.log;
        if below >= total / 2.0 {
            break;
        }
    }
    let square = rows.iter().map(|(c, _)| c.epochs * (c.log - log) * (c.log - log)).sum::<f64>() / epochs;
    let spread = libm::sqrt(square).max(EPOCH_SPREAD);
    let at = rows.iter().map(|(c, _)| c.at).fold(f64::NEG_INFINITY, f64::max);
    let between = runs * rows.iter().map(|(c, _)| weight(c) * weight(c)).sum::<f64>() / (total * total);
    let noise = libm::sqrt(spread * spread / epochs.max(0.05) + between);
    AggregatedSample { log, noise, epochs, at, ..rows[0].0.clone() }
}

/// Samples of the user's table, as natural logs of seconds or of watts per GPU. Of several rows for
/// one configuration the first is used.
pub(crate) fn table_samples(profile: &Profile, quantity: Quantity) -> Vec<AggregatedSample> {
    let mut cells: Vec<AggregatedSample> = Vec::new();
    for row in profile.given.iter().take(MAX_TABLE_ROWS) {
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
            noise: ROW,
            table: Some(USUAL_TABLE * USUAL_TABLE - ROW * ROW),
            epochs: 0.0,
            at: f64::NEG_INFINITY,
        };
        if !cells.iter().any(|c| compare_configurations(c, &cell).is_eq()) {
            cells.push(cell);
        }
    }
    cells
}
