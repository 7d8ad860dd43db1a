//! What happens to nodes in real life, while jobs train on them: no job is lost, and none counts it against its user.

use std::time::Duration;

use andreas_api::phase::Phase;
use andreas_e2e::job::job;
use andreas_e2e::scenario::scenario;
use andreas_kubelets::Service;
use anyhow::{Result, ensure};

use crate::{ended_well, nodes, real, small};

#[tokio::test(flavor = "multi_thread")]
async fn services_of_a_node_restart_under_a_job_and_it_notices_nothing() -> Result<()> {
    scenario(real(1), async |c| {
        let long = small(job("long").gpus(2, 1).epochs(400, 0.3));
        c.submit(&long).await?;
        c.wait_for_percent(&long, 1).await?;

        // kubelet, containerd and kube-proxy
        for service in [Service::Kubelet, Service::Containerd, Service::KubeProxy] {
            nodes(c)?.node("node-1")?.restart_service(service).await?;
        }
        // and NVIDIA's device plug-in, without which the node offers no GPU for a while
        c.kubectl("delete pod --namespace kube-system --selector app=nvidia-device-plugin --wait=true").await?;
        let node = nodes(c)?.node("node-1")?;
        let back = nodes(c)?.ready(&c.testbed, node).await?;
        println!("GPUs offered again {:.1} s after the device plug-in had gone", back.as_secs_f64());

        // then the same attempt goes on and reports, and another job finds the other GPUs
        let done = c.observer.seen().milli_percent(&long.key()) / 1000;
        c.wait_for_percent(&long, done + 1).await?;
        let short = small(job("short").epochs(4, 0.3));
        c.submit(&short).await?;
        c.wait_for_phase(&short, Phase::Succeeded).await?;
        let status = c.observer.seen().status(&long.key());
        ensure!((status.phase, status.attempts, status.restarts) == (Phase::Running, 1, 0), "{status:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_survives_a_power_cut_and_a_worker_that_takes_too_much_memory_fails() -> Result<()> {
    scenario(real(2), async |c| {
        let gang = small(job("gang").gpus(8, 2).epochs(120, 0.3).checkpoint(15));
        c.submit(&gang).await?;
        c.wait_for_percent(&gang, 10).await?;

        // when a node loses its power for some seconds
        nodes(c)?.node("node-2")?.power_off();
        tokio::time::sleep(Duration::from_secs(5)).await;
        let node = nodes(c)?.node("node-2")?;
        node.power_on().await?;
        let back = nodes(c)?.ready(&c.testbed, node).await?;
        println!("GPUs offered again {:.1} s after the power came back", back.as_secs_f64());
        // then the gang comes back by itself and ends, at the cluster's expense
        let limit = Duration::from_secs(240);
        let key = gang.key();
        c.observer.until("the gang ends", limit, |seen| seen.phase(&key) == Phase::Succeeded).await?;
        ended_well(c, &gang)?;
        let status = c.observer.seen().status(&key);
        ensure!(status.cluster_failures >= 1, "{status:?}");
        Ok(())
    })
    .await
}
