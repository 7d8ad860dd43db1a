//! Tells the simulated drivers who runs on which GPU: the pods that hold it, by the kubelet's own PodResources API.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use andreas_podresources::Kubelet;
use nvidia_ml::{Process, Sim};
use tokio::task::JoinSet;

use crate::node::Node;

/// Time between two looks.
const PERIOD: Duration = Duration::from_millis(500);
/// Use of a GPU by a training process.
const USE: f64 = 0.9;
/// Share of a GPU's memory that it takes.
const MEMORY_SHARE: f64 = 0.6;
/// The device plug-in's resource.
const GPU: &str = "nvidia.com/gpu";

/// One task for each node; dropped, they end.
pub(crate) struct Driver {
    _tasks: JoinSet<()>,
}

impl Driver {
    pub fn start(nodes: &[Node]) -> Self {
        let mut tasks = JoinSet::new();
        for node in nodes {
            tasks.spawn(follow(node.pod_resources(), node.driver(), node.gpus().memory_mib));
        }
        Self { _tasks: tasks }
    }
}

async fn follow(socket: PathBuf, spec: PathBuf, memory_mib: u64) {
    let mut kubelet = Kubelet::new(&socket, Duration::from_secs(5));
    loop {
        tokio::time::sleep(PERIOD).await;
        // A kubelet that is just restarting changes nothing of what runs.
        let Ok(pods) = kubelet.list().await else { continue };
        let held: BTreeSet<String> = pods
            .into_iter()
            .flat_map(|pod| pod.containers)
            .flat_map(|container| container.devices)
            .filter(|devices| devices.resource_name == GPU)
            .flat_map(|devices| devices.device_ids)
            .collect();
        // Opened anew: the driver of a node that lost its power has another state.
        let Ok(sim) = Sim::open(&spec) else { continue };
        for (index, gpu) in (1..).zip(sim.gpus()) {
            let process = held.contains(&gpu.uuid).then_some(Process {
                pid: index,
                util: USE,
                memory_mib: (memory_mib as f64 * MEMORY_SHARE) as u64,
            });
            let _ = sim.set_processes(&gpu.uuid, process.as_slice());
        }
    }
}
