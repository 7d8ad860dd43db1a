//! What can go wrong with a test bed as a whole.

use std::path::PathBuf;

use crate::components::Component;
use crate::kubeconfig::IdentityError;
use crate::pki::PkiError;
use crate::ports::NoFreePort;
use crate::process::ProcessError;
use crate::programs::ProgramsError;
use crate::sandbox::SandboxError;
use crate::scheduler::SchedulerConfigError;

/// A test bed could not be started or did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    /// The programs.
    #[error(transparent)]
    Programs(#[from] ProgramsError),
    /// The folder or its janitor.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// Keys and certificates.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// Kubeconfigs and clients.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The scheduler's configuration.
    #[error(transparent)]
    SchedulerConfig(#[from] SchedulerConfigError),
    /// No port.
    #[error(transparent)]
    Port(#[from] NoFreePort),
    /// A process.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A file could not be written.
    #[error("cannot write {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The component is not part of this test bed.
    #[error("this test bed has no {0}")]
    NoSuchComponent(Component),
    /// The control plane did not come up in time.
    #[error("{what} not seen within {seconds} s")]
    NotReady {
        /// What was waited for.
        what: &'static str,
        /// The limit.
        seconds: u64,
    },
}
