//! TLS for servers: certificate and key from PEM texts, replaced without a restart.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio_rustls::TlsAcceptor;

/// Interval between two looks at the source of a certificate.
pub const RELOAD_EVERY: Duration = Duration::from_secs(10);

/// Errors of a TLS configuration.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A text has no PEM of the expected kind.
    #[error("no usable {0}")]
    Pem(&'static str),
    /// Key and certificate do not match, or their type is not supported.
    #[error("certificate and key cannot be used")]
    Pair(#[source] rustls::Error),
}

/// PEM texts of a server.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TlsPem {
    /// Certificate chain, leaf first.
    pub certificate: Vec<u8>,
    /// Private key of the leaf (PKCS#8, SEC1 or PKCS#1).
    pub key: Vec<u8>,
}

/// A TLS configuration that can be replaced while serving: TLS 1.2 and 1.3, without client certificates. Clones share it.
#[derive(Clone)]
pub struct Tls {
    current: Arc<ArcSwap<ServerConfig>>,
    pem: Arc<parking_lot::Mutex<TlsPem>>,
}

impl Tls {
    /// Validates `pem`; [`Tls::replace`] replaces it.
    ///
    /// # Errors
    /// When a text is not PEM, or key and certificate do not match.
    pub fn from_pem(pem: TlsPem) -> Result<Self, TlsError> {
        let config = pem.configure()?;
        Ok(Self {
            current: Arc::new(ArcSwap::from_pointee(config)),
            pem: Arc::new(parking_lot::Mutex::new(pem)),
        })
    }

    /// The acceptor for the next connection.
    #[must_use]
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current.load_full())
    }

    /// Applies other PEM texts; returns whether they differ. Unusable ones are not applied.
    ///
    /// # Errors
    /// As [`Tls::from_pem`].
    pub fn replace(&self, pem: TlsPem) -> Result<bool, TlsError> {
        let mut current = self.pem.lock();
        if *current == pem {
            return Ok(false);
        }
        self.current.store(Arc::new(pem.configure()?));
        *current = pem;
        Ok(true)
    }
}

impl TlsPem {
    fn configure(&self) -> Result<ServerConfig, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Pair)?
            .with_no_client_auth();
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&self.certificate)
            .collect::<Result<_, _>>()
            .map_err(|_| TlsError::Pem("certificate"))?;
        if chain.is_empty() {
            return Err(TlsError::Pem("certificate"));
        }
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|_| TlsError::Pem("private key"))?;
        let mut config = builder.with_single_cert(chain, key).map_err(TlsError::Pair)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}
