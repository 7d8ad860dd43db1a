//! What happens to nodes in real life, while jobs train on them: no job is lost, and none counts it against its user.

use std::time::{Duration, Instant};

use andreas_api::phase::{Outcome, Phase, Reason};
use andreas_e2e::cluster::Cluster;
use andreas_e2e::job::job;
use andreas_e2e::scenario::scenario;
use andreas_kubelets::{Fault, Service};
use anyhow::{Context as _, Result, ensure};

use crate::gangs::{ended_well, ends_well, node_of, small, went_on};
use crate::{nodes, real};

/// For how long a node has no power: nobody notices, and its kubelet finds its pods in the API when it is back.
const OFF: Duration = Duration::from_secs(2);
/// Why an attempt ends on such a node. Its kubelet takes up all pods before the device plug-in, which is one of them, has registered, and
/// refuses those with GPUs; where that comes late, it is known by then that their containers are gone.
const CAUSES: [&str; 2] = ["was refused by its node: UnexpectedAdmissionError", "was lost"];

/// What a node's kubelet last said of its boot.
async fn boot_id(c: &Cluster, node: &str) -> Result<String> {
    let path = "jsonpath={.status.nodeInfo.bootID}";
    c.kubectl(&format!("get node {node} --output {path}")).await
}

/// Lets NVIDIA's device plug-in run on nodes of that operating system alone.
async fn device_plugin_on(c: &Cluster, os: &str) -> Result<()> {
    let change =
        format!(r#"{{"spec":{{"template":{{"spec":{{"nodeSelector":{{"kubernetes.io/os":"{os}"}}}}}}}}}}"#);
    c.kubectl(&format!("patch daemonset nvidia-device-plugin --namespace kube-system --patch {change}"))
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn services_of_a_node_restart_under_a_job_and_it_notices_nothing() -> Result<()> {
    scenario(real(1), async |c| {
        let long = small(job("long").gpus(2, 1).epochs(2_000, 0.3));
        c.submit(&long).await?;
        c.wait_for_percent(&long, 1).await?;

        // kubelet, containerd and kube-proxy
        for service in [Service::Kubelet, Service::Containerd, Service::KubeProxy] {
            nodes(c)?.node("node-1")?.restart_service(service).await?;
        }
        // and NVIDIA's device plug-in, without which the node offers no GPU for a while
        device_plugin_on(c, "nowhere").await?;
        nodes(c)?.offers(&c.testbed, nodes(c)?.node("node-1")?, 0).await?;
        let short = small(job("short").epochs(4, 0.3));
        c.submit(&short).await?;
        let done = c.observer.seen().milli_percent(&long.key()) / 1000;
        c.wait_for_percent(&long, done + 1).await?;
        let waiting = c.observer.seen().status(&short.key());
        ensure!((waiting.phase, waiting.attempts) == (Phase::Pending, 0), "{waiting:?}");
        device_plugin_on(c, "linux").await?;
        nodes(c)?.offers(&c.testbed, nodes(c)?.node("node-1")?, 4).await?;

        // then the same attempt goes on and reports, and the job that waited finds the other GPUs
        let done = c.observer.seen().milli_percent(&long.key()) / 1000;
        c.wait_for_percent(&long, done + 1).await?;
        c.wait_for_phase(&short, Phase::Succeeded).await?;
        ended_well(c, &short)?;
        let status = c.observer.seen().status(&long.key());
        ensure!((status.phase, status.attempts, status.restarts) == (Phase::Running, 1, 0), "{status:?}");
        Ok(())
    })
    .await
}

/// Given a job whose node is without power for a moment; when it has it again; then the attempt ends for one of [`CAUSES`], whichever the
/// kubelet finds first, at the cluster's expense, and the job goes on from its checkpoint. On which node is not compared.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_its_node_refuses_or_loses_after_a_power_cut_costs_its_user_nothing() -> Result<()> {
    scenario(real(2), async |c| {
        let one = small(job("one").gpus(2, 1).epochs(60, 0.3).checkpoint(15).stays_at(0.5));
        c.submit(&one).await?;
        c.wait_for_percent(&one, 10).await?;
        // when its node loses its power, and has it again before anybody has noticed
        let node = nodes(c)?.node(&node_of(c, &one))?;
        let boot = boot_id(c, node.name()).await?;
        node.power_off();
        tokio::time::sleep(OFF).await;
        let on = Instant::now();
        node.power_on().await?;
        nodes(c)?.offers(&c.testbed, node, 4).await?;
        println!(
            "{} offers its GPUs again {:.1} s after it got power",
            node.name(),
            on.elapsed().as_secs_f64()
        );
        ensure!(boot_id(c, node.name()).await? != boot, "its kubelet says that it was not booted again");
        // then the job goes on from its checkpoint, at the cluster's expense
        ends_well(c, &one).await?;
        let status = c.observer.seen().status(&one.key());
        ensure!(status.cluster_failures >= 1, "{status:?}");
        for attempt in status.history.iter().filter(|attempt| attempt.outcome == Outcome::ClusterFailure) {
            println!("attempt {}: {}", attempt.attempt, attempt.message);
            ensure!(CAUSES.iter().any(|cause| attempt.message.contains(cause)), "{attempt:?}");
        }
        went_on(c, &one, 5_000)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lost_a_gpu_costs_no_job_its_retries() -> Result<()> {
    scenario(real(1), async |c| {
        // when the driver loses a GPU (Xid 79), NVIDIA's device plug-in withdraws it
        let node = nodes(c)?.node("node-1")?;
        let infos = c.machines.nodes().await?;
        let last = infos[0].gpus.last().context("a GPU")?.uuid.clone();
        node.fault(&last, Fault::Lost)?;
        let gone = nodes(c)?.offers(&c.testbed, node, 3).await?;
        println!("the lost GPU was withdrawn after {:.1} s", gone.as_secs_f64());
        // then a job for all four waits, and one for three is refused by the node: the plug-in can no longer compare its GPUs
        let four = small(job("four").gpus(4, 1).epochs(4, 0.3));
        let three = small(job("three").gpus(3, 1).epochs(4, 0.3));
        c.submit(&four).await?;
        c.submit(&three).await?;
        c.wait_for_reason(&three, Reason::ClusterFailure).await?;
        let refused = c.observer.seen().status(&three.key()).history;
        ensure!(
            refused
                .iter()
                .any(|attempt| attempt.message.contains("refused by its node: UnexpectedAdmissionError")),
            "{refused:?}"
        );
        let waiting = c.observer.seen().status(&four.key());
        ensure!(waiting.phase == Phase::Pending && waiting.attempts == 0, "{waiting:?}");

        // when it was reset, and the plug-in started again, both run
        let node = nodes(c)?.node("node-1")?;
        node.fault(&last, Fault::None)?;
        c.kubectl("delete pod --namespace kube-system --selector app=nvidia-device-plugin --wait=true")
            .await?;
        for done in [&three, &four] {
            let (key, limit) = (done.key(), Duration::from_secs(240));
            c.observer.until("both end", limit, |seen| seen.phase(&key) == Phase::Succeeded).await?;
            ended_well(c, done)?;
        }
        Ok(())
    })
    .await
}
