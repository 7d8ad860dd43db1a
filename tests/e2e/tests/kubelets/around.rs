//! What fails around a job: our own programs hang, names are not found, pods get no network. Jobs wait or go on; none
//! is lost, and none counts it against its user.

use std::time::{Duration, Instant};

use andreas_api::phase::{Outcome, Phase, Reason};
use andreas_e2e::cluster::Cluster;
use andreas_e2e::job::{Job, job};
use andreas_e2e::scenario::scenario;
use andreas_kubelets::Cni;
use andreas_testbed::wait::until;
use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use rustix::process::{Pid, Signal, kill_process};

use crate::gangs::{ended_well, ends_well, node_of, small};
use crate::{nodes, real};

/// The processes of a container of the pods whose names begin so.
async fn processes(c: &Cluster, pod: &str, container: &str) -> Result<Vec<Pid>> {
    let pods = c.machines.pods().await?;
    let of = pods.iter().filter(|p| p.name.starts_with(pod) && !p.ended);
    Ok(of.filter_map(|p| p.pids.get(container).copied().and_then(Pid::from_raw)).collect())
}

/// How often the containers of that name were started again, and whether all are ready.
async fn restarts(c: &Cluster, namespace: &str, container: &str) -> Result<(i32, bool)> {
    let pods = Api::<Pod>::namespaced(c.testbed.client(), namespace).list(&ListParams::default()).await?;
    let statuses = pods.items.into_iter().filter_map(|pod| pod.status?.container_statuses).flatten();
    let ours: Vec<_> = statuses.filter(|status| status.name == container).collect();
    Ok((ours.iter().map(|status| status.restart_count).sum(), ours.iter().all(|status| status.ready)))
}

#[tokio::test(flavor = "multi_thread")]
async fn our_own_programs_that_hang_are_restarted_and_jobs_go_on() -> Result<()> {
    /// A kubelet asks six times in a minute, waits for the end for half a minute, and starts the next.
    const LIMIT: Duration = Duration::from_secs(240);
    const OURS: [(&str, &str, &str); 3] = [
        ("andreas-system", "andreas-operator-", "operator"),
        ("andreas-system", "andreas-scheduler-", "extender"),
        ("andreas-node", "andreas-node-agent-", "agent"),
    ];
    scenario(real(1), async |c| {
        let long = small(job("long").gpus(2, 1).epochs(2000, 0.3));
        c.submit(&long).await?;
        c.wait_for_percent(&long, 1).await?;
        // when operator, extender and agent hang, at once
        for (_, pod, container) in OURS {
            let found = processes(c, pod, container).await?;
            ensure!(!found.is_empty(), "no {container}");
            for process in found {
                kill_process(process, Signal::STOP)?;
            }
        }
        let short = small(job("short").epochs(4, 0.3));
        c.submit(&short).await?;
        // then the kubelet ends and starts each of them
        let began = Instant::now();
        for (namespace, _, container) in OURS {
            let again = async || Ok(matches!(restarts(c, namespace, container).await?, (1.., true)));
            until(&format!("{container} is started again"), LIMIT, again).await?;
            println!(
                "{container}: ready again {:.0} s after it began to hang",
                began.elapsed().as_secs_f64()
            );
        }
        // and the same attempt goes on, and what was submitted meanwhile runs
        let done = c.observer.seen().milli_percent(&long.key()) / 1000;
        c.wait_for_percent(&long, done + 1).await?;
        ends_well(c, &short).await?;
        let status = c.observer.seen().status(&long.key());
        ensure!((status.phase, status.attempts, status.restarts) == (Phase::Running, 1, 0), "{status:?}");
        Ok(())
    })
    .await
}

/// A job that runs on one GPU for longer than the scenario.
fn long() -> Job {
    small(job("long").epochs(4000, 0.3))
}

/// The same attempt goes on, and reports.
async fn goes_on(c: &mut Cluster, job: &Job) -> Result<()> {
    let before = c.observer.seen().milli_percent(&job.key());
    let key = job.key();
    let reported = |seen: &andreas_e2e::seen::ClusterHistory| seen.milli_percent(&key) > before;
    c.observer.until("it reports", Duration::from_secs(180), reported).await?;
    let status = c.observer.seen().status(&job.key());
    ensure!((status.phase, status.attempts, status.user_failures) == (Phase::Running, 1, 0), "{status:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn while_no_name_is_found_gangs_wait_for_each_other() -> Result<()> {
    scenario(real(2), async |c| {
        let long = long();
        c.submit(&long).await?;
        c.wait_for_phase(&long, Phase::Running).await?;
        // when DNS is gone
        c.kubectl("scale deployment coredns --namespace kube-system --replicas=0").await?;
        c.kubectl("wait pod --namespace kube-system --selector k8s-app=kube-dns --for=delete --timeout=180s")
            .await?;
        // then a gang starts, and its members find neither each other nor the operator
        let gang = small(job("gang").gpus(6, 2).epochs(10, 0.3));
        c.submit(&gang).await?;
        c.wait_for_phase(&gang, Phase::Running).await?;
        let key = gang.key();
        let silent = Duration::from_secs(60);
        c.assert_holds("without progress", silent, |seen| seen.milli_percent(&key) == 0).await?;
        // when it is back, both go on in the same attempt
        c.kubectl("scale deployment coredns --namespace kube-system --replicas=1").await?;
        ends_well(c, &gang).await?;
        let attempts = c.observer.seen().status(&gang.key()).attempts;
        ensure!(attempts == 1, "{attempts} attempts");
        goes_on(c, &long).await
    })
    .await
}

/// Waits until a node is Ready, or is not.
async fn ready(c: &Cluster, node: &str, wanted: bool) -> Result<()> {
    let condition = if wanted { "Ready=True" } else { "Ready=False" };
    let line = format!("wait node {node} --for=condition={condition} --timeout=240s");
    c.kubectl(&line).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn while_pods_get_no_network_jobs_run_elsewhere_or_wait() -> Result<()> {
    scenario(real(2), async |c| {
        let long = long();
        c.submit(&long).await?;
        c.wait_for_phase(&long, Phase::Running).await?;
        let first = node_of(c, &long);
        let second = if first == "node-1" { "node-2" } else { "node-1" };

        // when the node of a job loses its network plug-in, it is not Ready, and the job goes on
        nodes(c)?.node(&first)?.set_cni(Cni::Absent)?;
        ready(c, &first, false).await?;
        let elsewhere = small(job("elsewhere").gpus(2, 1).epochs(4, 0.3));
        c.submit(&elsewhere).await?;
        ends_well(c, &elsewhere).await?;
        let placed = c.observer.seen().status(&elsewhere.key()).history[0].placement.clone();
        ensure!(placed.contains(second), "it ran on {placed}");
        nodes(c)?.node(&first)?.set_cni(Cni::Whole)?;
        ready(c, &first, true).await?;
        goes_on(c, &long).await?;

        // when a Ready node gives pods no network, the start takes too long, at the cluster's expense
        nodes(c)?.node(second)?.set_cni(Cni::Failing)?;
        let four =
            small(job("four").gpus(4, 1).epochs(4, 0.3)).spec("startTimeout", serde_json::json!("20s"));
        c.submit(&four).await?;
        c.wait_for_reason(&four, Reason::StartTimeout).await?;
        nodes(c)?.node(second)?.set_cni(Cni::Whole)?;
        ends_well(c, &four).await?;
        let status = c.observer.seen().status(&four.key());
        ensure!(status.history[0].outcome == Outcome::ClusterFailure, "{status:?}");
        ended_well(c, &four)
    })
    .await
}
