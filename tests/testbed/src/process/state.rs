//! How a process is, and what can go wrong with it.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::ExitStatus;

/// A process could not be started, ended early, or did not do in time what was waited for.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The program could not be started.
    #[error("cannot start {name} ({program})")]
    Start {
        /// The process.
        name: String,
        /// The program's file.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The process is started already.
    #[error("{0} is running already")]
    Running(String),
    /// The process is not running.
    #[error("{name} is not running ({state})")]
    NotRunning {
        /// The process.
        name: String,
        /// What it is instead.
        state: ProcessState,
    },
    /// It ended while something was waited for.
    #[error("{name} ended ({state}) before {awaited}; end of {log}:\n{tail}")]
    Ended {
        /// The process.
        name: String,
        /// How it ended.
        state: ProcessState,
        /// What was waited for.
        awaited: String,
        /// The log file.
        log: PathBuf,
        /// Its last lines.
        tail: String,
    },
    /// Time ran out.
    #[error("{name}: not {awaited} within {seconds} s; end of {log}:\n{tail}")]
    TimedOut {
        /// The process.
        name: String,
        /// What was waited for.
        awaited: String,
        /// The limit.
        seconds: f64,
        /// The log file.
        log: PathBuf,
        /// Its last lines.
        tail: String,
    },
}

/// What a process does at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessState {
    /// Running.
    Running,
    /// Stopped by SIGSTOP.
    Paused,
    /// Ended by itself with this code.
    Exited(i32),
    /// Ended by this signal's number.
    Signalled(i32),
}

impl std::fmt::Display for ProcessState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Running => f.write_str("running"),
            Self::Paused => f.write_str("paused"),
            Self::Exited(code) => write!(f, "exit code {code}"),
            Self::Signalled(signal) => write!(f, "killed by signal {signal}"),
        }
    }
}

impl From<ExitStatus> for ProcessState {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, signal) => Self::Signalled(signal.unwrap_or(0)),
        }
    }
}
