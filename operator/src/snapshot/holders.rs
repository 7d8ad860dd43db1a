//! Which jobs hold GPUs in the snapshot, so that their pods are not counted twice.

use std::collections::BTreeMap;

use andreas_api::names::LABEL_ATTEMPT;
use andreas_api::slim::SlimPod;
use andreas_api::training_job::Allocation;
use andreas_runtime::watch::ObjectKey;

use crate::index::{ClusterIndex, job_label, number};
use crate::ledger::NextPlacement;
use crate::lifecycle::Claim;

/// What a job holds in the snapshot.
pub(super) struct Holding {
    pub allocation: Option<Allocation>,
    pub target: Option<NextPlacement>,
}

/// Which jobs hold what, so that their pods are not counted twice.
#[derive(Default)]
pub struct Holders {
    /// Attempt and GPUs per node of jobs that the planner accounts for.
    attempts: BTreeMap<ObjectKey, i64>,
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

    /// The planner accounts for this pod itself: it belongs to its job's current attempt.
    pub fn accounts_for(&self, pod: &SlimPod) -> bool {
        let Some(job) = job_label(&pod.metadata) else { return false };
        let over = matches!(pod.status.phase.as_str(), "Succeeded" | "Failed");
        !over
            && self.attempts.get(&job).is_some_and(|held| number(&pod.metadata, LABEL_ATTEMPT) == Some(*held))
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
                index.nodes.get(&key).is_some()
                    && holders.types.get(name).is_none_or(|held| *held == allocation.gpu_type)
            };
            if !allocation.nodes.iter().all(placed) {
                continue;
            }
            for node in &allocation.nodes {
                holders.types.insert(node.clone(), allocation.gpu_type.clone());
            }
            holders.attempts.insert((*key).clone(), allocation.attempt);
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
