//! The cluster's state as it is now: a question about a change is planned on it, and not on that of the last plan.
//!
//! **In**: the watched objects, and the leader's memory. **Out**: copies, on the leader alone. A profile that was applied a moment ago, and jobs that no
//! plan has seen yet, are in them. Locks are held for the copy, never while anything is planned.

use std::sync::Arc;

use andreas_api::slim::SlimTrainingJob;
use andreas_cluster::index::ClusterIndex;
use andreas_lifecycle::Claim;
use andreas_runtime::watch::ObjectKey;
use jiff::Timestamp;
use parking_lot::Mutex;

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

impl State {
    /// A job that no step has seen yet waits.
    pub fn new(index: ClusterIndex, mut ledger: Ledger, at: Timestamp) -> Self {
        for (key, job) in index.jobs().iter().filter(|(_, job)| job.status.is_none()) {
            let memory = ledger.entry(key, job.metadata.uid.as_deref().unwrap_or_default());
            if memory.claim().is_none() {
                let is_held = job.spec.suspend || job.metadata.deletion_timestamp.is_some();
                memory.set_claim(if is_held { Claim::Nothing } else { Claim::Waiting { not_before: None } });
            }
        }
        Self { at, index, ledger }
    }
}

impl Live {
    /// With the memory of this process once it leads.
    pub fn new(index: Arc<Mutex<ClusterIndex>>, leader: Leader) -> Self {
        Self { index, leader }
    }

    /// Whether this process leads, and so can answer.
    pub fn leads(&self) -> bool {
        self.leader.shared().is_some()
    }

    /// Whether there is such a namespace, as far as this process has seen.
    pub fn has_namespace(&self, name: &str) -> bool {
        let key = ObjectKey { namespace: String::new(), name: name.to_owned() };
        self.index.lock().rules().namespaces.get(&key).is_some()
    }

    /// A copy of everything; `None` on a replica that does not lead.
    pub fn state(&self, now: Timestamp) -> Option<State> {
        let shared = self.leader.shared()?;
        let (index, ledger) = {
            let index = self.index.lock();
            (index.for_plan(), shared.ledger.lock().clone())
        };
        Some(State::new(index, ledger, now))
    }

    /// The jobs of a namespace.
    pub fn jobs(&self, namespace: &str) -> Vec<Arc<SlimTrainingJob>> {
        let index = self.index.lock();
        let of_namespace = index.jobs().iter().filter(|(key, _)| key.namespace == namespace);
        of_namespace.map(|(_, job)| Arc::clone(job)).collect()
    }

    /// A job.
    pub fn job(&self, key: &ObjectKey) -> Option<Arc<SlimTrainingJob>> {
        self.index.lock().jobs().get(key).cloned()
    }
}
