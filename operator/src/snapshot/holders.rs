//! Which jobs hold GPUs in the snapshot, so that their pods are not counted twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use andreas_api::slim::{SlimPod, SlimTrainingJob};
use andreas_api::training_job::Allocation;
use andreas_cluster::index::{ClusterIndex, beyond, is_worker, job_label, name_of};
use andreas_lifecycle::Claim;
use andreas_runtime::watch::ObjectKey;

use crate::ledger::NextPlacement;

/// What a job holds in the snapshot.
pub(super) struct Holding {
    pub allocation: Option<Allocation>,
    pub target: Option<NextPlacement>,
    /// The target is given by no step yet.
    pub promised: bool,
}

/// Which jobs hold what, so that their pods are not counted twice.
#[derive(Default)]
pub struct Holders {
    /// Jobs that the planner accounts for, with their attempts.
    attempts: BTreeMap<ObjectKey, (Arc<SlimTrainingJob>, i64)>,
    /// Names of pods that work for these by what they say, and hold more than the jobs were given.
    beyond: BTreeSet<String>,
    on: BTreeMap<String, u64>,
    kept: BTreeMap<String, u64>,
    types: BTreeMap<String, String>,
}

impl Holders {
    /// GPUs of a node held by jobs of the snapshot.
    pub fn gpus_on(&self, node: &str) -> u64 {
        self.on.get(node).copied().unwrap_or(0)
    }

    /// Those of them whose jobs start or run there, and were not asked to stop.
    pub fn kept_on(&self, node: &str) -> u64 {
        self.kept.get(node).copied().unwrap_or(0)
    }

    /// GPU type of these jobs' placement there.
    pub fn type_on(&self, node: &str) -> Option<&str> {
        self.types.get(node).map(String::as_str)
    }

    /// The planner accounts for this pod itself: it belongs to its job's current attempt, and is within what that was given.
    pub fn accounts_for(&self, pod: &SlimPod) -> bool {
        let Some(key) = job_label(&pod.metadata) else { return false };
        !pod.has_ended()
            && self.attempts.get(&key).is_some_and(|(job, attempt)| is_worker(pod, job, *attempt))
            && !self.beyond.contains(&name_of(&pod.metadata))
    }
}

/// The claims that hold GPUs in the snapshot. Excluded, so that their pods count as leftovers: jobs that stop
/// for good, and jobs that the planner cannot place. Their node is gone or is held as another GPU type.
pub(super) fn holders(claims: &BTreeMap<&ObjectKey, (Claim, Holding)>, index: &ClusterIndex) -> Holders {
    let mut holders = Holders::default();
    for (key, (claim, holding)) in claims {
        let holds = match claim {
            Claim::Starting { .. } | Claim::Running { .. } => true,
            Claim::Stopping { goes_on, .. } => *goes_on,
            Claim::Waiting { .. } | Claim::Nothing => false,
        };
        if let Some(allocation) = holding.allocation.as_ref().filter(|_| holds) {
            let placed = |name: &String| {
                let key = ObjectKey { namespace: String::new(), name: name.clone() };
                index.nodes().get(&key).is_some()
                    && holders.types.get(name).is_none_or(|held| *held == allocation.gpu_type)
            };
            if !allocation.nodes.iter().all(placed) {
                continue;
            }
            for node in &allocation.nodes {
                holders.types.insert(node.clone(), allocation.gpu_type.clone());
            }
            if let Some(job) = index.jobs().get(key) {
                let members = index.members(key);
                holders.beyond.extend(beyond(members.iter().map(AsRef::as_ref), job, allocation));
                holders.attempts.insert((*key).clone(), (Arc::clone(job), allocation.attempt));
            }
            let each = u64::try_from(allocation.gpus_per_worker).unwrap_or(0);
            for node in &allocation.nodes {
                *holders.on.entry(node.clone()).or_default() += each;
                if !matches!(claim, Claim::Stopping { .. }) {
                    *holders.kept.entry(node.clone()).or_default() += each;
                }
            }
        }
    }
    holders
}
