//! An HTTP server with the limits that `axum::serve` lacks.
//!
//! It serves HTTP/1.1 and HTTP/2 on one port, with or without TLS. `TCP_NODELAY` is always set: otherwise a
//! TLS server that writes header and body separately costs 44 ms per call. Slow and silent clients are
//! disconnected, see [`Limits`]. At the connection limit, new clients are still accepted: the longest idle
//! connection of the largest group is closed (`slots.rs`).

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::tls::Tls;

mod handshakes;
mod limits;
mod overload;
mod slots;

use handshakes::FailedHandshakes;
pub use limits::Limits;
pub use overload::Overload;
use slots::{ConnectionSlot, ConnectionSlots};

/// The connection of a request, in the request's extensions.
#[derive(Clone)]
pub struct RequestConnection(Arc<slots::Connection>);

impl RequestConnection {
    /// Marks its client as authenticated: connections of known clients have reserved slots, shared per
    /// `client`.
    pub fn authenticated(&self, client: &str) {
        self.0.authenticated(client);
    }
}

/// Serves `router` on `listener` until `shutdown`, then waits for requests in flight, at most
/// [`Limits::drain`].
///
/// The request's extensions hold the peer's address as [`ConnectInfo<SocketAddr>`] and the connection as
/// [`RequestConnection`]. Request bodies are not limited here: use axum's `DefaultBodyLimit`.
///
/// # Errors
/// When the listener itself fails. Errors of single connections end only these; failed handshakes are logged, one in a minute.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Tls>,
    router: Router,
    limits: Limits,
    shutdown: CancellationToken,
) -> std::io::Result<()> {
    serve_noting(listener, tls, router, limits, Overload::default(), shutdown).await
}

/// As [`serve`]; `overload` records clients that were turned away.
///
/// # Errors
/// As [`serve`].
pub async fn serve_noting(
    listener: TcpListener,
    tls: Option<Tls>,
    router: Router,
    limits: Limits,
    overload: Overload,
    shutdown: CancellationToken,
) -> std::io::Result<()> {
    overload::raise_open_files();
    let slots = ConnectionSlots::new(limits.connections, limits.handshake, overload.clone());
    let requests = Arc::new(Semaphore::new(limits.requests));
    let failed_handshakes = Arc::<FailedHandshakes>::default();
    let tasks = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, or the peer has already left: keep serving.
                tracing::warn!(%error, "a connection could not be accepted");
                overload.note();
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        // A listener of both families names IPv4 clients by IPv6 addresses.
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let Some(slot) = slots.take(peer.ip()) else {
            tracing::debug!(%peer, "closed: every slot is busy");
            continue;
        };
        let connection = Serving {
            peer,
            router: router.clone(),
            limits: limits.clone(),
            slot,
            requests: Arc::clone(&requests),
            overload: overload.clone(),
            failed_handshakes: Arc::clone(&failed_handshakes),
            shutdown: shutdown.clone(),
        };
        let tls = tls.clone();
        tasks.spawn(async move {
            let evicted = connection.slot.connection().evicted();
            let ended = tokio::select! {
                ended = connection.run(stream, tls) => ended,
                () = evicted.cancelled() => Err("another connection needed its slot".to_owned()),
            };
            if let Err(reason) = ended {
                tracing::debug!(%peer, reason, "connection ended");
            }
        });
    }
    drop(listener);
    tasks.close();
    // Connections drain within `drain`; the extra second is for their last writes.
    let _ = timeout(limits.drain + Duration::from_secs(1), tasks.wait()).await;
    Ok(())
}

struct Serving {
    peer: SocketAddr,
    router: Router,
    limits: Limits,
    slot: ConnectionSlot,
    requests: Arc<Semaphore>,
    overload: Overload,
    failed_handshakes: Arc<FailedHandshakes>,
    shutdown: CancellationToken,
}

impl Serving {
    async fn run(self, stream: TcpStream, tls: Option<Tls>) -> Result<(), String> {
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let Some(tls) = tls else { return self.http(stream).await };
        let accept = tls.acceptor().accept(stream);
        let secured = tokio::select! {
            done = timeout(self.limits.handshake, accept) => done.map_err(|_| "handshake took too long".to_owned())?,
            () = self.shutdown.cancelled() => return Ok(()),
        };
        let secured = secured.map_err(|error| {
            self.failed_handshakes.note(self.peer, &error);
            format!("handshake failed: {error}")
        })?;
        self.http(secured).await
    }

    async fn http<I>(self, io: I) -> Result<(), String>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let connection = Arc::clone(self.slot.connection());
        let (router, peer, seen) = (self.router.clone(), self.peer, Arc::clone(&connection));
        let (requests, overload) = (Arc::clone(&self.requests), self.overload.clone());
        let limit = self.limits.request;
        let service = service_fn(move |request: Request<Incoming>| {
            let (router, seen, in_flight) = (router.clone(), Arc::clone(&seen), seen.begin());
            let slot = Arc::clone(&requests).try_acquire_owned();
            if slot.is_err() {
                overload.note();
            }
            async move {
                let Ok(_slot) = slot else {
                    return Ok(
                        (StatusCode::SERVICE_UNAVAILABLE, "too many requests at a time\n").into_response()
                    );
                };
                let mut request = request.map(Body::new);
                request.extensions_mut().insert(ConnectInfo(peer));
                request.extensions_mut().insert(RequestConnection(Arc::clone(&seen)));
                let answer = timeout(limit, router.oneshot(request)).await;
                drop(in_flight);
                let answer = answer.unwrap_or_else(|_| Ok(StatusCode::REQUEST_TIMEOUT.into_response()));
                answer
                    .map(|answer: Response| answer.map(|body| Body::new(Watched { body, connection: seen })))
            }
        });

        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.header)
            .max_buf_size(self.limits.buffer.max(8 * 1024) as usize);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.limits.streams)
            .initial_stream_window_size(self.limits.buffer)
            .initial_connection_window_size(self.limits.buffer.max(64 * 1024))
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(10));
        let served = builder.serve_connection(TokioIo::new(io), service);
        tokio::pin!(served);

        let established = Instant::now();
        let mut end: Option<Instant> = None;
        loop {
            // With a request in flight, check again after the idle timeout.
            let closes = || connection.closes(established, &self.limits);
            let check_at =
                end.unwrap_or_else(|| closes().unwrap_or_else(|| Instant::now() + self.limits.idle_unknown));
            tokio::select! {
                result = served.as_mut() => return result.map_err(|error| error.to_string()),
                () = self.shutdown.cancelled(), if end.is_none() => {
                    end = Some(Instant::now() + self.limits.drain);
                    served.as_mut().graceful_shutdown();
                }
                () = sleep_until(check_at) => {
                    if end.is_some() {
                        return Err("did not end in time".to_owned());
                    }
                    if closes().is_some_and(|at| at <= Instant::now()) {
                        end = Some(Instant::now() + Duration::from_secs(2));
                        served.as_mut().graceful_shutdown();
                    }
                }
            }
        }
    }
}

/// An answer's body; its connection is not idle while the client reads it.
struct Watched {
    body: Body,
    connection: Arc<slots::Connection>,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.connection.touch();
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
