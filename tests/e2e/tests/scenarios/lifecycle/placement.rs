//! Where runs may be and stay: a scheduler that does not bind, nodes that are proven dead, a power budget that falls, a
//! volume that is reached from one node.

use std::time::Duration;

use andreas_api::phase::{Outcome, Phase, Reason};
use andreas_e2e::cluster::{A100, Cluster, Options, a100, short_runs};
use andreas_e2e::job::{Job, job, measured, profile};
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_testbed::wait::until;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_that_is_not_bound_in_time_goes_back_as_a_whole_and_runs_later() -> Result<()> {
    let mut policy = short_runs();
    policy["placementTimeout"] = json!("15s");
    scenario(Options { groups: vec![a100(4)], policy, ..Options::default() }, async |c| {
        // given a scheduler that is dead
        let scheduler = c.scheduler.as_ref().context("a scheduler")?;
        scheduler.kill();
        let tj = job("unbound").gpus(8, 2).epochs(6, 0.3);
        let key = tj.key();
        c.submit(&tj).await?;
        c.wait_for_phase(&tj, Phase::Starting).await?;
        // then its pods are made, none is bound, and the whole gang goes back with the reason
        c.observer
            .until("withdrawn", DEFAULT_TIMEOUT, |s| s.status(&key).history.iter().any(|a| a.attempt == 1))
            .await?;
        let first = c.observer.seen().status(&key).history[0].clone();
        ensure!(
            (first.outcome, first.reason.as_str()) == (Outcome::Withdrawn, "PlacementTimeout"),
            "{first:?}"
        );
        ensure!(first.message.contains("2 of 2 workers not bound within 15s"), "{}", first.message);
        c.observer
            .until("both pods of it gone", DEFAULT_TIMEOUT, |s| {
                let uid = s.job(&key).and_then(|j| j.metadata.uid.clone()).unwrap_or_default();
                let pods = s.pods_of(&uid);
                let first = pods.iter().filter(|p| p.label(andreas_api::names::LABEL_ATTEMPT) == "1");
                let gone: Vec<bool> = first.map(|p| p.deleted && p.pod.spec.node_name.is_none()).collect();
                gone == [true, true]
            })
            .await?;
        // and when the scheduler is back, it runs, and no retry was used
        c.scheduler.as_ref().context("a scheduler")?.start_again()?;
        c.observer
            .until("succeeded", Duration::from_secs(240), |s| s.phase(&key) == Phase::Succeeded)
            .await?;
        let status = c.observer.seen().status(&key);
        ensure!(status.user_failures == 0 && status.cluster_failures == 0, "{status:?}");
        Ok(())
    })
    .await
}

/// Given a run on a node that falls silent, when something proves the node dead, then the run goes on elsewhere.
async fn proven_dead_by(proof: &'static str) -> Result<()> {
    let mut policy = short_runs();
    policy["nodeLoss"] = json!({"after": "3s", "action": "Wait"});
    let options = Options {
        groups: vec![a100(2)],
        policy,
        node_monitor_grace_period: Duration::from_secs(6),
        ..Options::default()
    };
    scenario(options, async |c| {
        let tj = job("lost").gpus(4, 1).epochs(60, 0.4).checkpoint(5);
        let key = tj.key();
        c.submit(&tj).await?;
        c.wait_for_percent(&tj, 10).await?;
        let allocation = c.observer.seen().status(&key).allocation.context("no allocation")?;
        let node = allocation.nodes[0].clone();
        andreas_e2e::nodes::client(&c.testbed).silence(&node).await?;
        c.wait_for_reason(&tj, Reason::NodeNotReady).await?;
        c.assert_holds("one attempt", Duration::from_secs(3), |s| s.status(&key).attempts == 1).await?;
        c.kubectl(&proof.replace("NODE", &node)).await?;
        c.observer.until("running elsewhere", DEFAULT_TIMEOUT, |s| s.runs_again_without(&key, &node)).await?;
        c.wait_for_phase(&tj, Phase::Succeeded).await?;
        let status = c.observer.seen().status(&key);
        ensure!(status.user_failures == 0 && status.cluster_failures == 1, "{status:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_node_is_proof_of_death() -> Result<()> {
    proven_dead_by("delete node NODE --wait=false").await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_out_of_service_taint_is_proof_of_death() -> Result<()> {
    proven_dead_by("taint node NODE node.kubernetes.io/out-of-service=nodeshutdown:NoExecute").await
}

/// A policy for A100 that draw 50 W idle, with that budget and no margin.
fn budget(watts: i64) -> Value {
    let mut spec = short_runs();
    spec["powerBudget"] = json!({"watts": watts, "marginPercent": 0});
    spec["gpuTypes"] =
        json!([{"name": A100, "idleWatts": 50, "maxWatts": 400, "hostIdleWatts": 0, "hostBusyWatts": 0}]);
    spec
}

async fn set_budget(c: &Cluster, watts: i64) -> Result<()> {
    c.apply(&json!({
        "apiVersion": "andreas.dev/v1alpha1", "kind": "EnergyPolicy", "metadata": {"name": "default"},
        "spec": budget(watts),
    }))
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lowered_power_budget_stops_what_costs_least_and_who_may_not_be_preempted_last() -> Result<()> {
    let options = Options { groups: vec![a100(1)], policy: budget(5_000), ..Options::default() };
    scenario(options, async |c| {
        // given four A100 (50 W idle) with three runs of 350 W each: 1100 W. None of them ends before it is stopped
        c.apply(&profile("known", &[measured(A100, 1, 500, 350)])).await?;
        let run = |name: &str, weight: i32| -> Job {
            let known = job(name).epochs(60, 0.5).checkpoint(5).stays_at(0.5);
            known.profile("known").spec("weight", json!(weight))
        };
        let light = run("light", 1);
        let heavy = run("heavy", 1_000);
        let never = run("never", 1).spec("preemption", json!("Never"));
        for tj in [&light, &heavy, &never] {
            c.submit(tj).await?;
        }
        for tj in [&light, &heavy, &never] {
            c.wait_for_percent(tj, 5).await?;
        }
        let stopped = |s: &andreas_e2e::seen::ClusterHistory, tj: &Job| {
            s.phase(&tj.key()) == Phase::Pending && s.status(&tj.key()).allocation.is_none()
        };
        let runs = |s: &andreas_e2e::seen::ClusterHistory, tj: &Job| s.phase(&tj.key()) == Phase::Running;

        // when the budget leaves room for two, then the one stops that costs least
        set_budget(c, 900).await?;
        c.observer.until("light stopped", DEFAULT_TIMEOUT, |s| stopped(s, &light)).await?;
        c.wait_for_reason(&light, Reason::PowerBudget).await?;
        c.assert_holds("the others running", Duration::from_secs(2), |s| runs(s, &heavy) && runs(s, &never))
            .await?;

        // when it leaves room for one, then the one stays that may not be preempted, whatever the other's weight
        set_budget(c, 600).await?;
        c.observer.until("heavy stopped", DEFAULT_TIMEOUT, |s| stopped(s, &heavy)).await?;
        c.assert_holds("never running", Duration::from_secs(2), |s| runs(s, &never)).await?;

        // when it leaves room for none, then that one stops, too
        set_budget(c, 300).await?;
        c.observer.until("never stopped", DEFAULT_TIMEOUT, |s| stopped(s, &never)).await?;

        // and when the budget is back, all go on from where they were, and the policy says that it was met
        set_budget(c, 5_000).await?;
        for tj in [&light, &heavy, &never] {
            c.wait_for_phase(tj, Phase::Succeeded).await?;
            let status = c.observer.seen().status(&tj.key());
            ensure!(status.attempts == 2 && status.user_failures == 0, "{}: {status:?}", tj.key());
            ensure!(status.history[0].outcome == Outcome::Stopped, "{:?}", status.history);
            ensure!(status.progress.is_some_and(|p| p.attempt_start >= 3_000), "{} began anew", tj.key());
        }
        until("the policy says that the budget is met", DEFAULT_TIMEOUT, async || {
            let policy: Value = serde_json::from_str(&c.kubectl("get energypolicy default -o json").await?)?;
            let conditions = policy["status"]["conditions"].as_array().cloned().unwrap_or_default();
            Ok(conditions.iter().any(|c| c["type"] == "BudgetMet" && c["status"] == "True"))
        })
        .await?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_one_node_reaches_holds_the_run_to_that_node() -> Result<()> {
    scenario(Options { groups: vec![a100(3)], ..Options::default() }, async |c| {
        // given a claim that is bound to a volume of the last node
        c.apply(&json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "local"},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "local",
                "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/testbed/local"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "kubernetes.io/hostname", "operator": "In", "values": ["a100-2"]}]}]}},
                "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": "local"},
            },
        }))
        .await?;
        c.apply(&json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "local", "namespace": "default"},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "local", "volumeName": "local",
                "resources": {"requests": {"storage": "1Gi"}}},
        }))
        .await?;
        c.kubectl("wait --for=jsonpath={.status.phase}=Bound pvc/local --timeout=120s").await?;
        // when runs use it for their checkpoints, or as a volume of their template
        let checkpoint = json!({"claimName": "local", "graceSeconds": 5});
        let saves = job("saves").gpus(2, 1).epochs(6, 0.3).spec("checkpoint", checkpoint);
        let volume = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "local"}}]);
        let reads = job("reads").gpus(2, 1).epochs(6, 0.3).pod("volumes", volume);
        for tj in [&saves, &reads] {
            c.apply(&tj.build()).await?;
        }
        // then they are planned there at once: no attempt is lost on another node
        for tj in [&saves, &reads] {
            c.wait_for_phase(tj, Phase::Succeeded).await?;
            let status = c.observer.seen().status(&tj.key());
            ensure!(status.attempts == 1, "{status:?}");
            ensure!(status.history[0].placement.contains("a100-2"), "{:?}", status.history);
        }
        Ok(())
    })
    .await
}
