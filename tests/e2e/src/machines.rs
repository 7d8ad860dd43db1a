//! What a cluster's nodes are, pretend or real: asked and broken in the same way, so that one scenario runs on both.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use andreas_kubelets::{Fault, Kubelets as RealNodes};
use andreas_test_nodes::control::{NodeInfo, PodInfo};
use andreas_test_nodes::{Forward, NodesClient};
use andreas_testbed::PortLease;
use anyhow::{Context as _, Result};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use rustix::process::{Pid, Signal, kill_process};

/// The nodes of a cluster.
pub trait Machines: Send + Sync {
    /// Every node, its GPUs, who holds them and what the driver says of them.
    ///
    /// # Errors
    /// When the nodes do not answer.
    fn nodes(&self) -> BoxFuture<'_, Result<Vec<NodeInfo>>>;

    /// Every pod that a kubelet knows.
    ///
    /// # Errors
    /// When the nodes do not answer.
    fn pods(&self) -> BoxFuture<'_, Result<Vec<PodInfo>>>;

    /// Where a port of a pod can be reached from this machine, for as long as the lease lives.
    ///
    /// # Errors
    /// When no port is free.
    fn reach(&self, port_of_pod: SocketAddr) -> BoxFuture<'_, Result<(SocketAddr, Option<PortLease>)>>;

    /// A node loses its power, and gets it back after this time. Returns once it is off.
    ///
    /// # Errors
    /// When there is no such node.
    fn power_cut(&self, node: &str, down: Duration) -> BoxFuture<'_, Result<()>>;

    /// The driver loses a GPU, and the program that holds it ends with an error.
    ///
    /// # Errors
    /// When there is no such GPU, or nobody holds it.
    fn lose_gpu(&self, node: &str, uuid: &str) -> BoxFuture<'_, Result<()>>;

    /// How many of the nodes are real ones.
    fn real(&self) -> usize;
}

impl Machines for NodesClient {
    fn nodes(&self) -> BoxFuture<'_, Result<Vec<NodeInfo>>> {
        async { Ok(NodesClient::nodes(self).await?) }.boxed()
    }

    fn pods(&self) -> BoxFuture<'_, Result<Vec<PodInfo>>> {
        async { Ok(NodesClient::pods(self).await?) }.boxed()
    }

    fn reach(&self, to: SocketAddr) -> BoxFuture<'_, Result<(SocketAddr, Option<PortLease>)>> {
        async move {
            let port = PortLease::take()?;
            let listen = SocketAddr::from(([127, 0, 0, 1], port.port()));
            self.forward(Forward { listen, to, names: Vec::new() }).await?;
            Ok((listen, Some(port)))
        }
        .boxed()
    }

    fn power_cut(&self, node: &str, down: Duration) -> BoxFuture<'_, Result<()>> {
        let node = node.to_owned();
        async move { Ok(self.reboot(&node, down).await?) }.boxed()
    }

    fn lose_gpu(&self, node: &str, uuid: &str) -> BoxFuture<'_, Result<()>> {
        let (node, uuid) = (node.to_owned(), uuid.to_owned());
        async move { Ok(self.gpu_fault(&node, &uuid).await?) }.boxed()
    }

    fn real(&self) -> usize {
        0
    }
}

impl Machines for Arc<RealNodes> {
    fn nodes(&self) -> BoxFuture<'_, Result<Vec<NodeInfo>>> {
        async { self.node_infos() }.boxed()
    }

    fn pods(&self) -> BoxFuture<'_, Result<Vec<PodInfo>>> {
        async { Ok(self.pod_infos()) }.boxed()
    }

    // The nodes' network is this machine's.
    fn reach(&self, to: SocketAddr) -> BoxFuture<'_, Result<(SocketAddr, Option<PortLease>)>> {
        async move { Ok((to, None)) }.boxed()
    }

    fn power_cut(&self, node: &str, down: Duration) -> BoxFuture<'_, Result<()>> {
        let node = node.to_owned();
        async move {
            self.node(&node)?.power_off();
            let nodes = Arc::clone(self);
            let runtime = tokio::runtime::Handle::current();
            // A thread of its own: what waits for the node cannot move between threads.
            tokio::task::spawn_blocking(move || {
                let back = async {
                    tokio::time::sleep(down).await;
                    nodes.node(&node)?.power_on().await.with_context(|| format!("{node} did not come back"))
                };
                if let Err(error) = runtime.block_on(back) {
                    eprintln!("{error:#}");
                }
            });
            Ok(())
        }
        .boxed()
    }

    fn lose_gpu(&self, node: &str, uuid: &str) -> BoxFuture<'_, Result<()>> {
        let (node, uuid) = (node.to_owned(), uuid.to_owned());
        async move {
            let pods = self.pod_infos();
            let holder = pods.iter().find(|pod| pod.gpus.contains(&uuid)).context("nobody holds it")?;
            self.node(&node)?.fault(&uuid, Fault::Lost)?;
            // The trainer makes no calls of CUDA, which would fail now. The first process of a container can only be killed.
            for pid in holder.pids.values().filter_map(|pid| Pid::from_raw(*pid)) {
                kill_process(pid, Signal::KILL)?;
            }
            Ok(())
        }
        .boxed()
    }

    fn real(&self) -> usize {
        RealNodes::nodes(self).len()
    }
}
