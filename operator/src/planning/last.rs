//! The last plan's input, to reproduce the plan anywhere.

use std::sync::Arc;

use andreas_planner::{Options, Snapshot};
use parking_lot::Mutex;
use serde::Serialize;

/// The last plan's snapshot, available after the first plan. Clones share it.
#[derive(Clone, Default)]
pub struct Snapshots {
    last: Arc<Mutex<Option<Arc<Saved>>>>,
}

/// A snapshot and its planner options, the input of `kubectl andreas plan --snapshot`.
#[derive(Debug, Serialize)]
pub struct Saved {
    #[serde(flatten)]
    snapshot: Snapshot,
    #[serde(rename = "_options")]
    options: Options,
}

impl Snapshots {
    /// Stores a plan's input.
    pub fn keep(&self, snapshot: Snapshot, options: Options) {
        *self.last.lock() = Some(Arc::new(Saved { snapshot, options }));
    }

    /// The last one; `None` before the first plan.
    pub fn last(&self) -> Option<Arc<Saved>> {
        self.last.lock().clone()
    }
}
