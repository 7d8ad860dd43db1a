//! Stops that are asked for: suspend, delete, edits, moves.

use std::time::Duration;

use andreas_api::phase::{Phase, Reason};
use andreas_e2e::cluster::{Options, a100};
use andreas_e2e::job::job;
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use anyhow::{Result, ensure};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn delete_cancels_with_grace_and_frees_the_gpus() -> Result<()> {
    scenario(Options { groups: vec![a100(1)], ..Options::default() }, async |c| {
        let first =
            job("first").gpus(4, 1).epochs(1000, 0.5).checkpoint(5).spec("preemption", json!("Never"));
        let second = job("second").gpus(4, 1).epochs(4, 0.3);
        c.collect_garbage().await?;
        c.submit(&first).await?;
        c.wait_for_phase(&first, Phase::Running).await?;
        c.submit(&second).await?;
        c.wait_for_reason(&second, Reason::WaitingForCapacity).await?;
        c.kubectl("delete trainingjob first --wait=false").await?;
        c.wait_for_phase(&second, Phase::Succeeded).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphaning_delete_leaves_the_pods_as_foreign_use() -> Result<()> {
    scenario(Options { groups: vec![a100(1)], ..Options::default() }, async |c| {
        let orphaned = job("orphan").gpus(4, 1).epochs(1000, 0.5);
        c.submit(&orphaned).await?;
        c.wait_for_phase(&orphaned, Phase::Running).await?;
        // when the job is deleted and its pods are left
        c.kubectl("delete trainingjob orphan --cascade=orphan --timeout=120s").await?;
        // then others wait for their GPUs
        let next = job("next").gpus(4, 1).epochs(4, 0.3);
        c.submit(&next).await?;
        c.assert_holds("waiting", Duration::from_secs(4), |s| s.phase(&next.key()) == Phase::Pending).await?;
        // until somebody removes them
        c.kubectl("delete pod orphan-1-0 --grace-period=1").await?;
        c.wait_for_phase(&next, Phase::Succeeded).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_mutable_field_can_be_edited_and_the_others_cannot() -> Result<()> {
    scenario(Options::default(), async |c| {
        // given a run that goes on until this ends
        let tj = job("edited").gpus(1, 1).epochs(1000, 0.4).checkpoint(10);
        let key = tj.key();
        c.submit(&tj).await?;
        c.observer.until("progress", DEFAULT_TIMEOUT, |s| s.milli_percent(&key) > 0).await?;
        // what does not touch the run is taken up without a stop
        c.edit(&key, &json!({
            "weight": 500, "deadlineAfter": "2h", "retries": 0, "preemption": "Never", "startTimeout": "5m",
            "progressTimeout": "10m", "maxRunTime": "1h", "ttlSecondsAfterFinished": 3600, "historyLimit": 1,
        }))
        .await?;
        c.observer
            .until("the new deadline is in the status", DEFAULT_TIMEOUT, |s| {
                let job = s.job(&key);
                let created = job.and_then(|j| j.metadata.creation_timestamp.clone());
                match (created, s.status(&key).deadline) {
                    (Some(c), Some(d)) => (d.0.duration_since(c.0).as_secs() - 7200).abs() <= 1,
                    _ => false,
                }
            })
            .await?;
        ensure!(c.observer.seen().status(&key).attempts == 1, "an edit of the weight restarts nothing");
        // a range of GPUs that the run no longer fits stops and moves it
        c.edit(&key, &json!({"gpus": {"min": 2, "max": 2}, "preemption": "Allowed"})).await?;
        c.observer
            .until("running on two GPUs", DEFAULT_TIMEOUT, |s| {
                let status = s.status(&key);
                status.phase == Phase::Running && status.allocation.is_some_and(|a| a.gpus == 2)
            })
            .await?;
        ensure!(c.observer.seen().status(&key).restarts == 1);
        // what makes the run what it is cannot change
        for spec in
            [json!({"epochs": 5}), json!({"profileRef": {"name": "other"}}), json!({"checkpoint": null})]
        {
            let refused = c.edit(&key, &spec).await;
            ensure!(refused.is_err(), "{spec} was accepted");
        }
        Ok(())
    })
    .await
}
