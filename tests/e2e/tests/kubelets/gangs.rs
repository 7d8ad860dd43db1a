//! Jobs and gangs on two real nodes: stopped, drained, without power, without a GPU, and without our own programs.

use std::time::Duration;

use andreas_api::phase::Phase;
use andreas_e2e::cluster::Cluster;
use andreas_e2e::install;
use andreas_e2e::job::{Job, job};
use andreas_e2e::scenario::scenario;
use andreas_kubelets::Fault;
use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::{nodes, real};

/// How long a job may take that lost its node on the way.
const LIMIT: Duration = Duration::from_secs(600);

/// A job whose pods find room on nodes that all have this machine's cores.
pub fn small(job: Job) -> Job {
    job.container("resources", json!({"requests": {"cpu": "20m", "memory": "16Mi"}}))
}

/// The job ended well, and no failure was counted against its user.
pub fn ended_well(cluster: &Cluster, job: &Job) -> Result<()> {
    let status = cluster.observer.seen().status(&job.key());
    ensure!(status.phase == Phase::Succeeded && status.user_failures == 0, "{}: {status:?}", job.key());
    Ok(())
}

/// The job ends well, also where it lost its node on the way.
pub async fn ends_well(c: &mut Cluster, job: &Job) -> Result<()> {
    let key = job.key();
    c.observer.until("the job ends", LIMIT, |seen| seen.phase(&key) == Phase::Succeeded).await?;
    ended_well(c, job)
}

/// The last attempt went on from what an earlier one had saved: from so many thousandths of a percent at least.
pub fn went_on(cluster: &Cluster, job: &Job, at_least: i32) -> Result<()> {
    let status = cluster.observer.seen().status(&job.key());
    let from = status.progress.as_ref().map_or(0, |progress| progress.attempt_start);
    ensure!(from >= at_least, "{} went on from {from} instead of {at_least}: {status:?}", job.key());
    Ok(())
}

/// The first node of a job that runs.
pub fn node_of(c: &Cluster, job: &Job) -> String {
    let allocation = c.observer.seen().status(&job.key()).allocation;
    allocation.and_then(|a| a.nodes.first().cloned()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_over_two_nodes_stops_and_resumes_from_its_checkpoint() -> Result<()> {
    scenario(real(2), async |c| {
        let gang = small(job("gang").gpus(8, 2).epochs(60, 0.5).checkpoint(15).stays_at(0.5));
        c.submit(&gang).await?;
        c.wait_for_percent(&gang, 10).await?;
        // every GPU is held by one of its pods, by the kubelets' own word
        let held = c
            .machines
            .nodes()
            .await?
            .iter()
            .map(|n| n.gpus.iter().filter(|g| g.holder.is_some()).count())
            .sum::<usize>();
        ensure!(held == 8, "{held} GPUs are held");

        // when it is suspended, it saves and leaves
        c.edit(&gang.key(), &json!({"suspend": true})).await?;
        c.wait_for_phase(&gang, Phase::Suspended).await?;
        let saved = c.observer.seen().milli_percent(&gang.key());
        ensure!(saved >= 10_000, "{saved}");
        // and it goes on from there
        c.edit(&gang.key(), &json!({"suspend": false})).await?;
        ends_well(c, &gang).await?;
        went_on(c, &gang, saved - 5_000)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_survives_a_power_cut() -> Result<()> {
    scenario(real(2), async |c| {
        let gang = small(job("gang").gpus(8, 2).epochs(120, 0.3).checkpoint(15).stays_at(0.5));
        c.submit(&gang).await?;
        c.wait_for_percent(&gang, 10).await?;

        // when one of its nodes loses its power for some seconds
        let node = nodes(c)?.node(&node_of(c, &gang))?;
        node.power_off();
        tokio::time::sleep(Duration::from_secs(5)).await;
        node.power_on().await?;
        // then the gang comes back by itself and ends, at the cluster's expense
        ends_well(c, &gang).await?;
        let status = c.observer.seen().status(&gang.key());
        ensure!(status.cluster_failures >= 1, "{status:?}");
        went_on(c, &gang, 5_000)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_node_sends_its_job_to_another() -> Result<()> {
    scenario(real(2), async |c| {
        let moved = small(job("moved").gpus(4, 1).epochs(80, 0.3).checkpoint(15).stays_at(0.5));
        c.submit(&moved).await?;
        c.wait_for_percent(&moved, 10).await?;
        let node = node_of(c, &moved);
        // when an administrator drains its node, our own pods included
        c.kubectl(&format!("drain {node} --ignore-daemonsets --delete-emptydir-data --force --timeout=240s"))
            .await?;
        // then it goes on elsewhere, at the cluster's expense
        ends_well(c, &moved).await?;
        let status = c.observer.seen().status(&moved.key());
        ensure!(status.cluster_failures >= 1, "{status:?}");
        let last = status.history.last().map(|attempt| attempt.placement.clone()).unwrap_or_default();
        ensure!(!node.is_empty() && !last.contains(&node), "it ran on {last} again");
        went_on(c, &moved, 5_000)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn our_own_programs_are_killed_under_a_gang() -> Result<()> {
    scenario(real(2), async |c| {
        let gang = small(job("gang").gpus(8, 2).epochs(60, 0.5));
        c.submit(&gang).await?;
        c.wait_for_percent(&gang, 1).await?;
        // when every container of ours is killed
        let ours = [
            ("andreas-operator-", "operator", 1),
            ("andreas-scheduler-", "extender", 1),
            ("andreas-scheduler-", "kube-scheduler", 1),
            ("andreas-node-agent-", "agent", 2),
            ("andreas-node-agent-", "setter", 2),
        ];
        for (pod, container, pods) in ours {
            let killed = install::kill(&*c.machines, pod, container).await?;
            ensure!(killed == pods, "{killed} of {container}");
        }
        // then the gang ends in its first attempt
        ends_well(c, &gang).await?;
        let status = c.observer.seen().status(&gang.key());
        ensure!((status.attempts, status.restarts) == (1, 0), "{status:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_fails_under_a_job_costs_its_user_nothing() -> Result<()> {
    scenario(real(2), async |c| {
        let unlucky = small(job("unlucky").gpus(2, 1).epochs(60, 0.4).checkpoint(15).stays_at(0.5));
        let key = unlucky.key();
        c.submit(&unlucky).await?;
        c.wait_for_percent(&unlucky, 10).await?;
        // when one of its two GPUs falls off the bus, and its program ends by that
        let node = node_of(c, &unlucky);
        let its = c.machines.nodes().await?.into_iter().find(|one| one.name == node).context("its node")?;
        let held = its.gpus.iter().find(|gpu| gpu.holder.is_some()).context("a GPU that is held")?;
        let pods = c.machines.pods().await?;
        let holder = pods.iter().find(|pod| pod.gpus.contains(&held.uuid)).context("nobody holds it")?;
        nodes(c)?.node(&node)?.fault(&held.uuid, Fault::Lost)?;
        // The trainer makes no calls of CUDA, which would fail now. The first process of a container can only be killed.
        for pid in holder.pids.values().filter_map(|pid| Pid::from_raw(*pid)) {
            kill_process(pid, Signal::KILL)?;
        }
        // then it goes on elsewhere, at the cluster's expense
        c.observer.until("running elsewhere", LIMIT, |seen| seen.runs_again_without(&key, &node)).await?;
        ends_well(c, &unlucky).await?;
        let status = c.observer.seen().status(&key);
        ensure!(status.user_failures == 0 && status.cluster_failures == 1, "{status:?}");
        // The agent's word can come before its end.
        let first = &status.history[0].message;
        ensure!(["is unhealthy", "137"].iter().any(|words| first.contains(words)), "{first}");
        went_on(c, &unlucky, 5_000)
    })
    .await
}
