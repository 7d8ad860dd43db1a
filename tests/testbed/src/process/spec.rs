//! What to start.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::ports::PortLease;

/// What to start: program, arguments, environment.
#[derive(Debug, Clone)]
pub struct ProcessSpec {
    pub(super) name: String,
    pub(super) program: PathBuf,
    pub(super) args: Vec<OsString>,
    pub(super) env: Vec<(OsString, Option<OsString>)>,
    pub(super) folder: Option<PathBuf>,
    pub(super) grace: Duration,
    leases: Vec<Arc<PortLease>>,
}

impl ProcessSpec {
    /// `name` is the log file's name and what errors call the process.
    pub fn new(name: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            folder: None,
            grace: Duration::from_secs(10),
            leases: Vec::new(),
        }
    }

    /// One more argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// More arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets a variable; the rest of the environment is inherited.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().to_owned(), Some(value.as_ref().to_owned())));
        self
    }

    /// Removes an inherited variable.
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().to_owned(), None));
        self
    }

    /// The working folder (default: the sandbox's).
    pub fn current_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// How long [`Process::stop`] waits after SIGTERM before it kills (default 10 s).
    pub fn stop_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Keeps a port leased for as long as the process object lives, running or not.
    pub fn holding(mut self, lease: Arc<PortLease>) -> Self {
        self.leases.push(lease);
        self
    }
}
