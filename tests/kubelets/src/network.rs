//! The network between nodes: a bridge in the network namespace of the test.

use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

/// Name of the bridge.
const BRIDGE: &str = "nodes0";

/// The bridge, with the address of the control plane.
#[derive(Debug)]
pub struct Network;

impl Network {
    /// Where the nodes reach the API server.
    pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(172, 31, 77, 1);
    /// Most nodes.
    pub const MAX_NODES: u8 = 9;
    /// Addresses of all pods.
    pub(crate) const PODS: &str = "10.244.0.0/16";

    /// Makes the bridge, in place of that of a test before.
    ///
    /// # Errors
    /// Outside of `tests/kubelets/isolated`: interfaces and routes are the machine's there. When `ip` fails.
    pub fn make() -> Result<()> {
        ensure!(
            crate::isolated(),
            "real nodes need namespaces of their own: start this program by tests/kubelets/isolated"
        );
        let _ = ip(&["link", "delete", BRIDGE]);
        ip(&["link", "add", BRIDGE, "type", "bridge"])?;
        ip(&["address", "add", &format!("{}/24", Self::ADDRESS), "dev", BRIDGE])?;
        ip(&["link", "set", BRIDGE, "up"])?;
        for number in 1..=Self::MAX_NODES {
            let via = Self::node(number).to_string();
            ip(&["route", "add", &Self::pods(number), "via", &via])?;
        }
        // Of this network namespace alone.
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("forwarding between nodes")
    }

    /// Address of a node.
    pub(crate) fn node(number: u8) -> Ipv4Addr {
        Ipv4Addr::new(172, 31, 77, 10 + number)
    }

    /// Addresses of a node's pods.
    pub(crate) fn pods(number: u8) -> String {
        format!("10.244.{number}.0/24")
    }

    /// Joins a node, by its process 1: its interface is `eth0`.
    pub(crate) fn join(number: u8, process: i32) -> Result<()> {
        let name = format!("node{number}");
        // That of a node which lost its power goes with its namespace, but not at once.
        let _ = ip(&["link", "delete", &name]);
        let process = process.to_string();
        ip(&["link", "add", &name, "type", "veth", "peer", "name", "eth0", "netns", &process])?;
        ip(&["link", "set", &name, "master", BRIDGE, "up"])
    }
}

fn ip(args: &[&str]) -> Result<()> {
    let done = Command::new("ip").args(args).output().context("running ip (iproute2)")?;
    if !done.status.success() {
        bail!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(())
}
