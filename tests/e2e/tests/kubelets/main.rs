//! Scenarios on real nodes: kubelet, containerd, runc and NVIDIA's own parts, the chart from images. What only real nodes do is
//! tried here; pretend ones stand for hundreds of nodes and for faults on purpose.
//!
//! `make kubelets` runs them, two at a time, each in namespaces of its own.

mod around;
mod clocks;
mod faults;
mod gangs;
mod machine;
mod pods;
mod policies;
mod prompt;
mod release;
mod runtimes;
mod training;

use andreas_e2e::cluster::{Cluster, Options};
use andreas_kubelets::{Gpus, Kubelets};
use anyhow::{Context as _, Result};
use serde_json::json;

/// Nodes of 4 A100 each, and the chart with its default values.
fn real(nodes: usize) -> Options {
    let gpus = Gpus::Simulated { product: "NVIDIA-A100-SXM4-80GB".to_owned(), count: 4, memory_mib: 81_920 };
    Options {
        name: "real".into(),
        groups: Vec::new(),
        real_nodes: vec![gpus; nodes],
        install: Some(json!({})),
        ..Options::default()
    }
}

fn nodes(cluster: &Cluster) -> Result<&Kubelets> {
    cluster.real_nodes.as_deref().context("the nodes are real")
}
