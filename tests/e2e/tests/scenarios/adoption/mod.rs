//! Jobs of other kinds that are planned, released on their nodes, accounted and stopped as TrainingJobs are.

mod job;
mod kinds;
mod kueue;

use andreas_api::names::{LABEL_ADOPTED, LABEL_JOB};
use andreas_api::phase::Phase;
use andreas_api::training_job::Allocation;
use andreas_e2e::adoption::{Workload, workload};
use andreas_e2e::cluster::{A100, Cluster, Options, a100};
use andreas_e2e::job::{Job, job, measured, profile};
use andreas_e2e::scenario::DEFAULT_TIMEOUT;
use andreas_e2e::seen::ClusterHistory;
use anyhow::{Context as _, Result};
use serde_json::Value;

fn options(nodes: usize, adopt: &'static [&'static str]) -> Options {
    Options { groups: vec![a100(nodes)], adopt, ..Options::default() }
}

async fn wait_for(c: &mut Cluster, of: &Workload, phase: Phase) -> Result<()> {
    let key = of.mirror();
    let what = format!("{key} {}", phase.as_str());
    c.observer.until(&what, DEFAULT_TIMEOUT, |s| s.phase(&key) == phase).await
}

/// Waits until the TrainingJob that stands for it is gone.
async fn wait_until_given_back(c: &mut Cluster, of: &Workload) -> Result<()> {
    let key = of.mirror();
    let what = format!("{key} is gone");
    c.observer.until(&what, DEFAULT_TIMEOUT, |s| s.jobs.get(&key).is_some_and(|job| job.deleted)).await
}

async fn get(c: &Cluster, of: &Workload) -> Result<Value> {
    let text = c.kubectl(&format!("get {} -o json", of.resource())).await?;
    serde_json::from_str(&text).context("an object")
}

/// Nodes of the live pods of an adopted job.
fn nodes_in(seen: &ClusterHistory, of: &Workload) -> Vec<String> {
    let name = of.mirror().replace("default/", "");
    let live = seen.pods.values().filter(|pod| pod.is_live());
    let own = live.filter(|pod| pod.label(LABEL_JOB) == name && !pod.label(LABEL_ADOPTED).is_empty());
    own.filter_map(|pod| pod.pod.spec.node_name.clone()).collect()
}

fn nodes_of(c: &Cluster, of: &Workload) -> Vec<String> {
    nodes_in(&c.observer.seen(), of)
}

/// Waits until so many pods are seen on the nodes of the plan: pods and jobs are watched apart, and a kind's controller may make
/// a pod again.
async fn wait_for_pods(c: &mut Cluster, of: &Workload, pods: i64, allocation: &Allocation) -> Result<()> {
    let what = format!("{pods} pods on {:?}", allocation.nodes);
    let placed = |nodes: &[String]| {
        i64::try_from(nodes.len()) == Ok(pods) && nodes.iter().all(|node| allocation.nodes.contains(node))
    };
    c.observer.until(&what, DEFAULT_TIMEOUT, |seen| placed(&nodes_in(seen, of))).await
}

/// Profiles of a long run and a short one: a run of unknown length is not stopped before it has run as long as others do.
async fn profiles(c: &Cluster) -> Result<()> {
    c.apply(&profile("long", &[measured(A100, 4, 200_000, 800)])).await?;
    c.apply(&profile("short", &[measured(A100, 4, 300, 800)])).await?;
    Ok(())
}

/// A short TrainingJob on all four GPUs of a node that outweighs everything.
fn urgent() -> Job {
    job("urgent").gpus(4, 1).epochs(6, 0.3).spec("weight", 1000.into()).spec("profile", "short".into())
}

/// A long run of that kind on all four GPUs of a node.
fn long(kind: &'static str) -> Workload {
    let long = workload(kind, "long").pods(2, 2).epochs(400, 0.3).annotation("weight", "1");
    long.annotation("profile", "long").annotation("checkpoint", "true")
}
