//! The port for machines that look after us: `/metrics`, `/livez`, `/readyz`.
//!
//! Plain HTTP on a port of its own, so that probes and scrapes need no client certificate and a NetworkPolicy can tell them
//! from the service. Nothing here changes anything.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use clap::Args;
use http::{HeaderMap, StatusCode, header};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::health::Health;
use crate::metrics::classic;
use crate::server::{self, Limits};

/// Media type of the OpenMetrics text format, version 1.0.0.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Media type of the text format before it, for whoever does not ask for OpenMetrics (curl, promtool).
const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Flag for the admin server; flatten it into a server's own.
#[derive(Clone, Debug, Args)]
pub struct AdminArgs {
    /// Address for /metrics, /livez and /readyz (plain HTTP).
    #[arg(
        id = "admin-listen",
        long = "admin-listen",
        env = "ANDREAS_ADMIN_LISTEN",
        default_value = "0.0.0.0:9090",
        value_name = "ADDR"
    )]
    pub listen: SocketAddr,
}

#[derive(Clone)]
struct Admin {
    registry: Arc<Registry>,
    health: Health,
}

/// The admin routes, for a server that is not started through [`serve`].
pub fn router(registry: Arc<Registry>, health: Health) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(|State(admin): State<Admin>| async move { verdict(&admin.health.overdue()) }))
        .route("/readyz", get(|State(admin): State<Admin>| async move { verdict(&admin.health.not_ready()) }))
        .with_state(Admin { registry, health })
}

/// Serves the admin routes on `listener` until `shutdown`.
///
/// Keep it running while the process drains: a probe that fails in that time only hides what goes on.
///
/// # Errors
/// When the listener fails for good.
pub async fn serve(
    listener: TcpListener,
    registry: Arc<Registry>,
    health: Health,
    shutdown: CancellationToken,
) -> std::io::Result<()> {
    server::serve(listener, None, router(registry, health), Limits::default(), shutdown).await
}

async fn metrics(State(admin): State<Admin>, headers: HeaderMap) -> Response {
    let mut text = String::new();
    let accepts = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let openmetrics = accepts.into_iter().any(|value| value.contains("application/openmetrics-text"));
    match prometheus_client::encoding::text::encode(&mut text, &admin.registry) {
        Ok(()) if openmetrics => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Ok(()) => ([(header::CONTENT_TYPE, CLASSIC)], classic(&text)).into_response(),
        Err(error) => {
            tracing::error!(%error, "metrics could not be encoded");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

fn verdict(failing: &[String]) -> Response {
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
        ask_for(router, path, "*/*").await
    }

    async fn ask_for(router: &Router, path: &str, accept: &str) -> (StatusCode, String) {
        let request = Request::get(path).header(header::ACCEPT, accept).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn readyz_names_what_is_missing_and_metrics_come_in_the_format_asked_for() {
        let mut registry = Registry::default();
        let counter = Counter::<u64>::default();
        registry.register("andreas_things", "Things", counter.clone());
        counter.inc();
        let health = Health::new();
        let jobs = health.register("jobs cache");
        let router = router(Arc::new(registry), health);

        assert_eq!(
            ask(&router, "/readyz").await,
            (StatusCode::SERVICE_UNAVAILABLE, "waiting for: jobs cache\n".into())
        );
        assert_eq!(ask(&router, "/livez").await, (StatusCode::OK, "ok\n".into()));
        jobs.set();
        assert_eq!(ask(&router, "/readyz").await.0, StatusCode::OK);
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5";
        let (status, text) = ask_for(&router, "/metrics", prometheus).await;
        assert_eq!(status, StatusCode::OK);
        assert!(text.contains("andreas_things_total 1") && text.ends_with("# EOF\n"), "{text}");
        let (status, text) = ask(&router, "/metrics").await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(
            text,
            "# HELP andreas_things_total Things.\n# TYPE andreas_things_total counter\nandreas_things_total 1\n"
        );
    }
}
