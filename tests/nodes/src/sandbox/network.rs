//! The network inside: a bridge to which every pod's own network namespace is attached, and AnyIP routes for the
//! addresses of nodes and Services, which the parent listens on.
//!
//! ```text
//! pod: lo, eth0 10.244.x.y/16, default via 10.244.0.1
//!   | veth pair
//! sandbox: lo (local 10.243/16, 10.96/16), bridge "pods" 10.244.0.1/16
//! ```
//!
//! A pod reaches another over the bridge, a Service through its gateway, and never the machine.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd as _, OwnedFd};

use futures::TryStreamExt as _;
use rtnetlink::packet_route::route::{RouteScope, RouteType};
use rtnetlink::{Handle, LinkBridge, LinkUnspec, LinkVeth, RouteMessageBuilder};
use rustix::thread::UnshareFlags;

use super::namespaces::unshare;

/// Everything in these ranges can be bound inside (AnyIP): nodes, Services.
pub const LOCAL_RANGES: [([u8; 4], u8); 2] = [([10, 243, 0, 0], 16), ([10, 96, 0, 0], 16)];

/// Addresses of pods.
pub const POD_RANGE: ([u8; 4], u8) = ([10, 244, 0, 0], 16);

const BRIDGE: &str = "pods";
/// Address of the bridge, the pods' gateway.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 1);
/// A bridge without an address of its own takes that of any port, and changes it as ports come and go.
const BRIDGE_MAC: [u8; 6] = [0x02, 0x00, 10, 244, 0, 1];
const LOCAL_TABLE: u32 = 255;

/// Loopback, routes and bridge of the sandbox's namespace, in which the calling thread must be.
pub(super) fn set_up() -> io::Result<()> {
    runtime()?.block_on(async {
        let net = connect()?;
        up(&net, "lo").await?;
        let loopback = index(&net, "lo").await?;
        for (network, bits) in LOCAL_RANGES {
            let route = RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(network.into(), bits)
                .output_interface(loopback)
                .table_id(LOCAL_TABLE)
                .scope(RouteScope::Host)
                .kind(RouteType::Local)
                .build();
            net.route().add(route).execute().await.map_err(io::Error::other)?;
        }
        let bridge = LinkBridge::new(BRIDGE).address(BRIDGE_MAC.to_vec()).up().build();
        net.link().add(bridge).execute().await.map_err(io::Error::other)?;
        address(&net, BRIDGE, GATEWAY).await
    })
}

/// A new network namespace with this pod address, attached to the bridge. The calling thread moves into it and must not
/// be used for anything else; the namespace lives as long as the returned file or a process inside.
pub(super) fn add_pod(pod: Ipv4Addr) -> io::Result<OwnedFd> {
    runtime()?.block_on(async {
        let sandbox = File::open("/proc/thread-self/ns/net")?;
        let outside = connect()?;
        unshare(UnshareFlags::NEWNET)?;
        let inside = connect()?;
        // Made inside, where the name eth0 is free; the kernel removes both ends with the namespace.
        let port = format!("v{:08x}", u32::from(pod));
        let pair = LinkVeth::new("eth0", &port).build();
        inside.link().add(pair).execute().await.map_err(io::Error::other)?;
        let moved = LinkUnspec::new_with_name(&port).setns_by_fd(sandbox.as_raw_fd()).build();
        inside.link().set(moved).execute().await.map_err(io::Error::other)?;
        let bridge = index(&outside, BRIDGE).await?;
        let attached = LinkUnspec::new_with_name(&port).controller(bridge).up().build();
        outside.link().set(attached).execute().await.map_err(io::Error::other)?;
        up(&inside, "lo").await?;
        up(&inside, "eth0").await?;
        address(&inside, "eth0", pod).await?;
        let default = RouteMessageBuilder::<Ipv4Addr>::new().gateway(GATEWAY).build();
        inside.route().add(default).execute().await.map_err(io::Error::other)?;
        Ok(File::open("/proc/thread-self/ns/net")?.into())
    })
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_io().build()
}

/// Opens an rtnetlink connection in the calling thread's network namespace.
fn connect() -> io::Result<Handle> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    tokio::spawn(connection);
    Ok(handle)
}

async fn up(net: &Handle, name: &str) -> io::Result<()> {
    net.link().set(LinkUnspec::new_with_name(name).up().build()).execute().await.map_err(io::Error::other)
}

async fn index(net: &Handle, name: &str) -> io::Result<u32> {
    let mut links = net.link().get().match_name(name.to_owned()).execute();
    let link = links.try_next().await.map_err(io::Error::other)?;
    Ok(link.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, name.to_owned()))?.header.index)
}

async fn address(net: &Handle, name: &str, address: Ipv4Addr) -> io::Result<()> {
    let index = index(net, name).await?;
    net.address().add(index, IpAddr::V4(address), POD_RANGE.1).execute().await.map_err(io::Error::other)
}
