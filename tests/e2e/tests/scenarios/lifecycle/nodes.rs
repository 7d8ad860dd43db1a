//! What nodes do to runs: silence, foreign pods.

use std::time::{Duration, Instant};

use andreas_api::names;
use andreas_api::phase::{Phase, Reason};
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
async fn a_silent_node_waits_for_proof_and_its_run_goes_on() -> Result<()> {
    // A node is lost 3 s after it was silent for six.
    let mut policy = andreas_e2e::cluster::short_runs();
    policy["nodeLoss"] = json!({"after": "3s", "action": "Wait"});
    let node_monitor_grace_period = Duration::from_secs(6);
    let options = Options { groups: vec![a100(2)], policy, node_monitor_grace_period, ..Options::default() };
    scenario(options, async |c| {
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
