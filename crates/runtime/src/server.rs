//! An HTTP server with limits: what `axum::serve` leaves out.
//!
//! HTTP/1.1 and HTTP/2 on one port, with TLS or without. `TCP_NODELAY` is always set: a TLS server that writes header and body
//! separately costs 44 ms per call otherwise. Slow, silent and superfluous clients are sent away: see [`Limits`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::response::IntoResponse;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::tls::Tls;

/// What one listener allows its clients.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections served at a time; one more is closed after its handshake.
    pub connections: usize,
    /// TLS handshakes at a time; one more is closed unseen. Separate from `connections`, so that clients without a
    /// certificate cannot take the places of those with one.
    pub handshakes: usize,
    /// Time for a TLS handshake.
    pub handshake: Duration,
    /// Time for the head of an HTTP/1.1 request.
    pub header: Duration,
    /// Requests at a time on one HTTP/2 connection.
    pub streams: u32,
    /// Requests at a time in all; one more is answered with 503 before its body is read.
    pub requests: usize,
    /// A connection without a request for this long is closed.
    pub idle: Duration,
    /// Time for requests in flight at shutdown.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            handshakes: 128,
            handshake: Duration::from_secs(5),
            header: Duration::from_secs(5),
            streams: 256,
            requests: 1024,
            idle: Duration::from_secs(120),
            drain: Duration::from_secs(10),
        }
    }
}

/// Serves `router` on `listener` until `shutdown`, then waits for requests in flight, at most [`Limits::drain`].
///
/// The peer's address is in the request's extensions as [`ConnectInfo<SocketAddr>`]. Request bodies are not limited here: use
/// axum's `DefaultBodyLimit`, and a time-out in the handler.
///
/// # Errors
/// When the listener itself fails; errors of single connections are logged and end only these.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Tls>,
    router: Router,
    limits: Limits,
    shutdown: CancellationToken,
) -> std::io::Result<()> {
    let handshakes = Arc::new(Semaphore::new(limits.handshakes));
    let places = Arc::new(Semaphore::new(limits.connections));
    let requests = Arc::new(Semaphore::new(limits.requests));
    let tasks = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, or the peer was gone already: neither is a reason to stop serving.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Ok(handshake) = Arc::clone(&handshakes).try_acquire_owned() else {
            tracing::debug!(%peer, "closed: too many handshakes at a time");
            continue;
        };
        let connection = Connection {
            peer,
            router: router.clone(),
            limits: limits.clone(),
            places: Arc::clone(&places),
            requests: Arc::clone(&requests),
            shutdown: shutdown.clone(),
        };
        let tls = tls.clone();
        tasks.spawn(async move {
            if let Err(reason) = connection.run(stream, tls, handshake).await {
                tracing::debug!(%peer, reason, "connection ended");
            }
        });
    }
    drop(listener);
    tasks.close();
    // Connections drain by themselves within `drain`; the second more is for their last writes.
    let _ = timeout(limits.drain + Duration::from_secs(1), tasks.wait()).await;
    Ok(())
}

struct Connection {
    peer: SocketAddr,
    router: Router,
    limits: Limits,
    places: Arc<Semaphore>,
    requests: Arc<Semaphore>,
    shutdown: CancellationToken,
}

impl Connection {
    async fn run(
        self,
        stream: TcpStream,
        tls: Option<Tls>,
        handshake: OwnedSemaphorePermit,
    ) -> Result<(), String> {
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let Some(tls) = tls else {
            drop(handshake);
            return self.http(stream).await;
        };
        let accept = tls.acceptor().accept(stream);
        let secured = tokio::select! {
            done = timeout(self.limits.handshake, accept) => done.map_err(|_| "handshake took too long".to_owned())?,
            () = self.shutdown.cancelled() => return Ok(()),
        };
        let secured = secured.map_err(|error| format!("handshake failed: {error}"))?;
        drop(handshake);
        self.http(secured).await
    }

    async fn http<I>(self, io: I) -> Result<(), String>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Ok(_place) = self.places.try_acquire() else { return Err("too many connections".to_owned()) };
        let activity = Arc::new(Activity::new());
        let (router, peer, seen) = (self.router.clone(), self.peer, Arc::clone(&activity));
        let requests = Arc::clone(&self.requests);
        let service = service_fn(move |request: Request<Incoming>| {
            let (router, guard) = (router.clone(), seen.begin());
            let place = Arc::clone(&requests).try_acquire_owned();
            async move {
                let Ok(_place) = place else {
                    return Ok(
                        (StatusCode::SERVICE_UNAVAILABLE, "too many requests at a time\n").into_response()
                    );
                };
                let mut request = request.map(axum::body::Body::new);
                request.extensions_mut().insert(ConnectInfo(peer));
                let response = router.oneshot(request).await;
                drop(guard);
                response
            }
        });

        let mut builder = Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(self.limits.header);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.limits.streams)
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(10));
        let served = builder.serve_connection(TokioIo::new(io), service);
        tokio::pin!(served);

        let mut end: Option<Instant> = None;
        loop {
            let look = end.unwrap_or_else(|| activity.idle_since() + self.limits.idle);
            tokio::select! {
                result = served.as_mut() => return result.map_err(|error| error.to_string()),
                () = self.shutdown.cancelled(), if end.is_none() => {
                    end = Some(Instant::now() + self.limits.drain);
                    served.as_mut().graceful_shutdown();
                }
                () = sleep_until(look) => {
                    if end.is_some() {
                        return Err("did not end in time".to_owned());
                    }
                    if activity.idle_since() + self.limits.idle <= Instant::now() {
                        end = Some(Instant::now() + Duration::from_secs(2));
                        served.as_mut().graceful_shutdown();
                    }
                }
            }
        }
    }
}

/// When a connection last had something to do.
struct Activity {
    start: Instant,
    in_flight: AtomicUsize,
    /// Milliseconds after `start`.
    last: AtomicU64,
}

impl Activity {
    fn new() -> Self {
        Self { start: Instant::now(), in_flight: AtomicUsize::new(0), last: AtomicU64::new(0) }
    }

    fn begin(self: &Arc<Self>) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        InFlight(Arc::clone(self))
    }

    /// Now while a request is in flight, else the end of the last one.
    fn idle_since(&self) -> Instant {
        if self.in_flight.load(Ordering::Acquire) > 0 {
            return Instant::now();
        }
        self.start + Duration::from_millis(self.last.load(Ordering::Acquire))
    }
}

struct InFlight(Arc<Activity>);

impl Drop for InFlight {
    fn drop(&mut self) {
        let since = u64::try_from(self.0.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.last.store(since, Ordering::Release);
        self.0.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}
