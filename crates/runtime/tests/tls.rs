//! The server over real sockets: the protocols, new certificates, and clients that dawdle.
#![allow(clippy::unwrap_used, reason = "a test may panic where it fails")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use andreas_runtime::admin::{self, AdminArgs};
use andreas_runtime::certificates::{
    CertificateLifetimeArgs, RenewalInput, ServingCertificate, Subject, renew,
};
use andreas_runtime::health::Health;
use andreas_runtime::server::{self, Limits, Overload, RequestConnection};
use andreas_runtime::tls::{Tls, TlsPem};
use andreas_testbed::tls::{authority, connector, issue};
use andreas_testbed::wait::until;
use axum::routing::get;
use axum::{Extension, Router};
use http::{Request, Version};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

fn texts(pair: &(String, String)) -> TlsPem {
    TlsPem { certificate: pair.0.clone().into_bytes(), key: pair.1.clone().into_bytes() }
}

/// A request for `/slow`: when it has begun, and its leave to end.
#[derive(Clone, Default)]
struct Slow {
    begun: Arc<Notify>,
    end: Arc<Notify>,
}

async fn start(
    tls: Option<Tls>,
    limits: Limits,
) -> (SocketAddr, CancellationToken, tokio::task::JoinHandle<()>, Slow) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let slow = Slow::default();
    let request = slow.clone();
    let router = Router::new().route("/", get(|| async { "hello" })).route(
        "/slow",
        get(move || async move {
            request.begun.notify_one();
            request.end.notified().await;
            "done"
        }),
    );
    let token = shutdown.clone();
    let task =
        tokio::spawn(async move { server::serve(listener, tls, router, limits, token).await.unwrap() });
    (address, shutdown, task, slow)
}

/// One GET over TLS; the error is the handshake's or a read's.
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
async fn new_certificates_are_taken_and_useless_ones_are_not() {
    let (old, new) = (authority(), authority());
    let tls = Tls::from_pem(texts(&issue(&old, "server", &["localhost"]))).unwrap();
    let (address, ..) = start(Some(tls.clone()), Limits::default()).await;
    for (protocol, version) in [("h2", Version::HTTP_2), ("http/1.1", Version::HTTP_11)] {
        let answer = fetch(address, &connector(&old, protocol), protocol).await;
        assert_eq!(answer.unwrap(), (version, Bytes::from_static(b"hello")));
    }

    // when: certificate and key are half swapped, then rubbish: the old ones stay
    let next = texts(&issue(&new, "server", &["localhost"]));
    let other = texts(&issue(&new, "server", &["localhost"]));
    assert!(tls.replace(TlsPem { key: other.key, ..next.clone() }).is_err());
    assert!(tls.replace(TlsPem { key: b"rubbish".to_vec(), ..next.clone() }).is_err());
    assert!(tls.replace(TlsPem { certificate: Vec::new(), ..next.clone() }).is_err());
    assert!(fetch(address, &connector(&old, "h2"), "h2").await.is_ok());

    // when: all are good again, the server changes over without a restart
    assert!(tls.replace(next.clone()).unwrap());
    assert!(!tls.replace(next).unwrap(), "the same content again is no change");
    assert!(fetch(address, &connector(&new, "h2"), "h2").await.is_ok());
    assert!(fetch(address, &connector(&old, "h2"), "h2").await.is_err());
}

/// Given clients that know the authority; when leaves are renewed as fast as the machine can; then no connection is refused.
#[tokio::test(flavor = "multi_thread")]
async fn no_client_is_refused_while_certificates_are_renewed() {
    let subject = Subject { names: vec!["localhost".into()] };
    let mut now = jiff::Timestamp::now();
    let hurried = CertificateLifetimeArgs { renew_certificates_every: Some(60) };
    let step = |stored: &ServingCertificate, now| {
        renew(stored, &RenewalInput { subject: &subject, lifetime: hurried.into(), now, given: None })
            .unwrap()
    };
    let mut made = step(&ServingCertificate::default(), now);
    let pem = |made: &ServingCertificate| texts(&(made.chain.clone(), made.key.clone()));
    let tls = Tls::from_pem(pem(&made)).unwrap();
    let (address, ..) = start(Some(tls.clone()), Limits::default()).await;
    let trusting = {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(made.bundle.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        TlsConnector::from(Arc::new(config))
    };
    let stop = CancellationToken::new();
    let (answers, mut served) = watch::channel(0);
    let asking = tokio::spawn({
        let stop = stop.clone();
        async move {
            while !stop.is_cancelled() {
                fetch(address, &trusting, "http/1.1").await.expect("an answer");
                answers.send_modify(|count| *count += 1);
            }
        }
    });
    let mut renewals = 0;
    served.changed().await.expect("the client asks");
    for _ in 0..12 {
        now += jiff::SignedDuration::from_secs(61);
        made = step(&made, now);
        renewals += usize::from(tls.replace(pem(&made)).unwrap());
        // The client is served again before the next renewal.
        served.mark_unchanged();
        served.changed().await.expect("the client asks");
    }
    stop.cancel();
    asking.await.unwrap();
    let served = *served.borrow();
    assert!(renewals == 12 && served > 12, "{renewals} renewals, {served} answers");
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
    // one more than allowed: the oldest goes, and the newest is served; they are accepted in the order they came in
    let mut first = TcpStream::connect(address).await.unwrap();
    let _second = TcpStream::connect(address).await.unwrap();
    assert!(get_plain(address, "/").await.unwrap().starts_with("HTTP/1.1 200"));
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(Duration::from_millis(200), first.read_to_end(&mut rest)).await;
    assert!(closed.is_ok(), "the first connection was kept");
}

/// One GET without TLS, within the time-out of the chart's probes.
async fn get_plain(address: SocketAddr, path: &str) -> Result<String, String> {
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = tokio::time::timeout(Duration::from_secs(3), ask).await;
    answer.map_err(|_| "no answer in 3 s".to_owned())?.map_err(|error| error.to_string())
}

/// Sockets on which nothing is ever said.
async fn silent(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut sockets = Vec::with_capacity(count);
    for _ in 0..count {
        sockets.push(TcpStream::connect(address).await.unwrap());
    }
    sockets
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_sockets_on_every_admin_port_make_no_probe_and_no_scrape_fail() {
    let own = SocketAddr::from(([127, 0, 0, 1], 0));
    let probes = std::net::TcpListener::bind(own).unwrap().local_addr().unwrap();
    let args = AdminArgs { listen: own, probe_listen: Some(probes), metrics_auth: false };
    let listeners = admin::bind(&args).unwrap();
    let metrics = listeners.address().unwrap();
    let nobody = tower::service_fn(async |_: Request<kube::client::Body>| {
        Ok::<_, std::io::Error>(http::Response::new(axum::body::Body::empty()))
    });
    let client = kube::Client::new(nobody, "default");
    let registry = Arc::new(prometheus_client::registry::Registry::default());
    tokio::spawn(listeners.serve(registry, Health::new(), client, CancellationToken::new()));

    for count in [64, 1_024, 2_000] {
        let (on_metrics, on_probes) = (silent(metrics, count).await, silent(probes, count).await);
        for _ in 0..10 {
            for (address, path) in [(probes, "/livez"), (probes, "/readyz"), (metrics, "/metrics")] {
                let answer = get_plain(address, path).await;
                let good = answer.as_ref().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"));
                assert!(good, "{count} silent sockets: {path}: {answer:?}");
            }
        }
        drop((on_metrics, on_probes));
    }
    assert!(get_plain(probes, "/metrics").await.unwrap().starts_with("HTTP/1.1 404"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_sockets_on_a_tls_port_keep_no_client_out_and_cut_off_none_that_is_known() {
    let ours = authority();
    let tls = Tls::from_pem(texts(&issue(&ours, "server", &["localhost"]))).unwrap();
    let router = Router::new().route(
        "/",
        get(|Extension(via): Extension<RequestConnection>| async move {
            via.authenticated("team");
            "hello"
        }),
    );
    let overload = Overload::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let limits = Limits { connections: 1_024, ..Limits::default() };
    let serving =
        server::serve_noting(listener, Some(tls), router, limits, overload.clone(), CancellationToken::new());
    tokio::spawn(serving);
    // given a client that has shown who it is, and stays
    let stays = connector(&ours, "h2");
    let stream = TcpStream::connect(address).await.unwrap();
    let stream = stays.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap();
    let (mut known, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let comes_and_goes = connector(&ours, "http/1.1");
    let request = || Request::get("http://localhost/").body(Empty::<Bytes>::new()).unwrap();
    let answer = known.send_request(request()).await.unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "hello");
    assert_eq!(overload.last(), None);

    for count in [64, 1_024, 2_000] {
        let sockets = silent(address, count).await;
        // when others hold every place, then new clients are served,
        for _ in 0..5 {
            let answer = fetch(address, &comes_and_goes, "http/1.1");
            let answer =
                tokio::time::timeout(Duration::from_secs(5), answer).await.expect("an answer in 5 s");
            assert_eq!(answer.unwrap().1, "hello", "{count} silent sockets");
        }
        // and the known one goes on
        let mut latencies = Vec::new();
        for _ in 0..1_000 {
            known.ready().await.unwrap();
            let began = std::time::Instant::now();
            assert!(known.send_request(request()).await.is_ok(), "{count} silent sockets");
            latencies.push(began.elapsed());
        }
        latencies.sort_unstable();
        println!(
            "{count} silent sockets: known client's p50 {:.1?}, p99 {:.1?}",
            latencies[500], latencies[990]
        );
        drop(sockets);
    }
    assert!(overload.last().is_some(), "some were cut off right after they had come");
}

#[tokio::test]
async fn one_request_more_than_allowed_is_answered_at_once() {
    let (address, _, _, slow) = start(None, Limits { requests: 1, ..Limits::default() }).await;
    let ask = async |path: &str| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let later = async {
        slow.begun.notified().await;
        let refused = tokio::time::timeout(Duration::from_secs(3), ask("/")).await;
        slow.end.notify_one();
        refused.expect("an answer in 3 s, though the first request has not ended")
    };
    let (first, refused) = tokio::join!(ask("/slow"), later);
    assert!(first.starts_with("HTTP/1.1 200") && refused.starts_with("HTTP/1.1 503"), "{first} {refused}");
    assert!(ask("/").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn shutdown_lets_requests_in_flight_finish_and_takes_no_new_ones() {
    let (address, shutdown, task, slow) = start(None, Limits::default()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    slow.begun.notified().await;
    shutdown.cancel();
    let refused = async || Ok(TcpStream::connect(address).await.is_err());
    until("no new connection is taken", Duration::from_secs(5), refused).await.unwrap();
    slow.end.notify_one();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("done"), "{answer}");
    tokio::time::timeout(Duration::from_secs(2), task).await.expect("the server ends").unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}
