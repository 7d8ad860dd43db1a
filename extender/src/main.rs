//! Entry point of the extender: flags, wiring, shutdown.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use andreas_api::slim::AllocatedJob;
use andreas_extender::cluster::Cluster;
use andreas_extender::jobs::Jobs;
use andreas_extender::metrics::Metrics;
use andreas_extender::verbs::{Config, Extender};
use andreas_extender::{USER_AGENT, routes};
use andreas_runtime::admin::{self, AdminArgs};
use andreas_runtime::client::{self, ClientArgs};
use andreas_runtime::health::Health;
use andreas_runtime::listen;
use andreas_runtime::server::{self, Limits};
use andreas_runtime::shutdown;
use andreas_runtime::telemetry::{self, TelemetryArgs};
use andreas_runtime::watch::{WatchConfig, WatchMetrics, Watcher, feed};
use clap::Parser;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

/// Time after which a connection without a request is closed.
const IDLE: Duration = Duration::from_secs(120);

/// kube-scheduler extender of ANDREAS: restricts each training pod to the node of its allocation.
#[derive(Debug, Parser)]
#[command(name = "andreas-extender", version)]
struct Args {
    /// Loopback address for calls from kube-scheduler, which runs in the same pod. Calls are plain HTTP, so every other address is refused.
    #[arg(long, env = "ANDREAS_LISTEN", default_value = "127.0.0.1:9080", value_name = "ADDR", value_parser = loopback)]
    listen: SocketAddr,
    /// Maximum request body, in MiB. Larger calls are rejected.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256), value_name = "MIB")]
    max_body: u32,
    /// Maximum number of concurrent connections. Each call of kube-scheduler has one of its own.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=4096), value_name = "N")]
    max_connections: u32,
    /// Maximum number of concurrent Bindings sent to the API server. Further bind calls wait.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=256), value_name = "N")]
    max_binds: u32,
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    telemetry::init(&args.telemetry)?;
    let shutdown = shutdown::on_signals()?;

    let client = client::connect(&args.client, USER_AGENT).await?;
    let listener = listen::bind(args.listen)?;
    let admin = admin::bind(&args.admin)?;
    let admin_address = admin.address()?;

    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let watches = WatchMetrics::register(&mut registry);
    let health = Health::new();
    let ready = health.register("jobs cache");
    // The admin port closes last, so that probes do not fail while connections drain.
    let admin_end = CancellationToken::new();
    let admin = tokio::spawn(admin.serve(Arc::new(registry), health, client.clone(), admin_end.clone()));

    let jobs = Arc::new(Mutex::new(Jobs::default()));
    let watcher: Watcher<AllocatedJob> = Watcher::new(client.clone(), WatchConfig::default(), &watches);
    tokio::spawn(feed(watcher, Arc::clone(&jobs), ready.clone(), shutdown.clone()));
    tokio::spawn(report(ready, metrics.clone(), shutdown.clone()));

    let config = Config { binds: args.max_binds as usize, ..Config::default() };
    let extender = Arc::new(Extender::new(jobs, Cluster::new(client), config, metrics));
    let router = routes::router(extender, args.max_body as usize * 1024 * 1024);
    let limits = Limits {
        connections: args.max_connections as usize,
        // Go's client closes idle connections after 90 s: were the server the first, a call could meet the end of its connection.
        header: IDLE,
        idle: IDLE,
        requests: 4096,
        buffer: 1024 * 1024,
        ..Limits::default()
    };
    tracing::info!(
        listen = %listener.local_addr()?,
        admin = %admin_address,
        version = env!("CARGO_PKG_VERSION"),
        "serving the scheduler"
    );
    server::serve(listener, None, router, limits, shutdown).await?;
    admin_end.cancel();
    admin.await??;
    Ok(())
}

/// Parses a loopback address with its port.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|error| format!("{error}"))?;
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err("calls are not encrypted: only a loopback address is allowed, such as 127.0.0.1:9080".to_owned())
    }
}

/// Updates the gauge of the cache.
async fn report(ready: andreas_runtime::health::ReadyHandle, metrics: Metrics, shutdown: CancellationToken) {
    while !shutdown.is_cancelled() {
        metrics.cache_ready.set(i64::from(ready.is_set()));
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
            () = shutdown.cancelled() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn only_loopback_addresses_are_listened_on() {
        Args::command().debug_assert();
        let listens = |address: &str| Args::try_parse_from(["andreas-extender", "--listen", address]);
        for address in ["127.0.0.1:9080", "127.8.0.1:1", "[::1]:9080"] {
            assert_eq!(listens(address).unwrap().listen, address.parse().unwrap());
        }
        for address in [
            "0.0.0.0:9080",
            "[::]:9080",
            "10.0.0.7:9080",
            "[::ffff:127.0.0.1]:9080",
            "localhost:9080",
            ":9080",
            "",
        ] {
            let refusal = listens(address).unwrap_err().to_string();
            assert!(refusal.contains("--listen"), "{refusal}");
        }
        assert!(Args::try_parse_from(["andreas-extender"]).unwrap().listen.ip().is_loopback());
    }
}
