//! Requests to the API server: one live read and the Binding.

use std::sync::Arc;
use std::time::Duration;

use andreas_api::names::ANNOTATION_ALLOCATION;
use andreas_api::slim::AllocatedJob;
use andreas_runtime::arguments;
use kube::api::{GetParams, PostParams};
use kube::core::Request;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::decide::WorkerPod;
use crate::jobs::Job;
use crate::wire::{ExtenderBindingArgs, PodView};

/// Maximum concurrent live reads. They are rare: only when a pod arrives before the watch shows its
/// allocation.
const MAX_LIVE_READS: usize = 8;

/// Why a request to the API server failed. kube-scheduler retries.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// Too many concurrent live reads.
    #[error("too many reads past the cache at a time")]
    Busy,
    /// Timeout.
    #[error("the API server did not answer within {0:?}")]
    Late(Duration),
    /// Refused or failed.
    #[error("the API server refused or failed: {0}")]
    Api(#[source] Box<kube::Error>),
    /// The request could not be built.
    #[error("not a valid request: {0}")]
    Request(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Invalid object name. Owner references are user input and must not become a URL path.
    #[error("{0:?} is not the name of an object")]
    Name(String),
    /// The pod is gone, or another pod has its name.
    #[error("the pod does not exist any more")]
    PodNotFound,
    /// It is already bound to another node.
    #[error("the pod is bound to {0} already")]
    BoundElsewhere(String),
    /// 409 for another reason, for example because the pod is being deleted.
    #[error("the binding was refused: {0}")]
    Conflict(String),
}

/// Client of the API server. Clones share the limits.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    live_reads: Arc<Semaphore>,
}

impl Cluster {
    /// Wraps a client whose requests have their own timeouts.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, live_reads: Arc::new(Semaphore::new(MAX_LIVE_READS)) }
    }

    /// Reads a worker pod's TrainingJob live; `None` if there is none with that name and UID.
    ///
    /// # Errors
    /// When there is no response in time.
    pub async fn job(&self, worker_pod: &WorkerPod, within: Duration) -> Result<Option<Job>, ClusterError> {
        check_names([&worker_pod.namespace, &worker_pod.job_name])?;
        let _one = self.live_reads.try_acquire().map_err(|_| ClusterError::Busy)?;
        let jobs: Api<AllocatedJob> = Api::namespaced(self.client.clone(), &worker_pod.namespace);
        let found = timeout(within, jobs.get_opt(&worker_pod.job_name))
            .await
            .map_err(|_| ClusterError::Late(within))?;
        let found = found.map_err(|error| ClusterError::Api(error.into()))?;
        Ok(found.map(Job::from).filter(|job| job.uid == worker_pod.job_uid))
    }

    /// Reads a pod live.
    ///
    /// # Errors
    /// [`ClusterError::PodNotFound`] if it does not exist or has another UID; otherwise when there is no
    /// response.
    pub async fn pod(&self, args: &ExtenderBindingArgs) -> Result<PodView, ClusterError> {
        check_names([&args.pod_namespace, &args.pod_name])?;
        let request = pods(args).get(&args.pod_name, &GetParams::default()).map_err(invalid)?;
        let pod: PodView = match self.client.request(request).await {
            Ok(pod) => pod,
            Err(kube::Error::Api(status)) if status.code == 404 => return Err(ClusterError::PodNotFound),
            Err(error) => return Err(ClusterError::Api(error.into())),
        };
        if pod.metadata.uid.as_deref() == Some(&args.pod_uid) {
            Ok(pod)
        } else {
            Err(ClusterError::PodNotFound)
        }
    }

    /// Binds a pod; for a worker pod, with its allocation's generation as annotation. The API server writes node
    /// and annotation atomically, and only if the UID matches. Already bound to that node counts as success.
    ///
    /// # Errors
    /// When the pod is not known to be bound to that node afterwards.
    pub async fn bind(
        &self,
        args: &ExtenderBindingArgs,
        generation: Option<i64>,
    ) -> Result<(), ClusterError> {
        check_names([&args.pod_namespace, &args.pod_name, &args.node])?;
        let body = binding(args, generation).to_string().into_bytes();
        let request = pods(args)
            .create_subresource("binding", &args.pod_name, &PostParams::default(), body)
            .map_err(invalid)?;
        match self.client.request_text(request).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Err(ClusterError::PodNotFound),
            Err(kube::Error::Api(status)) if status.code == 409 => {
                self.bound_where(args, status.message.clone()).await
            }
            Err(error) => Err(ClusterError::Api(error.into())),
        }
    }

    /// After a conflict: an earlier request may have succeeded although its response was lost.
    async fn bound_where(&self, args: &ExtenderBindingArgs, message: String) -> Result<(), ClusterError> {
        match self.pod(args).await?.spec.node_name {
            Some(node) if node == args.node => Ok(()),
            Some(node) if !node.is_empty() => Err(ClusterError::BoundElsewhere(node)),
            _ => Err(ClusterError::Conflict(message)),
        }
    }
}

/// Whether these texts may become parts of a request's path.
///
/// # Errors
/// [`ClusterError::Name`] with the first that is no object name.
fn check_names<const N: usize>(names: [&str; N]) -> Result<(), ClusterError> {
    match names.into_iter().find(|name| arguments::object(name).is_err()) {
        None => Ok(()),
        Some(name) => Err(ClusterError::Name(name.chars().take(64).collect())),
    }
}

fn pods(args: &ExtenderBindingArgs) -> Request {
    use k8s_openapi::api::core::v1::Pod;
    use kube::Resource;
    Request::new(Pod::url_path(&(), Some(&args.pod_namespace)))
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> ClusterError {
    ClusterError::Request(error.into())
}

/// A `v1` Binding. `metadata.name` is required; `metadata.uid` is a precondition.
fn binding(args: &ExtenderBindingArgs, generation: Option<i64>) -> Value {
    let mut binding = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": args.pod_name, "namespace": args.pod_namespace, "uid": args.pod_uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": args.node},
    });
    if let Some(generation) = generation {
        binding["metadata"]["annotations"] = json!({ANNOTATION_ALLOCATION: generation.to_string()});
    }
    binding
}
