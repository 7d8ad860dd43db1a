//! One HTTPS request and its answer, with bounds: a BMC may be slow, talk without end, or be somebody else.
//!
//! Each request has a connection of its own; BMCs have few of them, and forget to close idle ones. Credentials go to the address
//! of the object alone: of redirects only those are followed that add or remove a trailing slash.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::Trouble;

/// Time for a whole request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Largest answer.
const MAX_BODY: usize = 256 * 1024;

type Exchanged = Result<Response<Bytes>, Box<dyn std::error::Error + Send + Sync>>;

/// Whom to trust.
pub enum Trust {
    /// The authorities of the system.
    System,
    /// An authority, PEM, and the field that names it.
    Authority(Vec<u8>, &'static str),
    /// One certificate, by its SHA-256 in hexadecimal.
    Fingerprint(String),
}

/// A server with credentials.
pub struct Server {
    base: String,
    authorization: String,
    tls: Arc<ClientConfig>,
}

impl Server {
    /// A server at an `https` address, which comes from this field.
    ///
    /// # Errors
    /// [`Trouble::Misconfigured`] where a certificate authority cannot be used.
    pub fn new(base: &str, authorization: String, trust: Trust) -> Result<Self, Trouble> {
        let base = base.trim_end_matches('/').to_owned();
        Ok(Self { base, authorization, tls: Arc::new(configure(trust)?) })
    }

    /// Reads JSON.
    ///
    /// # Errors
    /// Where there is no usable answer.
    pub async fn get(&self, path: &str) -> Result<Value, Trouble> {
        let body = self.send(Method::GET, path, None).await?;
        serde_json::from_slice(&body)
            .map_err(|error| Trouble::Unreachable(format!("GET {path}: not JSON: {error}")))
    }

    /// Posts JSON; any success will do.
    ///
    /// # Errors
    /// Where the server does not accept it.
    pub async fn post(&self, path: &str, body: &Value) -> Result<(), Trouble> {
        self.send(Method::POST, path, Some(body)).await.map(drop)
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Bytes, Trouble> {
        let what = format!("{method} {path}");
        let unreachable = |why: String| Trouble::Unreachable(format!("{what}: {why}"));
        let answer = timeout(TIMEOUT, self.exchange(method.clone(), path, body))
            .await
            .map_err(|_| unreachable(format!("no answer within {} s", TIMEOUT.as_secs())))?
            .map_err(|error| unreachable(error.to_string()))?;
        match answer.status() {
            status if status.is_success() => Ok(answer.into_body()),
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                Err(Trouble::Denied(format!("{what} answers {status}")))
            }
            status if status.is_client_error() && method == Method::POST => {
                Err(Trouble::Refused(format!("{what} answers {status}")))
            }
            status => Err(unreachable(format!("answers {status}"))),
        }
    }

    async fn exchange(&self, method: Method, path: &str, body: Option<&Value>) -> Exchanged {
        let answer = self.exchange_once(method.clone(), path, body).await?;
        match self.moved(path, &answer) {
            Some(path) => self.exchange_once(method, &path, body).await,
            None => Ok(answer),
        }
    }

    /// The path with its trailing slash added or removed, if that is where the answer points to. It is asked for at our address.
    fn moved(&self, path: &str, answer: &Response<Bytes>) -> Option<String> {
        let location = answer.headers().get(header::LOCATION)?.to_str().ok()?.parse::<Uri>().ok()?;
        let moved = path.strip_suffix('/').map_or_else(|| format!("{path}/"), str::to_owned);
        let here = format!("{}{moved}", self.base).parse::<Uri>().ok()?;
        let same_host =
            location.host().is_none_or(|host| here.host().unwrap_or("").eq_ignore_ascii_case(host));
        let same = same_host && location.path() == here.path();
        (same && matches!(answer.status().as_u16(), 301 | 307 | 308)).then_some(moved)
    }

    async fn exchange_once(&self, method: Method, path: &str, body: Option<&Value>) -> Exchanged {
        let uri: Uri = format!("{}{path}", self.base).parse()?;
        let host = uri.host().ok_or("no host in the address")?;
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let tcp = TcpStream::connect((bare, uri.port_u16().unwrap_or(443))).await?;
        let name = ServerName::try_from(bare.to_owned())?;
        let tls = TlsConnector::from(Arc::clone(&self.tls)).connect(name, tcp).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tls)).await?;
        let request = Request::builder()
            .method(method)
            .uri(uri.path())
            .header(header::HOST, uri.authority().map_or(host, |authority| authority.as_str()))
            .header(header::AUTHORIZATION, &self.authorization)
            .header(header::ACCEPT, "application/json")
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONNECTION, "close")
            .body(Full::new(Bytes::from(body.map_or_else(String::new, Value::to_string))))?;
        let exchange = async {
            let (head, body) = sender.send_request(request).await?.into_parts();
            let body = Limited::new(body, MAX_BODY).collect().await?.to_bytes();
            Ok(Response::from_parts(head, body))
        };
        tokio::pin!(exchange);
        // The connection lives as long as the exchange, and ends with it.
        tokio::select! {
            answer = &mut exchange => answer,
            ended = connection => { ended?; exchange.await }
        }
    }
}

fn configure(trust: Trust) -> Result<ClientConfig, Trouble> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = match trust {
        Trust::Fingerprint(fingerprint) => Arc::new(Pinned { fingerprint, provider: Arc::clone(&provider) }),
        Trust::System => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            verifier(roots, &provider, "the system has no certificate authorities: give one by a Secret")?
        }
        Trust::Authority(pem, field) => {
            let mut roots = RootCertStore::empty();
            let parsed =
                CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>().unwrap_or_default();
            roots.add_parsable_certificates(parsed);
            verifier(roots, &provider, &format!("{field}: ca.crt holds no certificate authority in PEM"))?
        }
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Trouble::Misconfigured(format!("TLS: {error}")))?;
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

fn verifier(
    roots: RootCertStore,
    provider: &Arc<CryptoProvider>,
    without: &str,
) -> Result<Arc<dyn ServerCertVerifier>, Trouble> {
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider)).build();
    verifier.map(|verifier| verifier as _).map_err(|_| Trouble::Misconfigured(without.to_owned()))
}

/// Accepts one certificate, whatever its name and dates: most BMCs have a self-signed one.
#[derive(Debug)]
struct Pinned {
    fingerprint: String,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let digest = ring::digest::digest(&ring::digest::SHA256, end_entity);
        let seen: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        if seen == self.fingerprint {
            return Ok(ServerCertVerified::assertion());
        }
        Err(rustls::Error::General(format!("spec.redfish.fingerprint: the certificate's is {seen}")))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
