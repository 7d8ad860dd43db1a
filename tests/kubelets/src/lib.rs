//! Real nodes for a test bed: kubelet, containerd, runc, CNI, kube-proxy, CoreDNS and NVIDIA's own parts, several nodes on one
//! machine.
//!
//! *What it holds.* [`Network`]: the bridge that stands for the machines' network. [`Node`]: one machine, which can lose its power
//! or restart a service. [`Kubelets`]: the nodes of a test bed, and what a cluster has beside them (`cluster`). [`Registry`]: of
//! images, which the nodes pull from or not ([`Images`]). `config`: the files that a node's programs read. `cgroups`: the place of
//! each node in the machine's cgroups. `pods`: which pods are on the nodes and what they hold. `driver`: tells the simulated
//! drivers. [`Gpus`]: which GPUs a node has; [`MachineGpus`]: those of this machine. [`DefaultRuntime`]: how containers come by
//! them. `policies`: enforces NetworkPolicies. `trouble`, `clock`: what can be set wrong on a node while it runs. The script `node`
//! beside the sources is a node's first process, `isolated` starts a program in a network of its own, where all of this has to run.
//!
//! *What flows in and out.* A test bed whose API server listens at [`Network::ADDRESS`] goes in; Ready nodes with
//! `nvidia.com/gpu`, labelled by GPU feature discovery, come out.
//!
//! *What must never be here.* The product: nothing here knows TrainingJobs.

mod cgroups;
mod clock;
mod cluster;
mod config;
mod driver;
mod gpus;
mod images;
mod machine;
mod network;
mod node;
mod pods;
mod policies;
mod registry;
mod runtime;
mod trouble;

pub use clock::WrongClock;
pub use cluster::Kubelets;
pub use config::DRIVER;
pub use gpus::Gpus;
pub use images::Images;
pub use machine::MachineGpus;
pub use network::Network;
pub use node::{Node, Service};
pub use nvidia_ml::{ENV_SPEC, Fault};
pub use policies::Enforcer;
pub use registry::Registry;
pub use runtime::DefaultRuntime;
pub use trouble::Cni;

/// Whether this program runs in namespaces of its own, where real nodes can run: it was started by `tests/kubelets/isolated`.
pub fn isolated() -> bool {
    std::env::var_os("ANDREAS_ISOLATED").is_some()
}
