//! What nodes and jobs are now: who holds which GPU, and what they draw.
//!
//! **Flows**: objects of the API server in ([`Objects`]); one [`NodeView`] for each node with GPUs out. What the caller may not
//! read is left out; [`Objects::notes`] says what is missing then.
//!
//! **Must never be here**: what a command prints.

mod node;
#[cfg(test)]
pub mod testing;

use andreas_api::names::{GPU_RESOURCE, LABEL_ADOPTED, LABEL_JOB};
use andreas_api::node_power::PowerState;
use andreas_api::slim::{SlimGpuNode, SlimNode, SlimNodePower, SlimPod, SlimTrainingJob};

pub use node::{GpuView, NO_GPU_NODE, NodeView};

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
    /// NodePowers: machines that may be off.
    pub powers: Vec<SlimNodePower>,
    /// Pods of adopted jobs. Their names do not say whose they are.
    pub adopted: Vec<SlimPod>,
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
        let nodes = allowed(
            cluster.list::<SlimNode>(None, &all).await,
            "nodes that the operator has not seen",
            &mut notes,
        )?;
        let jobs = allowed(cluster.list::<SlimTrainingJob>(None, &all).await, "names of jobs", &mut notes)?;
        let powers =
            allowed(cluster.list::<SlimNodePower>(None, &all).await, "machines that are off", &mut notes)?;
        let powers = powers.map(|list| list.items).unwrap_or_default();
        let (nodes, jobs) = (nodes.map(|list| list.items), jobs.map(|list| list.items));
        let adopts = |jobs: &Vec<SlimTrainingJob>| jobs.iter().any(|job| job.spec.adopts.is_some());
        let adopted = match jobs.as_ref().is_some_and(adopts) {
            true => {
                let pods = cluster.list::<SlimPod>(None, &Selection::labels(LABEL_ADOPTED)).await;
                allowed(pods, "names of adopted jobs", &mut notes)?.map(|list| list.items)
            }
            false => None,
        };
        Ok(Self { gpu_nodes, nodes, jobs, powers, adopted: adopted.unwrap_or_default(), notes })
    }

    /// All nodes with GPUs, by name; among them those of machines that are off.
    pub fn views(&self) -> Vec<NodeView> {
        let mut views: Vec<NodeView> = self.gpu_nodes.iter().map(|node| NodeView::new(node, self)).collect();
        for node in self.nodes.iter().flatten() {
            let name = node.metadata.name.clone().unwrap_or_default();
            if gpus(node) > 0 && views.iter().all(|view| view.name != name) {
                views.push(NodeView::without_agent(node));
            }
        }
        for power in &self.powers {
            let state = power.status.as_ref().map(|status| status.state).unwrap_or_default();
            let name = power.metadata.name.as_deref();
            match views.iter_mut().find(|view| Some(view.name.as_str()) == name) {
                _ if state == PowerState::On => {}
                Some(view) => {
                    view.health = format!("{state:?}");
                    view.healthy &= state != PowerState::Quarantined;
                }
                None => views.extend(NodeView::off(power)),
            }
        }
        views.sort_by(|a, b| a.name.cmp(&b.name));
        views
    }

    /// The TrainingJob of a pod, both as `namespace/name`, if there is such a job.
    pub(crate) fn job_of(&self, pod: &str) -> Option<String> {
        let (namespace, name) = pod.split_once('/')?;
        let is_it = |known: &&SlimPod| {
            known.metadata.namespace.as_deref() == Some(namespace)
                && known.metadata.name.as_deref() == Some(name)
        };
        let adopted =
            self.adopted.iter().find(is_it).and_then(|pod| pod.metadata.labels.as_ref()?.get(LABEL_JOB));
        let job = adopted.map(String::as_str).or_else(|| job_in_name(name))?;
        let known = self.jobs.iter().flatten().any(|known| {
            known.metadata.namespace.as_deref() == Some(namespace)
                && known.metadata.name.as_deref() == Some(job)
                && known.spec.adopts.is_some() == adopted.is_some()
        });
        known.then(|| format!("{namespace}/{job}"))
    }

    pub(crate) fn node(&self, name: &str) -> Option<&SlimNode> {
        self.nodes.iter().flatten().find(|node| node.metadata.name.as_deref() == Some(name))
    }
}

/// The job in the name of a pod that the operator made: `job-attempt-index`.
fn job_in_name(pod: &str) -> Option<&str> {
    let mut parts = pod.rsplitn(3, '-');
    let (index, attempt, job) = (parts.next()?, parts.next()?, parts.next()?);
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (number(index) && number(attempt)).then_some(job)
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

#[cfg(test)]
mod tests {
    use super::testing::objects;
    use super::*;

    #[test]
    fn a_holder_is_the_job_whose_pod_it_is() {
        let mut objects = objects();
        assert_eq!(objects.job_of("team-a/bert-large-2-0").as_deref(), Some("team-a/bert-large"));
        for other in
            ["team-a/bert-large", "team-b/bert-large-2-0", "team-a/bert-large-x-0", "nonsense", "a/b-1"]
        {
            assert_eq!(objects.job_of(other), None, "{other}");
        }
        objects.jobs = None;
        assert_eq!(objects.job_of("team-a/bert-large-2-0"), None);
    }

    #[test]
    fn a_pod_of_an_adopted_job_is_that_jobs_whatever_its_name() {
        let pod = |name: &str, job: &str| {
            let labels = serde_json::json!({LABEL_ADOPTED: "Job", LABEL_JOB: job});
            let pod = serde_json::json!({"metadata": {"namespace": "team-a", "name": name, "labels": labels}, "spec": {}});
            serde_json::from_value::<SlimPod>(pod).unwrap()
        };
        let mut objects = objects();
        let adopts = serde_json::json!({"apiVersion": "batch/v1", "kind": "Job", "name": "waits", "uid": "u9", "pods": 1});
        objects.jobs.as_mut().unwrap()[1].spec.adopts = Some(serde_json::from_value(adopts).unwrap());
        // A label alone makes no pod another job's: bert-large stands for nothing.
        objects.adopted = vec![pod("waits-x7kfp", "waits"), pod("liar", "bert-large")];
        assert_eq!(objects.job_of("team-a/waits-x7kfp").as_deref(), Some("team-a/waits"));
        assert_eq!(objects.job_of("team-b/waits-x7kfp"), None);
        assert_eq!(objects.job_of("team-a/liar"), None);
        assert_eq!(objects.job_of("team-a/waits-1-0"), None, "the operator makes no pods of an adopted job");
    }
}
