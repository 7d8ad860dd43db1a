//! Filter, prioritize and bind.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::cluster::{Cluster, ClusterError};
use crate::decide::{Ownership, Refusal, WorkerPod, allocated_node, cache_may_be_stale, ownership};
use crate::jobs::Jobs;
use crate::metrics::{Metrics, Outcome};
use crate::pod_cache::PodCache;
use crate::wire::{
    ExtenderArgs, ExtenderBindingArgs, ExtenderBindingResult, ExtenderFilterResult, HostPriority, NodeList,
};

/// Maximum score of an extender (`MaxExtenderPriority`).
const BEST: i64 = 10;
/// Number of pods cached between filter and bind.
const REMEMBERED: usize = 8192;

/// Timeouts and limits.
#[derive(Clone, Debug)]
pub struct Config {
    /// Timeout of the live read in a filter or prioritize call.
    pub read_timeout: Duration,
    /// Timeout of a bind call, waiting included. Shorter than kube-scheduler's timeout, so that it gets a
    /// response.
    pub bind_timeout: Duration,
    /// Maximum concurrent Bindings. More would only cause 429s of the API server, each of which waits a
    /// second.
    pub binds: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { read_timeout: Duration::from_millis(80), bind_timeout: Duration::from_millis(4500), binds: 24 }
    }
}

/// State of the extender.
pub struct Extender {
    jobs: Arc<Mutex<Jobs>>,
    pods: Mutex<PodCache>,
    cluster: Cluster,
    bind_permits: Semaphore,
    config: Config,
    metrics: Metrics,
}

/// Why a worker pod is not placed.
enum Failure {
    /// Final.
    Refused(Refusal),
    /// The API server did not answer; kube-scheduler retries.
    Unknown(ClusterError),
}

impl Failure {
    fn outcome(&self) -> Outcome {
        match self {
            Self::Refused(_) => Outcome::Refused,
            Self::Unknown(_) => Outcome::Error,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(refusal) => write!(f, "andreas: {refusal}"),
            Self::Unknown(error) => write!(f, "andreas: {error}"),
        }
    }
}

impl From<ClusterError> for Failure {
    fn from(error: ClusterError) -> Self {
        Self::Unknown(error)
    }
}

impl Extender {
    /// Creates an extender that answers from `jobs`, which a watch fills.
    #[must_use]
    pub fn new(jobs: Arc<Mutex<Jobs>>, cluster: Cluster, config: Config, metrics: Metrics) -> Self {
        let pods = Mutex::new(PodCache::new(REMEMBERED));
        Self { jobs, pods, cluster, bind_permits: Semaphore::new(config.binds.max(1)), config, metrics }
    }

    /// Metrics, shared with the routes.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Keeps all nodes for other pods, and only the allocated node for a worker pod. Caches the
    /// pod's ownership; writes nothing to the API server.
    pub async fn filter(&self, args: ExtenderArgs) -> (ExtenderFilterResult, Outcome) {
        let ownership = ownership(&args.pod.metadata);
        self.pods.lock().remember(args.pod.metadata.uid.as_deref().unwrap_or_default(), ownership.clone());
        let allocated = match ownership {
            Ownership::Foreign => {
                let result = ExtenderFilterResult {
                    node_names: args.node_names,
                    nodes: args.nodes,
                    ..ExtenderFilterResult::default()
                };
                return (result, Outcome::Foreign);
            }
            Ownership::Malformed(refusal) => Err(Failure::Refused(refusal)),
            Ownership::Ours(worker_pod) => self.allocated_node(&worker_pod).await.and_then(|node| {
                if args.names().contains(&node) {
                    Ok(node)
                } else {
                    Err(Failure::Refused(Refusal::Node { generation: worker_pod.generation, node }))
                }
            }),
        };
        match allocated {
            Ok(node) => (with_only_node(args, &node), Outcome::Accepted),
            Err(failure) => (self.reject_all(args, &failure), failure.outcome()),
        }
    }

    /// Scores the nodes of a call: maximum for a worker pod's node, 0 for all others. kube-scheduler only asks if
    /// several nodes remain, which never happens for a worker pod.
    pub async fn prioritize(&self, args: ExtenderArgs) -> (Vec<HostPriority>, Outcome) {
        let (target, outcome) = match ownership(&args.pod.metadata) {
            Ownership::Foreign => (None, Outcome::Foreign),
            Ownership::Malformed(_) => (None, Outcome::Refused),
            Ownership::Ours(worker_pod) => match self.allocated_node(&worker_pod).await {
                Ok(node) => (Some(node), Outcome::Accepted),
                Err(failure) => (None, failure.outcome()),
            },
        };
        let score = |host: &String| if target.as_ref() == Some(host) { BEST } else { 0 };
        let names = args.names();
        (names.iter().map(|host| HostPriority { host: host.clone(), score: score(host) }).collect(), outcome)
    }

    /// Checks the placement again and creates the Binding, with the allocation's generation in the same
    /// write.
    pub async fn bind(&self, args: ExtenderBindingArgs) -> (ExtenderBindingResult, Outcome) {
        let within = self.config.bind_timeout;
        let bound = timeout(within, self.bind_limited(&args)).await;
        match bound.unwrap_or(Err(Failure::Unknown(ClusterError::Late(within)))) {
            Ok(outcome) => {
                self.pods.lock().forget(&args.pod_uid);
                (ExtenderBindingResult::default(), outcome)
            }
            Err(failure) => {
                self.count(&failure);
                tracing::warn!(
                    namespace = args.pod_namespace,
                    pod = args.pod_name,
                    node = args.node,
                    error = %failure,
                    "not bound"
                );
                (ExtenderBindingResult { error: failure.to_string() }, failure.outcome())
            }
        }
    }

    async fn bind_limited(&self, args: &ExtenderBindingArgs) -> Result<Outcome, Failure> {
        let _turn = self.bind_permits.acquire().await.map_err(|_| ClusterError::Busy)?;
        let remembered = self.pods.lock().get(&args.pod_uid).cloned();
        let ownership = match remembered {
            Some(ownership) => ownership,
            None => ownership(&self.cluster.pod(args).await?.metadata),
        };
        match ownership {
            Ownership::Foreign => {
                self.cluster.bind(args, None).await?;
                Ok(Outcome::Foreign)
            }
            Ownership::Malformed(refusal) => Err(Failure::Refused(refusal)),
            Ownership::Ours(worker_pod) => {
                let node = self.allocated_node(&worker_pod).await?;
                if node != args.node {
                    return Err(Failure::Refused(Refusal::Node { generation: worker_pod.generation, node }));
                }
                self.cluster.bind(args, Some(worker_pod.generation)).await?;
                Ok(Outcome::Accepted)
            }
        }
    }

    /// The node of a worker pod, from the cache. Makes one live read if the cache may be older than the pod.
    async fn allocated_node(&self, worker_pod: &WorkerPod) -> Result<String, Failure> {
        let before = {
            let jobs = self.jobs.lock();
            let known = jobs.get(&worker_pod.job_uid);
            if !cache_may_be_stale(worker_pod, known) {
                return allocated_node(worker_pod, known).map(str::to_owned).map_err(Failure::Refused);
            }
            known.map(|job| job.version.clone())
        };
        let job = self.cluster.job(worker_pod, self.config.read_timeout).await?;
        if let Some(job) = &job {
            self.jobs.lock().apply_live_read(job.clone(), before.as_deref());
        }
        allocated_node(worker_pod, job.as_ref()).map(str::to_owned).map_err(Failure::Refused)
    }

    fn count(&self, failure: &Failure) {
        if let Failure::Refused(refusal) = failure {
            self.metrics.refused(refusal.reason());
        }
    }

    /// Returns no node. A final refusal marks each node as unresolvable, so the pod waits until something in
    /// the cluster changes. An unknown result is an error, and kube-scheduler retries within seconds.
    fn reject_all(&self, args: ExtenderArgs, failure: &Failure) -> ExtenderFilterResult {
        self.count(failure);
        let mut result = ExtenderFilterResult::default();
        match failure {
            Failure::Unknown(_) => result.error = failure.to_string(),
            Failure::Refused(_) => {
                let reason = failure.to_string();
                result.failed_and_unresolvable_nodes =
                    args.names().iter().map(|name| (name.clone(), reason.clone())).collect();
            }
        }
        // Empty, not absent, in the form that was sent.
        if args.node_names.is_none() && args.nodes.is_some() {
            result.nodes = Some(NodeList::default());
        } else {
            result.node_names = Some(Vec::new());
        }
        result
    }
}

/// Keeps only `node`, which is one of those sent.
fn with_only_node(args: ExtenderArgs, node: &str) -> ExtenderFilterResult {
    let mut result = ExtenderFilterResult::default();
    match (args.node_names, args.nodes) {
        (None, Some(nodes)) => {
            let names = nodes.names();
            let items =
                nodes.items.into_iter().zip(names).filter(|(_, name)| name == node).map(|(raw, _)| raw);
            result.nodes = Some(NodeList { items: items.collect() });
        }
        _ => result.node_names = Some(vec![node.to_owned()]),
    }
    result
}
