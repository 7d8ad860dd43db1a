//! Says when clients cannot connect by TLS: a certificate that one side does not take is otherwise seen by the client alone.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Interval between two log lines.
const EVERY: Duration = Duration::from_secs(60);

/// The failed handshakes of one listener.
#[derive(Default)]
pub(super) struct FailedHandshakes {
    written: Mutex<Option<Instant>>,
}

impl FailedHandshakes {
    /// Logs one in a minute. A client that only left, as a port scanner, is not logged.
    pub(super) fn note(&self, peer: SocketAddr, error: &io::Error) {
        if error.kind() == io::ErrorKind::InvalidData && self.is_due() {
            tracing::warn!(%peer, %error, "a TLS handshake failed; further ones are not logged for a minute");
        }
    }

    fn is_due(&self) -> bool {
        let now = Instant::now();
        let mut written = self.written.lock();
        let due = written.is_none_or(|at| now.duration_since(at) >= EVERY);
        if due {
            *written = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_failed_handshake_in_a_minute_is_logged() {
        let failed = FailedHandshakes::default();
        assert!(failed.is_due() && !failed.is_due());
        tokio::time::advance(EVERY - Duration::from_secs(1)).await;
        assert!(!failed.is_due());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(failed.is_due() && !failed.is_due());
    }
}
