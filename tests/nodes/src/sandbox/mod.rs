//! The sandbox: a private network in which every container of every pretend node runs as a process, each pod in a network
//! namespace of its own.
//!
//! *What it holds.* [`Sandbox`], the parent's handle; `inside`, the single-threaded child that unshares, sets the
//! network up and starts containers for its parent; `container`, the step each container goes through between fork
//! and its program (mounts, host name); `network`, the bridge and the pods attached to it.
//!
//! *What flows in and out.* One `SOCK_SEQPACKET` Unix socket pair: a JSON `Request` per packet in, a JSON
//! `Report` per packet out, sockets made inside the namespace travel beside their report (`SCM_RIGHTS`), so that
//! the parent can listen on and connect to pod and Service addresses without being inside.
//!
//! *Who dies with whom.* The child dies with its parent and each container with the child (`PR_SET_PDEATHSIG`).
//! A container is process 1 of a PID namespace of its own, so the kernel ends whatever it has started as well.
//! As in a real container a program without a SIGTERM handler therefore ignores SIGTERM.
//!
//! *What must never be here.* Kubernetes. This room knows addresses, folders and processes, no pods.
//!
//! The namespace keeps programs apart from each other's files and ports; it is no security boundary.

mod container;
mod handle;
mod inside;
mod network;
mod rootfs;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use container::container_init;
pub use handle::{Container, Ended, Sandbox, SandboxError};
pub use inside::sandbox_main;

/// Everything in these ranges can be bound inside (AnyIP): nodes, Services.
pub const LOCAL_RANGES: [([u8; 4], u8); 2] = [([10, 243, 0, 0], 16), ([10, 96, 0, 0], 16)];

/// Addresses of pods.
pub const POD_RANGE: ([u8; 4], u8) = ([10, 244, 0, 0], 16);

/// What to run and what it sees. Written as JSON to a file that `container-init` reads.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// Program and arguments, as seen inside.
    pub argv: Vec<String>,
    /// The whole environment; nothing is inherited.
    pub env: Vec<(String, String)>,
    /// Where the program starts; made when it does not exist.
    pub working_dir: PathBuf,
    /// Address of its pod, whose network it runs in; none for the sandbox's own network.
    pub pod_ip: Option<Ipv4Addr>,
    /// Host name of the container's UTS namespace.
    pub hostname: String,
    /// An empty folder that becomes the root.
    pub root: PathBuf,
    /// File that takes standard output and error, appended to.
    pub log: PathBuf,
    /// Folder with `hosts`, `hostname` and `resolv.conf`; replaced files are seen at once.
    pub etc: PathBuf,
    /// Volumes, at their container paths.
    pub mounts: Vec<Mount>,
    /// Programs put on the container's search path (`/.pretend/bin`).
    pub programs: Vec<PathBuf>,
    /// Folders of the machine shown read-only at their own path, besides the system's.
    pub host_paths: Vec<PathBuf>,
}

/// One bind mount.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Mount {
    /// File or folder on the machine.
    pub source: PathBuf,
    /// Absolute path in the container.
    pub target: PathBuf,
    /// Whether writing is refused.
    pub read_only: bool,
}

/// What the parent asks for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Ask {
    /// A network for the pod with this address; nothing to do when there is one.
    AddPod { ip: Ipv4Addr },
    /// The pod's network goes when its last process has.
    RemovePod { ip: Ipv4Addr },
    /// Start the container of this [`ContainerSpec`] file; the request's id names it from then on.
    Spawn { spec: PathBuf },
    /// Send a signal to process 1 of a container.
    Signal { container: u64, signal: i32 },
    /// Run a program inside a container that runs; answered when it has ended.
    Exec { container: u64, argv: Vec<String>, limit_ms: u64 },
    /// A listening TCP socket.
    Listen { addr: SocketAddr },
    /// A TCP socket not yet connected.
    Socket,
}

/// One packet to the sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Request {
    pub id: u64,
    pub ask: Ask,
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
    /// A program run inside a container has ended.
    Ran { id: u64, ended: Ended },
    /// It did not work.
    Failed { id: u64, message: String },
    /// A started container has ended.
    Ended { container: u64, ended: Ended },
}
