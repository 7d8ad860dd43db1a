//! What a real kubelet and a real kernel do to a pod: images that cannot be pulled, memory that runs out. A user's own mistakes
//! cost the user's retries; a machine that is short of memory does not.

use std::time::Duration;

use andreas_api::phase::{Outcome, Phase, Reason};
use andreas_e2e::cluster::{Cluster, Options};
use andreas_e2e::job::{Job, job};
use andreas_e2e::scenario::scenario;
use andreas_e2e::seen::ClusterHistory;
use andreas_kubelets::Registry;
use andreas_test_nodes::GPU_WATTS;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::gangs::{ended_well, ends_well, node_of, small};
use crate::{nodes, real};

/// Until when a start counts as failed. A kubelet of a busy machine has asked the registry by then: one was seen to need more than 8 s to
/// give a pod its network.
const PULLED: &str = "25s";

/// The job's image is not on any node: it is that of the registry.
fn pulls(job: Job, image: &str) -> Job {
    small(job).container("image", json!(format!("{}/{image}", Registry::address())))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_is_not_there_is_the_users_failure_and_a_registry_that_is_away_the_clusters()
-> Result<()> {
    scenario(real(1), async |c| {
        let registry = Registry::start(&c.testbed).await?;
        let beside = small(job("beside").epochs(60, 0.3));
        let missing = pulls(job("missing"), "team/none:1").spec("startTimeout", json!(PULLED));
        let missing = missing.spec("retries", json!(1));
        c.submit(&beside).await?;
        c.submit(&missing).await?;
        let key = missing.key();
        let failed = |seen: &ClusterHistory| seen.phase(&key) == Phase::Failed;
        c.observer.until("its retry has failed too", Duration::from_secs(360), failed).await?;
        // then each attempt cost a retry, and says why
        let status = c.observer.seen().status(&missing.key());
        ensure!((status.user_failures, status.cluster_failures) == (2, 0), "{status:?}");
        for attempt in &status.history {
            let seen = (attempt.outcome, attempt.reason.as_str());
            ensure!(seen == (Outcome::UserFailure, Reason::StartTimeout.as_str()), "{attempt:?}");
            let named =
                ["ErrImagePull", "ImagePullBackOff"].iter().any(|reason| attempt.message.contains(reason));
            ensure!(named && attempt.message.contains("not found"), "{attempt:?}");
        }
        // and it kept no other from its GPUs
        c.wait_for_phase(&beside, Phase::Succeeded).await?;
        ended_well(c, &beside)?;

        // when the registry is away, then the same job costs its user nothing
        drop(registry);
        let away = pulls(job("away"), "team/none:1").spec("startTimeout", json!(PULLED));
        let away = away.spec("retries", json!(0));
        let key = away.key();
        c.submit(&away).await?;
        let failed = |seen: &ClusterHistory| seen.status(&key).cluster_failures >= 1;
        c.observer.until("a failure of the cluster", Duration::from_secs(360), failed).await?;
        let status = c.observer.seen().status(&key);
        let first = status.history.first().context("an attempt")?;
        let seen = (first.outcome, first.reason.as_str(), status.user_failures);
        ensure!(seen == (Outcome::ClusterFailure, Reason::StartTimeout.as_str(), 0), "{status:?}");
        ensure!(first.message.contains("connection refused"), "{first:?}");
        Ok(())
    })
    .await
}

/// A worker that may have 64 MiB and takes 256.
fn greedy(name: &str) -> Job {
    let resources = json!({"requests": {"cpu": "20m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}});
    let greedy = job(name).epochs(20, 0.3).checkpoint(15).container("resources", resources);
    greedy.env("TRAINER_ALLOCATE_AT", 0.3).env("TRAINER_ALLOCATE_MIB", 256)
}

/// A worker's log says that it went on from what an earlier attempt had saved.
async fn began_from_checkpoint(c: &Cluster, pod: &str) -> Result<()> {
    let said = c.kubectl(&format!("logs {pod}")).await?;
    ensure!(said.contains("from step ") && !said.contains("from step 0 "), "{said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_takes_more_memory_than_its_limit_is_the_users_failure() -> Result<()> {
    scenario(real(1), async |c| {
        let beside = small(job("beside").epochs(120, 0.3));
        let (ends, resumes) = (greedy("ends").spec("retries", json!(0)), greedy("resumes"));
        let resumes = resumes.env("TRAINER_FAIL_ATTEMPTS", 1);
        for job in [&beside, &ends, &resumes] {
            c.submit(job).await?;
        }
        // then the kernel ends it, and its status says so
        c.wait_for_phase(&ends, Phase::Failed).await?;
        let first = c.observer.seen().status(&ends.key()).history[0].clone();
        let seen = (first.outcome, first.reason.as_str(), first.exit_code);
        ensure!(seen == (Outcome::UserFailure, Reason::OutOfMemory.as_str(), Some(137)), "{first:?}");
        // and where a retry is left, the next attempt goes on from the checkpoint
        c.wait_for_phase(&resumes, Phase::Succeeded).await?;
        let status = c.observer.seen().status(&resumes.key());
        ensure!((status.user_failures, status.attempts) == (1, 2), "{status:?}");
        began_from_checkpoint(c, "resumes-2-0").await?;
        // and the neighbour noticed nothing
        let status = c.observer.seen().status(&beside.key());
        ensure!((status.attempts, status.user_failures) == (1, 0), "{status:?}");
        Ok(())
    })
    .await
}

/// A run that saves and exits 0 when it gets SIGTERM. It saves into a volume that may have so many bytes.
fn leaves(name: &str, most: &str) -> Job {
    small(job(name).epochs(400, 0.5))
        .spec("retries", json!(0))
        .spec("checkpoint", json!({"path": "/cache", "graceSeconds": 5}))
        .env("TRAINER_TERM_EXIT", 0)
        .pod("volumes", json!([{"name": "cache", "emptyDir": {"sizeLimit": most}}]))
        .container("volumeMounts", json!([{"name": "cache", "mountPath": "/cache"}]))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_its_kubelet_ends_for_its_own_sake_has_not_finished() -> Result<()> {
    scenario(real(1), async |c| {
        let probe = json!({"tcpSocket": {"port": 9}, "initialDelaySeconds": 5, "periodSeconds": 1, "failureThreshold": 2});
        let probed = leaves("probed", "8Mi").container("livenessProbe", probe);
        let full = leaves("full", "1Ki");
        for (job, words, codes) in [
            (&probed, "Liveness probe failed: dial tcp", &[Some(0)][..]),
            // Its kubelet measures volumes once a minute, and kills what it evicts for them after a second: on a busy machine that can be
            // before the program has saved, and the status of the pod that has failed may lack how its container ended.
            (&full, "Usage of EmptyDir volume \"cache\" exceeds the limit \"1Ki\"", &[Some(0), Some(137), None][..]),
        ] {
            c.submit(job).await?;
            let key = job.key();
            let ended = |seen: &ClusterHistory| [Phase::Failed, Phase::Succeeded].contains(&seen.phase(&key));
            c.observer.until("it ends", Duration::from_secs(360), ended).await?;
            let status = c.observer.seen().status(&key);
            let first = status.history.first().context("an attempt")?;
            println!("{key} exited with {:?}: {}", first.exit_code, first.message);
            println!("{}", c.kubectl("get events -o custom-columns=AT:.firstTimestamp,N:.count,BY:.source.component,FOR:.involvedObject.fieldPath,WHY:.reason,SAYS:.message").await?);
            ensure!((status.phase, first.outcome) == (Phase::Failed, Outcome::UserFailure), "{status:?}");
            ensure!(codes.contains(&first.exit_code), "{first:?}");
            ensure!(first.message.contains(words), "{first:?}");
            ensure!(status.excluded_nodes.is_empty() && status.cluster_failures == 0, "{status:?}");
        }
        Ok(())
    })
    .await
}

/// What a node's memory has left, by its kubelet: MiB.
async fn free_mib(c: &Cluster, node: &str) -> Result<u64> {
    let text = c.kubectl(&format!("get --raw /api/v1/nodes/{node}/proxy/stats/summary")).await?;
    let summary: Value = serde_json::from_str(&text)?;
    let bytes = summary["node"]["memory"]["availableBytes"].as_u64();
    Ok(bytes.with_context(|| format!("no memory in {text}"))? / (1024 * 1024))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_short_of_memory_evicts_a_worker_at_the_clusters_expense() -> Result<()> {
    /// What the worker may still take until the kubelet sees pressure, and what it takes, MiB.
    const ROOM: u64 = 400;
    const TAKEN: u64 = 800;
    scenario(real(2), async |c| {
        let evicted = small(job("evicted").gpus(4, 1).epochs(100, 0.3).checkpoint(15))
            .env("TRAINER_ALLOCATE_AT", 0.6)
            .env("TRAINER_ALLOCATE_MIB", TAKEN)
            .stays_at(0.7);
        c.submit(&evicted).await?;
        c.wait_for_percent(&evicted, 1).await?;
        // given a node that evicts when 400 MiB more are taken
        let node = node_of(c, &evicted);
        let threshold = free_mib(c, &node).await?.saturating_sub(ROOM);
        nodes(c)?.node(&node)?.evict_below(threshold).await?;
        // when its worker takes 800, it is evicted, and goes on elsewhere
        ends_well(c, &evicted).await?;
        let status = c.observer.seen().status(&evicted.key());
        let first = &status.history[0];
        ensure!(status.cluster_failures == 1 && first.outcome == Outcome::ClusterFailure, "{status:?}");
        ensure!(first.message.contains("memory"), "{first:?}");
        let last = status.history.last().context("an attempt")?;
        ensure!(!node.is_empty() && !last.placement.contains(&node), "it ran on {} again", last.placement);
        began_from_checkpoint(c, &format!("evicted-{}-0", last.attempt)).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_leaves_its_gpus_idle_is_named_with_its_pod() -> Result<()> {
    // Agents that see the pods' names, as docs/power.md says
    let logs = json!({
        "extraVolumes": [{"name": "logs", "hostPath": {"path": "/var/log/pods"}}],
        "extraVolumeMounts": [{"name": "logs", "mountPath": "/var/log/pods", "readOnly": true}],
    });
    let options = Options { install: Some(json!({"agent": logs})), ..real(1) };
    scenario(options, async |c| {
        // Given a job whose program has a context on its GPUs, and lets them do nothing
        let idle = small(job("idle").gpus(2, 1).epochs(1_000, 0.3));
        let mut object = idle.build();
        object["spec"]["template"]["metadata"] =
            json!({"annotations": {GPU_WATTS: json!({"NVIDIA-A100-SXM4-80GB": 1}).to_string()}});
        c.apply(&object).await?;
        c.wait_for_percent(&idle, 1).await?;
        // Then a minute later its pod is named with each of them
        let parked = async || {
            let said = c.kubectl("get gpunode node-1 -o json").await?;
            let gpunode: Value = serde_json::from_str(&said)?;
            let gpus = gpunode["status"]["gpus"].as_array().cloned().unwrap_or_default();
            let its = json!([{"pod": "default/idle-1-0", "processes": 1}]);
            Ok(gpus.iter().filter(|gpu| gpu["parked"] == its).count() == 2)
        };
        andreas_testbed::wait::until("its pod is named", Duration::from_secs(360), parked).await?;
        Ok(())
    })
    .await
}
