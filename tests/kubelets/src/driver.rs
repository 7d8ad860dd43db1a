//! Tells the simulated drivers what runs on which GPU: the first process of the pod that holds it, by the kubelet's own PodResources
//! API.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use andreas_test_nodes::{GPU_WATTS, training_process};
use kube::ResourceExt as _;
use nvidia_ml::{GpuSpec, Sim};
use tokio::task::JoinSet;

use crate::gpus::Gpus;
use crate::node::Node;
use crate::pods::{Pods, Process};

/// Time between two looks.
const PERIOD: Duration = Duration::from_millis(500);

/// One task for each node; dropped, they end.
pub(crate) struct Driver {
    _tasks: JoinSet<()>,
}

impl Driver {
    pub fn start(nodes: &[Arc<Node>], pods: &Arc<Pods>) -> Self {
        let mut tasks = JoinSet::new();
        for node in nodes.iter().filter(|node| matches!(node.gpus(), Gpus::Simulated { .. })) {
            tasks.spawn(follow(Arc::clone(node), Arc::clone(pods)));
        }
        Self { _tasks: tasks }
    }
}

async fn follow(node: Arc<Node>, pods: Arc<Pods>) {
    let Gpus::Simulated { product, memory_mib, .. } = node.gpus() else { return };
    let each = GpuSpec::of_product(product, "", *memory_mib);
    let mut processes = BTreeMap::new();
    loop {
        tokio::time::sleep(PERIOD).await;
        let held = pods.held(node.name());
        processes.retain(|pod, _| held.values().flatten().any(|holder| holder == pod));
        // Opened anew: the driver of a node that lost its power has another state.
        let Ok(sim) = Sim::open(&node.driver()) else { continue };
        for gpu in sim.gpus() {
            let holders = held.get(&gpu.uuid).into_iter().flatten();
            let running = holders.filter_map(|holder| {
                if !processes.get(holder).is_some_and(Process::runs) {
                    processes.insert(holder.clone(), pods.process(&node, holder)?);
                }
                let number = processes.get(holder)?.on_node;
                let pod = pods.object(holder);
                let watts = pod.as_ref().and_then(|pod| pod.annotations().get(GPU_WATTS));
                Some(training_process(number, &each, product, watts.map(String::as_str)))
            });
            let _ = sim.set_processes(&gpu.uuid, &running.collect::<Vec<_>>());
        }
    }
}
