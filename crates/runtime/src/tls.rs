//! TLS for servers: certificate and key from PEM files, client certificates with expected names, reload
//! without restart.
//!
//! Files are polled and their content compared. File watches fail on mounted Secrets: the kubelet swaps a
//! symbolic link two levels up, so the watched file never changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::certificates::{CertificateMetrics, Validity, validity};

mod names;

pub use names::names_of;

/// Polling interval of the files.
pub const RELOAD_EVERY: Duration = Duration::from_secs(10);

/// Paths of the PEM files, and the accepted clients.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Certificate chain, leaf first.
    pub certificate: PathBuf,
    /// Private key of the leaf (PKCS#8, SEC1 or PKCS#1).
    pub key: PathBuf,
    /// Required client certificates; `None`: not required.
    pub clients: Option<ClientCertificates>,
    /// Minimum protocol version.
    pub oldest: MinTlsVersion,
}

/// Accepted client certificates. They are required, never optional.
#[derive(Clone, Debug)]
pub struct ClientCertificates {
    /// Trusted certificate authorities. Not the cluster's authority, which signs every kubelet.
    pub authority: PathBuf,
    /// Accepted common, DNS or URI names of the certificate. Empty accepts every name.
    pub names: Vec<String>,
}

/// Minimum TLS version of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinTlsVersion {
    /// For external clients.
    Tls12,
    /// For our own clients.
    Tls13,
}

/// Errors of a TLS configuration.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file could not be read.
    #[error("{path} cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file has no PEM of the expected kind.
    #[error("{path} holds no usable {what}")]
    Pem {
        /// The file.
        path: PathBuf,
        /// The expected content.
        what: &'static str,
    },
    /// Key and certificate do not match, or their type is not supported.
    #[error("certificate and key cannot be used")]
    Pair(#[source] rustls::Error),
    /// The client authority's certificates are unusable.
    #[error("the clients' certificate authority cannot be used: {0}")]
    Authority(String),
}

/// PEM texts of a server.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TlsPem {
    /// Certificate chain, leaf first.
    pub certificate: Vec<u8>,
    /// Private key of the leaf.
    pub key: Vec<u8>,
    /// Authorities of client certificates; ignored if none are required.
    pub authority: Vec<u8>,
}

/// A TLS configuration that can be replaced while serving. Clones share it.
#[derive(Clone)]
pub struct Tls {
    files: Arc<TlsFiles>,
    current: Arc<ArcSwap<ServerConfig>>,
    read: Arc<parking_lot::Mutex<TlsPem>>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// When a file is missing, is not PEM, or key and certificate do not match.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        Self::with_files(TlsPem::read(&files)?, files)
    }

    /// Creates it from PEM texts that are not in files; [`Tls::replace`] replaces them. `clients` are the
    /// expected names of client certificates; `None` requires none.
    ///
    /// # Errors
    /// When a text is not PEM, or key and certificate do not match.
    pub fn from_pem(
        pem: TlsPem,
        clients: Option<Vec<String>>,
        oldest: MinTlsVersion,
    ) -> Result<Self, TlsError> {
        let clients = clients.map(|names| ClientCertificates { authority: "ca.crt".into(), names });
        let files = TlsFiles { certificate: "tls.crt".into(), key: "tls.key".into(), clients, oldest };
        Self::with_files(pem, files)
    }

    /// Validates `pem` and creates the shared configuration; `files` is what later reloads read.
    fn with_files(pem: TlsPem, files: TlsFiles) -> Result<Self, TlsError> {
        let config = pem.configure(&files)?;
        Ok(Self {
            files: Arc::new(files),
            current: Arc::new(ArcSwap::from_pointee(config)),
            read: Arc::new(parking_lot::Mutex::new(pem)),
        })
    }

    /// The acceptor for the next connection.
    #[must_use]
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current.load_full())
    }

    /// Reads the files again and applies changes; returns whether there were any. Unusable files keep the old
    /// configuration and are retried: certificate and key may be read half swapped.
    ///
    /// # Errors
    /// As [`Tls::load`].
    pub fn reload(&self) -> Result<bool, TlsError> {
        self.replace(TlsPem::read(&self.files)?)
    }

    /// Applies other PEM texts; returns whether they differ. Unusable ones are not applied.
    ///
    /// # Errors
    /// As [`Tls::from_pem`].
    pub fn replace(&self, pem: TlsPem) -> Result<bool, TlsError> {
        let mut read = self.read.lock();
        if *read == pem {
            return Ok(false);
        }
        self.current.store(Arc::new(pem.configure(&self.files)?));
        *read = pem;
        Ok(true)
    }

    /// Validity period of the certificate in use.
    #[must_use]
    pub fn validity(&self) -> Option<Validity> {
        validity(&String::from_utf8_lossy(&self.read.lock().certificate))
    }

    /// Calls [`Tls::reload`] every `every` until `shutdown`, and reports the certificate in use to `metrics`
    /// by that name.
    pub async fn keep_reloading(
        self,
        every: Duration,
        name: &'static str,
        metrics: CertificateMetrics,
        shutdown: CancellationToken,
    ) {
        loop {
            if let Some(validity) = self.validity() {
                metrics.record_validity(name, validity);
            }
            tokio::select! {
                () = tokio::time::sleep(every) => {}
                () = shutdown.cancelled() => return,
            }
            match self.reload() {
                Ok(true) => {
                    tracing::info!(certificate = %self.files.certificate.display(), "certificates reloaded")
                }
                Ok(false) => {}
                Err(error) => {
                    metrics.record_failure(name);
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "certificates not reloaded, the old ones stay"
                    );
                }
            }
        }
    }
}

impl TlsPem {
    fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source })
        };
        Ok(Self {
            certificate: read(&files.certificate)?,
            key: read(&files.key)?,
            authority: files
                .clients
                .as_ref()
                .map(|clients| read(&clients.authority))
                .transpose()?
                .unwrap_or_default(),
        })
    }

    fn configure(&self, files: &TlsFiles) -> Result<ServerConfig, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions: &[&rustls::SupportedProtocolVersion] = match files.oldest {
            MinTlsVersion::Tls12 => &[&rustls::version::TLS13, &rustls::version::TLS12],
            MinTlsVersion::Tls13 => &[&rustls::version::TLS13],
        };
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(TlsError::Pair)?;
        let builder = match &files.clients {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                let authority = |error: &dyn std::fmt::Display| TlsError::Authority(error.to_string());
                let mut roots = RootCertStore::empty();
                for certificate in certificates(&self.authority, &clients.authority)? {
                    roots.add(certificate).map_err(|error| authority(&error))?;
                }
                let inner: Arc<dyn ClientCertVerifier> =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .build()
                        .map_err(|error| authority(&error))?;
                builder.with_client_cert_verifier(names::NamedClients::new(inner, &clients.names))
            }
        };
        let chain = certificates(&self.certificate, &files.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|_| TlsError::Pem { path: files.key.clone(), what: "private key" })?;
        let mut config = builder.with_single_cert(chain, key).map_err(TlsError::Pair)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn certificates(pem: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let none = || TlsError::Pem { path: path.to_owned(), what: "certificate" };
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|_| none())?;
    if found.is_empty() { Err(none()) } else { Ok(found) }
}
