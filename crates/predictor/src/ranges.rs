//! Whether a query lies outside everything observed.

use std::collections::BTreeSet;

use andreas_core::GpuType;
use serde::{Deserialize, Serialize};

use crate::samples::AggregatedSample;

/// Properties of a query that lie outside everything observed, of this profile or any other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutOfRange {
    /// No run was seen on the GPU type.
    pub gpu_type: bool,
    /// More GPUs.
    pub gpus: bool,
    /// More nodes.
    pub nodes: bool,
    /// A smaller or larger batch per GPU.
    pub batch: bool,
    /// A lower power limit.
    pub limit: bool,
}

impl OutOfRange {
    /// Any of them.
    pub fn any(self) -> bool {
        self.gpu_type || self.gpus || self.nodes || self.batch || self.limit
    }
}

/// Observed ranges.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Ranges {
    types: BTreeSet<GpuType>,
    gpus: u32,
    nodes: u32,
    batch: Option<(f64, f64)>,
    limit: Option<f64>,
}

impl Ranges {
    pub fn new<'a>(cells: impl Iterator<Item = &'a AggregatedSample>) -> Self {
        Self::default().with(cells)
    }

    /// Adds more samples.
    pub fn with<'a>(&self, cells: impl Iterator<Item = &'a AggregatedSample>) -> Self {
        let mut it = self.clone();
        for c in cells {
            it.types.insert(c.gpu_type.clone());
            it.gpus = it.gpus.max(c.gpus);
            it.nodes = it.nodes.max(c.nodes);
            if let Some(b) = per_gpu(c) {
                it.batch = Some(it.batch.map_or((b, b), |(low, high)| (low.min(b), high.max(b))));
            }
            if let Some(limit) = c.limit {
                it.limit = Some(it.limit.map_or(limit, |low| low.min(limit)));
            }
        }
        it
    }

    pub fn outside(&self, c: &AggregatedSample) -> OutOfRange {
        let beyond =
            |(low, high): (f64, f64)| per_gpu(c).is_some_and(|b| b < 0.999 * low || b > 1.001 * high);
        OutOfRange {
            gpu_type: !self.types.contains(&c.gpu_type),
            gpus: c.gpus > self.gpus,
            nodes: c.nodes > self.nodes,
            batch: self.batch.is_some_and(beyond),
            limit: c.limit.is_some_and(|w| self.limit.is_none_or(|low| w < low)),
        }
    }
}

fn per_gpu(c: &AggregatedSample) -> Option<f64> {
    Some(c.batch? / f64::from(c.gpus.max(1)))
}
