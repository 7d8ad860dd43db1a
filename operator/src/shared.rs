//! State that the leader's loops share. Planning and the executor meet here: neither imports the other.
//!
//! **Never here**: what a single loop needs.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use andreas_api::node_power::WantedPower;
use andreas_cluster::index::ClusterIndex;
use andreas_lifecycle::Settings;
use parking_lot::Mutex;

use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::writes::Writer;

/// State shared by the leader's loops.
pub struct Shared {
    /// The watched cluster state.
    pub index: Arc<Mutex<ClusterIndex>>,
    /// The operator's memory. Locked after the index, never before.
    pub ledger: Mutex<Ledger>,
    /// Client for writes.
    pub writer: Writer,
    /// Pod settings.
    pub settings: Mutex<Arc<Settings>>,
    /// Counters.
    pub metrics: Metrics,
    /// What the last plan wants of each machine that may be switched off, by node.
    pub wanted_power: Mutex<BTreeMap<String, WantedPower>>,
}

/// What the leader's loops share, for those who serve before this process leads. Clones are one handle.
#[derive(Clone, Default)]
pub struct Leader {
    shared: Arc<Mutex<Weak<Shared>>>,
}

impl Leader {
    /// This process leads from now on.
    pub fn lead(&self, shared: &Arc<Shared>) {
        *self.shared.lock() = Arc::downgrade(shared);
    }

    /// `None` on a replica that does not lead.
    pub fn shared(&self) -> Option<Arc<Shared>> {
        self.shared.lock().upgrade()
    }
}
