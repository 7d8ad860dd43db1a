//! How the command speaks with a running test bed: one line of JSON each way over a Unix socket.
//!
//! The socket is an abstract one named after user and test bed. It needs no file, so no state can be stale: the name is
//! taken exactly as long as the test bed runs. Both sides accept only peers of their own user.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

use crate::components::Component;
use crate::testbed::{ComponentStatus, Testbed};

/// The longest line either side reads.
const MAX_LINE_BYTES: u64 = 256 * 1024;

/// A test bed could not be reached or did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The name is not usable.
    #[error("{0:?} is no name for a test bed: letters, digits and dashes, at most 40")]
    Name(String),
    /// Another one runs under this name.
    #[error("a test bed named {0:?} runs already (testbed status --name {0})")]
    Taken(String),
    /// None runs under this name.
    #[error("no test bed named {name:?} runs here{}", others(.running))]
    NotRunning {
        /// The name asked for.
        name: String,
        /// The names that do run.
        running: Vec<String>,
    },
    /// The other side is another user's.
    #[error("the test bed named {0:?} belongs to another user")]
    Foreign(String),
    /// Reading or writing failed.
    #[error("talking to the test bed failed")]
    Io(#[from] io::Error),
    /// The other side wrote something else.
    #[error("the test bed's answer could not be read")]
    Answer(#[from] serde_json::Error),
    /// The test bed refused.
    #[error("{0}")]
    Refused(String),
}

fn others(running: &[String]) -> String {
    if running.is_empty() { String::new() } else { format!(" (there is: {})", running.join(", ")) }
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", content = "component", rename_all = "kebab-case")]
pub enum Request {
    /// What runs, and where.
    Status,
    /// SIGKILL a component.
    Kill(Component),
    /// SIGSTOP a component.
    Pause(Component),
    /// SIGCONT a component.
    Resume(Component),
    /// Stop and start a component, wait until it serves.
    Restart(Component),
    /// End everything.
    Down,
}

/// The answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "answer", content = "value", rename_all = "kebab-case")]
pub enum Response {
    /// To [`Request::Status`].
    Status(Status),
    /// It is done.
    Done,
    /// It could not be done.
    Failed(String),
}

/// A running test bed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Its name.
    pub name: String,
    /// The process that holds it.
    pub pid: u32,
    /// `https://127.0.0.1:PORT`.
    pub api_server: String,
    /// The administrator's kubeconfig.
    pub kubeconfig: PathBuf,
    /// The folder with logs, audit log, keys.
    pub data_dir: PathBuf,
    /// The folder with kubectl and helm.
    pub programs: PathBuf,
    /// Its processes.
    pub components: Vec<ComponentStatus>,
}

/// The door of one test bed.
#[derive(Debug)]
pub struct Control {
    listener: UnixListener,
}

/// Somebody asked for the end; answered when dropped after [`DownRequest::done`].
#[derive(Debug)]
pub struct DownRequest {
    stream: UnixStream,
}

impl DownRequest {
    /// Tells the one who asked that everything is gone.
    pub async fn done(mut self) {
        // Who asked may have gone away; that changes nothing.
        let _ = write_line(&mut self.stream, &Response::Done).await;
    }
}

impl Control {
    /// Takes a name, before anything is started under it.
    pub fn bind(name: &str) -> Result<Self, ControlError> {
        let listener = match std::os::unix::net::UnixListener::bind_addr(&address(name)?) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                return Err(ControlError::Taken(name.to_owned()));
            }
            bound => bound?,
        };
        listener.set_nonblocking(true)?;
        Ok(Self { listener: UnixListener::from_std(listener)? })
    }

    /// Answers requests until one asks for the end.
    pub async fn serve(&self, testbed: &Arc<Testbed>) -> DownRequest {
        let (down, mut asked) = mpsc::channel(1);
        loop {
            tokio::select! {
                Some(stream) = asked.recv() => return DownRequest { stream },
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        tokio::spawn(answer(stream, testbed.clone(), down.clone()));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection on the control socket");
                        tokio::time::sleep(Duration::from_millis(200)).await;
                    }
                }
            }
        }
    }
}

async fn answer(mut stream: UnixStream, testbed: Arc<Testbed>, down: mpsc::Sender<UnixStream>) {
    let request = match read_line::<Request>(&mut stream).await {
        Ok(Request::Down) if is_ours(&stream) => {
            // The receiver is gone when the end is under way already.
            let _ = down.send(stream).await;
            return;
        }
        read => read,
    };
    let response = match request {
        _ if !is_ours(&stream) => Response::Failed("this test bed belongs to another user".to_owned()),
        Err(error) => Response::Failed(format!("not a request: {error}")),
        Ok(request) => perform(request, &testbed).await,
    };
    if let Err(error) = write_line(&mut stream, &response).await {
        tracing::debug!(%error, "the answer was not taken");
    }
}

async fn perform(request: Request, testbed: &Testbed) -> Response {
    let done = match request {
        Request::Status => return Response::Status(status(testbed)),
        Request::Kill(component) => testbed.kill(component),
        Request::Pause(component) => testbed.pause(component),
        Request::Resume(component) => testbed.resume(component),
        Request::Restart(component) => testbed.restart(component).await,
        Request::Down => Ok(()),
    };
    done.map_or_else(|error| Response::Failed(with_causes(&error)), |()| Response::Done)
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// The status of a test bed of this process.
pub fn status(testbed: &Testbed) -> Status {
    Status {
        name: testbed.name().to_owned(),
        pid: std::process::id(),
        api_server: testbed.api_server_url().to_owned(),
        kubeconfig: testbed.kubeconfig(),
        data_dir: testbed.data_dir().to_owned(),
        programs: testbed.programs().folder().to_owned(),
        components: testbed.status(),
    }
}

/// Asks a running test bed for something and waits for the answer.
pub async fn ask(name: &str, request: Request) -> Result<Response, ControlError> {
    let stream = match std::os::unix::net::UnixStream::connect_addr(&address(name)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            return Err(ControlError::NotRunning { name: name.to_owned(), running: running() });
        }
        connected => connected?,
    };
    stream.set_nonblocking(true)?;
    let mut stream = UnixStream::from_std(stream)?;
    if !is_ours(&stream) {
        return Err(ControlError::Foreign(name.to_owned()));
    }
    write_line(&mut stream, &request).await?;
    match read_line(&mut stream).await? {
        Response::Failed(reason) => Err(ControlError::Refused(reason)),
        response => Ok(response),
    }
}

/// The status of a running test bed.
pub async fn ask_status(name: &str) -> Result<Status, ControlError> {
    match ask(name, Request::Status).await? {
        Response::Status(status) => Ok(status),
        other => Err(ControlError::Refused(format!("an unexpected answer: {other:?}"))),
    }
}

/// The names of this user's running test beds, sorted.
pub fn running() -> Vec<String> {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let prefix = format!("@{}", prefix());
    let mut names: Vec<String> = sockets
        .lines()
        .filter_map(|line| line.split_whitespace().last()?.strip_prefix(&prefix).map(str::to_owned))
        .collect();
    names.sort();
    // Accepted connections carry the name too.
    names.dedup();
    names
}

fn prefix() -> String {
    format!("andreas-testbed-{}-", rustix::process::getuid().as_raw())
}

fn address(name: &str) -> Result<SocketAddr, ControlError> {
    let good =
        !name.is_empty() && name.len() <= 40 && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if !good {
        return Err(ControlError::Name(name.to_owned()));
    }
    Ok(SocketAddr::from_abstract_name(format!("{}{name}", prefix()))?)
}

fn is_ours(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == rustix::process::getuid().as_raw())
}

async fn write_line(stream: &mut UnixStream, value: &impl Serialize) -> Result<(), ControlError> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.write_all(&line).await?;
    Ok(())
}

async fn read_line<T: serde::de::DeserializeOwned>(stream: &mut UnixStream) -> Result<T, ControlError> {
    let mut line = String::new();
    BufReader::new(stream.take(MAX_LINE_BYTES)).read_line(&mut line).await?;
    if line.is_empty() {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok(serde_json::from_str(&line)?)
}
