//! Scenarios on real nodes: kubelet, containerd, runc and NVIDIA's own parts, the chart from images. What only real nodes do is
//! tried here; pretend ones stand for hundreds of nodes and for faults on purpose.
//!
//! `make kubelets` runs them, one after another, in namespaces of their own.

mod faults;
mod training;

use andreas_api::phase::Phase;
use andreas_e2e::cluster::{Cluster, Options};
use andreas_e2e::job::Job;
use andreas_kubelets::{Gpus, Kubelets};
use anyhow::{Context as _, Result, ensure};
use serde_json::json;

/// Nodes of 4 A100 each, and the chart with its default values.
fn real(nodes: usize) -> Options {
    let gpus = Gpus { product: "NVIDIA-A100-SXM4-80GB".to_owned(), count: 4, memory_mib: 81_920 };
    Options {
        name: "real".into(),
        groups: Vec::new(),
        real_nodes: vec![gpus; nodes],
        install: Some(json!({})),
        ..Options::default()
    }
}

fn nodes(cluster: &Cluster) -> Result<&Kubelets> {
    cluster.real_nodes.as_ref().context("the nodes are real")
}

/// A job whose pods find room on nodes that all have this machine's two cores.
fn small(job: Job) -> Job {
    job.container("resources", json!({"requests": {"cpu": "20m", "memory": "16Mi"}}))
}

/// The job ended well, and no failure was counted against its user.
fn ended_well(cluster: &Cluster, job: &Job) -> Result<()> {
    let status = cluster.observer.seen().status(&job.key());
    ensure!(status.phase == Phase::Succeeded && status.user_failures == 0, "{}: {status:?}", job.key());
    Ok(())
}
