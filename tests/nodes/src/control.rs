//! The control socket: one JSON command per line, one JSON answer per line.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};

use crate::config::Forward;
use crate::devices::{Gpu, RefusedForGpus};
use crate::entry::PodHandle;
use crate::hardware::{GpuHardware, Hardware};
use crate::node::Node;
use crate::shared::Shared;

/// What a tester may ask for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Command {
    /// All nodes.
    Nodes,
    /// All pods that have not been forgotten.
    Pods,
    /// The node's kubelet loses the API server: no Lease, no status, no obedience; its containers go on.
    Silence {
        /// Node name.
        node: String,
    },
    /// It finds it again, with all that has happened meanwhile.
    Back {
        /// Node name.
        node: String,
    },
    /// The machine is gone for good: containers die, the Node object is deleted.
    DeleteNode {
        /// Node name.
        node: String,
    },
    /// A machine of that name comes (again): another boot ID, Node object made where there is none.
    RestoreNode {
        /// Node name.
        node: String,
    },
    /// Containers die at once, the kubelet is silent for a while and comes back with another boot ID.
    Reboot {
        /// Node name.
        node: String,
        /// Seconds until it is back.
        down_seconds: f64,
    },
    /// Calls of the driver on a GPU are answered again.
    GpuHeal {
        /// Node name.
        node: String,
        /// UUID or index.
        gpu: String,
    },
    /// Every call of the driver on a GPU hangs; heal it to end that.
    GpuHang {
        /// Node name.
        node: String,
        /// UUID or index.
        gpu: String,
    },
    /// Opens or changes a forward.
    Forward(Forward),
}

/// A node as its kubelet sees it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeInfo {
    /// Node name.
    pub name: String,
    /// Whether its kubelet reaches the API server.
    pub online: bool,
    /// Boot ID it reports.
    pub boot_id: String,
    /// Its GPUs and who holds them.
    pub gpus: Vec<Gpu>,
    /// Pods that it refused for want of GPUs, the latest last.
    pub refused_for_gpus: Vec<RefusedForGpus>,
    /// What the driver says of them; empty where that is not simulated.
    pub hardware: Vec<GpuHardware>,
}

/// A pod as its kubelet sees it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodInfo {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Node.
    pub node: String,
    /// Its labels.
    pub labels: std::collections::BTreeMap<String, String>,
    /// Its address.
    pub ip: String,
    /// UUIDs of its GPUs.
    pub gpus: Vec<String>,
    /// Running containers with their process ids (none when simulated).
    pub pids: std::collections::BTreeMap<String, i32>,
    /// Whether all its containers have ended for good.
    pub ended: bool,
}

/// One line back.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// Done.
    Done,
    /// To [`Command::Nodes`].
    Nodes(Vec<NodeInfo>),
    /// To [`Command::Pods`].
    Pods(Vec<PodInfo>),
    /// It could not be done.
    Error(String),
}

/// Listens on the socket for ever. It is there once every node is registered.
pub(crate) async fn serve(shared: Arc<Shared>, path: &Path) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path)?;
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(talk(Arc::clone(&shared), stream));
    }
}

async fn talk(shared: Arc<Shared>, stream: UnixStream) -> std::io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut lines = BufReader::new(reader).lines();
    while let Some(line) = lines.next_line().await? {
        let answer = match serde_json::from_str(&line) {
            Ok(command) => obey(&shared, command).await.unwrap_or_else(Answer::Error),
            Err(error) => Answer::Error(format!("not a command: {error}")),
        };
        let mut text = serde_json::to_vec(&answer)?;
        text.push(b'\n');
        writer.write_all(&text).await?;
    }
    Ok(())
}

async fn obey(shared: &Arc<Shared>, command: Command) -> Result<Answer, String> {
    let node = |name: &str| -> Result<Arc<Node>, String> {
        shared.nodes.get(name).cloned().ok_or_else(|| format!("no node {name}"))
    };
    match command {
        Command::Nodes => {
            return Ok(Answer::Nodes(shared.nodes.values().map(|node| node_info(node)).collect()));
        }
        Command::Pods => {
            return Ok(Answer::Pods(shared.pods.lock().values().map(|entry| pod_info(entry)).collect()));
        }
        Command::Silence { node: name } => node(&name)?.set_online(false),
        Command::Back { node: name } => node(&name)?.set_online(true),
        Command::DeleteNode { node: name } => {
            let node = node(&name)?;
            node.set_online(false);
            lose_containers(shared, &name);
            node.delete(&shared.client).await.map_err(|error| error.to_string())?;
        }
        Command::RestoreNode { node: name } => {
            let node = node(&name)?;
            node.new_boot();
            node.register(&shared.client).await.map_err(|error| error.to_string())?;
            node.set_online(true);
        }
        Command::Reboot { node: name, down_seconds } => {
            let node = node(&name)?;
            node.set_online(false);
            lose_containers(shared, &name);
            let down = Duration::from_secs_f64(down_seconds.clamp(0.0, 1e6));
            tokio::spawn(async move {
                tokio::time::sleep(down).await;
                node.new_boot();
                node.set_online(true);
            });
        }
        Command::GpuHeal { node: name, gpu } => driver_fault(&*node(&name)?, &gpu, nvidia_ml::Fault::None)?,
        Command::GpuHang { node: name, gpu } => driver_fault(&*node(&name)?, &gpu, nvidia_ml::Fault::Hang)?,
        Command::Forward(forward) => shared.set_forward(forward),
    }
    Ok(Answer::Done)
}

fn lose_containers(shared: &Shared, node: &str) {
    for entry in shared.pods.lock().values() {
        if entry.pod.lock().spec.node_name == node {
            let _ = entry.lose.send(());
        }
    }
}

fn driver_fault(node: &Node, gpu: &str, fault: nvidia_ml::Fault) -> Result<(), String> {
    let found = node.devices.lock().find(gpu).ok_or_else(|| format!("no GPU {gpu}"))?;
    node.hardware.get().ok_or("there is no simulated driver")?.fault(&found.uuid, fault)
}

fn node_info(node: &Node) -> NodeInfo {
    // A node's locks are taken one after the other, never one inside the other.
    let boot_id = node.boot_id();
    let devices = node.devices.lock();
    NodeInfo {
        name: node.name.clone(),
        online: node.is_online(),
        boot_id,
        gpus: devices.gpus().to_vec(),
        refused_for_gpus: devices.refused().to_vec(),
        hardware: node.hardware.get().map(Hardware::gpus).unwrap_or_default(),
    }
}

fn pod_info(entry: &PodHandle) -> PodInfo {
    let (pod, facts) = (Arc::clone(&entry.pod.lock()), entry.facts.lock().clone());
    PodInfo {
        namespace: pod.namespace().to_owned(),
        name: pod.name().to_owned(),
        uid: pod.uid().to_owned(),
        node: pod.spec.node_name.clone(),
        labels: pod.metadata.labels.clone().unwrap_or_default(),
        ip: facts.ip,
        gpus: facts.gpus,
        pids: facts.pids,
        ended: facts.ended,
    }
}
