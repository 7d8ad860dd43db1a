//! What nodes do to runs: drains, deletions by force, silence, reboots, foreign pods.

use std::time::{Duration, Instant};

use andreas_api::names;
use andreas_api::phase::{Outcome, Phase, Reason};
use andreas_e2e::cluster::{Options, a100};
use andreas_e2e::job::job;
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use anyhow::{Context as _, Result, ensure};
use serde_json::json;

fn node_of(seen: &andreas_e2e::seen::ClusterHistory, key: &str, index: usize) -> Result<String> {
    let allocation = seen.status(key).allocation.context("no allocation")?;
    allocation.nodes.get(index).cloned().context("no such member")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_of_one_member_moves_the_whole_gang() -> Result<()> {
    scenario(Options { groups: vec![a100(3)], ..Options::default() }, async |c| {
        let tj = job("gang").gpus(8, 2).epochs(40, 0.4).checkpoint(10).stays_at(0.5);
        let key = tj.key();
        c.submit(&tj).await?;
        c.wait_for_percent(&tj, 10).await?;
        let node = node_of(&c.observer.seen(), &key, 1)?;
        // when an administrator drains one node (without --force: the pods have a controller; their shared memory is an emptyDir)
        c.kubectl(&format!("drain {node} --ignore-daemonsets --delete-emptydir-data --timeout=120s")).await?;
        // then it runs elsewhere, and no retry is used
        c.observer
            .until("running without that node", DEFAULT_TIMEOUT, |s| s.runs_again_without(&key, &node))
            .await?;
        let status = c.observer.seen().status(&key);
        ensure!(status.user_failures == 0, "{status:?}");
        ensure!(status.history[0].outcome == Outcome::ClusterFailure, "{:?}", status.history);
        c.wait_for_phase(&tj, Phase::Succeeded).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_deleted_by_force_is_not_doubled() -> Result<()> {
    scenario(Options { groups: vec![a100(1)], ..Options::default() }, async |c| {
        let tj = job("forced").gpus(4, 1).epochs(60, 0.4).checkpoint(12).stays_at(0.5);
        let key = tj.key();
        c.submit(&tj).await?;
        c.wait_for_percent(&tj, 5).await?;
        let deleted = Instant::now();
        c.kubectl("delete pod forced-1-0 --force --grace-period=0").await?;
        // then a second attempt comes after the grace of the first (12 s), not at once
        c.observer.until("a second attempt", DEFAULT_TIMEOUT, |s| s.status(&key).attempts == 2).await?;
        ensure!(
            deleted.elapsed() >= Duration::from_millis(11_500),
            "the grace of the first was not waited for"
        );
        println!(
            "second attempt {:.1} s after the pod of the first was deleted by force",
            deleted.elapsed().as_secs_f64()
        );
        c.wait_for_phase(&tj, Phase::Succeeded).await?;
        let status = c.observer.seen().status(&key);
        ensure!(status.history[0].outcome == Outcome::ClusterFailure, "{:?}", status.history);
        ensure!(status.user_failures == 0);
        Ok(())
    })
    .await
}

/// A node is lost 3 s after it was silent for so many seconds.
fn quick_loss(action: &str, silent_seconds: u64) -> Options {
    let mut policy = andreas_e2e::cluster::short_runs();
    policy["nodeLoss"] = json!({"after": "3s", "action": action});
    Options {
        groups: vec![a100(2)],
        policy,
        node_monitor_grace_period: Duration::from_secs(silent_seconds),
        ..Options::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_node_waits_for_proof_and_its_run_goes_on() -> Result<()> {
    scenario(quick_loss("Wait", 6), async |c| {
        let tj = job("quiet").gpus(4, 1).epochs(60, 0.4).checkpoint(5);
        let key = tj.key();
        c.submit(&tj).await?;
        c.wait_for_percent(&tj, 5).await?;
        let node = node_of(&c.observer.seen(), &key, 0)?;
        // when its node falls silent
        andreas_e2e::nodes::client(&c.testbed).silence(&node).await?;
        let silent = Instant::now();
        // then that is said, and no second attempt is made
        c.wait_for_reason(&tj, Reason::NodeNotReady).await?;
        println!("said {:.1} s after the last sign of the node", silent.elapsed().as_secs_f64());
        c.assert_holds("one attempt", Duration::from_secs(5), |s| s.status(&key).attempts == 1).await?;
        // and when the node comes back, the run has gone on
        andreas_e2e::nodes::client(&c.testbed).back(&node).await?;
        c.wait_for_phase(&tj, Phase::Succeeded).await?;
        ensure!(c.observer.seen().status(&key).attempts == 1);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_nodes_run_starts_elsewhere_where_the_policy_says_so() -> Result<()> {
    // On a slow machine a node that is well may be silent for seconds, and here its run would be started again.
    scenario(quick_loss("Restart", 20), async |c| {
        let tj = job("moved").gpus(2, 1).epochs(40, 0.4).checkpoint(5).stays_at(0.5);
        let exclusive = job("exclusive")
            .gpus(2, 1)
            .epochs(1000, 0.4)
            .spec("checkpoint", json!({"claimName": "exclusive", "graceSeconds": 5, "exclusive": true}));
        let key = tj.key();
        c.submit(&tj).await?;
        c.wait_for_percent(&tj, 5).await?;
        let node = node_of(&c.observer.seen(), &key, 0)?;
        let exclusive = exclusive.pod("nodeSelector", json!({"kubernetes.io/hostname": node}));
        c.submit(&exclusive).await?;
        c.wait_for_phase(&exclusive, Phase::Running).await?;
        andreas_e2e::nodes::client(&c.testbed).silence(&node).await?;
        let silent = Instant::now();
        c.observer.until("running elsewhere", DEFAULT_TIMEOUT, |s| s.runs_again_without(&key, &node)).await?;
        println!("runs elsewhere {:.1} s after the last sign of the node", silent.elapsed().as_secs_f64());
        // but never a run whose checkpoint two attempts would corrupt
        let exclusive = exclusive.key();
        c.assert_holds("one attempt", Duration::from_secs(5), |s| s.status(&exclusive).attempts == 1).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebooted_node_is_the_clusters_failure() -> Result<()> {
    scenario(Options::default(), async |c| {
        let tj = job("rebooted").epochs(40, 0.4).checkpoint(5).stays_at(0.5);
        let key = tj.key();
        c.submit(&tj).await?;
        c.wait_for_percent(&tj, 10).await?;
        let node = node_of(&c.observer.seen(), &key, 0)?;
        andreas_e2e::nodes::client(&c.testbed).reboot(&node, Duration::from_secs(2)).await?;
        let rebooted = Instant::now();
        c.observer
            .until("a second attempt runs", DEFAULT_TIMEOUT, |s| {
                s.status(&key).attempts == 2 && matches!(s.phase(&key), Phase::Running | Phase::Succeeded)
            })
            .await?;
        println!("runs again {:.1} s after a reboot of 2 s began", rebooted.elapsed().as_secs_f64());
        c.wait_for_phase(&tj, Phase::Succeeded).await?;
        let status = c.observer.seen().status(&key);
        ensure!(status.user_failures == 0 && status.cluster_failures == 1, "{status:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_pod_that_takes_the_gpu_first_is_planned_around() -> Result<()> {
    scenario(Options { groups: vec![a100(2)], ..Options::default() }, async |c| {
        // given a job whose pod is made and pinned, but not bound yet: the scheduler is away
        let scheduler = c.scheduler.as_ref().context("extender mode")?;
        scheduler.kill();
        let tj = job("ours").gpus(4, 1).epochs(4, 0.3);
        let key = tj.key();
        c.submit(&tj).await?;
        c.observer
            .until("its pod is made", DEFAULT_TIMEOUT, |s| {
                let made = s.pods.values().any(|p| p.label(names::LABEL_JOB) == "ours");
                // Jobs are watched apart from pods.
                made && s.status(&key).allocation.is_some()
            })
            .await?;
        let taken = node_of(&c.observer.seen(), &key, 0)?;
        // when somebody else's pod takes all GPUs of that node, past every scheduler
        c.apply(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "foreign", "namespace": "default"},
            "spec": {
                "nodeName": taken, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "x", "image": "andreas.dev/trainer:dev",
                    "env": [{"name": "TRAINER_EPOCHS", "value": "1000"}, {"name": "TRAINER_SECONDS_PER_EPOCH", "value": "1"}],
                    "resources": {"limits": {"nvidia.com/gpu": "4"}},
                }],
            },
        }))
        .await?;
        let scheduler = c.scheduler.as_ref().context("extender mode")?;
        scheduler.start_again()?;
        // then the job runs on the other node
        c.wait_for_phase(&tj, Phase::Succeeded).await?;
        let history = c.observer.seen().status(&key).history;
        ensure!(history.last().is_some_and(|a| !a.placement.contains(&taken)), "{history:?}");
        ensure!(c.observer.seen().status(&key).user_failures == 0);
        Ok(())
    })
    .await
}
