//! Programs that are killed: no job is lost, none runs twice.

use std::time::Duration;

use andreas_api::phase::Phase;
use andreas_e2e::cluster::{Cluster, Options, a100};
use andreas_e2e::job::{Job, job};
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_testbed::Component;
use anyhow::{Context as _, Result, ensure};

/// From one kill of the operator to the next: it is killed at whatever it does then.
const LIFE: Duration = Duration::from_millis(3500);
/// How long a program is away before it is started again: work for it piles up meanwhile.
const AWAY: Duration = Duration::from_secs(2);

/// Eight jobs on eight GPUs, gangs among them, so that some wait.
fn mixture() -> Vec<Job> {
    (0..8)
        .map(|i| match i % 4 {
            0 => job(&format!("mix-{i}")).gpus(8, 2).epochs(6, 0.4).checkpoint(5),
            1 => job(&format!("mix-{i}")).gpus(4, 1).epochs(8, 0.4).checkpoint(5),
            _ => job(&format!("mix-{i}")).gpus(1, 1).epochs(10, 0.4).checkpoint(5),
        })
        .collect()
}

async fn all_finish(c: &mut Cluster, jobs: &[Job]) -> Result<()> {
    let keys: Vec<_> = jobs.iter().map(Job::key).collect();
    c.observer
        .until("all succeeded", 3 * DEFAULT_TIMEOUT, |s| keys.iter().all(|k| s.phase(k) == Phase::Succeeded))
        .await?;
    // Every attempt but the last was a stop that the planner wanted: nobody was blamed, nothing was lost.
    for key in &keys {
        let status = c.observer.seen().status(key);
        ensure!(status.user_failures == 0 && status.cluster_failures == 0, "{key}: {:?}", status.history);
        ensure!(status.attempts == 1 + i64::from(status.restarts), "{key}: {:?}", status.history);
    }
    Ok(())
}

async fn submit_and_start(c: &mut Cluster, jobs: &[Job]) -> Result<()> {
    for tj in jobs {
        c.submit(tj).await?;
    }
    let keys: Vec<_> = jobs.iter().map(Job::key).collect();
    c.observer.until("one runs", DEFAULT_TIMEOUT, |s| keys.iter().any(|k| s.phase(k) == Phase::Running)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_is_killed_again_and_again() -> Result<()> {
    scenario(Options::default(), async |c| {
        let jobs = mixture();
        submit_and_start(c, &jobs).await?;
        for _ in 0..4 {
            c.operators[0].process.kill();
            c.operators[0].process.start_again()?;
            tokio::time::sleep(LIFE).await;
        }
        all_finish(c, &jobs).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn extender_scheduler_and_api_server_are_killed() -> Result<()> {
    scenario(Options::default(), async |c| {
        let jobs = mixture();
        submit_and_start(c, &jobs).await?;
        let extender = c.extender.as_ref().context("extender mode")?;
        extender.kill();
        tokio::time::sleep(AWAY).await;
        extender.start_again()?;
        let scheduler = c.scheduler.as_ref().context("extender mode")?;
        scheduler.kill();
        tokio::time::sleep(AWAY).await;
        scheduler.start_again()?;
        // On a busy machine the API server may be away for longer than the operator's Lease lasts.
        let _kept = c.keep_operators_running();
        c.testbed.kill(Component::ApiServer)?;
        tokio::time::sleep(AWAY).await;
        c.testbed.restart(Component::ApiServer).await?;
        all_finish(c, &jobs).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_operators_one_leads_and_the_other_takes_over() -> Result<()> {
    let options = Options { operators: 2, groups: vec![a100(2)], ..Options::default() };
    scenario(options, async |c| {
        let jobs = mixture();
        submit_and_start(c, &jobs).await?;
        let holder = c
            .kubectl("get lease andreas-operator -n andreas-system -o jsonpath={.spec.holderIdentity}")
            .await?;
        let leader = usize::from(holder.trim() == "operator-1");
        ensure!(holder.starts_with("operator-"), "no leader: {holder}");
        // when the leader is killed
        c.operators[leader].process.kill();
        c.route_progress_to(1 - leader).await?;
        // then the other leads, and every job ends
        all_finish(c, &jobs).await?;
        let now = c
            .kubectl("get lease andreas-operator -n andreas-system -o jsonpath={.spec.holderIdentity}")
            .await?;
        ensure!(now.trim() == format!("operator-{}", 1 - leader), "{now} leads");
        Ok(())
    })
    .await
}
