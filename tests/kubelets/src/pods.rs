//! Which pods are on the nodes, and what they hold: by the API server's objects, the kubelets' PodResources API, the kubelets' log
//! folders and the kernel. The answers have the form of the pretend nodes', so that the same observer reads both.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use andreas_podresources::Kubelet;
use andreas_test_nodes::control::{NodeInfo, PodInfo};
use andreas_test_nodes::{GPU_RESOURCE, Gpu, GpuHardware};
use anyhow::Result;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use nvidia_ml::Sim;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::gpus::Gpus;
use crate::node::Node;

/// Time between two looks at a kubelet's socket.
const PERIOD: Duration = Duration::from_millis(500);
/// Characters of a container's ID.
const ID: usize = 64;

/// Namespace and name of a pod.
pub(crate) type PodKey = (String, String);

/// GPUs of a node by UUID, with the pods that hold them.
pub(crate) type Held = BTreeMap<String, PodKey>;

/// A process of a pod, by its numbers.
pub(crate) struct Process {
    here: i32,
    pub on_node: u32,
}

impl Process {
    pub fn runs(&self) -> bool {
        Path::new("/proc").join(self.here.to_string()).exists()
    }
}

/// The pods of all nodes; dropped, it no longer follows them.
pub(crate) struct Pods {
    objects: Store<Pod>,
    held: Arc<Mutex<BTreeMap<String, Held>>>,
    _tasks: JoinSet<()>,
}

impl Pods {
    /// Follows the pods of the cluster and the GPUs of these nodes.
    pub fn start(client: &Client, nodes: &[Arc<Node>]) -> Self {
        let (objects, writer) = reflector::store();
        let held: Arc<Mutex<BTreeMap<String, Held>>> = Arc::default();
        let mut tasks = JoinSet::new();
        let watched = watcher(Api::<Pod>::all(client.clone()), watcher::Config::default());
        let followed = watched.default_backoff().reflect(writer);
        tasks.spawn(followed.for_each(|_| std::future::ready(())));
        for node in nodes {
            let (node, held) = (Arc::clone(node), Arc::clone(&held));
            tasks.spawn(async move {
                let mut kubelet = Kubelet::new(&node.pod_resources(), Duration::from_secs(5));
                loop {
                    // A kubelet that is just restarting changes nothing of what runs.
                    if let Ok(found) = holders(&mut kubelet).await {
                        held.lock().insert(node.name().to_owned(), found);
                    }
                    tokio::time::sleep(PERIOD).await;
                }
            });
        }
        Self { objects, held, _tasks: tasks }
    }

    /// Who holds which GPU of a node, by its kubelet's last answer.
    pub fn held(&self, node: &str) -> Held {
        self.held.lock().get(node).cloned().unwrap_or_default()
    }

    /// A pod's object.
    pub fn object(&self, (namespace, name): &PodKey) -> Option<Arc<Pod>> {
        self.objects.get(&reflector::ObjectRef::new(name).within(namespace))
    }

    /// The first process of a pod's programs; none between two of its containers.
    pub fn process(&self, node: &Node, key: &PodKey) -> Option<Process> {
        let processes = processes_of_containers();
        let containers = logged_containers(&node.log_folder());
        let first = containers.get(key)?.iter().find_map(|(_, id)| processes.get(id))?;
        let status = std::fs::read_to_string(format!("/proc/{first}/status")).ok()?;
        // Its number here, on the node, and in the container.
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
        let on_node = numbers.split_whitespace().nth(1)?.parse().ok()?;
        Some(Process { here: *first, on_node })
    }

    /// A node as its kubelet and its driver see it.
    ///
    /// # Errors
    /// When the driver's state cannot be read.
    pub fn node_info(&self, node: &Node) -> Result<NodeInfo> {
        let (held, mut logs) = (self.held(node.name()), None);
        let mut uid = |key: &PodKey| {
            let known = self.object(key).and_then(|pod| pod.metadata.uid.clone());
            // A pod that was deleted by force has no object any more.
            known.or_else(|| logs.get_or_insert_with(|| logged_pods(&node.log_folder())).get(key).cloned())
        };
        let hardware: Vec<GpuHardware> = match node.gpus() {
            Gpus::Simulated { .. } => {
                Sim::open(&node.driver())?.gpus().into_iter().map(GpuHardware::from).collect()
            }
            Gpus::OfMachine(machine) => machine.hardware(),
        };
        let gpus = hardware
            .iter()
            .map(|gpu| Gpu {
                uuid: gpu.uuid.clone(),
                healthy: node.is_whole(&gpu.uuid),
                holder: held.get(&gpu.uuid).and_then(&mut uid),
            })
            .collect();
        Ok(NodeInfo {
            name: node.name().to_owned(),
            online: node.has_power(),
            boot_id: node.started().to_string(),
            gpus,
            refused_for_gpus: Vec::new(),
            hardware,
        })
    }

    /// The pods that have an object and are on one of these nodes.
    pub fn pod_infos(&self, nodes: &[Arc<Node>]) -> Vec<PodInfo> {
        let mut found = Vec::new();
        let processes = processes_of_containers();
        for node in nodes {
            let (held, containers) = (self.held(node.name()), logged_containers(&node.log_folder()));
            let on_node = |pod: &Arc<Pod>| {
                pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node.name())
            };
            for pod in self.objects.state().into_iter().filter(on_node) {
                let key = (pod.namespace().unwrap_or_default(), pod.name_any());
                let status = pod.status.clone().unwrap_or_default();
                let running = containers.get(&key).into_iter().flatten();
                found.push(PodInfo {
                    uid: pod.uid().unwrap_or_default(),
                    node: node.name().to_owned(),
                    labels: pod.labels().clone(),
                    ip: status.pod_ip.unwrap_or_default(),
                    gpus: held.iter().filter(|(_, by)| **by == key).map(|(uuid, _)| uuid.clone()).collect(),
                    pids: running
                        .filter_map(|(name, id)| Some((name.clone(), *processes.get(id)?)))
                        .collect(),
                    ended: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
                    namespace: key.0,
                    name: key.1,
                });
            }
        }
        found
    }
}

/// Asks a kubelet who holds which GPU.
async fn holders(kubelet: &mut Kubelet) -> Result<Held> {
    let mut held = Held::new();
    for pod in kubelet.list().await? {
        let key = (pod.namespace, pod.name);
        let devices = pod.containers.into_iter().flat_map(|container| container.devices);
        for device in devices.filter(|devices| devices.resource_name == GPU_RESOURCE) {
            held.extend(device.device_ids.into_iter().map(|uuid| (uuid, key.clone())));
        }
    }
    Ok(held)
}

/// UIDs by what the kubelet calls its folders of logs: `<namespace>_<name>_<uid>`, the newest where a name was used again.
fn logged_pods(log: &Path) -> BTreeMap<PodKey, String> {
    let mut found: Vec<_> = std::fs::read_dir(log.join("pods"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.file_name())))
        .collect();
    found.sort();
    found
        .into_iter()
        .filter_map(|(_, folder)| {
            let folder = folder.to_string_lossy().into_owned();
            let mut parts = folder.splitn(3, '_').map(str::to_owned);
            Some(((parts.next()?, parts.next()?), parts.next()?))
        })
        .collect()
}

/// Names and IDs of containers by what the kubelet calls its links to their logs: `<pod>_<namespace>_<container>-<id>.log`.
fn logged_containers(log: &Path) -> BTreeMap<PodKey, Vec<(String, String)>> {
    let mut found: BTreeMap<PodKey, Vec<(String, String)>> = BTreeMap::new();
    for entry in std::fs::read_dir(log.join("containers")).into_iter().flatten().flatten() {
        let link = entry.file_name().to_string_lossy().into_owned();
        let parts = || {
            let (pod, rest) = link.strip_suffix(".log")?.split_once('_')?;
            let (namespace, container) = rest.split_once('_')?;
            let (container, id) = container.rsplit_once('-')?;
            Some(((namespace.to_owned(), pod.to_owned()), (container.to_owned(), id.to_owned())))
        };
        if let Some((key, container)) = parts() {
            found.entry(key).or_default().push(container);
        }
    }
    found
}

/// The first process of every running container, by the container's ID: the name of its cgroup ends in it.
fn processes_of_containers() -> BTreeMap<String, i32> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let cgroups = std::fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
        let id = cgroups.lines().find_map(|line| {
            let name = line.trim_end().trim_end_matches(".scope");
            let id = name.get(name.len().checked_sub(ID)?..)?;
            id.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| id.to_owned())
        });
        if let Some(id) = id {
            let first = found.entry(id).or_insert(pid);
            *first = (*first).min(pid);
        }
    }
    found
}
