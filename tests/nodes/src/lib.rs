//! Pretend kubelets: GPU nodes whose containers are processes, against a real kube-apiserver.
//!
//! *What it holds.* `node`: Node objects as GPU feature discovery labels them, Leases, heartbeats. [`config`]: which
//! nodes. `devices`: who holds which GPU of a node. `hardware` and `pod_resources`: what NVML and the PodResources
//! socket say of them. `pod`: a pod from binding to its end. `kubelet`: the watches that start pods' workers. `shared`:
//! what all of them have in common. [`sandbox`]: the private network in which containers run as processes, each pod in
//! a network namespace and each container in mounts of its own. `cluster`, `forward`: names and addresses of Services
//! inside, and ways from the machine to pods. [`control`] and [`NodesClient`]: what a tester can do to nodes and pods.
//!
//! *What flows in and out.* Pods bound to our nodes, Services and EndpointSlices come by watch; ConfigMaps, Secrets
//! and tokens are fetched when a pod needs them. Status patches, Events, Leases and last deletions go out.
//!
//! *What must never be here.* The product: nothing here knows TrainingJobs, so that what works here works with a real
//! kubelet. No clock but the real one.
//!
//! *What it leaves out of a kubelet.* `kubectl logs` and `exec` (logs are files below the data folder),
//! users and security contexts, resource limits, image contents, static pods. `README.md` beside the
//! sources shows the configuration, the annotations and the commands.

mod addresses;
pub mod client;
mod cluster;
pub mod config;
pub mod control;
mod devices;
mod entry;
pub mod file;
mod forward;
mod hardware;
mod kubelet;
mod node;
mod objects;
mod pod;
mod pod_resources;
pub mod recorded;
pub mod sandbox;
mod shared;
mod start;
mod time;

pub use client::{ClientError, NodesClient};
pub use config::{Containers, Forward, NodeGroup, NodesConfig};
pub use devices::{GPU_RESOURCE, Gpu, RefusedForGpus};
pub use hardware::{GPU_WATTS, GpuHardware, training_process};
pub use objects::ANNOTATIONS;
pub use recorded::Recorded;
pub use start::{Options, run};

/// A quantity of Kubernetes as a number, in its unit (cores, bytes, pieces).
fn quantity(text: &str) -> Option<f64> {
    andreas_api::quantity::milli(text).map(|milli| milli as f64 / 1e3)
}
