//! What workers, nodes, watches and the control socket share.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kube::{Api, Client};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::{Notify, Semaphore, mpsc};

use crate::addresses::Addresses;
use crate::cluster::Cluster;
use crate::config::{Forward, NodesConfig};
use crate::entry::PodHandle;
use crate::file::replace;
use crate::node::Node;
use crate::objects::{ClaimView, ConfigMapView, PodView, SecretView};
use crate::sandbox::Sandbox;
use crate::time::whole_seconds;

/// What workers, nodes and the control socket share.
pub(crate) struct Shared {
    pub client: Client,
    pub config: Arc<NodesConfig>,
    pub data_dir: PathBuf,
    pub sandbox: Option<Arc<Sandbox>>,
    pub nodes: BTreeMap<String, Arc<Node>>,
    /// By UID.
    pub pods: Mutex<HashMap<String, Arc<PodHandle>>>,
    pub addresses: Mutex<Addresses>,
    pub cluster: Mutex<Cluster>,
    /// The cluster as seen from inside has changed.
    pub cluster_changed: Notify,
    pub writes: Arc<Semaphore>,
    hosts: Mutex<HashMap<String, HostsFile>>,
    events: mpsc::Sender<serde_json::Value>,
}

/// A pod's `/etc/hosts`.
struct HostsFile {
    namespace: String,
    own: String,
    path: PathBuf,
}

impl Shared {
    pub fn new(
        client: Client,
        config: NodesConfig,
        data_dir: PathBuf,
        sandbox: Option<Sandbox>,
        api_server: Option<SocketAddr>,
    ) -> Arc<Self> {
        let mut nodes = BTreeMap::new();
        for group in &config.nodes {
            let group = Arc::new(group.clone());
            for index in 0..group.count {
                let node = Node::new(&group, index, nodes.len());
                nodes.insert(node.name.clone(), Arc::new(node));
            }
        }
        let mut cluster = Cluster::default();
        cluster.api_server = api_server;
        cluster.forwards.extend(config.forwards.iter().map(|forward| (forward.listen, forward.clone())));
        let (events, queue) = mpsc::channel(1024);
        tokio::spawn(write_events(client.clone(), queue));
        Arc::new(Self {
            client,
            data_dir,
            sandbox: sandbox.map(Arc::new),
            nodes,
            pods: Mutex::default(),
            addresses: Mutex::default(),
            cluster: Mutex::new(cluster),
            cluster_changed: Notify::new(),
            writes: Arc::new(Semaphore::new(config.writes_in_flight.max(1))),
            hosts: Mutex::default(),
            events,
            config: Arc::new(config),
        })
    }

    /// The folder that stands for a node's file system.
    pub fn host(&self, node: &str) -> PathBuf {
        self.data_dir.join("hosts").join(node)
    }

    /// The pod is over and done with.
    pub fn forget(&self, uid: &str) {
        self.pods.lock().remove(uid);
        self.hosts.lock().remove(uid);
    }

    /// Brings every `/etc/hosts` up to date with the cluster.
    pub fn refresh_hosts(&self) {
        let files = self.hosts.lock();
        let mut bodies: HashMap<&str, String> = HashMap::new();
        for file in files.values() {
            let body =
                bodies.entry(&file.namespace).or_insert_with(|| self.cluster.lock().hosts(&file.namespace));
            if let Err(error) = replace(&file.path, format!("{}{body}", file.own).as_bytes(), 0o644) {
                tracing::debug!(path = %file.path.display(), %error, "hosts file");
            }
        }
    }

    /// Writes the pod's `/etc/hosts`, `hostname` and `resolv.conf`, the first kept up to date from then on.
    pub fn write_hosts(&self, pod: &PodView, ip: &str, dir: &Path) -> std::io::Result<()> {
        let (etc, host, namespace) = (dir.join("etc"), pod.hostname(), pod.namespace());
        std::fs::create_dir_all(&etc)?;
        let full = pod.spec.subdomain.as_ref();
        let full = full.map_or(String::new(), |sub| format!("{host}.{sub}.{namespace}.svc.cluster.local\t"));
        // First, as on a real node: a Service may bear the name of the pod.
        let own = format!("127.0.0.1\tlocalhost\n{ip}\t{full}{host}\n");
        let path = etc.join("hosts");
        let body = self.cluster.lock().hosts(namespace);
        replace(&path, format!("{own}{body}").as_bytes(), 0o644)?;
        std::fs::write(etc.join("hostname"), format!("{host}\n"))?;
        let search = format!("{namespace}.svc.cluster.local svc.cluster.local cluster.local");
        std::fs::write(etc.join("resolv.conf"), format!("search {search}\n"))?;
        let file = HostsFile { namespace: namespace.to_owned(), own, path };
        self.hosts.lock().insert(pod.uid().to_owned(), file);
        Ok(())
    }

    /// A ConfigMap; none where there is none.
    pub async fn config_map(&self, namespace: &str, name: &str) -> Result<Option<ConfigMapView>, String> {
        self.get(namespace, name).await
    }

    /// A Secret; none where there is none.
    pub async fn secret(&self, namespace: &str, name: &str) -> Result<Option<SecretView>, String> {
        self.get(namespace, name).await
    }

    /// A PersistentVolumeClaim; none where there is none.
    pub async fn claim(&self, namespace: &str, name: &str) -> Result<Option<ClaimView>, String> {
        self.get(namespace, name).await
    }

    async fn get<K>(&self, namespace: &str, name: &str) -> Result<Option<K>, String>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned,
    {
        Api::namespaced(self.client.clone(), namespace).get_opt(name).await.map_err(|error| error.to_string())
    }

    /// Opens or changes a forward.
    pub fn set_forward(&self, forward: Forward) {
        self.cluster.lock().forwards.insert(forward.listen, forward);
        self.cluster_changed.notify_one();
    }

    /// An Event about a pod, as its kubelet writes them; dropped when too many wait.
    pub fn event(&self, pod: &PodView, kind: &str, reason: &str, message: &str) {
        let now = k8s_openapi::jiff::Timestamp::now();
        let mut message = message.to_owned();
        message.truncate(message.floor_char_boundary(1000));
        let name = format!("{:.200}.{:x}", pod.name(), now.as_nanosecond());
        let _ = self.events.try_send(json!({
            "metadata": {"name": name, "namespace": pod.namespace()},
            "involvedObject": {
                "kind": "Pod", "apiVersion": "v1", "name": pod.name(), "namespace": pod.namespace(), "uid": pod.uid(),
            },
            "type": kind, "reason": reason, "message": message, "count": 1,
            "firstTimestamp": whole_seconds(now), "lastTimestamp": whole_seconds(now),
            "source": {"component": "kubelet", "host": pod.spec.node_name},
            "reportingComponent": "kubelet", "reportingInstance": pod.spec.node_name,
        }));
    }
}

async fn write_events(client: Client, mut queue: mpsc::Receiver<serde_json::Value>) {
    while let Some(event) = queue.recv().await {
        let Ok(event) = serde_json::from_value::<k8s_openapi::api::core::v1::Event>(event) else { continue };
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let events = Api::namespaced(client.clone(), &namespace);
        let params = kube::api::PostParams::default();
        let write = events.create(&params, &event);
        if let Ok(Err(error)) = tokio::time::timeout(Duration::from_secs(10), write).await {
            tracing::debug!(%error, "event not written");
        }
    }
}
