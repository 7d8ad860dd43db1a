//! The extender's process: flags, wiring, and an orderly end.

use std::net::SocketAddr;
use std::path::PathBuf;
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
use andreas_runtime::server::{self, Limits};
use andreas_runtime::shutdown;
use andreas_runtime::telemetry::{self, TelemetryArgs};
use andreas_runtime::tls::{ClientCertificates, Oldest, RELOAD_EVERY, Tls, TlsFiles};
use andreas_runtime::watch::{WatchConfig, WatchMetrics, Watcher, feed};
use anyhow::Context;
use clap::Parser;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// kube-scheduler extender of ANDREAS: lets training pods go only where their allocation says.
#[derive(Debug, Parser)]
#[command(name = "andreas-extender", version)]
struct Args {
    /// Address for the scheduler's calls (mutual TLS). The scheduler runs in the same pod.
    #[arg(long, env = "ANDREAS_LISTEN", default_value = "127.0.0.1:9443", value_name = "ADDR")]
    listen: SocketAddr,
    /// Our certificate chain (PEM).
    #[arg(long, env = "ANDREAS_TLS_CERT", value_name = "FILE")]
    tls_cert: PathBuf,
    /// Our private key (PEM).
    #[arg(long, env = "ANDREAS_TLS_KEY", value_name = "FILE")]
    tls_key: PathBuf,
    /// Authority of the scheduler's client certificate (PEM). Not the cluster's: it signs every kubelet's.
    #[arg(long, env = "ANDREAS_CLIENT_CA", value_name = "FILE")]
    client_ca: PathBuf,
    /// Name in the scheduler's client certificate: common name, DNS or URI name. May be given more than once.
    #[arg(long, env = "ANDREAS_CLIENT_NAME", required = true, value_delimiter = ',', value_name = "NAME")]
    client_name: Vec<String>,
    /// Largest body of a call, MiB.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256), value_name = "MIB")]
    max_body: u32,
    /// Connections served at a time.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096), value_name = "N")]
    max_connections: u32,
    /// Bindings on their way to the API server at a time.
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
    let tls = Tls::load(TlsFiles {
        certificate: args.tls_cert,
        key: args.tls_key,
        clients: Some(ClientCertificates { authority: args.client_ca, names: args.client_name }),
        oldest: Oldest::Tls13,
    })?;
    let listener =
        TcpListener::bind(args.listen).await.with_context(|| format!("cannot listen on {}", args.listen))?;
    let admin_listener = TcpListener::bind(args.admin.listen)
        .await
        .with_context(|| format!("cannot listen on {}", args.admin.listen))?;
    let admin_address = admin_listener.local_addr()?;

    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let watches = WatchMetrics::register(&mut registry);
    let health = Health::new();
    let ready = health.register("jobs cache");
    // The admin port outlives the service: probes that fail while it drains would only hide that.
    let admin_end = CancellationToken::new();
    let admin = tokio::spawn(admin::serve(admin_listener, Arc::new(registry), health, admin_end.clone()));

    let jobs = Arc::new(Mutex::new(Jobs::default()));
    let watcher: Watcher<AllocatedJob> = Watcher::new(client.clone(), WatchConfig::default(), &watches);
    tokio::spawn(feed(watcher, Arc::clone(&jobs), ready.clone(), shutdown.clone()));
    tokio::spawn(tls.clone().keep_fresh(RELOAD_EVERY, shutdown.clone()));
    tokio::spawn(report(Arc::clone(&jobs), ready, metrics.clone(), shutdown.clone()));

    let config = Config { binds: args.max_binds as usize, ..Config::default() };
    let extender = Arc::new(Extender::new(jobs, Cluster::new(client), config, metrics));
    let router = routes::router(extender, args.max_body as usize * 1024 * 1024);
    let limits = Limits {
        connections: args.max_connections as usize,
        streams: 1024,
        requests: 4096,
        ..Limits::default()
    };
    tracing::info!(
        listen = %listener.local_addr()?,
        admin = %admin_address,
        version = env!("CARGO_PKG_VERSION"),
        "serving the scheduler"
    );
    server::serve(listener, Some(tls), router, limits, shutdown).await?;
    admin_end.cancel();
    admin.await??;
    Ok(())
}

/// Keeps the gauges of the cache.
async fn report(
    jobs: Arc<Mutex<Jobs>>,
    ready: andreas_runtime::health::ReadyHandle,
    metrics: Metrics,
    shutdown: CancellationToken,
) {
    while !shutdown.is_cancelled() {
        metrics.jobs.set(i64::try_from(jobs.lock().len()).unwrap_or(i64::MAX));
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
    fn the_flags_do_not_contradict_each_other() {
        Args::command().debug_assert();
    }
}
