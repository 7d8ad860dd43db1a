//! The child that lives inside: unshares, sets the network up, starts containers and tells how they ended.
//!
//! Namespaces belong to threads, and a death signal fires when the *thread* that made a child ends: the process is
//! single-threaded until it has unshared, then each container has one thread that lives as long as it does.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};
use rustix::process::{
    Pid, PidfdFlags, Signal, getegid, geteuid, pidfd_open, pidfd_send_signal, set_parent_process_death_signal,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::messages::{Ended, Operation, PACKET, Report, Request};
use super::namespaces::unshare;
use super::network;
use super::spec::ContainerSpec;

/// A container's thread only waits.
const THREAD_STACK: usize = 128 * 1024;

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
    let served = std::env::current_exe().and_then(|exe| {
        let (running, networks) = (Running::default(), Networks::default());
        Supervisor { socket: Arc::new(socket), exe, running, networks }.run()
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandbox: {error}");
            ExitCode::FAILURE
        }
    }
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
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .context("private mounts")?;
    network::set_up().context("loopback, routes and bridge of a network namespace")?;
    Ok(())
}

/// First processes of containers, to be signalled, by the request that started them.
type Running = Arc<Mutex<BTreeMap<u64, OwnedFd>>>;

/// Networks of pods, by address.
type Networks = Arc<Mutex<BTreeMap<Ipv4Addr, OwnedFd>>>;

struct Supervisor {
    socket: Arc<OwnedFd>,
    exe: PathBuf,
    running: Running,
    networks: Networks,
}

impl Supervisor {
    /// Serves the parent until it closes its end; containers get their death signal as this process leaves.
    fn run(self) -> io::Result<()> {
        let mut buffer = vec![0u8; PACKET];
        loop {
            let mut control = RecvAncillaryBuffer::default();
            let packet = &mut [IoSliceMut::new(&mut buffer)];
            let got = match net::recvmsg(&self.socket, packet, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(message) => message.bytes,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            if got == 0 {
                return Ok(());
            }
            let request: Request = serde_json::from_slice(&buffer[..got]).map_err(io::Error::other)?;
            self.answer(request)?;
        }
    }

    fn answer(&self, Request { id, ask }: Request) -> io::Result<()> {
        let outcome = match ask {
            Operation::AddPod { ip } => match self.add_pod(id, ip) {
                Ok(()) => return Ok(()), // answered when it is there
                Err(error) => Err(error),
            },
            Operation::RemovePod { ip } => {
                self.networks.lock().remove(&ip);
                Ok(None)
            }
            Operation::Spawn { spec } => match self.spawn(id, spec) {
                Ok(()) => return Ok(()), // answered when its program has started
                Err(error) => Err(error),
            },
            Operation::Signal { container, signal } => self.signal(container, signal).map(|()| None),
            Operation::Listen { addr } => listen(addr).map(Some),
            Operation::Socket => socket().map(Some),
        };
        match outcome {
            Ok(fd) => send(&self.socket, &Report::Done { id }, fd.as_ref()),
            Err(error) => send(&self.socket, &Report::Failed { id, message: error.to_string() }, None),
        }
    }

    /// A thread moves into the new namespace and ends there.
    fn add_pod(&self, id: u64, ip: Ipv4Addr) -> io::Result<()> {
        if self.networks.lock().contains_key(&ip) {
            return send(&self.socket, &Report::Done { id }, None);
        }
        let (socket, networks) = (Arc::clone(&self.socket), Arc::clone(&self.networks));
        std::thread::Builder::new().spawn(move || {
            let report = match network::add_pod(ip) {
                Ok(network) => {
                    networks.lock().insert(ip, network);
                    Report::Done { id }
                }
                Err(error) => Report::Failed { id, message: format!("network of pod {ip}: {error}") },
            };
            let _ = send(&socket, &report, None);
        })?;
        Ok(())
    }

    /// A thread per container: it alone gets a new PID namespace for its child, it waits for its end, and its own
    /// end would be the child's.
    fn spawn(&self, id: u64, spec: PathBuf) -> io::Result<()> {
        let (socket, exe, running) = (Arc::clone(&self.socket), self.exe.clone(), Arc::clone(&self.running));
        let networks = Arc::clone(&self.networks);
        std::thread::Builder::new().stack_size(THREAD_STACK).spawn(move || {
            let moved = enter_network(&spec, &networks);
            let report = match moved.and_then(|()| run_container(id, &exe, &spec, &socket, &running)) {
                Ok(ended) => Report::Ended { container: id, ended },
                Err(error) => Report::Failed { id, message: error.to_string() },
            };
            running.lock().remove(&id);
            let _ = send(&socket, &report, None);
        })?;
        Ok(())
    }

    fn signal(&self, container: u64, signal: i32) -> io::Result<()> {
        let running = self.running.lock();
        let process = running.get(&container).ok_or(io::ErrorKind::NotFound)?;
        let signal = Signal::from_named_raw(signal).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(pidfd_send_signal(process, signal)?)
    }
}

/// Moves this thread, and so the container it will start, into its pod's network.
fn enter_network(spec: &Path, networks: &Networks) -> io::Result<()> {
    let spec: ContainerSpec = serde_json::from_reader(File::open(spec)?)?;
    let Some(ip) = spec.pod_ip else { return Ok(()) };
    let networks = networks.lock();
    let network = networks.get(&ip).ok_or_else(|| io::Error::other(format!("no network for pod {ip}")))?;
    Ok(move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// Starts `container-init` as process 1 of a PID namespace of its own, reports the start and waits for the end.
fn run_container(id: u64, exe: &Path, spec: &Path, socket: &OwnedFd, running: &Running) -> io::Result<Ended> {
    use std::os::unix::process::ExitStatusExt as _;
    let (mut reader, writer) = io::pipe()?;
    unshare(UnshareFlags::NEWPID)?;
    let mut child = Command::new(exe)
        .arg("container-init")
        .arg(spec)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::from(OwnedFd::from(writer)))
        .spawn()?;
    let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    running.lock().insert(id, pidfd);
    let mut said = String::new();
    let _ = reader.read_to_string(&mut said); // ends when the program has started or there will be none
    if said.trim().is_empty() {
        send(socket, &Report::Started { id, pid: child.id().cast_signed() }, None)?;
        let status = child.wait()?;
        Ok(Ended { code: status.code(), signal: status.signal() })
    } else {
        child.wait()?;
        Err(io::Error::other(said.trim().to_owned()))
    }
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?)
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
