//! The packets between the sandbox and its parent, one JSON text each.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Longest packet either way; requests and reports are far shorter.
pub(super) const PACKET: usize = 64 * 1024;

/// How a container's first process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Exit code, when it exited.
    pub code: Option<i32>,
    /// Signal number, when one killed it.
    pub signal: Option<i32>,
}

impl Ended {
    /// The exit code as container runtimes report it: 128 + signal for a killed process.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        self.code.or(self.signal.map(|signal| 128 + signal)).unwrap_or(255)
    }
}

/// What the parent asks for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Operation {
    /// A network for the pod with this address; nothing to do when there is one.
    AddPod { ip: Ipv4Addr },
    /// The pod's network goes when its last process has.
    RemovePod { ip: Ipv4Addr },
    /// Start the container of this [`ContainerSpec`](super::spec::ContainerSpec) file; the request's id names it from
    /// then on.
    Spawn { spec: PathBuf },
    /// Send a signal to process 1 of a container.
    Signal { container: u64, signal: i32 },
    /// A listening TCP socket.
    Listen { addr: SocketAddr },
    /// A TCP socket not yet connected.
    Socket,
}

/// One packet to the sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Request {
    pub id: u64,
    pub ask: Operation,
}

/// One packet from the sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Report {
    /// Namespaces and network are up.
    Ready,
    /// They are not, and this is why.
    Unable { message: String },
    /// The container's program has been started.
    Started { id: u64, pid: i32 },
    /// Done; a socket may come with it.
    Done { id: u64 },
    /// It did not work.
    Failed { id: u64, message: String },
    /// A started container has ended.
    Ended { container: u64, ended: Ended },
}
