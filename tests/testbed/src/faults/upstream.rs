//! The proxy's own connections to the API server: HTTP/1.1 over TLS, one request at a time on each, kept for the next.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::error::FaultProxyError;
use crate::pki::KeyAndCertificate;

type Sender = SendRequest<Full<Bytes>>;

/// Headers that belong to one connection and not to the request (RFC 9110, section 7.6.1), or that are set anew.
const OF_THE_CONNECTION: [header::HeaderName; 7] = [
    header::CONNECTION,
    header::HOST,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::CONTENT_LENGTH,
];

/// Connections with one identity.
pub(super) struct Upstream {
    address: String,
    tls: TlsConnector,
    idle: Mutex<Vec<Sender>>,
}

impl Upstream {
    /// `address` is host and port. With a client certificate, requests are its owner's; without, they bring their token.
    pub fn new(address: &str, ca: &str, client: Option<&KeyAndCertificate>) -> Result<Self, FaultProxyError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
            roots.add(certificate.map_err(FaultProxyError::pem)?)?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let config = match client {
            None => builder.with_no_client_auth(),
            Some(client) => {
                let (chain, key) = pair(client)?;
                builder.with_client_auth_cert(chain, key)?
            }
        };
        Ok(Self {
            address: address.to_owned(),
            tls: TlsConnector::from(Arc::new(config)),
            idle: Mutex::default(),
        })
    }

    /// Asks the API server.
    pub async fn ask(
        self: &Arc<Self>,
        head: &Parts,
        uri: &str,
        body: &Bytes,
    ) -> Result<Response<Incoming>, FaultProxyError> {
        // A kept connection may have been closed meanwhile; then nothing was sent on it.
        while let Some(mut kept) = self.take() {
            if kept.ready().await.is_err() {
                continue;
            }
            match kept.send_request(self.request(head, uri, body)?).await {
                Err(error) if error.is_canceled() => continue,
                answer => return Ok(self.keep(kept, answer?)),
            }
        }
        let mut fresh = self.connect().await?;
        let answer = fresh.send_request(self.request(head, uri, body)?).await?;
        Ok(self.keep(fresh, answer))
    }

    fn take(&self) -> Option<Sender> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Keeps the connection for the next request once the answer's body has been read.
    fn keep(self: &Arc<Self>, mut sender: Sender, answer: Response<Incoming>) -> Response<Incoming> {
        let upstream = Arc::downgrade(self);
        tokio::spawn(async move {
            if sender.ready().await.is_ok()
                && let Some(upstream) = upstream.upgrade()
            {
                upstream.idle.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
            }
        });
        answer
    }

    fn request(
        &self,
        head: &Parts,
        uri: &str,
        body: &Bytes,
    ) -> Result<Request<Full<Bytes>>, FaultProxyError> {
        let mut request = Request::new(Full::new(body.clone()));
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = uri.parse::<Uri>().map_err(http::Error::from)?;
        let kept = head.headers.iter().filter(|(name, _)| !OF_THE_CONNECTION.contains(*name));
        request.headers_mut().extend(kept.map(|(name, value)| (name.clone(), value.clone())));
        let host = HeaderValue::from_str(&self.address).map_err(http::Error::from)?;
        request.headers_mut().insert(header::HOST, host);
        Ok(request)
    }

    async fn connect(&self) -> Result<Sender, FaultProxyError> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        let secured = self.tls.connect(ServerName::try_from("127.0.0.1")?, stream).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(secured)).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to the API server ended");
            }
        });
        Ok(sender)
    }
}

/// A certificate chain and its key as rustls takes them.
pub(super) fn pair(
    made: &KeyAndCertificate,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), FaultProxyError> {
    let chain = CertificateDer::pem_slice_iter(made.certificate.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(FaultProxyError::pem)?;
    let key = PrivateKeyDer::from_pem_slice(made.key.as_bytes()).map_err(FaultProxyError::pem)?;
    Ok((chain, key))
}
