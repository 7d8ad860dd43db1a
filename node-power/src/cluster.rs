//! Requests to the API server. What decides is read here and now, never from a cache.

use andreas_api::NodePower;
use andreas_api::key_of;
use andreas_api::node_power::NodePowerStatus;
use andreas_api::slim::SlimGpuNode;
use andreas_runtime::lease::Leadership;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Error};
use serde_json::Value;
use tokio::time::timeout_at;

use crate::driver::Trouble;
use crate::node::LiveNode;
use crate::obstacles::{self, LivePod};

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// Another replica leads, or will before the answer comes.
    #[error("not the leader")]
    NotLeader,
    /// The API server's answer.
    #[error(transparent)]
    Api(#[from] Error),
    /// The power switch's answer.
    #[error("the power switch does not follow: {0}")]
    Switch(#[from] Trouble),
}

/// The API server. Every error of a read or a write means: not now.
#[derive(Clone)]
pub struct Cluster {
    /// For other kinds.
    pub client: Client,
    leadership: Leadership,
    nodes: Api<Node>,
}

#[allow(clippy::missing_errors_doc, reason = "said once, above")]
impl Cluster {
    /// Writes only while this process leads.
    pub fn new(client: Client, leadership: Leadership) -> Self {
        Self { nodes: Api::all(client.clone()), client, leadership }
    }

    /// Whether this process leads now. Check before each request to a power switch.
    pub fn leads(&self) -> bool {
        self.leadership.is_current()
    }

    async fn write<T>(&self, sent: impl Future<Output = Result<T, Error>>) -> Result<T, ClusterError> {
        let deadline = self.leadership.write_deadline().ok_or(ClusterError::NotLeader)?;
        Ok(timeout_at(deadline, sent).await.map_err(|_| ClusterError::NotLeader)??)
    }

    /// A Node.
    pub async fn node(&self, name: &str) -> Result<Option<LiveNode>, ClusterError> {
        Ok(self.nodes.get_opt(name).await?.map(LiveNode))
    }

    /// When a Lease was renewed, as its holder wrote it. Those of kubelets are in the namespace `kube-node-lease`.
    pub async fn renewal(&self, namespace: &str, name: &str) -> Result<Option<Timestamp>, ClusterError> {
        let lease = Api::<Lease>::namespaced(self.client.clone(), namespace).get_opt(name).await?;
        Ok(lease.and_then(|lease| lease.spec?.renew_time).map(|time| time.0))
    }

    /// The pods on a node.
    pub async fn pods(&self, node: &str) -> Result<Vec<LivePod>, ClusterError> {
        let here = ListParams::default().fields(&format!("spec.nodeName={node}"));
        Ok(Api::<LivePod>::all(self.client.clone()).list(&here).await?.items)
    }

    /// The first thing on a node with these pods that forbids to switch its machine off.
    pub async fn obstacle(&self, node: &str, pods: &[LivePod]) -> Result<Option<String>, ClusterError> {
        if let Some(obstacle) = obstacles::of_pods(pods) {
            return Ok(Some(obstacle));
        }
        let gpus = Api::<SlimGpuNode>::all(self.client.clone()).get_opt(node).await?;
        if let Some(obstacle) = gpus.as_ref().and_then(obstacles::of_gpus) {
            return Ok(Some(obstacle));
        }
        let attachments =
            Api::<VolumeAttachment>::all(self.client.clone()).list(&ListParams::default()).await?;
        let attached = attachments.items.iter().any(|attachment| attachment.spec.node_name == node);
        Ok(attached.then(|| "Volumes".to_owned()))
    }

    /// Replaces the status, if the object is still at the version that was read: so a wish that changed since stops it.
    pub async fn write_status(
        &self,
        object: &NodePower,
        status: &NodePowerStatus,
    ) -> Result<NodePower, ClusterError> {
        let next = NodePower { status: Some(status.clone()), ..object.clone() };
        let powers = Api::<NodePower>::all(self.client.clone());
        self.write(powers.replace_status(&key_of(object).name, &PostParams::default(), &next)).await
    }

    /// Applies a merge patch to a Node; it names the version that was read.
    pub async fn patch_node(&self, name: &str, patch: &Value) -> Result<(), ClusterError> {
        self.write(self.nodes.patch(name, &PatchParams::default(), &Patch::Merge(patch))).await.map(drop)
    }

    /// Deletes the Node that was read, and no other of its name.
    pub async fn delete_node(&self, name: &str, node: &LiveNode) -> Result<(), ClusterError> {
        let meta = &node.0.metadata;
        let read = Preconditions { uid: meta.uid.clone(), resource_version: meta.resource_version.clone() };
        let params = DeleteParams::default().preconditions(read);
        self.write(self.nodes.delete(name, &params)).await.map(drop)
    }
}
