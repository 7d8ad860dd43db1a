//! One program in its own process group: started, watched, killed, paused, resumed, restarted.
//!
//! Standard output and error go to one log file in the sandbox (`logs/NAME.log`); every wait that fails shows its end.
//! Signals go to the whole group, so a program's children share its fate.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::ports::PortLease;
use crate::sandbox::Sandbox;

/// How often a wait looks again.
const POLL: Duration = Duration::from_millis(25);
/// Lines of the log that an error shows.
const TAIL: usize = 25;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
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

/// What to start: program, arguments, environment.
#[derive(Debug, Clone)]
pub struct ProcessSpec {
    name: String,
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, Option<OsString>)>,
    folder: Option<PathBuf>,
    grace: Duration,
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

#[derive(Debug)]
enum State {
    Alive { child: Child, paused: bool },
    Dead(ProcessState),
}

#[derive(Debug)]
struct Inner {
    spec: ProcessSpec,
    state: State,
    starts: u32,
    /// Where the log of the present start begins, in bytes.
    log_start: u64,
}

/// A started program; dropped, it is killed.
#[derive(Debug)]
pub struct Process {
    name: String,
    log: PathBuf,
    folder: PathBuf,
    mark: (&'static str, OsString),
    inner: Mutex<Inner>,
}

impl Process {
    /// Starts a program in a sandbox.
    pub fn start(sandbox: &Sandbox, spec: ProcessSpec) -> Result<Self, ProcessError> {
        let process = Self {
            name: spec.name.clone(),
            log: sandbox.folder().join("logs").join(format!("{}.log", spec.name)),
            folder: sandbox.folder().to_owned(),
            mark: sandbox.mark(),
            inner: Mutex::new(Inner {
                spec,
                state: State::Dead(ProcessState::Exited(0)),
                starts: 0,
                log_start: 0,
            }),
        };
        process.start_again()?;
        Ok(process)
    }

    /// Starts the program again after it ended, with the same arguments; its log goes on in the same file.
    pub fn start_again(&self) -> Result<(), ProcessError> {
        let mut inner = self.lock();
        if matches!(inner.state, State::Alive { .. }) {
            return Err(ProcessError::Running(self.name.clone()));
        }
        let failed = |source| ProcessError::Start {
            name: self.name.clone(),
            program: inner.spec.program.clone(),
            source,
        };
        let (log, log_start) = self.open_log(inner.starts).map_err(failed)?;
        let spec = &inner.spec;
        let mut command = Command::new(&spec.program);
        command
            .args(&spec.args)
            .current_dir(spec.folder.as_ref().unwrap_or(&self.folder))
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(failed)?)
            .stderr(log);
        for (name, value) in &spec.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env(self.mark.0, &self.mark.1);
        let child = command.spawn().map_err(failed)?;
        tracing::debug!(process = self.name, pid = child.id(), "started");
        inner.state = State::Alive { child, paused: false };
        inner.log_start = log_start;
        inner.starts += 1;
        Ok(())
    }

    fn open_log(&self, starts: u32) -> io::Result<(File, u64)> {
        if let Some(folder) = self.log.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut log = File::options().create(true).append(true).open(&self.log)?;
        if starts > 0 {
            writeln!(log, "=== testbed: start {} ===", starts + 1)?;
        }
        let end = log.seek(SeekFrom::End(0))?;
        Ok((log, end))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let State::Alive { child, .. } = &mut inner.state
            && let Ok(Some(status)) = child.try_wait()
        {
            // The leader is gone; its children must not outlive it.
            signal_group(child, Signal::KILL);
            inner.state = State::Dead(status.into());
        }
        inner
    }

    /// The name given in the specification.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process id, which is also the group's, while it runs or is paused.
    pub fn pid(&self) -> Option<u32> {
        match &self.lock().state {
            State::Alive { child, .. } => Some(child.id()),
            State::Dead(_) => None,
        }
    }

    /// What the process does now.
    pub fn state(&self) -> ProcessState {
        match &self.lock().state {
            State::Alive { paused: false, .. } => ProcessState::Running,
            State::Alive { paused: true, .. } => ProcessState::Paused,
            State::Dead(state) => *state,
        }
    }

    /// How often it was started.
    pub fn starts(&self) -> u32 {
        self.lock().starts
    }

    /// Changes arguments or environment for the next start.
    pub fn reconfigure(&self, change: impl FnOnce(ProcessSpec) -> ProcessSpec) {
        let mut inner = self.lock();
        inner.spec = change(inner.spec.clone());
    }

    fn signal(&self, signal: Signal, paused: bool) -> Result<(), ProcessError> {
        let mut inner = self.lock();
        match &mut inner.state {
            State::Alive { child, paused: now } => {
                signal_group(child, signal);
                *now = paused;
                Ok(())
            }
            State::Dead(state) => Err(ProcessError::NotRunning { name: self.name.clone(), state: *state }),
        }
    }

    /// SIGKILL to the whole group; returns when the process is gone. An ended process is left as it is.
    pub fn kill(&self) {
        let mut inner = self.lock();
        if let State::Alive { child, .. } = &mut inner.state {
            signal_group(child, Signal::KILL);
            let ended =
                child.wait().map_or(ProcessState::Signalled(Signal::KILL.as_raw()), ProcessState::from);
            inner.state = State::Dead(ended);
        }
    }

    /// SIGSTOP: the process keeps its connections and answers nothing.
    pub fn pause(&self) -> Result<(), ProcessError> {
        self.signal(Signal::STOP, true)
    }

    /// SIGCONT.
    pub fn resume(&self) -> Result<(), ProcessError> {
        self.signal(Signal::CONT, false)
    }

    /// SIGTERM, without waiting.
    pub fn terminate(&self) -> Result<(), ProcessError> {
        self.signal(Signal::TERM, false)
    }

    /// SIGTERM, and SIGKILL when the grace of the specification is over.
    pub async fn stop(&self) -> ProcessState {
        let grace = self.lock().spec.grace;
        // A stopped process would never see SIGTERM.
        if self.resume().is_ok() && self.terminate().is_ok() {
            let until = Instant::now() + grace;
            while self.pid().is_some() && Instant::now() < until {
                tokio::time::sleep(POLL).await;
            }
        }
        self.kill();
        self.state()
    }

    /// [`Process::stop`] when it still runs, then start.
    pub async fn restart(&self) -> Result<(), ProcessError> {
        self.stop().await;
        self.start_again()
    }

    /// The log file.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Everything logged since the present start.
    pub fn log(&self) -> String {
        let start = self.lock().log_start;
        let mut bytes = Vec::new();
        let read = File::open(&self.log).and_then(|mut file| {
            file.seek(SeekFrom::Start(start))?;
            file.read_to_end(&mut bytes)
        });
        if let Err(error) = read {
            return format!("({}: {error})", self.log.display());
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The last lines of the log.
    pub fn log_tail(&self, lines: usize) -> String {
        let log = self.log();
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// Waits until `ready` says yes; fails early, with the end of the log, when the process ends.
    pub async fn wait_until<F: Future<Output = bool>>(
        &self,
        awaited: &str,
        limit: Duration,
        mut ready: impl FnMut() -> F,
    ) -> Result<(), ProcessError> {
        let until = Instant::now() + limit;
        loop {
            let state = self.state();
            if matches!(tokio::time::timeout(limit, ready()).await, Ok(true)) {
                return Ok(());
            }
            let (name, awaited) = (self.name.clone(), awaited.to_owned());
            let (log, tail) = (self.log.clone(), || self.log_tail(TAIL));
            if !matches!(state, ProcessState::Running | ProcessState::Paused) {
                return Err(ProcessError::Ended { name, state, awaited, log, tail: tail() });
            }
            if Instant::now() > until {
                return Err(ProcessError::TimedOut {
                    name,
                    awaited,
                    seconds: limit.as_secs_f64(),
                    log,
                    tail: tail(),
                });
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until the log of the present start contains a text.
    pub async fn wait_for_log(&self, text: &str, limit: Duration) -> Result<(), ProcessError> {
        self.wait_until(&format!("logging {text:?}"), limit, || async { self.log().contains(text) }).await
    }

    /// Waits until something accepts connections at an address such as `127.0.0.1:8443`.
    pub async fn wait_for_port(&self, address: &str, limit: Duration) -> Result<(), ProcessError> {
        self.wait_until(&format!("listening on {address}"), limit, || async {
            tokio::net::TcpStream::connect(address).await.is_ok()
        })
        .await
    }

    /// Waits until `GET http://ADDRESS/PATH` is answered with 200 (plain HTTP: health and metrics ports).
    pub async fn wait_for_http(
        &self,
        address: &str,
        path: &str,
        limit: Duration,
    ) -> Result<(), ProcessError> {
        self.wait_until(&format!("answering 200 on http://{address}{path}"), limit, || async {
            tokio::time::timeout(Duration::from_secs(2), get_is_ok(address, path))
                .await
                .is_ok_and(|ok| ok.unwrap_or(false))
        })
        .await
    }

    /// Waits until the process ended by itself or was killed.
    pub async fn wait_for_end(&self, limit: Duration) -> Result<ProcessState, ProcessError> {
        let until = Instant::now() + limit;
        while self.pid().is_some() {
            if Instant::now() > until {
                return Err(ProcessError::TimedOut {
                    name: self.name.clone(),
                    awaited: "ended".to_owned(),
                    seconds: limit.as_secs_f64(),
                    log: self.log.clone(),
                    tail: self.log_tail(TAIL),
                });
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(self.state())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn signal_group(leader: &Child, signal: Signal) {
    if let Some(group) = i32::try_from(leader.id()).ok().and_then(Pid::from_raw) {
        // The only possible answer besides success is "no such group": then there is nothing left to signal.
        let _ = kill_process_group(group, signal);
    }
}

async fn get_is_ok(address: &str, path: &str) -> io::Result<bool> {
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes())
        .await?;
    let mut head = [0; 12];
    stream.read_exact(&mut head).await?;
    Ok(head.starts_with(b"HTTP/1.") && &head[8..12] == b" 200")
}
