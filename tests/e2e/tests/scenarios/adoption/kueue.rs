//! ANDREAS and Kueue in one cluster, with Kueue's real manager and its webhooks.

use andreas_api::phase::{Phase, Reason};
use andreas_e2e::adoption::workload;
use andreas_e2e::cluster::Cluster;
use andreas_e2e::controllers;
use andreas_e2e::job::job;
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_testbed::wait::until;
use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{get, options, wait_for};

/// A queue with so many GPUs.
async fn queue(c: &Cluster, gpus: i64) -> Result<()> {
    let api = "kueue.x-k8s.io/v1beta2";
    let quota = |name: &str, number: Value| json!({"name": name, "nominalQuota": number});
    let objects = [
        json!({"apiVersion": api, "kind": "ResourceFlavor", "metadata": {"name": "gpus"}}),
        json!({"apiVersion": api, "kind": "ClusterQueue", "metadata": {"name": "all"}, "spec": {
            "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": ["cpu", "memory", "nvidia.com/gpu"], "flavors": [{
                "name": "gpus",
                "resources": [quota("cpu", json!(100)), quota("memory", json!("100Gi")), quota("nvidia.com/gpu", json!(gpus))],
            }]}],
        }}),
        json!({"apiVersion": api, "kind": "LocalQueue", "metadata": {"name": "q", "namespace": "default"},
            "spec": {"clusterQueue": "all"}}),
    ];
    for object in objects {
        until("Kueue takes its objects", DEFAULT_TIMEOUT, async || Ok(c.apply(&object).await.is_ok()))
            .await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds the controllers: make long WHAT=adoption"]
async fn jobs_of_kueue_and_of_andreas_share_a_node_without_a_stuck_gate_or_a_double_count() -> Result<()> {
    scenario(options(1, &["Job"]), async |c| {
        let _kueue = controllers::kueue(c, json!({"manageJobsWithoutQueueName": false})).await?;
        queue(c, 2).await?;
        // given a Job that Kueue admits, on two of the four GPUs
        let theirs = workload("Job", "theirs")
            .not_adopted()
            .label("kueue.x-k8s.io/queue-name", "q")
            .pods(1, 2)
            .epochs(60, 0.3);
        c.apply(&theirs.build()).await?;
        until("Kueue admits its Job", DEFAULT_TIMEOUT, async || {
            Ok(get(c, &theirs).await?["status"]["ready"] == 1)
        })
        .await?;
        // when an adopted Job and a TrainingJob ask for the other two in turn, and a third for all four
        let ours = workload("Job", "ours").pods(2, 1).epochs(6, 0.3);
        let tj = job("tj").gpus(2, 1).epochs(6, 0.3);
        let all = job("all").gpus(4, 1).epochs(3, 0.3);
        c.apply(&ours.build()).await?;
        c.submit(&tj).await?;
        c.submit(&all).await?;
        // then both run beside Kueue's Job: its GPUs count once,
        wait_for(c, &ours, Phase::Succeeded).await?;
        c.wait_for_phase(&tj, Phase::Succeeded).await?;
        ensure!(get(c, &theirs).await?["status"]["ready"] == 1, "Kueue's Job was not to end yet");
        ensure!(c.observer.seen().phase(&all.key()) == Phase::Pending, "all four are not free");
        // and all four are free when it has ended
        c.wait_for_phase(&all, Phase::Succeeded).await?;
        // No pod of ours was gated by Kueue, and Kueue made no Workload for ours.
        let pods: Value = serde_json::from_str(&c.kubectl("get pods -o json").await?)?;
        for pod in pods["items"].as_array().into_iter().flatten() {
            ensure!(pod["spec"]["schedulingGates"].is_null(), "{} is gated", pod["metadata"]["name"]);
        }
        let workloads: Value =
            serde_json::from_str(&c.kubectl("get workloads.kueue.x-k8s.io -o json").await?)?;
        let names: Vec<&str> = workloads["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|w| w["metadata"]["name"].as_str())
            .collect();
        ensure!(names.iter().all(|name| name.starts_with("job-theirs")), "{names:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds the controllers: make long WHAT=adoption"]
async fn where_kueue_manages_all_jobs_an_adopted_one_waits_with_a_reason() -> Result<()> {
    scenario(options(1, &["Job"]), async |c| {
        // given a Kueue that suspends Jobs without a queue name too
        let settings =
            json!({"manageJobsWithoutQueueName": true, "integrations": {"frameworks": ["batch/job"]}});
        let _kueue = controllers::kueue(c, settings).await?;
        let ours = workload("Job", "ours").pods(1, 1).epochs(6, 0.3);
        c.apply(&ours.build()).await?;
        // then the Job is not started against Kueue's will for ever: the attempt is withdrawn, and the reason is said
        let key = ours.mirror();
        c.observer
            .until("its attempt is withdrawn", DEFAULT_TIMEOUT, |s| {
                s.status(&key).history.iter().any(|record| record.reason == Reason::NotAdopted.as_str())
            })
            .await?;
        let other = job("other").gpus(4, 1).epochs(3, 0.3);
        c.submit(&other).await?;
        // and its GPUs are free for others
        c.wait_for_phase(&other, Phase::Succeeded).await?;
        Ok(())
    })
    .await
}
