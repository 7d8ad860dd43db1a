//! What is known of a family, by configuration: the user's table, corrected by what was observed.

use andreas_core::{GpuType, Watts};

use crate::{Observation, Profile, Source};

/// Rows of a family that are read, newest first: a bound on the work, far above what a profile keeps.
const MAX_ROWS: usize = 4096;
/// Rows of a table that are read.
const MAX_GIVEN: usize = 512;
/// How far a user's table tends to be from the truth (standard deviation of the log)...
const TABLE_SPREAD: f64 = 0.25;
/// ...and how far one epoch is from the mean of its run: warm-up, shared storage, neighbours.
const EPOCH_SPREAD: f64 = 0.15;
/// Interval of a value taken as given.
const GIVEN_SIGMA: f64 = 0.05;
/// Two runs of the same configuration differ by at least this (other data order, other node).
const RUN_SIGMA: f64 = 0.03;
/// A limit binds when the draw is above this share of it.
const BINDING: f64 = 0.9;

/// One configuration whose value is known.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Known {
    pub gpu_type: GpuType,
    pub gpus: u32,
    /// `None`: however many it takes.
    pub nodes: Option<u32>,
    /// Log of the value.
    pub log: f64,
    pub sigma: f64,
    pub source: Source,
}

impl Known {
    /// Whether this is the configuration asked, and whether it says so of the nodes too.
    fn matches(&self, gpu_type: &GpuType, gpus: u32, nodes: u32) -> Option<bool> {
        (self.gpu_type == *gpu_type && self.gpus == gpus && self.nodes.is_none_or(|n| n == nodes))
            .then_some(self.nodes.is_some())
    }
}

/// The known value of exactly this configuration; one that names its nodes goes before one that does not.
pub(crate) fn exact<'a>(known: &'a [Known], gpu_type: &GpuType, gpus: u32, nodes: u32) -> Option<&'a Known> {
    let all = known.iter().filter_map(|k| k.matches(gpu_type, gpus, nodes).map(|named| (named, k)));
    all.max_by_key(|(named, _)| *named).map(|(_, k)| k)
}

/// Which quantity of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantity {
    /// Seconds of one epoch.
    Time,
    /// Watts of one GPU.
    Power,
}

impl Quantity {
    fn bounds(self) -> (f64, f64) {
        match self {
            Self::Time => crate::law::LOG_TIME,
            Self::Power => crate::law::LOG_WATTS,
        }
    }

    fn log(self, value: f64) -> Option<f64> {
        let (low, high) = self.bounds();
        (value.is_finite() && value > 0.0).then(|| libm::log(value).clamp(low, high))
    }

    fn observed(self, row: &Observation) -> Option<f64> {
        match self {
            Self::Time => self.log(row.epoch?.0),
            Self::Power => self.log(row.watts_per_gpu?.0),
        }
    }
}

/// The observations of one configuration, together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Observed {
    pub gpu_type: GpuType,
    pub gpus: u32,
    pub nodes: u32,
    /// Weighted median of the logs.
    pub log: f64,
    /// Spread of the logs around it.
    pub spread: f64,
    /// Epochs watched in all.
    pub epochs: f64,
    /// Newest row.
    pub at: f64,
}

/// Observations by configuration, in order of type, GPUs and nodes. `limit`: only rows under that limit; without one
/// those under no limit, or one that did not bind.
pub(crate) fn observed(rows: &[Observation], quantity: Quantity, limit: Option<Watts>) -> Vec<Observed> {
    let wanted = |row: &&Observation| match (limit, row.configuration.limit) {
        (Some(asked), Some(set)) => (asked.0 - set.0).abs() < 0.5,
        (Some(_), None) => false,
        (None, None) => true,
        (None, Some(set)) => row.watts_per_gpu.is_some_and(|w| w.0 < BINDING * set.0),
    };
    let usable = |row: &&Observation| {
        row.configuration.nodes > 0
            && row.configuration.gpus_per_node.0 > 0
            && row.epochs.is_finite()
            && row.epochs > 0.0
            && row.at.is_finite()
    };
    let mut rows: Vec<(&Observation, f64)> =
        rows.iter().filter(wanted).filter(usable).filter_map(|r| Some((r, quantity.observed(r)?))).collect();
    rows.sort_by(|(a, _), (b, _)| b.at.total_cmp(&a.at));
    rows.truncate(MAX_ROWS);
    let key = |r: &Observation| {
        let c = &r.configuration;
        (c.gpu_type.clone(), c.total_gpus().0, c.nodes)
    };
    rows.sort_by(|(a, x), (b, y)| key(a).cmp(&key(b)).then(x.total_cmp(y)));
    rows.chunk_by(|(a, _), (b, _)| key(a) == key(b))
        .map(|group| {
            let (gpu_type, gpus, nodes) = key(group[0].0);
            let epochs: f64 = group.iter().map(|(r, _)| r.epochs.min(1e6)).sum();
            let log = weighted_median(group, epochs);
            let spread =
                group.iter().map(|(r, y)| r.epochs.min(1e6) * (y - log) * (y - log)).sum::<f64>() / epochs;
            let at = group.iter().map(|(r, _)| r.at.0).fold(f64::NEG_INFINITY, f64::max);
            Observed { gpu_type, gpus, nodes, log, spread: libm::sqrt(spread), epochs, at }
        })
        .collect()
}

/// Of rows in order of their value; `total` is the sum of their weights.
fn weighted_median(rows: &[(&Observation, f64)], total: f64) -> f64 {
    let mut below = 0.0;
    for (row, y) in rows {
        below += row.epochs.min(1e6);
        if below >= total / 2.0 {
            return *y;
        }
    }
    rows.last().map_or(0.0, |(_, y)| *y)
}

/// All that is known of a family: given rows first, then observed ones; each configuration once.
pub(crate) fn gather(profile: &Profile, quantity: Quantity) -> Vec<Known> {
    let mut known = given(profile, quantity);
    let table = known.clone();
    let mut errors: Vec<f64> = Vec::new();
    for seen in observed(&profile.observations, quantity, None) {
        // What k epochs leave open, and never less than what two runs differ by.
        let noise = EPOCH_SPREAD.max(seen.spread) / libm::sqrt(seen.epochs.max(0.1));
        let mut row = Known {
            gpu_type: seen.gpu_type.clone(),
            gpus: seen.gpus,
            nodes: Some(seen.nodes),
            log: seen.log,
            sigma: libm::sqrt(noise * noise + RUN_SIGMA * RUN_SIGMA),
            source: Source::Observed,
        };
        if let Some(given) = exact(&table, &seen.gpu_type, seen.gpus, seen.nodes) {
            let trust = TABLE_SPREAD * TABLE_SPREAD / (TABLE_SPREAD * TABLE_SPREAD + noise * noise);
            errors.push((seen.log - given.log).abs() * trust);
            row.log = given.log + trust * (seen.log - given.log);
            row.sigma = libm::sqrt(trust * noise * noise + RUN_SIGMA * RUN_SIGMA);
            if trust < 0.5 {
                row.source = Source::UserGiven;
            }
            known.retain(|k| !(k.gpu_type == row.gpu_type && k.gpus == row.gpus && k.nodes == row.nodes));
        }
        known.push(row);
    }
    // The table was found to be off where it was looked at: the rest of it is believed less.
    if !errors.is_empty() {
        let off = errors.iter().sum::<f64>() / errors.len() as f64;
        for k in known.iter_mut().filter(|k| k.source == Source::UserGiven) {
            k.sigma = k.sigma.max(off.min(crate::estimate::FACTOR_THREE));
        }
    }
    known
}

fn given(profile: &Profile, quantity: Quantity) -> Vec<Known> {
    let mut known: Vec<Known> = Vec::new();
    for row in profile.given.iter().take(MAX_GIVEN) {
        let value = match quantity {
            Quantity::Time => row.epoch.map(|s| s.0),
            Quantity::Power => row.power.map(|w| w.0 / f64::from(row.gpus.0)),
        };
        let Some(log) = value.and_then(|v| quantity.log(v)) else { continue };
        if row.gpus.0 == 0 || row.nodes == Some(0) {
            continue;
        }
        // The first row of a configuration wins.
        if known.iter().any(|k| k.gpu_type == row.gpu_type && k.gpus == row.gpus.0 && k.nodes == row.nodes) {
            continue;
        }
        let (gpu_type, gpus, nodes) = (row.gpu_type.clone(), row.gpus.0, row.nodes);
        known.push(Known { gpu_type, gpus, nodes, log, sigma: GIVEN_SIGMA, source: Source::UserGiven });
    }
    known
}
