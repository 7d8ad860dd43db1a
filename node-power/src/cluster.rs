//! Requests to the API server. What decides is read here and now, never from a cache.

use andreas_api::key_of;
use andreas_api::node_power::{NodePower, NodePowerStatus};
use andreas_api::slim::{SlimGpuNode, SlimNodePower};
use andreas_runtime::lease::Leadership;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, GetParams, ListParams, Patch, PatchParams, Preconditions};
use kube::core::Request;
use kube::{Client, Error, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::node::LiveNode;
use crate::obstacles::{self, LivePod};

/// Namespace of the kubelets' Leases.
const KUBELETS: &str = "kube-node-lease";

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// Another replica leads, or will before the answer comes.
    #[error("not the leader")]
    NotLeader,
    /// The API server's answer.
    #[error(transparent)]
    Api(#[from] Error),
    /// The request could not be built.
    #[error(transparent)]
    Request(#[from] kube::core::request::Error),
}

/// A list of which items alone count.
#[derive(Deserialize)]
struct Items<T> {
    items: Vec<T>,
}

/// A VolumeAttachment: its node.
#[derive(Deserialize)]
struct Attachment {
    spec: AttachmentSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AttachmentSpec {
    #[serde(default)]
    node_name: String,
}

/// The renewal of a Lease.
#[derive(Deserialize)]
struct LeaseTime {
    #[serde(default)]
    spec: LeaseTimeSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LeaseTimeSpec {
    renew_time: Option<String>,
}

/// The API server.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    leadership: Leadership,
}

impl Cluster {
    /// Writes only while this process leads.
    pub fn new(client: Client, leadership: Leadership) -> Self {
        Self { client, leadership }
    }

    /// Whether this process leads now. Check before each request to a power switch.
    pub fn leads(&self) -> bool {
        self.leadership.is_current()
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    async fn find<T: DeserializeOwned>(&self, path: String, name: &str) -> Result<Option<T>, ClusterError> {
        let request = Request::new(path).get(name, &GetParams::default())?;
        match self.client.request(request).await {
            Ok(object) => Ok(Some(object)),
            Err(Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn list<T: DeserializeOwned>(
        &self,
        path: String,
        params: &ListParams,
    ) -> Result<Vec<T>, ClusterError> {
        let list: Items<T> = self.client.request(Request::new(path).list(params)?).await?;
        Ok(list.items)
    }

    async fn write<T: DeserializeOwned>(&self, request: http::Request<Vec<u8>>) -> Result<T, ClusterError> {
        let deadline = self.leadership.write_deadline().ok_or(ClusterError::NotLeader)?;
        let sent = tokio::time::timeout_at(deadline, self.client.request(request)).await;
        Ok(sent.map_err(|_| ClusterError::NotLeader)??)
    }

    /// A Node.
    ///
    /// # Errors
    /// Where the API server does not answer.
    pub async fn node(&self, name: &str) -> Result<Option<LiveNode>, ClusterError> {
        self.find(Node::url_path(&(), None), name).await
    }

    /// When a Lease was renewed, as its holder wrote it.
    ///
    /// # Errors
    /// Where the API server does not answer.
    pub async fn renewal(&self, namespace: &str, name: &str) -> Result<Option<String>, ClusterError> {
        let lease: Option<LeaseTime> = self.find(Lease::url_path(&(), Some(namespace)), name).await?;
        Ok(lease.and_then(|lease| lease.spec.renew_time))
    }

    /// When the kubelet of a node last renewed its Lease.
    ///
    /// # Errors
    /// Where the API server does not answer.
    pub async fn kubelet_renewal(&self, node: &str) -> Result<Option<String>, ClusterError> {
        self.renewal(KUBELETS, node).await
    }

    /// The first thing on a node that forbids to switch its machine off.
    ///
    /// # Errors
    /// Where the API server does not answer.
    pub async fn obstacle(&self, node: &str) -> Result<Option<String>, ClusterError> {
        let here = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let pods: Vec<LivePod> = self.list(Pod::url_path(&(), None), &here).await?;
        if let Some(obstacle) = obstacles::of_pods(&pods) {
            return Ok(Some(obstacle));
        }
        let gpus: Option<SlimGpuNode> = self.find(SlimGpuNode::url_path(&(), None), node).await?;
        if let Some(obstacle) = gpus.as_ref().and_then(obstacles::of_gpus) {
            return Ok(Some(obstacle));
        }
        let path = VolumeAttachment::url_path(&(), None);
        let attachments: Vec<Attachment> = self.list(path, &ListParams::default()).await?;
        let attached = attachments.iter().any(|attachment| attachment.spec.node_name == node);
        Ok(attached.then(|| "Volumes".to_owned()))
    }

    /// Replaces the status, if the object is still at the version that was read: so a wish that changed since stops it.
    ///
    /// # Errors
    /// Where the object changed or the API server does not answer.
    pub async fn write_status(
        &self,
        object: &SlimNodePower,
        status: &NodePowerStatus,
    ) -> Result<SlimNodePower, ClusterError> {
        let operations = json!([
            {"op": "test", "path": "/metadata/resourceVersion", "value": object.metadata.resource_version},
            {"op": "add", "path": "/status", "value": status},
        ]);
        let name = key_of(object).name;
        let mut request = Request::new(NodePower::url_path(&(), None)).patch_subresource(
            "status",
            &name,
            &PatchParams::default(),
            &Patch::Merge(operations),
        )?;
        request.headers_mut().insert(
            http::header::CONTENT_TYPE,
            http::HeaderValue::from_static("application/json-patch+json"),
        );
        self.write(request).await
    }

    /// Applies a merge patch to a Node; it names the version that was read.
    ///
    /// # Errors
    /// Where the Node changed or the API server does not answer.
    pub async fn patch_node(&self, name: &str, patch: &Value) -> Result<(), ClusterError> {
        let requests = Request::new(Node::url_path(&(), None));
        let request = requests.patch(name, &PatchParams::default(), &Patch::Merge(patch))?;
        self.write::<LiveNode>(request).await.map(drop)
    }

    /// Deletes the Node that was read, and no other of its name.
    ///
    /// # Errors
    /// Where the Node changed or the API server does not answer.
    pub async fn delete_node(&self, name: &str, uid: &str, version: &str) -> Result<(), ClusterError> {
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: Some(version.to_owned()),
        });
        let request = Request::new(Node::url_path(&(), None)).delete(name, &params)?;
        self.write::<serde::de::IgnoredAny>(request).await.map(drop)
    }
}
