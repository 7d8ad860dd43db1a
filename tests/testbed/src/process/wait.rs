//! Waiting for a process: each wait ends early, with the end of the log, when the process ends.

use std::io;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{POLL, Process, ProcessError, ProcessState};

/// Lines of the log that an error shows.
const TAIL: usize = 25;

impl Process {
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

async fn get_is_ok(address: &str, path: &str) -> io::Result<bool> {
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes())
        .await?;
    let mut head = [0; 12];
    stream.read_exact(&mut head).await?;
    Ok(head.starts_with(b"HTTP/1.") && &head[8..12] == b" 200")
}
