//! Putting it all together: client, caches, endpoints, election, loops, and ending in order.
//!
//! A follower fills its caches and serves progress; the leader also steps jobs, plans and keeps nodes. Loss of
//! leadership ends the process on purpose: memory filled as a leader is not to be trusted afterwards.

mod caches;
mod forecasts;
mod snapshot;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use andreas_planner::Options;
use andreas_runtime::health::Health;
use andreas_runtime::lease::{Held, KubeLeases, LeaseConfig, campaign};
use andreas_runtime::server::{Limits, serve};
use andreas_runtime::tls::{Oldest, RELOAD_EVERY, Tls, TlsFiles};
use andreas_runtime::watch::WatchMetrics;
use andreas_runtime::{admin, client, install_crypto, shutdown, telemetry};
use anyhow::{Context, bail};
use jiff::Timestamp;
use kube::runtime::events::{Recorder, Reporter};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use ring::rand::SecureRandom;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::args::{RunArgs, SchedulerMode};
use crate::events::Events;
use crate::executor::crowd::Crowd;
use crate::executor::trials::Trials;
use crate::executor::writer::Writer;
use crate::executor::{self, Shared};
use crate::index::ClusterIndex;
use crate::ledger::Ledger;
use crate::lifecycle::{ProgressEndpoint, Settings};
use crate::metrics::Metrics;
use crate::planning::{self, Pace};
use crate::profiles::{self, Lessons};
use crate::progress::{self, LastReports, Progress};
use forecasts::Forecasts;
pub use snapshot::Snapshots;

/// Connections to the progress endpoint: one per training program for a moment, every few seconds.
const PROGRESS_CONNECTIONS: usize = 1_024;

/// How long the last events may take to be sent.
const LAST_EVENTS: Duration = Duration::from_secs(2);

/// Runs the operator until a signal or the loss of leadership.
///
/// # Errors
/// When it cannot start, or leadership was lost.
pub fn run(args: RunArgs) -> anyhow::Result<()> {
    telemetry::init(&args.telemetry)?;
    install_crypto();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no runtime")?;
    let result = runtime.block_on(start(args));
    // A planner at work on a blocking thread must not hold the end up.
    runtime.shutdown_timeout(Duration::from_secs(2));
    result
}

async fn start(args: RunArgs) -> anyhow::Result<()> {
    let stop = shutdown::on_signals().context("no signal handlers")?;
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let watch_metrics = WatchMetrics::register(&mut registry);
    let health = Health::new();
    let user_agent = concat!("andreas-operator/", env!("CARGO_PKG_VERSION"));
    let client = client::connect(&args.client, user_agent).await?;

    let index = Arc::new(Mutex::new(ClusterIndex::new()));
    let reports: LastReports = Arc::new(Mutex::new(HashMap::new()));
    let forecasts = Forecasts::default();
    let snapshots = Snapshots::default();
    // Servers and caches outlive the loops: what is in hand is finished with fresh caches, and probes see it.
    let servers_end = CancellationToken::new();
    let tasks = TaskTracker::new();
    let cached = caches::feed_all(&client, &index, &watch_metrics, &health, &tasks, &servers_end);

    let listener = TcpListener::bind(args.admin.listen)
        .await
        .with_context(|| format!("cannot listen on {}", args.admin.listen))?;
    let routes =
        admin::router(Arc::new(registry), health.clone()).merge(forecasts.router()).merge(snapshots.router());
    tasks
        .spawn(logged("admin server", serve(listener, None, routes, Limits::default(), servers_end.clone())));
    if args.progress.progress_listen.is_some() {
        let endpoint =
            Progress::new(client.clone(), Arc::clone(&index), metrics.clone(), Arc::clone(&reports));
        serve_progress(&args, endpoint, &tasks, &servers_end).await?;
    }

    let settings = settings(&args)?;
    let identity = identity(&args)?;
    let filled = tokio::select! {
        filled = cached.wait() => filled,
        () = stop.cancelled() => false,
    };
    let result = if filled {
        lead(
            &args,
            &stop,
            Leading { client, index, metrics, health, settings, identity, reports, forecasts, snapshots },
        )
        .await
    } else {
        Ok(())
    };
    servers_end.cancel();
    tasks.close();
    let _ = tokio::time::timeout(Duration::from_secs(12), tasks.wait()).await;
    result
}

async fn logged(what: &'static str, server: impl Future<Output = std::io::Result<()>>) {
    if let Err(error) = server.await {
        tracing::error!(what, %error, "ended");
    }
}

async fn serve_progress(
    args: &RunArgs,
    endpoint: Arc<Progress>,
    tasks: &TaskTracker,
    end: &CancellationToken,
) -> anyhow::Result<()> {
    let flags = &args.progress;
    let (Some(listen), Some(certificate), Some(key)) =
        (flags.progress_listen, flags.tls_cert.clone(), flags.tls_key.clone())
    else {
        bail!("--progress-listen needs --tls-cert and --tls-key");
    };
    let tls = Tls::load(TlsFiles { certificate, key, clients: None, oldest: Oldest::Tls12 })?;
    let listener = TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
    let limits = Limits { connections: PROGRESS_CONNECTIONS, ..Limits::default() };
    let router = progress::router(Arc::clone(&endpoint));
    tasks.spawn(tls.clone().keep_fresh(RELOAD_EVERY, end.clone()));
    tasks.spawn(logged("progress server", serve(listener, Some(tls), router, limits, end.clone())));
    tasks.spawn(endpoint.flush(end.clone()));
    Ok(())
}

fn settings(args: &RunArgs) -> anyhow::Result<Settings> {
    let progress = match (&args.progress.progress_url, &args.progress.progress_ca) {
        (Some(url), Some(ca)) => {
            let ca_pem =
                std::fs::read_to_string(ca).with_context(|| format!("cannot read {}", ca.display()))?;
            Some(ProgressEndpoint { base_url: url.trim_end_matches('/').to_owned(), ca_pem })
        }
        (Some(_), None) => bail!("--progress-url needs --progress-ca: pods must know whom to trust"),
        (None, _) => None,
    };
    let scheduler = match args.scheduler_mode {
        SchedulerMode::Extender => Settings::default().scheduler,
        SchedulerMode::Affinity => None,
    };
    Ok(Settings { scheduler, progress, ..Settings::default() })
}

/// The flag, else the host's name with a random part: two processes on one host are two candidates.
fn identity(args: &RunArgs) -> anyhow::Result<String> {
    if let Some(identity) = &args.identity {
        return Ok(identity.clone());
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut random = [0_u8; 4];
    if ring::rand::SystemRandom::new().fill(&mut random).is_err() {
        bail!("the system gives no randomness");
    }
    let host = host.trim();
    Ok(format!("{}-{:08x}", if host.is_empty() { "operator" } else { host }, u32::from_be_bytes(random)))
}

struct Leading {
    client: kube::Client,
    index: Arc<Mutex<ClusterIndex>>,
    metrics: Metrics,
    health: Health,
    settings: Settings,
    identity: String,
    reports: LastReports,
    forecasts: Forecasts,
    snapshots: Snapshots,
}

/// Waits for leadership, then steps and plans until it ends.
async fn lead(args: &RunArgs, stop: &CancellationToken, with: Leading) -> anyhow::Result<()> {
    let lease_end = CancellationToken::new();
    let store = KubeLeases::new(with.client.clone(), args.namespace.as_str(), args.lease.as_str());
    let won = tokio::select! {
        won = campaign(store, LeaseConfig::new(with.identity.as_str()), lease_end.clone()) => won?,
        () = stop.cancelled() => None,
    };
    let Some(Held { leadership, renewing }) = won else { return Ok(()) };
    with.metrics.leader.set(1);

    // The leader before may have written what our watches have not shown yet.
    caches::catch_up(&with.client, &with.index).await;
    let writer =
        Writer::new(with.client.clone(), usize::from(args.writes), leadership.clone(), with.metrics.clone());
    let reporter = Reporter { controller: "andreas-operator".into(), instance: Some(with.identity.clone()) };
    let crowd = Crowd::default();
    let (events, send_events) = Events::new(Recorder::new(with.client.clone(), reporter), crowd.clone());
    let sending = tokio::spawn(send_events);
    let shared = Arc::new(Shared {
        index: Arc::clone(&with.index),
        ledger: Mutex::new(Ledger::new(Timestamp::now())),
        writer,
        events,
        settings: Mutex::new(Arc::new(with.settings)),
        metrics: with.metrics.clone(),
        lessons: Lessons::default(),
        reports: with.reports,
        trials: Trials::default(),
        crowd,
    });
    with.forecasts.lead(&shared);
    shared.metrics.state.lead(&shared);
    shared.index.lock().mark_all();
    shared.index.lock().replan();

    let loops_end = CancellationToken::new();
    let loops = TaskTracker::new();
    let heart = with.health.heartbeat("executor", Duration::from_secs(60));
    loops.spawn(executor::run(Arc::clone(&shared), heart, loops_end.clone()));
    let options = Options { method: args.method, seed: args.seed, trials: args.trials, ..Options::default() };
    let pace = Pace {
        quiet: Duration::from_millis(args.plan_quiet_ms),
        within: Duration::from_millis(args.plan_within_ms),
        every: Duration::from_secs(args.plan_every),
    };
    let heart = with.health.heartbeat("planning", pace.every * 2 + Duration::from_secs(120));
    loops.spawn(planning::run(
        Arc::clone(&shared),
        options,
        args.learning_trust,
        pace,
        heart,
        with.snapshots,
        loops_end.clone(),
    ));
    loops.spawn(crate::nodes::run(Arc::clone(&shared), loops_end.clone()));
    loops.spawn(profiles::run(Arc::clone(&shared), loops_end.clone()));
    loops.close();

    let lost = tokio::select! {
        () = stop.cancelled() => false,
        () = leadership.lost() => true,
        () = loops_end.cancelled() => true,
    };
    loops_end.cancel();
    let _ = tokio::time::timeout(Duration::from_secs(12), loops.wait()).await;
    with.metrics.leader.set(0);
    // Released only when nothing of ours writes any more; events change nothing, and the last ones are worth a moment.
    lease_end.cancel();
    shared.events.finish();
    let (ended, sent) = tokio::join!(
        tokio::time::timeout(Duration::from_secs(5), renewing),
        tokio::time::timeout(LAST_EVENTS, sending),
    );
    if sent.is_err() {
        tracing::warn!("the last events are lost: the API server did not take them in time");
    }
    if lost {
        bail!("leadership is lost: {ended:?}");
    }
    tracing::info!(?ended, "ended in order");
    Ok(())
}
