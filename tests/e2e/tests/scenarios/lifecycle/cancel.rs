//! Deleted jobs whose objects stay: a finalizer on the job or on its pods holds no GPU.

use std::time::Duration;

use andreas_api::phase::Phase;
use andreas_e2e::cluster::{Cluster, Options, a100};
use andreas_e2e::job::{Job, job};
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

const FINALIZER: &str = "example.com/never-removed";

/// One node of four GPUs.
fn one_node() -> Options {
    Options { groups: vec![a100(1)], ..Options::default() }
}

/// A job with a finalizer that nobody removes.
async fn submit_with_finalizer(c: &Cluster, tj: &Job) -> Result<()> {
    c.make_namespace("team").await?;
    if let Some(claim) = tj.claim() {
        c.apply(&claim).await?;
    }
    let mut object = tj.build();
    object["metadata"]["finalizers"] = json!([FINALIZER]);
    c.apply(&object).await?;
    Ok(())
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
async fn a_deleted_job_that_never_started_and_cannot_go_away_holds_no_gpu() -> Result<()> {
    scenario(one_node(), async |c| {
        // given a job whose pods cannot be bound, deleted while it starts; a finalizer keeps its object
        let poison = job("poison").namespace("team").gpus(4, 1).pod("affinity", impossible_affinity());
        let key = poison.key();
        submit_with_finalizer(c, &poison).await?;
        c.observer
            .until("its pod waits for the scheduler", DEFAULT_TIMEOUT, |s| {
                let uid = s.job(&key).and_then(|j| j.metadata.uid.clone()).unwrap_or_default();
                s.phase(&key) == Phase::Starting && !s.pods_of(&uid).is_empty()
            })
            .await?;
        c.kubectl("delete trainingjob poison -n team --wait=false").await?;
        // then another namespace's job runs on the same GPUs
        next_job_runs(c).await?;
        // and the object that stays has no allocation and no pod
        let status = c.observer.seen().status(&key);
        ensure!(status.allocation.is_none() && status.phase == Phase::Pending, "{status:?}");
        ensure!(c.kubectl("get pods -n team -o name").await?.is_empty());
        c.kubectl("get trainingjob poison -n team").await.context("the finalizer keeps the job")?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_a_deleted_running_job_end_with_their_grace_though_the_job_cannot_go_away() -> Result<()> {
    scenario(one_node(), async |c| {
        // given a job that runs, deleted; a finalizer keeps its object
        let held = job("held").namespace("team").gpus(4, 1).epochs(1_000, 0.5).checkpoint(2);
        let key = held.key();
        submit_with_finalizer(c, &held).await?;
        c.wait_for_phase(&held, Phase::Running).await?;
        c.kubectl("delete trainingjob held -n team --wait=false").await?;
        // then its pod ends with its grace, and another namespace's job has the GPUs
        c.observer
            .until("its pod ended", DEFAULT_TIMEOUT, |s| {
                let uid = s.job(&key).and_then(|j| j.metadata.uid.clone()).unwrap_or_default();
                s.pods_of(&uid).iter().all(|pod| pod.deleted)
            })
            .await?;
        next_job_runs(c).await?;
        c.assert_holds("one attempt", Duration::from_secs(2), |s| s.status(&key).attempts == 1).await?;
        c.kubectl("get trainingjob held -n team").await.context("the finalizer keeps the job")?;
        Ok(())
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
