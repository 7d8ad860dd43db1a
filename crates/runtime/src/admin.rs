//! The ports for operations: `/metrics` for Prometheus, `/livez` and `/readyz` for the kubelet.
//!
//! They use plain HTTP on separate ports. Probes and scrapes need no client certificate, and a NetworkPolicy
//! can treat them separately. Probes have a port of their own, so a flood of connections on another port
//! fails no probe. All pages are read-only.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Router, middleware};
use clap::Args;
use http::{StatusCode, header};
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::access::{Access, guard};
use crate::health::Health;
use crate::listen;
use crate::server::{self, Limits};

/// Media type of the OpenMetrics text format, version 1.0.0.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Minimum time between two collections of metrics.
const METRICS_EVERY: Duration = Duration::from_millis(200);

/// Flags for the admin servers; flatten them into a server's own flags.
#[derive(Clone, Debug, Args)]
pub struct AdminArgs {
    /// Address for /metrics (plain HTTP); it also serves /livez and /readyz. `[::]`: all addresses, of IPv6 and IPv4.
    #[arg(
        id = "admin-listen",
        long = "admin-listen",
        env = "ANDREAS_ADMIN_LISTEN",
        default_value = "[::]:9090",
        value_name = "ADDR"
    )]
    pub listen: SocketAddr,
    /// Address for /livez and /readyz only (plain HTTP), for the kubelet's probes. Default: off.
    #[arg(id = "probe-listen", long = "probe-listen", env = "ANDREAS_PROBE_LISTEN", value_name = "ADDR")]
    pub probe_listen: Option<SocketAddr>,
    /// Serve /metrics only to bearer tokens with the right to `get` the non-resource URL /metrics.
    #[arg(id = "metrics-auth", long = "metrics-auth", env = "ANDREAS_METRICS_AUTH")]
    pub metrics_auth: bool,
}

/// The bound admin ports.
pub struct Listeners {
    metrics: TcpListener,
    probes: Option<TcpListener>,
    metrics_auth: bool,
}

/// Binds the ports.
///
/// # Errors
/// When an address cannot be bound; it is in the message.
///
/// # Panics
/// Outside a tokio runtime.
pub fn bind(args: &AdminArgs) -> std::io::Result<Listeners> {
    let probes = args.probe_listen.map(listen::bind).transpose()?;
    Ok(Listeners { metrics: listen::bind(args.listen)?, probes, metrics_auth: args.metrics_auth })
}

impl Listeners {
    /// The address of `/metrics`.
    ///
    /// # Errors
    /// The system's error.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.metrics.local_addr()
    }

    /// Serves until `shutdown`. `client` reviews tokens, with `--metrics-auth`.
    ///
    /// Keep it running while the process drains, so that probes do not fail meanwhile.
    ///
    /// # Errors
    /// When a listener fails permanently.
    pub async fn serve(
        self,
        registry: Arc<Registry>,
        health: Health,
        client: Client,
        shutdown: CancellationToken,
    ) -> std::io::Result<()> {
        let access = self.metrics_auth.then(|| Access::new(client));
        let routes = metrics_router(registry, access).merge(probe_router(health.clone()));
        let metrics = server::serve(self.metrics, None, routes, Limits::default(), shutdown.clone());
        let probes = async {
            match self.probes {
                Some(listener) => {
                    server::serve(listener, None, probe_router(health), probe_limits(), shutdown).await
                }
                None => Ok(()),
            }
        };
        tokio::try_join!(metrics, probes).map(|_| ())
    }
}

/// Short limits: a probe connects, asks and leaves.
fn probe_limits() -> Limits {
    Limits {
        header: Duration::from_secs(2),
        request: Duration::from_secs(2),
        idle_unknown: Duration::from_secs(5),
        streams: 1,
        buffer: 8 * 1024,
        ..Limits::default()
    }
}

/// `/livez` and `/readyz`.
pub fn probe_router(health: Health) -> Router {
    Router::new()
        .route("/livez", get(|State(health): State<Health>| async move { probe_response(&health.overdue()) }))
        .route(
            "/readyz",
            get(|State(health): State<Health>| async move { probe_response(&health.not_ready()) }),
        )
        .with_state(health)
}

/// `/metrics`, open or restricted by `access`.
pub fn metrics_router(registry: Arc<Registry>, access: Option<Arc<Access>>) -> Router {
    let exposed = Arc::new(MetricsCache { registry, text: Mutex::new(None) });
    let router = Router::new().route("/metrics", get(metrics)).with_state(exposed);
    match access {
        Some(access) => router.layer(middleware::from_fn_with_state(access, guard)),
        None => router,
    }
}

struct MetricsCache {
    registry: Arc<Registry>,
    /// Last collected text and its time; collecting takes locks that other tasks need.
    text: Mutex<Option<(Instant, Arc<str>)>>,
}

impl MetricsCache {
    /// The metrics as text, collected by one request at a time.
    async fn text(&self) -> Result<Arc<str>, std::fmt::Error> {
        let mut held = self.text.lock().await;
        if let Some((_, text)) = held.as_ref().filter(|(at, _)| at.elapsed() < METRICS_EVERY) {
            return Ok(Arc::clone(text));
        }
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        let text: Arc<str> = text.into();
        *held = Some((Instant::now(), Arc::clone(&text)));
        Ok(text)
    }
}

async fn metrics(State(exposed): State<Arc<MetricsCache>>) -> Response {
    match exposed.text().await {
        Ok(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text.to_string()).into_response(),
        Err(error) => {
            tracing::error!(%error, "metrics could not be encoded");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

fn probe_response(failing: &[String]) -> Response {
    if failing.is_empty() {
        return (StatusCode::OK, "ok\n").into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for: {}\n", failing.join(", "))).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use http::Request;
    use http_body_util::BodyExt;
    use prometheus_client::metrics::counter::Counter;
    use tower::ServiceExt;

    async fn ask(router: &Router, path: &str) -> (StatusCode, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn readyz_names_what_is_missing_and_metrics_come_as_openmetrics() {
        let mut registry = Registry::default();
        let counter = Counter::<u64>::default();
        registry.register("andreas_things", "Things", counter.clone());
        counter.inc();
        let health = Health::new();
        let jobs = health.register("jobs cache");
        let router = metrics_router(Arc::new(registry), None).merge(probe_router(health));

        assert_eq!(
            ask(&router, "/readyz").await,
            (StatusCode::SERVICE_UNAVAILABLE, "waiting for: jobs cache\n".into())
        );
        assert_eq!(ask(&router, "/livez").await, (StatusCode::OK, "ok\n".into()));
        jobs.set();
        assert_eq!(ask(&router, "/readyz").await.0, StatusCode::OK);
        let (status, text) = ask(&router, "/metrics").await;
        assert_eq!(status, StatusCode::OK);
        assert!(text.contains("andreas_things_total 1") && text.ends_with("# EOF\n"), "{text}");
    }
}
