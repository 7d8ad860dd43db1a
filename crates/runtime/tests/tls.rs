//! The server over real sockets: who is let in, by which protocol, and what happens when files change or clients dawdle.
#![allow(clippy::unwrap_used, reason = "a test may panic where it fails")]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use andreas_runtime::server::{self, Limits};
use andreas_runtime::tls::{ClientCertificates, Oldest, Tls, TlsFiles};
use axum::Router;
use axum::routing::get;
use http::{Request, Version};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate and key in PEM with a common name and DNS names.
fn issue(by: &Authority, common_name: &str, dns: &[&str]) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params =
        CertificateParams::new(dns.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
    params.distinguished_name.push(DnType::CommonName, common_name);
    let certificate = params.signed_by(&key, by).unwrap();
    (certificate.pem(), key.serialize_pem())
}

fn files(dir: &Path, names: &[&str]) -> TlsFiles {
    TlsFiles {
        certificate: dir.join("tls.crt"),
        key: dir.join("tls.key"),
        clients: Some(ClientCertificates {
            authority: dir.join("ca.crt"),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        }),
        oldest: Oldest::Tls13,
    }
}

fn write(dir: &Path, authority: &Authority, pair: &(String, String)) {
    std::fs::write(dir.join("tls.crt"), &pair.0).unwrap();
    std::fs::write(dir.join("tls.key"), &pair.1).unwrap();
    std::fs::write(dir.join("ca.crt"), authority.pem()).unwrap();
}

async fn start(
    tls: Option<Tls>,
    limits: Limits,
) -> (SocketAddr, CancellationToken, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let router = Router::new().route("/", get(|| async { "hello" })).route(
        "/slow",
        get(|| async {
            tokio::time::sleep(Duration::from_millis(400)).await;
            "done"
        }),
    );
    let token = shutdown.clone();
    let task =
        tokio::spawn(async move { server::serve(listener, tls, router, limits, token).await.unwrap() });
    (address, shutdown, task)
}

fn connector(authority: &Authority, pair: Option<&(String, String)>, protocol: &str) -> TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match pair {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
            builder
                .with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap())
                .unwrap()
        }
    };
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    TlsConnector::from(Arc::new(config))
}

/// One GET over TLS; the error is the handshake's or the first read's (TLS 1.3 reports a refused client certificate there).
async fn fetch(
    address: SocketAddr,
    connector: &TlsConnector,
    protocol: &str,
) -> Result<(Version, Bytes), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let stream = TcpStream::connect(address).await.map_err(|error| text(&error))?;
    let name = ServerName::try_from("localhost").unwrap();
    let stream = connector.connect(name, stream).await.map_err(|error| text(&error))?;
    let request =
        Request::get("http://localhost/").header("host", "localhost").body(Empty::<Bytes>::new()).unwrap();
    let response = if protocol == "h2" {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .map_err(|error| text(&error))?;
        tokio::spawn(connection);
        sender.send_request(request).await
    } else {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| text(&error))?;
        tokio::spawn(connection);
        sender.send_request(request).await
    };
    let response = response.map_err(|error| text(&error))?;
    let version = response.version();
    Ok((version, response.into_body().collect().await.map_err(|error| text(&error))?.to_bytes()))
}

#[tokio::test]
async fn only_the_expected_client_is_served_over_both_protocols() {
    let (ours, theirs) = (authority(), authority());
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &ours, &issue(&ours, "server", &["localhost"]));
    let tls = Tls::load(files(dir.path(), &["kube-scheduler", "scheduler.test"])).unwrap();
    let (address, ..) = start(Some(tls), Limits::default()).await;

    for (protocol, version) in [("h2", Version::HTTP_2), ("http/1.1", Version::HTTP_11)] {
        let by_common_name = issue(&ours, "kube-scheduler", &[]);
        let by_dns_name = issue(&ours, "whoever", &["scheduler.test"]);
        for good in [&by_common_name, &by_dns_name] {
            let answer = fetch(address, &connector(&ours, Some(good), protocol), protocol).await;
            assert_eq!(answer.unwrap(), (version, Bytes::from_static(b"hello")));
        }
        let wrong_name = issue(&ours, "someone-else", &["other.test"]);
        let wrong_authority = issue(&theirs, "kube-scheduler", &["scheduler.test"]);
        for bad in [None, Some(&wrong_name), Some(&wrong_authority)] {
            let answer = fetch(address, &connector(&ours, bad, protocol), protocol).await;
            assert!(answer.is_err(), "{protocol}: let in {answer:?}");
        }
    }
}

#[tokio::test]
async fn new_certificates_are_taken_and_useless_ones_are_not() {
    let (old, new) = (authority(), authority());
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &old, &issue(&old, "server", &["localhost"]));
    let tls = Tls::load(files(dir.path(), &[])).unwrap();
    let (address, ..) = start(Some(tls.clone()), Limits::default()).await;
    let client = issue(&old, "c", &[]);
    assert!(fetch(address, &connector(&old, Some(&client), "h2"), "h2").await.is_ok());

    // when: certificate and key are half swapped, then rubbish: the old ones stay
    std::fs::write(dir.path().join("tls.crt"), issue(&new, "server", &["localhost"]).0).unwrap();
    assert!(tls.reload().is_err());
    std::fs::write(dir.path().join("tls.key"), "rubbish").unwrap();
    assert!(tls.reload().is_err());
    assert!(fetch(address, &connector(&old, Some(&client), "h2"), "h2").await.is_ok());

    // when: all are good again, the server changes over without a restart
    write(dir.path(), &new, &issue(&new, "server", &["localhost"]));
    assert!(tls.reload().unwrap());
    assert!(!tls.reload().unwrap(), "the same content again is no change");
    let client = issue(&new, "c", &[]);
    assert!(fetch(address, &connector(&new, Some(&client), "h2"), "h2").await.is_ok());
    assert!(fetch(address, &connector(&old, Some(&client), "h2"), "h2").await.is_err());
}

#[tokio::test]
async fn dawdlers_and_the_superfluous_are_sent_away() {
    let limits = Limits {
        connections: 2,
        header: Duration::from_millis(300),
        idle: Duration::from_millis(500),
        ..Limits::default()
    };
    let (address, ..) = start(None, limits).await;

    // a head that never ends, and a connection on which nothing is ever asked
    for beginning in ["GET / HTTP/1.1\r\nhost: a\r\nx-slow: ", ""] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(beginning.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(4), stream.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "still open after {beginning:?}");
    }
    // one more than allowed
    let _first = TcpStream::connect(address).await.unwrap();
    let _second = TcpStream::connect(address).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut third = TcpStream::connect(address).await.unwrap();
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(Duration::from_millis(200), third.read_to_end(&mut rest)).await;
    assert!(closed.is_ok(), "the third connection was kept");
}

#[tokio::test]
async fn one_request_more_than_allowed_is_answered_at_once() {
    let (address, ..) = start(None, Limits { requests: 1, ..Limits::default() }).await;
    let ask = async |path: &str| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let later = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        ask("/").await
    };
    let (slow, refused) = tokio::join!(ask("/slow"), later);
    assert!(slow.starts_with("HTTP/1.1 200") && refused.starts_with("HTTP/1.1 503"), "{slow} {refused}");
    assert!(ask("/").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn shutdown_lets_requests_in_flight_finish_and_takes_no_new_ones() {
    let (address, shutdown, task) = start(None, Limits::default()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    shutdown.cancel();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("done"), "{answer}");
    tokio::time::timeout(Duration::from_secs(2), task).await.expect("the server ends").unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}
