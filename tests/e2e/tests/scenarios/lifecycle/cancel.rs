//! Objects that stay: a finalizer on pods that were never bound holds no GPU.

use andreas_api::phase::Phase;
use andreas_e2e::cluster::{Cluster, Options, a100};
use andreas_e2e::job::job;
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use anyhow::{Context as _, Result};
use serde_json::{Value, json};

const FINALIZER: &str = "example.com/never-removed";

/// One node of four GPUs.
fn one_node() -> Options {
    Options { groups: vec![a100(1)], ..Options::default() }
}

/// No node has a pod with such a label, so the scheduler binds no pod with this affinity; plans do not look at it.
fn impossible_affinity() -> Value {
    json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
        "topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"no": "such-pod"}}}]}})
}

/// Another namespace's job on all four GPUs runs soon.
async fn next_job_runs(c: &mut Cluster) -> Result<()> {
    let next = job("next").gpus(4, 1);
    c.submit(&next).await?;
    let key = next.key();
    c.observer
        .until("the next job runs", DEFAULT_TIMEOUT, |s| {
            matches!(s.phase(&key), Phase::Running | Phase::Succeeded)
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn finalizers_on_unbound_pods_hold_no_gpu() -> Result<()> {
    scenario(one_node(), async |c| {
        // given a job whose pods cannot be bound and have a finalizer
        let stuck = job("stuck").namespace("team").gpus(4, 1).pod("affinity", impossible_affinity());
        let key = stuck.key();
        c.make_namespace("team").await?;
        c.submit(&stuck).await?;
        c.observer
            .until("its pod waits for the scheduler", DEFAULT_TIMEOUT, |s| {
                let uid = s.job(&key).and_then(|j| j.metadata.uid.clone()).unwrap_or_default();
                !s.pods_of(&uid).is_empty()
            })
            .await?;
        let patch = format!(r#"{{"metadata":{{"finalizers":["{FINALIZER}"]}}}}"#);
        c.kubectl(&format!("patch pod stuck-1-0 -n team --type=merge -p {patch}")).await?;
        // when its placement times out and it is withdrawn
        c.observer
            .until("withdrawn", DEFAULT_TIMEOUT, |s| s.status(&key).history.iter().any(|a| a.attempt == 1))
            .await?;
        // then another namespace's job has the GPUs while the pod's object stays
        next_job_runs(c).await?;
        c.kubectl("get pod stuck-1-0 -n team").await.context("the finalizer keeps the pod")?;
        Ok(())
    })
    .await
}
