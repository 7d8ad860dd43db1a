//! TLS for servers: certificate and key from PEM files, client certificates with expected names, reload without restart.
//!
//! Files are polled and their content compared. Watching them for changes does not work on mounted Secrets: the kubelet swaps a
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

/// How often the files are read again.
pub const RELOAD_EVERY: Duration = Duration::from_secs(10);

/// Where the PEM files are, and who may connect.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Certificate chain, leaf first.
    pub certificate: PathBuf,
    /// Private key of the leaf (PKCS#8, SEC1 or PKCS#1).
    pub key: PathBuf,
    /// Client certificates; `None` asks for none.
    pub clients: Option<ClientCertificates>,
    /// Oldest protocol version spoken.
    pub oldest: Oldest,
}

/// Which client certificates are good. They are required, never optional.
#[derive(Clone, Debug)]
pub struct ClientCertificates {
    /// Certificate authorities that may have signed them. Not the cluster's: it signs every kubelet's.
    pub authority: PathBuf,
    /// The certificate's common name or one of its DNS or URI names must be one of these. Empty admits every name.
    pub names: Vec<String>,
}

/// Oldest TLS version that a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Oldest {
    /// For clients that we do not choose.
    Tls12,
    /// For clients of our own.
    Tls13,
}

/// Why there is no TLS configuration.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file could not be read.
    #[error("{path} cannot be read")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file holds no PEM of the kind wanted.
    #[error("{path} holds no usable {what}")]
    Pem {
        /// Which.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
    },
    /// Key and certificate do not belong together, or are of a kind that is not supported.
    #[error("certificate and key cannot be used")]
    Pair(#[source] rustls::Error),
    /// The client authority's certificates cannot be used.
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
    /// Authorities of client certificates; ignored where none are asked for.
    pub authority: Vec<u8>,
}

/// A TLS configuration that can be replaced while connections are served. Clones share it.
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
        Self::with(TlsPem::read(&files)?, files)
    }

    /// From PEM texts that are kept elsewhere than in files: replace them with [`Tls::replace`]. `clients` are the expected names of
    /// client certificates; `None` asks for none.
    ///
    /// # Errors
    /// When a text is not PEM, or key and certificate do not match.
    pub fn of(pem: TlsPem, clients: Option<Vec<String>>, oldest: Oldest) -> Result<Self, TlsError> {
        let clients = clients.map(|names| ClientCertificates { authority: "ca.crt".into(), names });
        let files = TlsFiles { certificate: "tls.crt".into(), key: "tls.key".into(), clients, oldest };
        Self::with(pem, files)
    }

    fn with(pem: TlsPem, files: TlsFiles) -> Result<Self, TlsError> {
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

    /// Reads the files again and takes them if they changed; says whether they did. What cannot be used is not taken: the old
    /// configuration stays, and the next call tries again (certificate and key are two files and may be seen half swapped).
    ///
    /// # Errors
    /// As [`Tls::load`].
    pub fn reload(&self) -> Result<bool, TlsError> {
        self.replace(TlsPem::read(&self.files)?)
    }

    /// Takes other PEM texts if they differ; says whether they do. What cannot be used is not taken.
    ///
    /// # Errors
    /// As [`Tls::of`].
    pub fn replace(&self, pem: TlsPem) -> Result<bool, TlsError> {
        let mut read = self.read.lock();
        if *read == pem {
            return Ok(false);
        }
        self.current.store(Arc::new(pem.configure(&self.files)?));
        *read = pem;
        Ok(true)
    }

    /// From when until when the certificate in use is valid.
    #[must_use]
    pub fn validity(&self) -> Option<Validity> {
        validity(&String::from_utf8_lossy(&self.read.lock().certificate))
    }

    /// Calls [`Tls::reload`] every `every` until `shutdown`, and tells `metrics` of the certificate in use, by that name.
    pub async fn keep_fresh(
        self,
        every: Duration,
        name: &'static str,
        metrics: CertificateMetrics,
        shutdown: CancellationToken,
    ) {
        loop {
            if let Some(validity) = self.validity() {
                metrics.uses(name, validity);
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
                    metrics.failed(name);
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
            Oldest::Tls12 => &[&rustls::version::TLS13, &rustls::version::TLS12],
            Oldest::Tls13 => &[&rustls::version::TLS13],
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
