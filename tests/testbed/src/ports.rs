//! Ports on 127.0.0.1 that stay ours while nothing listens on them.
//!
//! A server that is killed and started again must find its port free. So ports are taken from below the kernel's
//! ephemeral range (no outgoing connection borrows them) and leased by binding an abstract Unix socket named after the
//! port: held by the kernel, gone with the process, seen by every test bed in the same network namespace.

use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::{SystemTime, UNIX_EPOCH};

/// No port of the range could be leased.
#[derive(Debug, thiserror::Error)]
#[error("no free port on 127.0.0.1 between {low} and {high}")]
pub struct NoFreePort {
    low: u16,
    high: u16,
}

/// A TCP port on 127.0.0.1 that no other lease holds.
#[derive(Debug)]
pub struct PortLease {
    port: u16,
    _claim: UnixListener,
}

impl PortLease {
    /// Leases a port that is free now.
    pub fn take() -> Result<Self, NoFreePort> {
        let (low, high) = (10_000, first_ephemeral_port().clamp(10_100, 32_768));
        let span = u64::from(high - low);
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.subsec_nanos());
        // A start that differs by process and moment; the walk that follows makes any start correct.
        let start = u64::from(std::process::id()).wrapping_mul(7919).wrapping_add(u64::from(clock / 1000));
        (0..span)
            .map(|step| low + u16::try_from((start + step) % span).expect("smaller than a port range"))
            .find_map(Self::claim)
            .ok_or(NoFreePort { low, high })
    }

    fn claim(port: u16) -> Option<Self> {
        let name = SocketAddr::from_abstract_name(format!("andreas-testbed-port-{port}")).ok()?;
        let claim = UnixListener::bind_addr(&name).ok()?;
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?;
        Some(Self { port, _claim: claim })
    }

    /// The port's number.
    pub fn port(&self) -> u16 {
        self.port
    }
}

fn first_ephemeral_port() -> u16 {
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(32_768)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leased_port_can_be_bound_again_and_again_but_not_leased_twice() {
        let leases: Vec<_> = (0..50).map(|_| PortLease::take().unwrap()).collect();
        let mut ports: Vec<_> = leases.iter().map(PortLease::port).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 50);
        for lease in &leases {
            assert!(PortLease::claim(lease.port()).is_none());
            TcpListener::bind((Ipv4Addr::LOCALHOST, lease.port())).unwrap();
        }
    }
}
