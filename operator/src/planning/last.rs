//! The last plan with its input: for `/snapshot`, to reproduce the plan anywhere, and for the query API.

use std::sync::Arc;

use andreas_cluster::energy::draws::MeasuredDraws;
use andreas_cluster::index::ClusterIndex;
use andreas_planner::{Options, Plan, Snapshot};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;

use crate::ledger::Ledger;

/// A plan and everything that it was made from.
pub struct Latest {
    /// The instant of the snapshot.
    pub at: Timestamp,
    /// The cluster's state.
    pub index: ClusterIndex,
    /// The jobs' claims.
    pub ledger: Ledger,
    /// The planner's input.
    pub snapshot: Snapshot,
    /// The planner's options.
    pub options: Options,
    /// The plan.
    pub plan: Plan,
    /// What was seen of the draw of runs.
    pub draws: MeasuredDraws,
}

/// A snapshot and its planner options, the input of `kubectl andreas plan --snapshot`, and the plan that was made from
/// them: whoever plans again can compare.
#[derive(Debug, Serialize)]
pub struct Saved<'a> {
    #[serde(flatten)]
    snapshot: &'a Snapshot,
    #[serde(rename = "_options")]
    options: &'a Options,
    #[serde(rename = "_plan")]
    plan: &'a Plan,
}

impl Latest {
    /// The planner's input, and its plan.
    pub fn saved(&self) -> Saved<'_> {
        Saved { snapshot: &self.snapshot, options: &self.options, plan: &self.plan }
    }
}

/// The last plan, available after the first one. Clones share it.
#[derive(Clone, Default)]
pub struct LatestPlan {
    last: Arc<Mutex<Option<Arc<Latest>>>>,
}

impl LatestPlan {
    /// Stores a plan.
    pub fn keep(&self, latest: Latest) {
        *self.last.lock() = Some(Arc::new(latest));
    }

    /// The last one; `None` before the first plan.
    pub fn last(&self) -> Option<Arc<Latest>> {
        self.last.lock().clone()
    }
}
