//! A real control plane on loopback, for tests and demonstrations.
//!
//! **What it holds.** [`Testbed`] starts etcd, kube-apiserver, kube-controller-manager and kube-scheduler as ordinary
//! processes on 127.0.0.1: free ports, own certificates, an audit log, all data in one temporary folder. Each of
//! them can be killed, paused, resumed and restarted. [`Process`] does the same for any other program (operator,
//! extender, trainer), [`Sandbox`] sees to it that nothing is left behind, whichever way the owner ends.
//!
//! **What flows in.** The programs of `tests/tools/build` (or of `KUBEBUILDER_ASSETS`), a scheduler configuration, time
//! limits. **What flows out.** Kubeconfigs for any identity (administrator, node, service account), `kube::Client`s,
//! the parsed audit log ([`audit`]), the output of kubectl and helm. [`faults`] stands between programs and the
//! API server and makes calls fail. [`wait`] is how tests wait.
//!
//! **What must never be here.** Anything that knows ANDREAS' own kinds, and pretend answers: what this crate
//! starts is the real thing, and its only weak spot is on purpose (`etcd --unsafe-no-fsync`: a crash of the
//! *machine* may lose data, a crash of a process does not).
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use andreas_testbed::{Component, Testbed};
//! let testbed = Testbed::builder().start().await?;
//! let nodes = testbed.kubectl(["get", "nodes"]).await?;
//! println!("{}", nodes.stdout);
//! testbed.kill(Component::ApiServer)?;
//! testbed.restart(Component::ApiServer).await?;
//! # Ok(()) }
//! ```

pub mod audit;
mod binaries;
mod boot;
mod builder;
mod components;
mod error;
mod executables;
pub mod faults;
mod identity;
mod kubeconfig;
mod pki;
mod ports;
mod process;
mod programs;
mod ready;
mod reuse;
mod sandbox;
mod scheduler;
mod testbed;
pub mod tls;
mod tools;
pub mod wait;

pub use binaries::{BinaryNotFound, workspace_binary, workspace_library};
pub use builder::Builder;
pub use components::{Component, Kubelets};
pub use error::TestbedError;
pub use executables::write_executables;
pub use kubeconfig::IdentityError;
pub use pki::{Pki, PkiError};
pub use ports::{NoFreePort, PortLease};
pub use process::{Process, ProcessError, ProcessSpec, ProcessState};
pub use programs::{Programs, ProgramsError, built};
pub use reuse::{Inventory, RestoreError};
pub use sandbox::{Sandbox, SandboxError};
pub use scheduler::{SchedulerConfig, SchedulerConfigError};
pub use testbed::{ComponentStatus, Testbed};
pub use tools::{Output, ToolError};
