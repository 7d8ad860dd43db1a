//! [`NodesClient`]: the control socket from Rust.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

use crate::config::Forward;
use crate::control::{Answer, Command, NodeInfo, PodInfo};

/// What can go wrong with a command.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The socket.
    #[error("control socket {path}: {source}")]
    Socket {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The answer makes no sense.
    #[error("the answer of the pretend kubelets: {0}")]
    Answer(#[from] serde_json::Error),
    /// The command was refused.
    #[error("{0}")]
    Refused(String),
}

/// Commands to running pretend kubelets. Cheap to clone; every command is a connection of its own.
#[derive(Debug, Clone)]
pub struct NodesClient {
    socket: PathBuf,
}

impl NodesClient {
    /// A client for the socket given as `--control`.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sends any command.
    pub async fn send(&self, command: &Command) -> Result<Answer, ClientError> {
        let failed = |source| ClientError::Socket { path: self.socket.clone(), source };
        let mut stream = UnixStream::connect(&self.socket).await.map_err(failed)?;
        let mut text = serde_json::to_vec(command)?;
        text.push(b'\n');
        stream.write_all(&text).await.map_err(failed)?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).await.map_err(failed)?;
        match serde_json::from_str(&line)? {
            Answer::Error(text) => Err(ClientError::Refused(text)),
            answer => Ok(answer),
        }
    }

    async fn done(&self, command: Command) -> Result<(), ClientError> {
        self.send(&command).await.map(drop)
    }

    /// All nodes.
    pub async fn nodes(&self) -> Result<Vec<NodeInfo>, ClientError> {
        match self.send(&Command::Nodes).await? {
            Answer::Nodes(nodes) => Ok(nodes),
            other => Err(ClientError::Refused(format!("unexpected answer {other:?}"))),
        }
    }

    /// All pods that still have an object or running containers.
    pub async fn pods(&self) -> Result<Vec<PodInfo>, ClientError> {
        match self.send(&Command::Pods).await? {
            Answer::Pods(pods) => Ok(pods),
            other => Err(ClientError::Refused(format!("unexpected answer {other:?}"))),
        }
    }

    /// See [`Command::Silence`].
    pub async fn silence(&self, node: &str) -> Result<(), ClientError> {
        self.done(Command::Silence { node: node.to_owned() }).await
    }

    /// See [`Command::Back`].
    pub async fn back(&self, node: &str) -> Result<(), ClientError> {
        self.done(Command::Back { node: node.to_owned() }).await
    }

    /// See [`Command::DeleteNode`].
    pub async fn delete_node(&self, node: &str) -> Result<(), ClientError> {
        self.done(Command::DeleteNode { node: node.to_owned() }).await
    }

    /// See [`Command::RestoreNode`].
    pub async fn restore_node(&self, node: &str) -> Result<(), ClientError> {
        self.done(Command::RestoreNode { node: node.to_owned() }).await
    }

    /// See [`Command::Reboot`].
    pub async fn reboot(&self, node: &str, down: Duration) -> Result<(), ClientError> {
        self.done(Command::Reboot { node: node.to_owned(), down_seconds: down.as_secs_f64() }).await
    }

    /// See [`Command::GpuHeal`].
    pub async fn gpu_heal(&self, node: &str, gpu: &str) -> Result<(), ClientError> {
        self.done(Command::GpuHeal { node: node.to_owned(), gpu: gpu.to_owned() }).await
    }

    /// See [`Command::GpuHang`].
    pub async fn gpu_hang(&self, node: &str, gpu: &str) -> Result<(), ClientError> {
        self.done(Command::GpuHang { node: node.to_owned(), gpu: gpu.to_owned() }).await
    }

    /// See [`Command::Forward`].
    pub async fn forward(&self, forward: Forward) -> Result<(), ClientError> {
        self.done(Command::Forward(forward)).await
    }
}
