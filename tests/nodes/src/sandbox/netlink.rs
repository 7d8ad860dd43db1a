//! Loopback up and AnyIP routes, by rtnetlink: the machine may have no `ip(8)`.

use std::io;

use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Index of `lo` in a fresh network namespace.
const LOOPBACK: u32 = 1;

const RTM_NEWLINK: u16 = 16;
const RTM_NEWROUTE: u16 = 24;
const NLM_F_REQUEST_ACK: u16 = 0x1 | 0x4;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
const IFF_UP: u32 = 1;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RT_TABLE_LOCAL: u8 = 255;
const RTPROT_BOOT: u8 = 3;
const RT_SCOPE_HOST: u8 = 254;
const RTN_LOCAL: u8 = 2;
const AF_INET: u8 = 2;

/// `ip link set lo up; ip route add local RANGE dev lo` for each range.
pub(super) fn set_up(ranges: &[([u8; 4], u8)]) -> io::Result<()> {
    // Protocol 0 of this family is NETLINK_ROUTE.
    let socket = net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let exchange = |kind: u16, flags: u16, body: &[u8]| -> io::Result<()> {
        net::send(&socket, &message(kind, flags, body), SendFlags::empty())?;
        let mut answer = [0u8; 4096];
        let (got, _) = net::recv(&socket, &mut answer, RecvFlags::empty())?;
        acknowledged(&answer[..got])
    };
    exchange(RTM_NEWLINK, NLM_F_REQUEST_ACK, &link_up())?;
    for (network, bits) in ranges {
        exchange(RTM_NEWROUTE, NLM_F_REQUEST_ACK | NLM_F_CREATE, &local_route(*network, *bits))?;
    }
    Ok(())
}

fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + body.len());
    bytes.extend((16 + body.len() as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 8]); // sequence and port: one question at a time on a socket of our own
    bytes.extend(body);
    bytes
}

/// `struct ifinfomsg`.
fn link_up() -> Vec<u8> {
    let mut body = vec![0u8; 4]; // family, padding, type
    body.extend(LOOPBACK.to_ne_bytes());
    body.extend(IFF_UP.to_ne_bytes()); // flags
    body.extend(IFF_UP.to_ne_bytes()); // which of them change
    body
}

/// `struct rtmsg` and its two attributes.
fn local_route(network: [u8; 4], bits: u8) -> Vec<u8> {
    let mut body =
        vec![AF_INET, bits, 0, 0, RT_TABLE_LOCAL, RTPROT_BOOT, RT_SCOPE_HOST, RTN_LOCAL, 0, 0, 0, 0];
    for (kind, value) in [(RTA_DST, network), (RTA_OIF, LOOPBACK.to_ne_bytes())] {
        body.extend(8u16.to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(value);
    }
    body
}

/// An `NLMSG_ERROR` with code 0 is the acknowledgement.
fn acknowledged(answer: &[u8]) -> io::Result<()> {
    let kind = answer.get(4..6).map(|b| u16::from_ne_bytes([b[0], b[1]]));
    let code = answer.get(16..20).map(|b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
    match (kind, code) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(code)) => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "unexpected rtnetlink answer")),
    }
}
