//! Runs that end well.

use andreas_api::names;
use andreas_api::phase::{Outcome, Phase, Reason};
use andreas_api::training_job::ProfileSource;
use andreas_e2e::cluster::{Options, a100};
use andreas_e2e::job::{Job, job};
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_testbed::wait::until;
use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn one_job_runs_from_apply_to_succeeded() -> Result<()> {
    scenario(Options::default(), async |c| {
        // given a job of ten epochs with a deadline, so long that a report is recorded in between: they may be ten seconds apart
        let tj = job("plain").epochs(10, 1.8);
        let key = tj.key();
        // when it is applied
        c.submit(&tj).await?;
        // then it runs, reports progress, and succeeds
        c.wait_for_phase(&tj, Phase::Running).await?;
        c.wait_for_percent(&tj, 20).await?;
        let running = c.observer.seen().status(&key);
        let prediction = running.prediction.context("a running job has a prediction")?;
        ensure!(prediction.finish_time.is_some(), "no finish predicted");
        ensure!(!prediction.source.is_empty(), "a prediction names its source");
        ensure!(
            prediction.on_time_percent.is_some_and(|p| p > 50),
            "on time: {:?}",
            prediction.on_time_percent
        );
        c.wait_for_phase(&tj, Phase::Succeeded).await?;
        let status = c.observer.seen().status(&key);
        ensure!(status.attempts == 1 && status.restarts == 0, "{status:?}");
        ensure!(
            status.history.len() == 1 && status.history[0].outcome == Outcome::Finished,
            "{:?}",
            status.history
        );
        ensure!(status.completion_time.is_some() && status.start_time.is_some());
        ensure!(
            status
                .consumption
                .as_ref()
                .is_some_and(|e| e.joules > 0 && e.host_joules > 0 && e.host_cost_micros > 0),
            "no energy: {:?}",
            status.consumption
        );
        ensure!(status.display.progress.as_deref() == Some("100%"), "{:?}", status.display);
        // and the phases were those of a straight run
        let phases = c.observer.seen().phases(&key);
        ensure!(phases.ends_with(&[Phase::Running, Phase::Succeeded]), "{phases:?}");
        // and its pod was ours, by owner, label and name, and is kept for its log
        let seen = c.observer.seen();
        let uid = seen.job(&key).and_then(|j| j.metadata.uid.clone()).context("no uid")?;
        let pods = seen.pods_of(&uid);
        ensure!(pods.len() == 1, "{} pods", pods.len());
        ensure!(pods[0].pod.metadata.name.as_deref() == Some("plain-1-0"));
        ensure!(pods[0].pod.spec.scheduler_name.as_deref() == Some(names::SCHEDULER));
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_runs_over_two_nodes_and_its_ranks_meet() -> Result<()> {
    scenario(Options::default(), async |c| {
        // given a job that needs eight GPUs, where nodes have four
        let tj = job("gang").gpus(8, 2).epochs(8, 2.0);
        c.submit(&tj).await?;
        // then both members run; the trainer's ranks step together, so the end proves that they met by name
        c.wait_for_phase(&tj, Phase::Running).await?;
        let status = c.observer.seen().status(&tj.key());
        let allocation = status.allocation.context("a running job has an allocation")?;
        ensure!(allocation.nodes.len() == 2 && allocation.gpus_per_worker == 4, "{allocation:?}");
        let services = c.kubectl("get services -o name").await?;
        ensure!(services.contains("service/gang-gang-"), "no headless service: {services}");
        c.wait_for_phase(&tj, Phase::Succeeded).await?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_run_of_a_program_is_predicted_from_the_first() -> Result<()> {
    scenario(Options::default(), async |c| {
        // given a run of a program that names no profile
        let first = job("search-1").env("SEED", 1).epochs(10, 1.5);
        c.submit(&first).await?;
        c.wait_for_phase(&first, Phase::Succeeded).await?;
        let used = c.observer.seen().status(&first.key()).profile.context("a profile")?;
        ensure!(used.source == ProfileSource::Program, "{used:?}");
        let profile =
            format!("get trainingprofile {} -o jsonpath={{.status.finishedRuns[*].run}}", used.name);
        until("the run is in the profile", DEFAULT_TIMEOUT, async || {
            Ok(c.kubectl(&profile).await.is_ok_and(|runs| runs.contains("search-1-1")))
        })
        .await?;
        // when it runs again with another seed, and another program beside it
        let second = job("search-2").env("SEED", 2).epochs(10, 1.5);
        let other = job("other").env("MODEL", "large").epochs(10, 1.5);
        c.submit(&second).await?;
        c.submit(&other).await?;
        // then its prediction rests on the first run, the other's on nothing
        c.observer
            .until("a prediction from the first run", DEFAULT_TIMEOUT, |s| {
                s.status(&second.key()).prediction.is_some_and(|prediction| prediction.source == "Observed")
            })
            .await?;
        c.observer
            .until("profiles of both", DEFAULT_TIMEOUT, |s| {
                [&second, &other].iter().all(|job| s.status(&job.key()).profile.is_some())
            })
            .await?;
        let used_by = |job: &Job| c.observer.seen().status(&job.key()).profile.context("a profile");
        let (shared, other) = (used_by(&second)?, used_by(&other)?);
        ensure!(shared == used && other.name != used.name, "{used:?} {shared:?} {other:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_without_deadline_profile_or_progress_finish_too() -> Result<()> {
    scenario(Options::default(), async |c| {
        let free = job("no-deadline").without("deadlineAfter");
        let silent = job("no-progress").env("TRAINER_NO_PROGRESS", 1);
        let late = job("hurried").spec("deadlineAfter", json!("1s")).spec("weight", json!(1000));
        for tj in [&free, &silent, &late] {
            c.submit(tj).await?;
        }
        for tj in [&free, &silent, &late] {
            c.wait_for_phase(tj, Phase::Succeeded).await?;
        }
        let seen = c.observer.seen();
        ensure!(seen.status(&free.key()).deadline.is_none());
        // a job that cannot make its deadline runs all the same, and that is said
        ensure!(
            seen.status(&late.key()).consumption.is_some_and(|e| e.lateness_cost_micros > 0),
            "lateness has a price"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn more_jobs_than_gpus_wait_with_a_reason_and_all_finish() -> Result<()> {
    scenario(Options { groups: vec![a100(1)], ..Options::default() }, async |c| {
        // given four GPUs and six jobs of two
        let jobs: Vec<_> = (0..6)
            .map(|i| job(&format!("queue-{i}")).gpus(2, 1).epochs(6, 0.5).spec("preemption", json!("Never")))
            .collect();
        // All at once: one after the other they might not meet.
        try_join_all(jobs.iter().map(|tj| c.submit(tj))).await?;
        // then some wait, say why, and name who is in the way
        let keys: Vec<_> = jobs.iter().map(|j| j.key()).collect();
        c.observer
            .until("one waits for capacity", andreas_e2e::scenario::DEFAULT_TIMEOUT, |s| {
                keys.iter().any(|k| s.message(k, Reason::WaitingForCapacity).contains("queue-"))
            })
            .await?;
        // and all finish
        for tj in &jobs {
            c.wait_for_phase(tj, Phase::Succeeded).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_straight_run_costs_three_status_writes() -> Result<()> {
    scenario(Options::default(), async |c| {
        // given a run that reports nothing, so that all writes are the operator's own
        let tj = job("frugal").epochs(6, 0.4).env("TRAINER_NO_PROGRESS", 1);
        c.submit(&tj).await?;
        c.wait_for_phase(&tj, Phase::Succeeded).await?;
        // then the audit log has three: allocation, Running, end. On a slow machine the last two may be one.
        let mut writes = 0;
        for event in c.testbed.audit_log()? {
            let event = event?;
            let status =
                event.object_ref.resource == "trainingjobs" && event.object_ref.subresource == "status";
            writes += usize::from(status && event.object_ref.name == "frugal" && event.verb == "patch");
        }
        println!("{writes} status writes");
        ensure!((2..=3).contains(&writes), "{writes} status writes");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn affinity_mode_needs_no_second_scheduler() -> Result<()> {
    scenario(Options { extender: false, ..Options::default() }, async |c| {
        let tj = job("plain").epochs(4, 0.3);
        c.submit(&tj).await?;
        c.wait_for_phase(&tj, Phase::Succeeded).await
    })
    .await
}
