//! What nodes, jobs and the policy are now: who holds which GPU, and what all of it draws.
//!
//! **Flows**: objects of the API server in ([`Objects`]); one [`NodeView`] for each node with GPUs out. What the caller may not
//! read is left out; [`Objects::notes`] says what is missing then.
//!
//! **Must never be here**: what a command prints.

mod node;
#[cfg(test)]
pub mod testing;

use andreas_api::EnergyPolicySpec;
use andreas_api::names::{DEFAULT_POLICY, GPU_RESOURCE};
use andreas_api::slim::{SlimEnergyPolicy, SlimGpuNode, SlimNode, SlimTrainingJob};

pub use node::{GpuView, NodeView};

use crate::cluster::{Cluster, ClusterError, Selection};

/// Objects as they were read.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// GpuNodes, by name.
    pub gpu_nodes: Vec<SlimGpuNode>,
    /// Nodes; none where they may not be listed.
    pub nodes: Option<Vec<SlimNode>>,
    /// TrainingJobs of all namespaces; none where they may not be listed.
    pub jobs: Option<Vec<SlimTrainingJob>>,
    /// The EnergyPolicy `default`; none where there is none or it may not be read.
    pub policy: Option<SlimEnergyPolicy>,
    /// What is missing, and why.
    pub notes: Vec<String>,
}

impl Objects {
    /// Reads them. GpuNodes must be readable; the rest adds to them.
    ///
    /// # Errors
    /// When the API server does not answer, or the GpuNodes may not be listed.
    pub async fn read(cluster: &Cluster) -> Result<Self, ClusterError> {
        let all = Selection::default();
        let mut notes = Vec::new();
        let mut gpu_nodes = cluster.list::<SlimGpuNode>(None, &all).await?.items;
        gpu_nodes.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        let nodes =
            allowed(cluster.list::<SlimNode>(None, &all).await, "GPU types of idle nodes", &mut notes)?;
        let jobs = allowed(cluster.list::<SlimTrainingJob>(None, &all).await, "names of jobs", &mut notes)?;
        let policy = match cluster.get::<SlimEnergyPolicy>(None, DEFAULT_POLICY).await {
            Ok(policy) => Some(policy),
            Err(error) if error.is_not_found() => None,
            Err(error) => allowed(Err(error), "the EnergyPolicy", &mut notes)?,
        };
        let (nodes, jobs) = (nodes.map(|list| list.items), jobs.map(|list| list.items));
        Ok(Self { gpu_nodes, nodes, jobs, policy, notes })
    }

    /// The policy in force: the defaults without an object.
    pub fn policy(&self) -> EnergyPolicySpec {
        self.policy.as_ref().map(|policy| policy.spec.clone()).unwrap_or_default()
    }

    /// All nodes with GPUs, by name.
    pub fn views(&self) -> Vec<NodeView> {
        let policy = self.policy();
        let of = |node: &SlimGpuNode| NodeView::of(node, self, &policy);
        let mut views: Vec<NodeView> = self.gpu_nodes.iter().map(of).collect();
        for node in self.nodes.iter().flatten() {
            let name = node.metadata.name.clone().unwrap_or_default();
            if gpus(node) > 0 && views.iter().all(|view| view.name != name) {
                views.push(NodeView::without_agent(node, &policy));
            }
        }
        views.sort_by(|a, b| a.name.cmp(&b.name));
        views
    }

    pub(crate) fn node(&self, name: &str) -> Option<&SlimNode> {
        self.nodes.iter().flatten().find(|node| node.metadata.name.as_deref() == Some(name))
    }
}

/// GPUs that a node offers to pods.
pub fn gpus(node: &SlimNode) -> u64 {
    node.status.allocatable.get(GPU_RESOURCE).map_or(0, andreas_api::quantity::units)
}

/// The value, or none and a note where the right is missing.
fn allowed<T>(
    read: Result<T, ClusterError>,
    what: &str,
    notes: &mut Vec<String>,
) -> Result<Option<T>, ClusterError> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error @ (ClusterError::Forbidden { .. } | ClusterError::NotServed(_))) => {
            notes.push(format!("without {what}: {error}"));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
