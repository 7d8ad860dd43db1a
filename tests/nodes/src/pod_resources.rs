//! The kubelet's PodResources socket: which container of a node has which GPUs.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use andreas_node_agent::podresources::messages::{ContainerDevices, ContainerResources, PodResources};

use crate::devices::{GPU_RESOURCE, gpus_of_container};
use crate::entry::PodHandle;
use crate::node::Node;
use crate::shared::Shared;

/// Serves the PodResources socket of a node at its usual place below `host`, for ever.
pub(crate) async fn serve(shared: Weak<Shared>, node: Arc<Node>, host: PathBuf) {
    let socket = host.join(andreas_node_agent::podresources::SOCKET.trim_start_matches('/'));
    let Some((folder, name)) = socket.parent().zip(socket.file_name()) else { return };
    // A socket's path is at most 107 bytes long; through an open folder it always is.
    let opened = std::fs::create_dir_all(folder).and_then(|()| File::open(folder));
    let served = match &opened {
        Ok(opened) => {
            let short = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd())).join(name);
            let source = Arc::new(NodeDevices { shared, node });
            andreas_node_agent::podresources::serve(&short, source, std::future::pending())
                .await
                .map_err(io::Error::other)
        }
        Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
    };
    if let Err(error) = served {
        tracing::warn!(socket = %socket.display(), %error, "PodResources");
    }
}

struct NodeDevices {
    shared: Weak<Shared>,
    node: Arc<Node>,
}

impl NodeDevices {
    fn pod(&self, entry: &PodHandle) -> Option<PodResources> {
        let (pod, facts) = (Arc::clone(&entry.pod.lock()), entry.facts.lock().clone());
        if pod.spec.node_name != self.node.name || facts.ended {
            return None;
        }
        let containers = pod.spec.containers.iter().map(|container| {
            let device_ids = gpus_of_container(&pod, &facts.gpus, container);
            let devices = if device_ids.is_empty() {
                Vec::new()
            } else {
                vec![ContainerDevices { resource_name: GPU_RESOURCE.to_owned(), device_ids }]
            };
            ContainerResources { name: container.name.clone(), devices, dynamic_resources: Vec::new() }
        });
        Some(PodResources {
            name: pod.name().to_owned(),
            namespace: pod.namespace().to_owned(),
            containers: containers.collect(),
        })
    }
}

impl andreas_node_agent::podresources::Source for NodeDevices {
    fn pods(&self) -> Vec<PodResources> {
        let Some(shared) = self.shared.upgrade() else { return Vec::new() };
        let entries: Vec<Arc<PodHandle>> = shared.pods.lock().values().cloned().collect();
        entries.iter().filter_map(|entry| self.pod(entry)).collect()
    }
}
