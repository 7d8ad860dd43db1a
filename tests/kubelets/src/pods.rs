//! Which pods are on the nodes, and what they hold: by the API server's objects, the kubelets' PodResources API, the kubelets' log
//! folders and the kernel. The answers have the form of the pretend nodes', so that the same observer reads both.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use andreas_node_agent::podresources::Kubelet;
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
pub(crate) type Held = BTreeMap<String, BTreeSet<PodKey>>;

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
        let first = containers.iter().filter(|one| one.pod == *key).find_map(|one| processes.get(&one.id))?;
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
                holder: held.get(&gpu.uuid).into_iter().flatten().find_map(&mut uid),
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

    /// The pods that have an object and are on one of these nodes, and those without whose containers run there.
    pub fn pod_infos(&self, nodes: &[Arc<Node>]) -> Vec<PodInfo> {
        let mut found = Vec::new();
        let processes = processes_of_containers();
        for node in nodes {
            let (held, mut running) = (self.held(node.name()), running_pods(&node.log_folder(), &processes));
            let on_node = |pod: &Arc<Pod>| {
                pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node.name())
            };
            for pod in self.objects.state().into_iter().filter(on_node) {
                let key = (pod.namespace().unwrap_or_default(), pod.name_any());
                let (status, uid) = (pod.status.clone().unwrap_or_default(), pod.uid().unwrap_or_default());
                found.push(PodInfo {
                    pids: running.remove(&uid).map(|(_, pids)| pids).unwrap_or_default(),
                    uid,
                    node: node.name().to_owned(),
                    labels: pod.labels().clone(),
                    ip: status.pod_ip.unwrap_or_default(),
                    gpus: held
                        .iter()
                        .filter(|(_, by)| by.contains(&key))
                        .map(|(gpu, _)| gpu.clone())
                        .collect(),
                    ended: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
                    namespace: key.0,
                    name: key.1,
                });
            }
            // A pod that was deleted by force has no object any more, and its kubelet no longer says what it holds, while its containers
            // may go on.
            found.extend(running.into_iter().map(|(uid, ((namespace, name), pids))| PodInfo {
                gpus:
                    pids.values().flat_map(|pid| given(*pid)).collect::<BTreeSet<_>>().into_iter().collect(),
                node: node.name().to_owned(),
                labels: BTreeMap::new(),
                ip: String::new(),
                ended: false,
                namespace,
                name,
                uid,
                pids,
            }));
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
            for uuid in device.device_ids {
                held.entry(uuid).or_default().insert(key.clone());
            }
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

/// A container that a node has a log of.
struct Logged {
    pod: PodKey,
    uid: String,
    container: String,
    id: String,
}

/// Containers by what the kubelet calls its links to their logs, `<pod>_<namespace>_<container>-<id>.log`, and by the folder
/// `<namespace>_<pod>_<uid>` that these lead to.
fn logged_containers(log: &Path) -> Vec<Logged> {
    let links = std::fs::read_dir(log.join("containers")).into_iter().flatten().flatten();
    links
        .filter_map(|entry| {
            let link = entry.file_name().to_string_lossy().into_owned();
            let (pod, rest) = link.strip_suffix(".log")?.split_once('_')?;
            let (namespace, container) = rest.split_once('_')?;
            let (container, id) = container.rsplit_once('-')?;
            let target = std::fs::read_link(entry.path()).ok()?;
            let folder = target.parent()?.parent()?.file_name()?.to_string_lossy().into_owned();
            Some(Logged {
                pod: (namespace.to_owned(), pod.to_owned()),
                uid: folder.rsplit_once('_')?.1.to_owned(),
                container: container.to_owned(),
                id: id.to_owned(),
            })
        })
        .collect()
}

/// Pods with running containers, by UID, and the first process of each container.
fn running_pods(
    log: &Path,
    processes: &BTreeMap<String, i32>,
) -> BTreeMap<String, (PodKey, BTreeMap<String, i32>)> {
    let mut found = BTreeMap::new();
    for one in logged_containers(log) {
        if let Some(pid) = processes.get(&one.id) {
            let (_, pids) = found.entry(one.uid).or_insert_with(|| (one.pod, BTreeMap::new()));
            pids.insert(one.container, *pid);
        }
    }
    found
}

/// The GPUs that a process's container was given, as the device plug-in writes them into its environment.
fn given(pid: i32) -> Vec<String> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let environment = String::from_utf8_lossy(&environment);
    let list = environment.split('\0').find_map(|one| one.strip_prefix("NVIDIA_VISIBLE_DEVICES="));
    let uuids = list.unwrap_or_default().split(',').filter(|name| name.starts_with("GPU-"));
    uuids.map(str::to_owned).collect()
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
