//! The cluster's state as it is now: a question about a change is planned on it, and not on that of the last plan.
//!
//! **In**: the watched objects, and the leader's memory. **Out**: copies. A profile that was applied a moment ago, and jobs that no
//! plan has seen yet, are in them. Locks are held for the copy, never while anything is planned.

use std::sync::Arc;

use andreas_api::slim::SlimTrainingJob;
use andreas_runtime::watch::ObjectKey;
use jiff::Timestamp;
use parking_lot::Mutex;

use super::standby::with_all_claims;
use crate::index::ClusterIndex;
use crate::ledger::Ledger;
use crate::shared::Leader;

/// Reads the cluster's state.
#[derive(Clone)]
pub struct Live {
    index: Arc<Mutex<ClusterIndex>>,
    leader: Leader,
}

/// A copy of the cluster's state.
pub struct State {
    /// When it was so.
    pub at: Timestamp,
    /// Its objects.
    pub index: ClusterIndex,
    /// A claim of each job.
    pub ledger: Ledger,
}

impl Live {
    /// With the memory of this process once it leads.
    pub fn new(index: Arc<Mutex<ClusterIndex>>, leader: Leader) -> Self {
        Self { index, leader }
    }

    /// A copy of everything.
    pub fn state(&self, now: Timestamp) -> State {
        let leading = self.leader.shared();
        let (index, ledger) = {
            let index = self.index.lock();
            let ledger = leading.as_ref().map(|shared| shared.ledger.lock().clone());
            (index.for_plan(), ledger)
        };
        let ledger = with_all_claims(ledger.unwrap_or_else(|| Ledger::new(now)), &index, now);
        State { at: now, index, ledger }
    }

    /// The jobs of a namespace.
    pub fn jobs(&self, namespace: &str) -> Vec<Arc<SlimTrainingJob>> {
        let index = self.index.lock();
        let own = index.jobs().iter().filter(|(key, _)| key.namespace == namespace);
        own.map(|(_, job)| Arc::clone(job)).collect()
    }

    /// A job.
    pub fn job(&self, key: &ObjectKey) -> Option<Arc<SlimTrainingJob>> {
        self.index.lock().jobs().get(key).cloned()
    }
}
