//! Entry point of the extender: flags, wiring, shutdown.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use andreas_api::slim::AllocatedJob;
use andreas_extender::certificates::{PodCertificates, SERVING, SecretFiles};
use andreas_extender::cluster::Cluster;
use andreas_extender::jobs::Jobs;
use andreas_extender::metrics::Metrics;
use andreas_extender::verbs::{Config, Extender};
use andreas_extender::{USER_AGENT, routes};
use andreas_runtime::admin::{self, AdminArgs};
use andreas_runtime::arguments;
use andreas_runtime::certificates::{CertificateLifetimeArgs, CertificateMetrics};
use andreas_runtime::client::{self, ClientArgs};
use andreas_runtime::health::Health;
use andreas_runtime::listen;
use andreas_runtime::server::{self, Limits};
use andreas_runtime::shutdown;
use andreas_runtime::telemetry::{self, TelemetryArgs};
use andreas_runtime::tls::{ClientCertificates, MinTlsVersion, RELOAD_EVERY, Tls, TlsFiles};
use andreas_runtime::watch::{WatchConfig, WatchMetrics, Watcher, feed};
use anyhow::Context;
use clap::Parser;
use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

/// kube-scheduler extender of ANDREAS: restricts each training pod to the node of its allocation.
#[derive(Debug, Parser)]
#[command(name = "andreas-extender", version)]
struct Args {
    /// Listen address for calls from kube-scheduler (mutual TLS). kube-scheduler runs in the same pod.
    #[arg(long, env = "ANDREAS_LISTEN", default_value = "127.0.0.1:9443", value_name = "ADDR")]
    listen: SocketAddr,
    /// Serving certificate chain (PEM file).
    #[arg(
        long,
        env = "ANDREAS_TLS_CERT",
        required_unless_present = "certificates_folder",
        requires = "tls_key",
        requires = "client_ca",
        value_name = "FILE"
    )]
    tls_cert: Option<PathBuf>,
    /// Private key of the serving certificate (PEM file).
    #[arg(long, env = "ANDREAS_TLS_KEY", requires = "tls_cert", value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// CA of kube-scheduler's client certificate (PEM file). Do not use the cluster's CA: it also signs every
    /// kubelet's certificate.
    #[arg(long, env = "ANDREAS_CLIENT_CA", requires = "tls_cert", value_name = "FILE")]
    client_ca: Option<PathBuf>,
    /// Private folder for certificates. They are created and renewed there or, with --tls-cert, replaced with
    /// an overlap.
    #[arg(long, env = "ANDREAS_CERTIFICATES_FOLDER", requires = "scheduler_folder", value_name = "FOLDER")]
    certificates_folder: Option<PathBuf>,
    /// Folder shared with kube-scheduler. Receives ca.crt and, without --tls-cert, client.crt and client.key.
    #[arg(long, env = "ANDREAS_SCHEDULER_FOLDER", value_name = "FOLDER")]
    scheduler_folder: Option<PathBuf>,
    /// Server name in a certificate that is created by the extender.
    #[arg(long, env = "ANDREAS_SERVER_NAME", default_value = "andreas-extender", value_name = "NAME", value_parser = arguments::non_empty)]
    server_name: String,
    /// Create the certificates and exit. For the init container that runs before kube-scheduler.
    #[arg(long, requires = "certificates_folder")]
    prepare_certificates: bool,
    #[command(flatten)]
    lifetimes: CertificateLifetimeArgs,
    /// Accepted name in kube-scheduler's client certificate: common name, DNS name or URI. May be repeated.
    #[arg(long, env = "ANDREAS_CLIENT_NAME", required = true, value_delimiter = ',', value_name = "NAME", value_parser = arguments::non_empty)]
    client_name: Vec<String>,
    /// Maximum request body, in MiB. Larger calls are rejected.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256), value_name = "MIB")]
    max_body: u32,
    /// Maximum number of concurrent connections.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096), value_name = "N")]
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

    if args.prepare_certificates {
        let made = pod_certificates(&args).map(|certificates| certificates.renew(Timestamp::now(), true));
        return Ok(made.transpose().map(drop)?);
    }
    let client = client::connect(&args.client, USER_AGENT).await?;
    let certificates = pod_certificates(&args);
    let tls = load(&args, certificates.as_ref())?;
    let listener = listen::bind(args.listen)?;
    let admin = admin::bind(&args.admin)?;
    let admin_address = admin.address()?;

    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let watches = WatchMetrics::register(&mut registry);
    let certificate_metrics = CertificateMetrics::register(&mut registry);
    let health = Health::new();
    let ready = health.register("jobs cache");
    // The admin port closes last, so that probes do not fail while connections drain.
    let admin_end = CancellationToken::new();
    let admin = tokio::spawn(admin.serve(Arc::new(registry), health, client.clone(), admin_end.clone()));

    let jobs = Arc::new(Mutex::new(Jobs::default()));
    let watcher: Watcher<AllocatedJob> = Watcher::new(client.clone(), WatchConfig::default(), &watches);
    tokio::spawn(feed(watcher, Arc::clone(&jobs), ready.clone(), shutdown.clone()));
    match certificates {
        Some(certificates) => {
            tokio::spawn(keep_renewed(certificates, tls.clone(), certificate_metrics, shutdown.clone()));
        }
        None => {
            let kept =
                tls.clone().keep_reloading(RELOAD_EVERY, SERVING, certificate_metrics, shutdown.clone());
            tokio::spawn(kept);
        }
    }
    tokio::spawn(report(Arc::clone(&jobs), ready, metrics.clone(), shutdown.clone()));

    let config = Config { binds: args.max_binds as usize, ..Config::default() };
    let extender = Arc::new(Extender::new(jobs, Cluster::new(client), config, metrics));
    let router = routes::router(extender, args.max_body as usize * 1024 * 1024);
    let limits = Limits {
        connections: args.max_connections as usize,
        streams: 1024,
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
    server::serve(listener, Some(tls), router, limits, shutdown).await?;
    admin_end.cancel();
    admin.await??;
    Ok(())
}

/// The files of the flags --tls-cert, --tls-key and --client-ca, if all are set.
fn secret_files(args: &Args) -> Option<SecretFiles> {
    let (certificate, key, authority) =
        (args.tls_cert.clone()?, args.tls_key.clone()?, args.client_ca.clone()?);
    Some(SecretFiles { certificate, key, authority })
}

fn pod_certificates(args: &Args) -> Option<PodCertificates> {
    Some(PodCertificates {
        own: args.certificates_folder.clone()?,
        scheduler: args.scheduler_folder.clone()?,
        server_name: args.server_name.clone(),
        client_name: args.client_name.first().cloned()?,
        lifetimes: args.lifetimes.into(),
        given: secret_files(args),
    })
}

fn load(args: &Args, certificates: Option<&PodCertificates>) -> anyhow::Result<Tls> {
    if let Some(certificates) = certificates {
        let pem = certificates.renew(Timestamp::now(), false)?;
        return Ok(Tls::from_pem(pem, Some(args.client_name.clone()), MinTlsVersion::Tls13)?);
    }
    let SecretFiles { certificate, key, authority } = secret_files(args)
        .context("--tls-cert, --tls-key and --client-ca, or --certificates-folder are needed")?;
    let clients = Some(ClientCertificates { authority, names: args.client_name.clone() });
    Ok(Tls::load(TlsFiles { certificate, key, clients, oldest: MinTlsVersion::Tls13 })?)
}

/// Renews the pod's certificates until `shutdown`. If a renewal fails, the current ones stay in use.
async fn keep_renewed(
    certificates: PodCertificates,
    tls: Tls,
    metrics: CertificateMetrics,
    shutdown: CancellationToken,
) {
    let every = certificates.lifetimes.check_every(RELOAD_EVERY);
    while !shutdown.is_cancelled() {
        let renewed = certificates.renew(Timestamp::now(), false).map_err(anyhow::Error::from);
        let taken = renewed.and_then(|pem| {
            tls.replace(pem.clone())?;
            certificates.report(&pem, &metrics);
            Ok(())
        });
        if let Err(error) = taken {
            metrics.record_failure(SERVING);
            tracing::warn!(error = format!("{error:#}"), "certificates not renewed, the old ones stay");
        }
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = shutdown.cancelled() => {}
        }
    }
}

/// Updates the gauges of the cache.
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
        let parse = |flags: &[&str]| {
            let all = [&["andreas-extender", "--client-name", "andreas-scheduler"], flags].concat();
            Args::try_parse_from(all)
        };
        let files = ["--tls-cert", "c", "--tls-key", "k", "--client-ca", "a"];
        let folders = ["--certificates-folder", "own", "--scheduler-folder", "shared"];
        assert!(parse(&files).is_ok() && parse(&folders).is_ok());
        assert!(parse(&[files.as_slice(), &folders].concat()).is_ok());
        assert!(parse(&[]).is_err() && parse(&files[..4]).is_err() && parse(&folders[..2]).is_err());
        assert!(parse(&[files.as_slice(), &["--prepare-certificates"]].concat()).is_err());
    }
}
