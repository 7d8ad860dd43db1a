//! What one listener and its clients may take: connections, requests, memory and time.

use std::time::Duration;

/// Limits of one listener.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connection limit, including those in TLS handshakes. A further one closes the longest idle one.
    pub connections: usize,
    /// Timeout of a TLS handshake.
    pub handshake: Duration,
    /// Timeout until the first request, and for the head of each HTTP/1.1 request.
    pub header: Duration,
    /// Timeout until the answer of a request begins; then 408 is sent.
    pub request: Duration,
    /// Concurrent requests on one HTTP/2 connection.
    pub streams: u32,
    /// Concurrent requests in total; a further one gets 503 before its body is read.
    pub requests: usize,
    /// Idle timeout of authenticated clients' connections.
    pub idle: Duration,
    /// Idle timeout of all other connections.
    pub idle_unknown: Duration,
    /// Read buffer of one connection, in bytes. At least 8 KiB.
    pub buffer: u32,
    /// Time for requests in flight at shutdown.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            handshake: Duration::from_secs(5),
            header: Duration::from_secs(5),
            request: Duration::from_secs(30),
            streams: 8,
            requests: 1024,
            idle: Duration::from_secs(120),
            idle_unknown: Duration::from_secs(30),
            buffer: 64 * 1024,
            drain: Duration::from_secs(10),
        }
    }
}
