//! Calls of the extender's `filter` as kube-scheduler makes them: mutual TLS, one connection, one call at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use andreas_e2e::cluster::Cluster;

/// Calls before the first that counts.
pub(super) const WARM: usize = 100;

/// What is spoken on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, which kube-scheduler's client chooses where TLS offers it.
    Http2,
}

impl Protocol {
    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1.1",
            Self::Http2 => "HTTP/2",
        }
    }

    fn alpn(self) -> Vec<u8> {
        match self {
            Self::Http1 => b"http/1.1".to_vec(),
            Self::Http2 => b"h2".to_vec(),
        }
    }
}

/// The body of a call with so many node names; the member's node is in the middle.
///
/// # Errors
/// When the pod is no object.
pub(super) fn body(pod: &Value, node: &str, names: usize, member: bool) -> Result<Bytes> {
    let mut pod = pod.clone();
    if !member {
        let metadata = pod["metadata"].as_object_mut().context("a pod has metadata")?;
        metadata.remove("ownerReferences");
        metadata.remove("labels");
    }
    pod["metadata"]["uid"] = json!("6d1b0a52-7d50-4f9d-9a0e-0f3c5b7a9e11");
    let mut list: Vec<String> = (0..names).map(|index| format!("gpu-node-{index:05}")).collect();
    if let Some(middle) = list.get_mut(names / 2) {
        node.clone_into(middle);
    }
    let args = json!({"Pod": pod, "Nodes": null, "NodeNames": list});
    Ok(Bytes::from(serde_json::to_vec(&args)?))
}

enum Connection {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Connection {
    async fn open(cluster: &Cluster, protocol: Protocol) -> Result<Self> {
        let extender = address(cluster)?;
        let pki = cluster.testbed.pki();
        let client = pki.client("andreas-scheduler", None)?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(pki.ca().as_bytes())?)?;
        // Another part of the program may have chosen already; then that one serves.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let chain: Vec<_> =
            CertificateDer::pem_file_iter(&client.certificate_file)?.collect::<Result<_, _>>()?;
        let key = PrivateKeyDer::from_pem_file(&client.key_file)?;
        let mut config =
            ClientConfig::builder().with_root_certificates(roots).with_client_auth_cert(chain, key)?;
        config.alpn_protocols = vec![protocol.alpn()];
        let tcp = TcpStream::connect(&extender).await?;
        tcp.set_nodelay(true)?;
        let name = ServerName::try_from("127.0.0.1")?;
        let tls = TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
        let spoken = tls.get_ref().1.alpn_protocol().unwrap_or_default().to_vec();
        ensure!(spoken == protocol.alpn(), "the extender chose {}", String::from_utf8_lossy(&spoken));
        let io = TokioIo::new(tls);
        Ok(match protocol {
            Protocol::Http1 => {
                let (sender, connection) = http1::handshake(io).await?;
                tokio::spawn(connection);
                Self::Http1(sender)
            }
            Protocol::Http2 => {
                let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
                tokio::spawn(connection);
                Self::Http2(sender)
            }
        })
    }

    async fn call(&mut self, body: &Bytes) -> Result<Bytes> {
        let uri = match self {
            Self::Http1(_) => "/filter",
            Self::Http2(_) => "https://127.0.0.1/filter",
        };
        let request = Request::post(uri)
            .header(header::HOST, "127.0.0.1")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body.clone()))?;
        let response: Response<Incoming> = match self {
            Self::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
            Self::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
        };
        ensure!(response.status().is_success(), "the extender answered {}", response.status());
        Ok(response.into_body().collect().await?.to_bytes())
    }
}

/// Where the extender listens: the scheduler's configuration says it.
fn address(cluster: &Cluster) -> Result<String> {
    let text = std::fs::read_to_string(cluster.testbed.data_dir().join("andreas-scheduler.yaml"))?;
    let config: Value = serde_json::from_str(&text)?;
    let url = config["extenders"][0]["urlPrefix"].as_str().context("no extender in the configuration")?;
    Ok(url.trim_start_matches("https://").trim_end_matches('/').to_owned())
}

/// Times of so many calls, after some that do not count.
///
/// # Errors
/// When a call fails, or is answered with no node.
pub(super) async fn measure(
    cluster: &Cluster,
    protocol: Protocol,
    body: &Bytes,
    calls: usize,
) -> Result<Vec<Duration>> {
    let mut connection = Connection::open(cluster, protocol).await?;
    let answer: Value = serde_json::from_slice(&connection.call(body).await?)?;
    let left = answer["NodeNames"].as_array().map_or(0, Vec::len);
    ensure!(left > 0, "no node is left: {answer}");
    for _ in 1..WARM {
        connection.call(body).await?;
    }
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        let began = Instant::now();
        connection.call(body).await?;
        times.push(began.elapsed());
    }
    Ok(times)
}
