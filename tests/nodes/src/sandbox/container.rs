//! What happens between a container's fork and its program: namespaces, mounts, host name, log, exec.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::UnshareFlags;

use super::namespaces::unshare;
use super::rootfs;
use super::spec::ContainerSpec;

/// Exit code of a container that could not be started, as containerd gives it.
const START_ERROR: u8 = 128;

/// `pretend-kubelets container-init SPEC`. Standard output is a pipe to the sandbox: closed by the program's start,
/// or carrying one line that says why there was none.
pub fn container_init(spec: &Path) -> ExitCode {
    // A failed exec leaves the log in place of standard output.
    let Ok(tell) = io::stdout().as_fd().try_clone_to_owned() else { return ExitCode::from(START_ERROR) };
    let error = match prepare(spec) {
        Ok(mut command) => start_error(&command.exec(), &command),
        Err(error) => format!("{error:#}"),
    };
    let _ = writeln!(File::from(tell), "{error}");
    ExitCode::from(START_ERROR)
}

fn start_error(error: &io::Error, command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    match error.kind() {
        io::ErrorKind::NotFound => format!("exec: \"{program}\": executable file not found in $PATH"),
        _ => format!("exec: \"{program}\": {error}"),
    }
}

fn prepare(spec: &Path) -> anyhow::Result<Command> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    anyhow::ensure!(sandbox_lives()?, "the sandbox has ended");
    let _ = rustix::process::setsid();
    let spec: ContainerSpec = serde_json::from_reader(File::open(spec)?)?;
    let (program, arguments) = spec.argv.split_first().context("no command specified")?;
    let log = OpenOptions::new().create(true).append(true).open(&spec.log).context("log file")?;

    unshare(UnshareFlags::NEWNS | UnshareFlags::NEWUTS | UnshareFlags::NEWIPC)?;
    rustix::system::sethostname(spec.hostname.as_bytes()).context("host name")?;
    rootfs::enter(&spec)?;

    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(spec.env.iter().map(|(name, value)| (name, value)))
        .current_dir(&spec.working_dir)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    Ok(command)
}

/// The death signal only fires for deaths after it was asked for: look whether the reader of our pipe is still there.
fn sandbox_lives() -> io::Result<bool> {
    let stdout = io::stdout();
    let mut fds = [PollFd::from_borrowed_fd(stdout.as_fd(), PollFlags::OUT)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(!fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP))
}
