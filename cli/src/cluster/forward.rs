//! HTTP over TLS to a port of a pod, through the API server's port-forward. No local port is opened.

use std::sync::Arc;
use std::time::Duration;

use andreas_runtime::kubeconfig::innermost;
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio_rustls::TlsConnector;

use super::access::Right;
use super::connect::Cluster;
use super::error::ClusterError;

/// Name of the other end, in the handshake and in the request.
const HOST: &str = "localhost";

/// A port of a pod.
#[derive(Clone, Debug)]
pub struct PodPort<'a> {
    /// Namespace of the pod.
    pub namespace: &'a str,
    /// Its name.
    pub pod: &'a str,
    /// The port.
    pub port: u16,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Its status.
    pub status: StatusCode,
    /// Its body.
    pub body: Bytes,
}

impl Cluster {
    /// Sends one request to a port of a pod and reads at most `limit` bytes of the answer within `timeout`.
    ///
    /// # Errors
    /// When port-forward is not allowed, the pod does not answer, or the answer is larger.
    pub async fn ask_pod(
        &self,
        to: &PodPort<'_>,
        request: Request<Full<Bytes>>,
        limit: usize,
        timeout: Duration,
    ) -> Result<Reply, ClusterError> {
        let sent = tokio::time::timeout(timeout, self.ask(to, request, limit)).await;
        sent.unwrap_or_else(|_| {
            Err(ClusterError::Failed(format!("{to}: no answer within {} s", timeout.as_secs())))
        })
    }

    async fn ask(
        &self,
        to: &PodPort<'_>,
        mut request: Request<Full<Bytes>>,
        limit: usize,
    ) -> Result<Reply, ClusterError> {
        let failed =
            |error: &dyn std::error::Error| ClusterError::Failed(format!("{to}: {}", innermost(error)));
        let pods: Api<Pod> = Api::namespaced(self.client(), to.namespace);
        let right = Right::new::<Pod>("create", Some(to.namespace)).on("portforward");
        let mut forward =
            pods.portforward(to.pod, &[to.port]).await.map_err(|error| match error {
                kube::Error::UpgradeConnection(kube::client::UpgradeConnectionError::ProtocolSwitch(
                    status,
                )) if status == StatusCode::FORBIDDEN => ClusterError::Forbidden { right: right.clone() },
                error => ClusterError::from_client(error, self.url(), &right, Some(to.pod)),
            })?;
        let stream = forward
            .take_stream(to.port)
            .ok_or_else(|| ClusterError::Failed(format!("{to}: the port is not forwarded")))?;
        let (config, name) = tls().map_err(|error| ClusterError::Failed(format!("{to}: {error}")))?;
        let tls = TlsConnector::from(Arc::new(config)).connect(name, stream);
        let tls = tls.await.map_err(|error| failed(&error))?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(tls));
        let (mut sender, connection) = handshake.await.map_err(|error| failed(&error))?;
        let connection = tokio::spawn(connection);
        request.headers_mut().insert(header::HOST, http::HeaderValue::from_static(HOST));
        let answer = sender.send_request(request).await.map_err(|error| failed(&error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), limit).collect().await;
        connection.abort();
        forward.abort();
        let body = body.map_err(|error| ClusterError::Failed(format!("{to}: {error}")))?.to_bytes();
        Ok(Reply { status, body })
    }
}

impl std::fmt::Display for PodPort<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "pod {}/{}, port {}", self.namespace, self.pod, self.port)
    }
}

/// Any certificate is good: the API server has authenticated the kubelet, and the tunnel ends in that pod.
fn tls() -> anyhow::Result<(ClientConfig, ServerName<'static>)> {
    let provider = Arc::new(ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let verifier = Arc::new(AnyCertificate(provider));
    let config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    Ok((config, ServerName::try_from(HOST)?))
}

/// Accepts any certificate, but checks that the other end has its key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
