//! The parent's side of the sandbox.

use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendFlags, SocketFlags, SocketType,
};
use tokio::sync::oneshot;

use super::messages::{Ended, Operation, PACKET, Report, Request};

/// What can go wrong with the sandbox.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The kernel or its administrator does not allow what is needed.
    #[error(
        "containers cannot run as processes here ({0}): run as root, or allow user namespaces (sysctl \
         user.max_user_namespaces > 0, kernel.apparmor_restrict_unprivileged_userns=0, a container runtime that \
         permits unshare), or set `containers: simulated`"
    )]
    NotAllowed(String),
    /// The sandbox process could not be started or talked to.
    #[error("the sandbox process: {0}")]
    Io(#[from] io::Error),
    /// The sandbox did not do what was asked.
    #[error("{0}")]
    Refused(String),
    /// The sandbox process is gone, and all containers with it.
    #[error("the sandbox process has ended")]
    Gone,
}

/// A started container.
#[derive(Debug)]
pub struct Container {
    /// Its name in the sandbox.
    pub id: u64,
    /// Process id, as the machine sees it.
    pub pid: i32,
    /// Resolves once, when it has ended; an error when the sandbox is gone.
    pub ended: oneshot::Receiver<Ended>,
}

/// What an answer may carry.
#[derive(Default)]
struct ReplyContent {
    pid: Option<i32>,
    fd: Option<OwnedFd>,
}

type Reply = Result<ReplyContent, String>;

#[derive(Default)]
struct Waiting {
    replies: HashMap<u64, oneshot::Sender<Reply>>,
    ends: HashMap<u64, oneshot::Sender<Ended>>,
}

/// Handle to the sandbox process. It ends, with every container, when this is dropped.
pub struct Sandbox {
    socket: OwnedFd,
    waiting: Arc<Mutex<Option<Waiting>>>,
    next: AtomicU64,
    child: Mutex<std::process::Child>,
}

impl Sandbox {
    /// Starts `exe sandbox` and waits until its namespaces are up. Call it from the main thread, before an async
    /// runtime exists: the sandbox dies with the thread that started it.
    pub fn start(exe: &Path) -> Result<Self, SandboxError> {
        let (ours, theirs) =
            net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(io::Error::from)?;
        let child =
            Command::new(exe).arg("sandbox").stdin(Stdio::from(theirs)).stdout(Stdio::null()).spawn()?;
        let child = Mutex::new(child);
        match receive(&ours)? {
            Some((Report::Ready, _)) => {}
            Some((Report::Unable { message }, _)) => return Err(SandboxError::NotAllowed(message)),
            _ => return Err(SandboxError::NotAllowed("the sandbox ended at once".to_owned())),
        }
        let waiting = Arc::new(Mutex::new(Some(Waiting::default())));
        let (socket, shared) = (ours.try_clone()?, Arc::clone(&waiting));
        std::thread::Builder::new().name("sandbox-reports".to_owned()).spawn(move || {
            while let Ok(Some((report, fd))) = receive(&socket) {
                deliver(&shared, report, fd);
            }
            // Dropping the senders tells everybody who waits.
            shared.lock().take();
        })?;
        Ok(Self { socket: ours, waiting, next: AtomicU64::new(1), child })
    }

    /// Makes a pod's network, unless there is one.
    pub async fn add_pod(&self, ip: Ipv4Addr) -> Result<(), SandboxError> {
        self.ask(self.next.fetch_add(1, Ordering::Relaxed), Operation::AddPod { ip }).await.map(drop)
    }

    /// Gives a pod's network up; it goes with the pod's last process.
    pub async fn remove_pod(&self, ip: Ipv4Addr) -> Result<(), SandboxError> {
        self.ask(self.next.fetch_add(1, Ordering::Relaxed), Operation::RemovePod { ip }).await.map(drop)
    }

    /// Starts a container; resolves when its program runs.
    pub async fn spawn(&self, spec: PathBuf) -> Result<Container, SandboxError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (tell, ended) = oneshot::channel();
        match self.waiting.lock().as_mut() {
            Some(waiting) => waiting.ends.insert(id, tell),
            None => return Err(SandboxError::Gone),
        };
        let answer = self.ask(id, Operation::Spawn { spec }).await;
        match answer {
            Ok(given) => Ok(Container { id, pid: given.pid.unwrap_or_default(), ended }),
            Err(error) => {
                if let Some(waiting) = self.waiting.lock().as_mut() {
                    waiting.ends.remove(&id);
                }
                Err(error)
            }
        }
    }

    /// Sends a signal to a container's first process.
    pub async fn signal(&self, container: u64, signal: rustix::process::Signal) -> Result<(), SandboxError> {
        let ask = Operation::Signal { container, signal: signal.as_raw() };
        self.ask(self.next.fetch_add(1, Ordering::Relaxed), ask).await.map(drop)
    }

    /// A listener on an address inside.
    pub async fn listen(&self, addr: SocketAddr) -> Result<tokio::net::TcpListener, SandboxError> {
        let fd = self.socket_by(Operation::Listen { addr }).await?;
        Ok(tokio::net::TcpListener::from_std(std::net::TcpListener::from(fd))?)
    }

    /// A connection to an address inside.
    pub async fn connect(&self, addr: SocketAddr) -> Result<tokio::net::TcpStream, SandboxError> {
        let fd = self.socket_by(Operation::Socket).await?;
        Ok(tokio::net::TcpSocket::from_std_stream(std::net::TcpStream::from(fd)).connect(addr).await?)
    }

    /// Process id of the sandbox.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.lock().id()
    }

    async fn socket_by(&self, ask: Operation) -> Result<OwnedFd, SandboxError> {
        let given = self.ask(self.next.fetch_add(1, Ordering::Relaxed), ask).await?;
        given.fd.ok_or_else(|| SandboxError::Refused("no socket came".to_owned()))
    }

    async fn ask(&self, id: u64, ask: Operation) -> Result<ReplyContent, SandboxError> {
        let (tell, reply) = oneshot::channel();
        match self.waiting.lock().as_mut() {
            Some(waiting) => waiting.replies.insert(id, tell),
            None => return Err(SandboxError::Gone),
        };
        let bytes = serde_json::to_vec(&Request { id, ask }).map_err(io::Error::other)?;
        let mut control = SendAncillaryBuffer::default();
        net::sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)
            .map_err(|_| SandboxError::Gone)?;
        reply.await.map_err(|_| SandboxError::Gone)?.map_err(SandboxError::Refused)
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let mut child = self.child.lock();
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn deliver(waiting: &Mutex<Option<Waiting>>, report: Report, fd: Option<OwnedFd>) {
    let mut guard = waiting.lock();
    let Some(waiting) = guard.as_mut() else { return };
    let (id, reply) = match report {
        Report::Started { id, pid } => (id, Ok(ReplyContent { pid: Some(pid), ..ReplyContent::default() })),
        Report::Done { id } => (id, Ok(ReplyContent { fd, ..ReplyContent::default() })),
        Report::Failed { id, message } => (id, Err(message)),
        Report::Ended { container, ended } => {
            if let Some(tell) = waiting.ends.remove(&container) {
                let _ = tell.send(ended);
            }
            return;
        }
        Report::Ready | Report::Unable { .. } => return,
    };
    if let Some(tell) = waiting.replies.remove(&id) {
        let _ = tell.send(reply);
    }
}

/// The next packet; none when the other end is closed.
fn receive(socket: &OwnedFd) -> io::Result<Option<(Report, Option<OwnedFd>)>> {
    let mut buffer = vec![0u8; PACKET];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        match net::recvmsg(socket, &mut [IoSliceMut::new(&mut buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)
        {
            Ok(message) => break message.bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    };
    if got == 0 {
        return Ok(None);
    }
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok(Some((serde_json::from_slice(&buffer[..got]).map_err(io::Error::other)?, fd)))
}
