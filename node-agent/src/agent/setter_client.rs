//! Client of the setter's Unix socket.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use crate::setting::{MAX_LINE, SettingsRequest, SettingsResponse};

/// Timeout of one request: the setter gives a hung GPU two calls of two seconds.
const TIMEOUT: Duration = Duration::from_secs(6);

/// A connection to the setter, opened on demand.
#[derive(Debug)]
pub struct SetterClient {
    socket: PathBuf,
    stream: Option<BufReader<UnixStream>>,
    down_since: Option<Instant>,
}

impl SetterClient {
    /// Creates a client for `socket`; connects on demand.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), stream: None, down_since: None }
    }

    /// Sends the desired settings and returns the result; `None` if the setter cannot be reached.
    pub async fn request(&mut self, request: &SettingsRequest) -> Option<SettingsResponse> {
        match tokio::time::timeout(TIMEOUT, self.exchange(request)).await {
            Ok(Ok(response)) => {
                self.down_since = None;
                Some(response)
            }
            failed => {
                self.stream = None;
                if self.down_since.is_none() {
                    self.down_since = Some(Instant::now());
                    let error =
                        failed.map_or_else(|_| "no answer".to_owned(), |answer| format!("{answer:?}"));
                    tracing::warn!(socket = %self.socket.display(), error, "the setter cannot be reached");
                }
                None
            }
        }
    }

    /// For how long the setter has been unreachable.
    #[must_use]
    pub fn down_for(&self) -> Duration {
        self.down_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    async fn exchange(&mut self, request: &SettingsRequest) -> std::io::Result<SettingsResponse> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => none.insert(BufReader::new(UnixStream::connect(&self.socket).await?)),
        };
        let mut line = serde_json::to_vec(request).map_err(std::io::Error::other)?;
        line.push(b'\n');
        stream.write_all(&line).await?;
        line.clear();
        stream.take(MAX_LINE as u64).read_until(b'\n', &mut line).await?;
        serde_json::from_slice(&line).map_err(std::io::Error::other)
    }
}
