//! Jobs of other kinds that are planned, released on their nodes, accounted and stopped as TrainingJobs are.

mod job;
mod kinds;
mod kueue;

use andreas_api::names::{LABEL_ADOPTED, LABEL_JOB};
use andreas_api::phase::Phase;
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

/// Nodes of the pods of an adopted job that have not failed: a short run may have ended before it is looked at.
fn nodes_in(seen: &ClusterHistory, of: &Workload) -> Vec<String> {
    let name = of.mirror().replace("default/", "");
    let kept = seen.pods.values().filter(|pod| !pod.deleted && pod.pod.status.phase != "Failed");
    let own = kept.filter(|pod| pod.label(LABEL_JOB) == name && !pod.label(LABEL_ADOPTED).is_empty());
    own.filter_map(|pod| pod.pod.spec.node_name.clone()).collect()
}

/// Waits until so many pods are seen on the nodes of a placement as the status names them: pods and jobs are watched apart, and a
/// kind's controller may make a pod again.
async fn wait_for_pods(c: &mut Cluster, of: &Workload, pods: i64, placement: &str) -> Result<()> {
    let what = format!("{pods} pods on {placement}");
    let placed = |nodes: &[String]| {
        i64::try_from(nodes.len()) == Ok(pods)
            && nodes.iter().all(|node| placement.split(", ").any(|planned| planned == node))
    };
    c.observer.until(&what, DEFAULT_TIMEOUT, |seen| placed(&nodes_in(seen, of))).await
}

/// Profiles of a long run and a short one: a run of unknown length is not stopped before it has run as long as others do.
async fn profiles(c: &Cluster) -> Result<()> {
    c.apply(&profile("long", &[measured(A100, 4, 200_000, 800)])).await?;
    c.apply(&profile("short", &[measured(A100, 4, 300, 800)])).await?;
    Ok(())
}

/// A TrainingJob on all four GPUs of a node that outweighs everything. It stays until it is suspended: what gave way is looked at
/// meanwhile.
fn urgent() -> Job {
    job("urgent").gpus(4, 1).epochs(1000, 0.3).spec("weight", 1000.into()).profile("short")
}

/// A long run of that kind on all four GPUs of a node.
fn long(kind: &'static str) -> Workload {
    let long = workload(kind, "long").pods(2, 2).epochs(1000, 0.3).annotation("weight", "1");
    long.annotation("profile", "long").annotation("checkpoint", "true")
}
