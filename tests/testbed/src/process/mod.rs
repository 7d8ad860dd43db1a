//! One program in its own process group: started, watched, killed, paused, resumed, restarted.
//!
//! `spec` says what to start, `state` how it is and what can go wrong, `wait` is every wait for it. Standard output and
//! error go to one log file in the sandbox (`logs/NAME.log`); every wait that fails shows its end. Signals go to the
//! whole group, so a program's children share its fate.

mod spec;
mod state;
mod wait;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::sandbox::Sandbox;

pub use spec::ProcessSpec;
pub use state::{ProcessError, ProcessState};

/// How often a wait looks again.
const POLL: Duration = Duration::from_millis(25);

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
