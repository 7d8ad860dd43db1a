//! Who holds GPUs, by the devices themselves: pods deleted by force, with agents and without, and a boot between binding and start. The
//! observer asks the kubelets all the time whether a GPU has two users or a job two attempts.

use std::time::{Duration, Instant};

use andreas_api::phase::Phase;
use andreas_api::slim::SlimPod;
use andreas_e2e::cluster::{Cluster, Options, a100};
use andreas_e2e::job::{Job, job};
use andreas_e2e::nodes::client;
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use anyhow::{Result, ensure};
use serde_json::json;

const GRACE: Duration = Duration::from_secs(20);

fn one_node() -> Options {
    Options { groups: vec![a100(1)], ..Options::default() }
}

/// A job on all GPUs of a node whose program does not leave before it is killed.
fn stubborn(name: &str) -> Job {
    job(name).gpus(4, 1).epochs(1_000, 0.5).env("TRAINER_IGNORE_TERM", "true").checkpoint(20)
}

/// Waits until a short job runs. That may be recorded together with its end.
async fn runs(c: &mut Cluster, tj: &Job) -> Result<()> {
    let key = tj.key();
    let runs = |phase| matches!(phase, Phase::Running | Phase::Succeeded);
    c.observer.until(&format!("{key} runs"), DEFAULT_TIMEOUT, |s| runs(s.phase(&key))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn gpus_of_a_deleted_job_whose_pod_was_deleted_by_force_are_in_use_for_its_grace() -> Result<()> {
    scenario(one_node(), async |c| {
        let first = stubborn("first");
        c.submit(&first).await?;
        c.wait_for_percent(&first, 0).await?;
        c.wait_for_phase(&first, Phase::Running).await?;
        // when the job is deleted, and its pod by force
        let deleted = Instant::now();
        c.kubectl("delete tj first --wait=false").await?;
        c.kubectl("delete pod first-1-0 --force --grace-period=0").await?;
        let next = job("next").gpus(4, 1).epochs(4, 0.3);
        c.submit(&next).await?;
        // then the next job has the GPUs when the containers are gone: its kubelet refuses nothing
        runs(c, &next).await?;
        ensure!(deleted.elapsed() >= GRACE - Duration::from_secs(2), "after {:?}", deleted.elapsed());
        c.wait_for_phase(&next, Phase::Succeeded).await?;
        let status = c.observer.seen().status(&next.key());
        ensure!(status.history.len() == 1, "{:?}", status.history);
        ensure!(!c.observer.seen().devices.ran_without_object.is_empty(), "the containers did not go on");
        Ok(())
    })
    .await
}

/// Given agents; when a pod is deleted by force and its kubelet kills it a second later, then its GPUs are free once its node's agent has
/// said so, long before the grace that they would be in use without it.
#[tokio::test(flavor = "multi_thread")]
async fn gpus_of_a_pod_deleted_by_force_are_free_once_its_agent_says_so() -> Result<()> {
    scenario(Options { agents: true, ..one_node() }, async |c| {
        // Far longer than the next job is waited for.
        let grace = 30 * GRACE;
        let first = stubborn("first").checkpoint(i32::try_from(grace.as_secs())?);
        c.submit(&first).await?;
        c.wait_for_percent(&first, 1).await?;
        c.kubectl("delete pod first-1-0 --force --grace-period=0").await?;
        let deleted = Instant::now();
        c.kubectl("delete tj first --wait=false").await?;
        let next = job("next").gpus(4, 1).epochs(20, 0.3);
        c.submit(&next).await?;
        runs(c, &next).await?;
        println!("the next job ran {:?} after the deletion", deleted.elapsed());
        c.wait_for_phase(&next, Phase::Succeeded).await?;
        ensure!(c.observer.seen().status(&next.key()).history.len() == 1);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn gpus_of_a_foreign_pod_deleted_by_force_are_in_use_for_its_grace() -> Result<()> {
    scenario(one_node(), async |c| {
        c.apply(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "foreign", "namespace": "default"},
            "spec": {
                "nodeName": "a100-0", "restartPolicy": "Never", "terminationGracePeriodSeconds": 20,
                "containers": [{
                    "name": "x", "image": "andreas.dev/trainer:dev",
                    "env": [
                        {"name": "TRAINER_EPOCHS", "value": "1000"}, {"name": "TRAINER_SECONDS_PER_EPOCH", "value": "1"},
                        {"name": "TRAINER_IGNORE_TERM", "value": "true"},
                    ],
                    "resources": {"limits": {"nvidia.com/gpu": "4"}},
                }],
            },
        }))
        .await?;
        c.observer
            .until("the foreign pod runs", DEFAULT_TIMEOUT, |seen| {
                seen.pods.values().any(|pod| pod.pod.status.phase == "Running")
            })
            .await?;
        let deleted = Instant::now();
        c.kubectl("delete pod foreign --force --grace-period=0").await?;
        let next = job("next").gpus(4, 1).epochs(4, 0.3);
        c.submit(&next).await?;
        runs(c, &next).await?;
        ensure!(deleted.elapsed() >= GRACE - Duration::from_secs(2), "after {:?}", deleted.elapsed());
        c.wait_for_phase(&next, Phase::Succeeded).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_deleted_by_force_is_not_made_again_before_its_grace_is_over() -> Result<()> {
    scenario(Options { groups: vec![a100(2)], ..Options::default() }, async |c| {
        let tj = stubborn("twice");
        let key = tj.key();
        c.submit(&tj).await?;
        c.wait_for_phase(&tj, Phase::Running).await?;
        let deleted = Instant::now();
        c.kubectl("delete pod twice-1-0 --force --grace-period=0").await?;
        // then there is another node, and still no second writer of its checkpoint before the first is gone
        c.observer.until("a second attempt", DEFAULT_TIMEOUT, |seen| seen.status(&key).attempts == 2).await?;
        ensure!(deleted.elapsed() >= GRACE - Duration::from_secs(2), "after {:?}", deleted.elapsed());
        c.wait_for_phase(&tj, Phase::Running).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_booted_again_after_a_run_began_there_starts_it_once() -> Result<()> {
    scenario(one_node(), async |c| {
        // given a pod that is bound and cannot start yet
        let tj = job("booted").gpus(4, 1).epochs(20, 0.4).checkpoint(10);
        let tj = tj.container("envFrom", json!([{"secretRef": {"name": "later"}}]));
        let key = tj.key();
        c.submit(&tj).await?;
        let reasons = |pod: &SlimPod| {
            let states = pod.status.container_statuses.iter().map(|status| &status.state);
            states.filter_map(|state| state.waiting.clone()).map(|waits| waits.reason).collect::<Vec<_>>()
        };
        let waits = |pod: &SlimPod| reasons(pod).contains(&"CreateContainerConfigError".to_owned());
        c.observer
            .until("its container waits", DEFAULT_TIMEOUT, |seen| {
                seen.pods.values().any(|pod| waits(&pod.pod))
            })
            .await?;
        // when its node boots before it starts
        client(&c.testbed).reboot("a100-0", Duration::from_secs(2)).await?;
        c.kubectl("create secret generic later --from-literal=LATER=1").await?;
        // then it starts after the boot, as the same attempt
        c.wait_for_phase(&tj, Phase::Succeeded).await?;
        let status = c.observer.seen().status(&key);
        ensure!(status.user_failures == 0 && status.attempts == 1, "{status:?}");
        Ok(())
    })
    .await
}
