//! The sandbox: a private network in which every container of every pretend node runs as a process, each pod in a
//! network namespace of its own.
//!
//! *What it holds.* [`Sandbox`], the parent's handle; `inside`, the single-threaded child that unshares, sets the
//! network up and starts containers for its parent; `container`, the step each container goes through between fork
//! and its program (mounts, host name); `network`, the bridge and the pods attached to it; `messages` and `spec`, what
//! parent and child tell each other.
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
mod messages;
mod namespaces;
mod network;
mod rootfs;
mod spec;

pub use container::container_init;
pub use handle::{Container, Sandbox, SandboxError};
pub use inside::sandbox_main;
pub use messages::Ended;
pub use network::{LOCAL_RANGES, POD_RANGE};
pub use spec::{ContainerSpec, Mount};
