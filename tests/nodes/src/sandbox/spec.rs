//! What a container is made of: the file that the parent writes and `container-init` reads.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

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
