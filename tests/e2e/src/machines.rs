//! What a cluster's nodes are, pretend or real: asked in the same way.

use std::net::SocketAddr;
use std::sync::Arc;

use andreas_kubelets::Kubelets as RealNodes;
use andreas_test_nodes::control::{NodeInfo, PodInfo};
use andreas_test_nodes::{Forward, NodesClient};
use andreas_testbed::PortLease;
use anyhow::Result;
use futures::FutureExt as _;
use futures::future::BoxFuture;

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
}
