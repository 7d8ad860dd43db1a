//! What can go wrong with the proxy.

use crate::pki::PkiError;
use crate::ports::NoFreePort;

/// The proxy could not be started, or an exchange failed.
#[derive(Debug, thiserror::Error)]
pub enum FaultProxyError {
    /// Keys and certificates.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// No port.
    #[error(transparent)]
    Port(#[from] NoFreePort),
    /// A socket.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// TLS.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    /// A certificate or key is not PEM.
    #[error("not PEM: {0}")]
    Pem(String),
    /// The server's name is none.
    #[error(transparent)]
    ServerName(#[from] rustls::pki_types::InvalidDnsNameError),
    /// The API server could not be asked.
    #[error("asking the API server")]
    Upstream(#[from] hyper::Error),
    /// A request that cannot be handed on.
    #[error(transparent)]
    Request(#[from] http::Error),
    /// The caller's body could not be read.
    #[error("reading the request: {0}")]
    Body(String),
    /// The answer was lost on purpose.
    #[error("the answer was lost on purpose")]
    Lost,
    /// No such thing was seen in time.
    #[error("rule met {met} requests within {seconds} s, wanted {wanted}")]
    NotMet {
        /// So many were met.
        met: u64,
        /// So many were wanted.
        wanted: u64,
        /// The limit.
        seconds: u64,
    },
}

impl FaultProxyError {
    pub(super) fn pem(error: rustls::pki_types::pem::Error) -> Self {
        Self::Pem(error.to_string())
    }

    pub(super) fn body(error: Box<dyn std::error::Error + Send + Sync>) -> Self {
        Self::Body(error.to_string())
    }
}
