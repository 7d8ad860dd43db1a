//! The kubelets together: one watch for the pods of all nodes, a worker per pod, the nodes' heartbeats.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::{Notify, Semaphore, mpsc};

use crate::cluster::Cluster;
use crate::config::{Forward, NodesConfig};
use crate::forward::Forwarder;
use crate::hardware::{self, Hardware};
use crate::node::{Node, whole_seconds};
use crate::objects::{ClaimView, ConfigMapView, NodeView, PodView, SecretView, ServiceView, SliceView};
use crate::pod::volumes::replace;
use crate::pod::worker::{self, Machine, Order};
use crate::sandbox::Sandbox;

/// Changes of Services and endpoints are gathered for this long.
const GATHER: Duration = Duration::from_millis(100);
/// Registrations under way at one time.
const REGISTRATIONS: usize = 16;

/// What workers, nodes and the control socket share.
pub(crate) struct Shared {
    pub client: Client,
    pub config: Arc<NodesConfig>,
    pub data_dir: PathBuf,
    pub sandbox: Option<Arc<Sandbox>>,
    pub nodes: BTreeMap<String, Arc<Node>>,
    /// By UID.
    pub pods: Mutex<HashMap<String, Arc<Entry>>>,
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

/// A pod that has a worker.
pub(crate) struct Entry {
    pub pod: Mutex<Arc<PodView>>,
    pub orders: mpsc::UnboundedSender<Order>,
    pub machine: mpsc::UnboundedSender<Machine>,
    pub facts: Mutex<Facts>,
}

/// What the control socket tells of a pod.
#[derive(Debug, Default, Clone)]
pub(crate) struct Facts {
    pub ip: String,
    pub gpus: Vec<String>,
    /// Process ids by container, of those that run.
    pub pids: BTreeMap<String, i32>,
    pub ended: bool,
}

impl Entry {
    pub fn admitted(&self, ip: &str, gpus: &[String]) {
        let mut facts = self.facts.lock();
        ip.clone_into(&mut facts.ip);
        facts.gpus = gpus.to_vec();
    }
    pub fn pid(&self, container: &str, pid: Option<i32>) {
        let mut facts = self.facts.lock();
        match pid {
            Some(pid) => facts.pids.insert(container.to_owned(), pid),
            None => facts.pids.remove(container),
        };
    }
    pub fn ended(&self) {
        self.facts.lock().ended = true;
    }
}

/// Pod addresses of 10.244.0.0/16, the longest unused first.
#[derive(Debug)]
pub(crate) struct Addresses {
    next: u32,
    used: HashSet<u32>,
}

impl Default for Addresses {
    fn default() -> Self {
        Self { next: Self::FIRST, used: HashSet::new() }
    }
}

impl Addresses {
    const FIRST: u32 = u32::from_be_bytes([10, 244, 0, 2]);
    const LAST: u32 = u32::from_be_bytes([10, 244, 255, 254]);

    /// An address nobody has; empty when there is none left.
    pub fn take(&mut self) -> String {
        for _ in Self::FIRST..=Self::LAST {
            let address = self.next;
            self.next = if address == Self::LAST { Self::FIRST } else { address + 1 };
            if self.used.insert(address) {
                return Ipv4Addr::from(address).to_string();
            }
        }
        String::new()
    }

    /// The address a pod had under an earlier kubelet process, if nobody else has it now.
    pub fn keep(&mut self, address: &str) -> Option<String> {
        let number = u32::from(address.parse::<Ipv4Addr>().ok()?);
        let ours = (Self::FIRST..=Self::LAST).contains(&number);
        (ours && self.used.insert(number)).then(|| address.to_owned())
    }

    pub fn give_back(&mut self, address: &str) {
        if let Ok(address) = address.parse::<Ipv4Addr>() {
            self.used.remove(&u32::from(address));
        }
    }
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

    /// Simulated GPUs and a PodResources socket for every node with GPUs, where containers are processes.
    pub fn start_hardware(self: &Arc<Self>) -> anyhow::Result<()> {
        let Some(library) = self.config.nvml_library.as_ref().filter(|_| self.sandbox.is_some()) else {
            return Ok(());
        };
        for node in self.nodes.values().filter(|node| node.group.gpus > 0) {
            let host = self.host(&node.name);
            let _ = node.hardware.set(Hardware::new(node, &host, library)?);
            tokio::spawn(hardware::serve_pod_resources(Arc::downgrade(self), Arc::clone(node), host));
        }
        Ok(())
    }

    /// Registers every node and starts its heartbeat.
    pub async fn register_nodes(self: &Arc<Self>) -> kube::Result<()> {
        let all = futures::stream::iter(self.nodes.values().cloned().map(Ok));
        all.try_for_each_concurrent(REGISTRATIONS, |node| async move { node.register(&self.client).await })
            .await?;
        let writes = Arc::new(Semaphore::new(self.config.writes_in_flight.max(1)));
        for node in self.nodes.values() {
            let beat = Arc::clone(node).heartbeat(
                self.client.clone(),
                Arc::clone(&self.config),
                Arc::clone(&writes),
            );
            tokio::spawn(beat);
        }
        Ok(())
    }

    /// Follows pods, and with processes Services and endpoints too, for ever.
    pub async fn follow(self: Arc<Self>) {
        if let Some(sandbox) = self.sandbox.clone() {
            tokio::spawn(Arc::clone(&self).follow_services());
            tokio::spawn(Arc::clone(&self).follow_slices());
            tokio::spawn(Arc::clone(&self).keep_inside(sandbox));
        }
        tokio::spawn(Arc::clone(&self).follow_nodes());
        let pods: Api<PodView> = Api::all(self.client.clone());
        let bound = watcher::Config::default().fields("spec.nodeName!=");
        let mut events = pin!(watcher(pods, bound).default_backoff());
        let mut seen = HashSet::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Init) => seen.clear(),
                Ok(watcher::Event::InitApply(pod)) => {
                    seen.insert(pod.uid().to_owned());
                    self.apply(pod);
                }
                Ok(watcher::Event::InitDone) => {
                    let entries: Vec<Arc<Entry>> = self.pods.lock().values().cloned().collect();
                    for entry in entries {
                        let pod = Arc::clone(&entry.pod.lock());
                        if !seen.contains(pod.uid()) {
                            let _ = entry.orders.send(Order::Gone(pod));
                        }
                    }
                }
                Ok(watcher::Event::Apply(pod)) => self.apply(pod),
                Ok(watcher::Event::Delete(pod)) => {
                    let entry = self.pods.lock().get(pod.uid()).cloned();
                    if let Some(entry) = entry {
                        let _ = entry.orders.send(Order::Gone(Arc::new(pod)));
                    }
                }
                Err(error) => tracing::warn!(%error, "watch of pods"),
            }
        }
    }

    /// A kubelet that was too slow for the node controller takes its `Ready=Unknown` back with the next report.
    async fn follow_nodes(self: Arc<Self>) {
        let nodes: Api<NodeView> = Api::all(self.client.clone());
        let mut events = pin!(watcher(nodes, watcher::Config::default()).default_backoff().applied_objects());
        while let Some(event) = events.next().await {
            match event {
                Ok(seen) => {
                    let ours = seen.metadata.name.as_ref().and_then(|name| self.nodes.get(name));
                    if let Some(node) = ours.filter(|node| node.is_online() && !seen.is_ready()) {
                        node.status_changed();
                    }
                }
                Err(error) => tracing::warn!(%error, "watch of nodes"),
            }
        }
    }

    fn apply(self: &Arc<Self>, pod: PodView) {
        let Some(node) = self.nodes.get(&pod.spec.node_name) else { return };
        let pod = Arc::new(pod);
        let mut pods = self.pods.lock();
        if let Some(entry) = pods.get(pod.uid()) {
            *entry.pod.lock() = Arc::clone(&pod);
            let _ = entry.orders.send(Order::Update(pod));
            return;
        }
        if pod.is_terminal() {
            // It ended under an earlier kubelet process.
            if pod.is_deleting() {
                let shared = Arc::clone(self);
                tokio::spawn(async move { worker::confirm_deletion(&shared, &pod).await });
            }
            return;
        }
        let (orders, ordered) = mpsc::unbounded_channel();
        let (machine, done) = mpsc::unbounded_channel();
        let pod_cell = Mutex::new(Arc::clone(&pod));
        let entry = Arc::new(Entry { pod: pod_cell, orders, machine, facts: Mutex::default() });
        pods.insert(pod.uid().to_owned(), Arc::clone(&entry));
        tokio::spawn(worker::run(Arc::clone(self), Arc::clone(node), pod, entry, ordered, done));
    }

    /// The pod is over and done with.
    pub fn forget(&self, uid: &str) {
        self.pods.lock().remove(uid);
        self.hosts.lock().remove(uid);
    }

    async fn follow_services(self: Arc<Self>) {
        let services: Api<ServiceView> = Api::all(self.client.clone());
        let mut events = pin!(watcher(services, watcher::Config::default()).default_backoff());
        let mut seen = Vec::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Init) => seen.clear(),
                Ok(watcher::Event::InitApply(service)) => {
                    seen.push(service.clone());
                    self.cluster.lock().apply_service(service);
                }
                Ok(watcher::Event::InitDone) => {
                    self.cluster.lock().retain_services(&std::mem::take(&mut seen))
                }
                Ok(watcher::Event::Apply(service)) => self.cluster.lock().apply_service(service),
                Ok(watcher::Event::Delete(service)) => self.cluster.lock().delete_service(&service),
                Err(error) => tracing::warn!(%error, "watch of services"),
            }
            self.cluster_changed.notify_one();
        }
    }

    async fn follow_slices(self: Arc<Self>) {
        let slices: Api<SliceView> = Api::all(self.client.clone());
        let mut events = pin!(watcher(slices, watcher::Config::default()).default_backoff());
        let mut seen = Vec::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Init) => seen.clear(),
                Ok(watcher::Event::InitApply(slice)) => {
                    seen.push(slice.clone());
                    self.cluster.lock().apply_slice(slice);
                }
                Ok(watcher::Event::InitDone) => self.cluster.lock().retain_slices(&std::mem::take(&mut seen)),
                Ok(watcher::Event::Apply(slice)) => self.cluster.lock().apply_slice(slice),
                Ok(watcher::Event::Delete(slice)) => self.cluster.lock().delete_slice(&slice),
                Err(error) => tracing::warn!(%error, "watch of endpoint slices"),
            }
            self.cluster_changed.notify_one();
        }
    }

    /// Keeps listeners and `/etc/hosts` files what the cluster says.
    async fn keep_inside(self: Arc<Self>, sandbox: Arc<Sandbox>) {
        let mut forwarder = Forwarder::default();
        loop {
            forwarder.reconcile(&self, &sandbox).await;
            self.refresh_hosts();
            // Now and then even without news: a listener that could not be opened is tried again.
            let _ = tokio::time::timeout(Duration::from_secs(5), self.cluster_changed.notified()).await;
            tokio::time::sleep(GATHER).await;
        }
    }

    fn refresh_hosts(&self) {
        let files = self.hosts.lock();
        let mut bodies: HashMap<&str, String> = HashMap::new();
        for file in files.values() {
            let body =
                bodies.entry(&file.namespace).or_insert_with(|| self.cluster.lock().hosts(&file.namespace));
            if let Err(error) = replace(&file.path, format!("{}{body}", file.own).as_bytes()) {
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
        replace(&path, format!("{own}{body}").as_bytes())?;
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

    /// Opens, changes or closes (`to` none) a forward.
    pub fn set_forward(&self, listen: SocketAddr, forward: Option<Forward>) {
        let forwards = &mut self.cluster.lock().forwards;
        match forward {
            Some(forward) => forwards.insert(listen, forward),
            None => forwards.remove(&listen),
        };
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

#[cfg(test)]
mod tests {
    use super::Addresses;

    #[test]
    fn addresses_are_not_used_again_at_once() {
        let mut addresses = Addresses::default();
        let first = addresses.take();
        assert_eq!(first, "10.244.0.2");
        addresses.give_back(&first);
        assert_eq!(addresses.take(), "10.244.0.3");
    }
}
