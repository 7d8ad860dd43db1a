//! The child that lives inside: unshares, sets the network up, starts containers and tells how they ended.
//!
//! One thread and one poll loop: namespaces belong to threads, and a death signal fires when the *thread* that made
//! a child ends.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketFlags, SocketType,
};
use rustix::process::{
    Pid, PidfdFlags, Signal, getegid, geteuid, pidfd_open, pidfd_send_signal, set_parent_process_death_signal,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::{Ask, Ended, LOCAL_RANGES, Report, Request, netlink};

/// Longest packet either way; requests and reports are far shorter.
pub(super) const PACKET: usize = 64 * 1024;

/// `pretend-kubelets sandbox`, with the socket to its parent as standard input. Must be called before any thread
/// is started.
pub fn sandbox_main() -> ExitCode {
    let Ok(socket) = io::stdin().as_fd().try_clone_to_owned() else { return ExitCode::FAILURE };
    match enter() {
        Ok(()) => {}
        Err(error) => {
            let _ = send(&socket, &Report::Unable { message: format!("{error:#}") }, None);
            return ExitCode::FAILURE;
        }
    }
    if send(&socket, &Report::Ready, None).is_err() {
        return ExitCode::FAILURE;
    }
    match Supervisor::new(socket).and_then(Supervisor::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandbox: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `unshare(2)` for flags that leave the file table alone, the only ones with a safety condition.
#[expect(deprecated, reason = "the replacement is unsafe on account of CLONE_FILES, which is never passed")]
pub(super) fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    rustix::thread::unshare(flags.difference(UnshareFlags::FILES))
}

fn enter() -> anyhow::Result<()> {
    use anyhow::Context as _;
    set_parent_process_death_signal(Some(Signal::KILL)).context("PR_SET_PDEATHSIG")?;
    let _ = rustix::process::setsid(); // Ctrl-C at a terminal is for the parent, who then ends us in order
    let wanted = UnshareFlags::NEWNET | UnshareFlags::NEWNS;
    if unshare(wanted).is_err() {
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        unshare(wanted | UnshareFlags::NEWUSER).context("unshare(2) with a user namespace")?;
        std::fs::write("/proc/self/setgroups", "deny").context("/proc/self/setgroups")?;
        std::fs::write("/proc/self/uid_map", format!("0 {uid} 1")).context("/proc/self/uid_map")?;
        std::fs::write("/proc/self/gid_map", format!("0 {gid} 1")).context("/proc/self/gid_map")?;
    }
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).context("private mounts")?;
    netlink::set_up(&LOCAL_RANGES).context("loopback and its routes")?;
    Ok(())
}

/// A container between its start and the report of its end.
struct Running {
    child: Child,
    pidfd: OwnedFd,
    /// Closed by the program's start; text in it says why there was none.
    starting: Option<(File, Vec<u8>)>,
}

struct Supervisor {
    socket: OwnedFd,
    own_pids: OwnedFd,
    exe: PathBuf,
    containers: BTreeMap<u64, Running>,
}

impl Supervisor {
    fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            socket,
            own_pids: File::open("/proc/self/ns/pid")?.into(),
            exe: std::env::current_exe()?,
            containers: BTreeMap::new(),
        })
    }

    fn run(mut self) -> io::Result<()> {
        loop {
            let (asked, starting, ended) = self.wait()?;
            for id in starting {
                self.follow_start(id);
            }
            for id in ended {
                self.follow_end(id)?;
            }
            if asked && !self.answer()? {
                return Ok(()); // the parent has closed its end; containers get their death signal as we leave
            }
        }
    }

    /// Who has news: the parent, containers that are starting, containers that have ended.
    fn wait(&self) -> io::Result<(bool, Vec<u64>, Vec<u64>)> {
        let mut fds: Vec<(Option<(u64, bool)>, BorrowedFd<'_>)> = vec![(None, self.socket.as_fd())];
        for (id, running) in &self.containers {
            match &running.starting {
                Some((pipe, _)) => fds.push((Some((*id, true)), pipe.as_fd())),
                None => fds.push((Some((*id, false)), running.pidfd.as_fd())),
            }
        }
        let mut polled: Vec<PollFd<'_>> =
            fds.iter().map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        match poll(&mut polled, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok((false, vec![], vec![])),
            Err(error) => return Err(error.into()),
        }
        let (mut asked, mut starting, mut ended) = (false, vec![], vec![]);
        for ((who, _), fd) in fds.iter().zip(&polled) {
            if fd.revents().is_empty() {
                continue;
            }
            match who {
                None => asked = true,
                Some((id, true)) => starting.push(*id),
                Some((id, false)) => ended.push(*id),
            }
        }
        Ok((asked, starting, ended))
    }

    /// Takes one packet; false when the parent is gone.
    fn answer(&mut self) -> io::Result<bool> {
        let mut buffer = vec![0u8; PACKET];
        let got = {
            let mut control = RecvAncillaryBuffer::default();
            net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)?
                .bytes
        };
        if got == 0 {
            return Ok(false);
        }
        let request: Request = serde_json::from_slice(&buffer[..got]).map_err(io::Error::other)?;
        let id = request.id;
        let outcome = match request.ask {
            Ask::Spawn { spec } => match self.spawn(id, &spec) {
                Ok(()) => return Ok(true), // answered when its program has started
                Err(error) => Err(error),
            },
            Ask::Signal { container, signal } => self.signal(container, signal).map(|()| None),
            Ask::Listen { addr } => listen(addr).map(Some),
            Ask::Socket => net::socket_with(
                AddressFamily::INET,
                SocketType::STREAM,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
                None,
            )
            .map(Some)
            .map_err(io::Error::from),
        };
        match outcome {
            Ok(fd) => send(&self.socket, &Report::Done { id }, fd.as_ref())?,
            Err(error) => send(&self.socket, &Report::Failed { id, message: error.to_string() }, None)?,
        }
        Ok(true)
    }

    /// Starts `container-init` as process 1 of a PID namespace of its own.
    fn spawn(&mut self, id: u64, spec: &Path) -> io::Result<()> {
        let (reader, writer) = io::pipe()?;
        unshare(UnshareFlags::NEWPID)?;
        let spawned = Command::new(&self.exe)
            .arg("container-init")
            .arg(spec)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::from(OwnedFd::from(writer)))
            .spawn();
        // Back to our own namespace, or the next unshare would be refused.
        move_into_link_name_space(self.own_pids.as_fd(), Some(LinkNameSpaceType::ProcessID))?;
        let child = spawned?;
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        let pipe = File::from(OwnedFd::from(reader));
        self.containers.insert(id, Running { child, pidfd, starting: Some((pipe, vec![])) });
        Ok(())
    }

    fn signal(&self, container: u64, signal: i32) -> io::Result<()> {
        let running = self.containers.get(&container).ok_or(io::ErrorKind::NotFound)?;
        let signal = Signal::from_named_raw(signal).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(pidfd_send_signal(&running.pidfd, signal)?)
    }

    /// Reads what a starting container says; the pipe's end means its program runs or it has given up.
    fn follow_start(&mut self, id: u64) {
        let Some(running) = self.containers.get_mut(&id) else { return };
        let Some((pipe, said)) = &mut running.starting else { return };
        let mut buffer = [0u8; 4096];
        match pipe.read(&mut buffer) {
            Ok(got @ 1..) => said.extend(&buffer[..got]),
            Ok(0) | Err(_) => {
                let said = std::mem::take(said);
                running.starting = None;
                let report = if said.is_empty() {
                    Report::Started { id, pid: running.child.id().cast_signed() }
                } else {
                    let _ = running.child.wait();
                    self.containers.remove(&id);
                    Report::Failed { id, message: String::from_utf8_lossy(&said).trim().to_owned() }
                };
                let _ = send(&self.socket, &report, None);
            }
        }
    }

    fn follow_end(&mut self, id: u64) -> io::Result<()> {
        use std::os::unix::process::ExitStatusExt as _;
        let Some(running) = self.containers.get_mut(&id) else { return Ok(()) };
        let Some(status) = running.child.try_wait()? else { return Ok(()) };
        self.containers.remove(&id);
        let ended = Ended { code: status.code(), signal: status.signal() };
        send(&self.socket, &Report::Ended { container: id, ended }, None)
    }
}

fn listen(addr: SocketAddr) -> io::Result<OwnedFd> {
    let listener = std::net::TcpListener::bind(addr)?;
    listener.set_nonblocking(true)?;
    Ok(listener.into())
}

fn send(socket: &OwnedFd, report: &Report, fd: Option<&OwnedFd>) -> io::Result<()> {
    let bytes = serde_json::to_vec(report).map_err(io::Error::other)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let rights = fd.map(|fd| [fd.as_fd()]);
    if let Some(rights) = &rights {
        control.push(SendAncillaryMessage::ScmRights(rights));
    }
    net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}
