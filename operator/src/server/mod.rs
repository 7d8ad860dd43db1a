//! Process setup: client, caches, endpoints, leader election, loops and orderly shutdown.
//!
//! A follower fills its caches and serves progress. The leader also steps jobs, plans, answers questions and maintains nodes.
//! Loss of leadership ends the process on purpose: memory from a leader's time is stale afterwards.

mod authorities;
mod caches;
mod certificates;
mod gauges;
mod pages;
mod query;
mod snapshot;
mod workloads;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use andreas_cluster::index::ClusterIndex;
use andreas_lifecycle::Settings;
use andreas_planner::Options;
use andreas_runtime::access::Access;
use andreas_runtime::certificates::CertificateMetrics;
use andreas_runtime::clock;
use andreas_runtime::health::Health;
use andreas_runtime::lease::{Held, KubeLeases, LeaseConfig, campaign};
use andreas_runtime::server::{Limits, Overload, serve_noting};
use andreas_runtime::watch::WatchMetrics;
use andreas_runtime::{admin, client, install_crypto, listen, shutdown, telemetry};
use anyhow::{Context, bail};
use axum::Router;
use kube::runtime::events::Reporter;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use ring::rand::SecureRandom;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::adoption;
use crate::args::{RunArgs, SchedulerMode};
use crate::executor::dry_runs::DryRunCache;
use crate::executor::events::Events;
use crate::executor::rate_limits::RateLimits;
use crate::executor::{self, Executor};
use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::notify;
use crate::objects::capacity::Buffers;
use crate::objects::nodes;
use crate::objects::profiles::{self, ProfileUpdates};
use crate::planning::last::LatestPlan;
use crate::planning::{self, PlanCadence};
use crate::predict::Fit;
use crate::predict::Tables;
use crate::predict::learner::Learner;
use crate::predict::sampled::Forecasts as SampledForecasts;
use crate::progress::{self, LastReports, Progress, RejectedReports};
use crate::query::background::Sources;
use crate::query::{Background, Hypothetical, Live};
use crate::shared::{Leader, Shared};
use crate::snapshot::Caches;
use crate::writes::Writer;
use certificates::Certificates;
use query::QueryApi;

/// Maximum connections to the progress endpoint: a short one per training program every few seconds.
const PROGRESS_CONNECTIONS: usize = 1_024;

/// Concurrent requests per connection: a program posts one report at a time.
const PROGRESS_STREAMS: u32 = 4;

/// Time limit for sending the last events.
const LAST_EVENTS: Duration = Duration::from_secs(2);

/// Runs the operator until a signal or the loss of leadership.
///
/// # Errors
/// If it cannot start, or leadership was lost.
pub fn run(args: RunArgs) -> anyhow::Result<()> {
    telemetry::init(&args.telemetry)?;
    install_crypto();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no runtime")?;
    let result = runtime.block_on(start(args));
    // A planner still running on a blocking thread must not delay the exit.
    runtime.shutdown_timeout(Duration::from_secs(2));
    result
}

async fn start(args: RunArgs) -> anyhow::Result<()> {
    let stop = shutdown::on_signals().context("no signal handlers")?;
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let watch_metrics = WatchMetrics::register(&mut registry);
    let certificate_metrics = CertificateMetrics::register(&mut registry);
    let health = Health::new();
    let user_agent = concat!("andreas-operator/", env!("CARGO_PKG_VERSION"));
    let client = client::connect(&args.client, user_agent).await?;

    let index = Arc::new(Mutex::new(
        ClusterIndex::with_clock(clock::now).with_max_weight(i32::from(args.max_weight)),
    ));
    let reports: LastReports = Arc::new(Mutex::new(HashMap::new()));
    let leader = Leader::default();
    let latest = LatestPlan::default();
    let sampled = SampledForecasts::default();
    let counters = metrics.clone();
    let listener = Arc::new(move |fit: &Fit| counters.fitted(fit));
    let learner = Learner::start(listener, index.lock().signals()).context("no thread to learn on")?;
    let options = Options { method: args.method, seed: args.seed, trials: args.trials, ..Options::default() };
    // Servers and caches outlive the loops: steps in progress finish with fresh caches, and probes see it.
    let servers_end = CancellationToken::new();
    let tasks = TaskTracker::new();
    let cached = caches::start_watches(&client, &index, &watch_metrics, &health, &tasks, &servers_end);

    tasks.spawn(workloads::watch(
        args.adopt.clone(),
        client.clone(),
        Arc::clone(&index),
        watch_metrics.clone(),
        servers_end.clone(),
    ));
    let admin = admin::bind(&args.admin)?.serve(
        Arc::new(registry),
        health.clone(),
        client.clone(),
        servers_end.clone(),
    );
    tasks.spawn(logged("admin server", admin));
    let overload = Overload::default();
    let rejected_reports = Arc::new(RejectedReports::new(clock::now(), overload.clone()));
    let certificates = match args.progress.progress_listen {
        Some(listen) => {
            let certificates = Certificates::new(
                &args.progress,
                &args.namespace,
                client.clone(),
                Arc::clone(&index),
                certificate_metrics,
                health.register("certificates"),
                Arc::clone(&rejected_reports),
            );
            let endpoint = Progress::new(
                client.clone(),
                Arc::clone(&index),
                metrics.clone(),
                Arc::clone(&reports),
                Arc::clone(&rejected_reports),
            );
            let pages = snapshot::router(&latest);
            let access = Access::new(client.clone());
            let pages = pages::protected(pages, Arc::clone(&access));
            let sources = Sources { latest: latest.clone(), forecasts: sampled.clone() };
            let background = Background::start(sources).context("no thread to forecast on")?;
            let hypothetical = Hypothetical::new(Caches::new(Tables::learning(learner.clone())));
            let live = Live::new(Arc::clone(&index), leader.clone());
            let api = QueryApi::new(access, live, background, hypothetical, metrics.clone());
            let pages = pages.merge(query::router(api));
            serve_tls(listen, endpoint, pages, overload, &certificates, &tasks, &servers_end)?;
            Some(certificates)
        }
        None => None,
    };

    let settings = settings(&args)?;
    let identity = identity(&args)?;
    let filled = tokio::select! {
        () = cached.wait() => true,
        () = stop.cancelled() => false,
    };
    let result = if filled {
        lead(
            &args,
            &stop,
            Leading {
                client,
                index,
                metrics,
                watch_metrics,
                health,
                settings,
                identity,
                reports,
                rejected_reports,
                leader,
                latest,
                sampled,
                learner,
                options,
                certificates,
            },
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

/// The TLS port: reports of training programs, the query API, and pages for readers with rights on all
/// namespaces. Listens at once; serves as soon as there is a certificate.
fn serve_tls(
    listen: SocketAddr,
    endpoint: Arc<Progress>,
    pages: Router,
    overload: Overload,
    certificates: &Arc<Certificates>,
    tasks: &TaskTracker,
    end: &CancellationToken,
) -> anyhow::Result<()> {
    let listener = listen::bind(listen)?;
    let limits = Limits {
        connections: PROGRESS_CONNECTIONS,
        streams: PROGRESS_STREAMS,
        // Never the limiting bound: one connection's requests must not cause another's 503.
        requests: PROGRESS_CONNECTIONS * PROGRESS_STREAMS as usize,
        ..Limits::default()
    };
    let router = progress::router(Arc::clone(&endpoint)).merge(pages);
    tasks.spawn(Arc::clone(certificates).follow(end.clone()));
    let (certificates, ended) = (Arc::clone(certificates), end.clone());
    tasks.spawn(async move {
        let tls = tokio::select! {
            tls = certificates.tls() => tls,
            () = ended.cancelled() => None,
        };
        if let Some(tls) = tls {
            let serving = serve_noting(listener, Some(tls), router, limits, overload, ended);
            logged("progress server", serving).await;
        }
    });
    tasks.spawn(endpoint.flush(end.clone()));
    Ok(())
}

fn settings(args: &RunArgs) -> anyhow::Result<Settings> {
    let flags = &args.progress;
    if flags.progress_url.is_some() && flags.certificates_secret.is_none() && flags.progress_ca.is_none() {
        bail!("--progress-url needs --certificates-secret or --progress-ca: pods must know whom to trust");
    }
    let scheduler = match args.scheduler_mode {
        SchedulerMode::Extender => Settings::default().scheduler,
        SchedulerMode::Affinity => None,
    };
    Ok(Settings { scheduler, ..Settings::default() })
}

/// The flag, else the host name with a random part: two processes on one host are two candidates.
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
    watch_metrics: WatchMetrics,
    health: Health,
    settings: Settings,
    identity: String,
    reports: LastReports,
    rejected_reports: Arc<RejectedReports>,
    leader: Leader,
    latest: LatestPlan,
    sampled: SampledForecasts,
    learner: Learner,
    options: Options,
    certificates: Option<Arc<Certificates>>,
}

/// Waits for leadership, then steps and plans until it ends.
async fn lead(args: &RunArgs, stop: &CancellationToken, with: Leading) -> anyhow::Result<()> {
    let lease_end = CancellationToken::new();
    let store = KubeLeases::new(with.client.clone(), args.namespace.as_str(), args.lease.as_str());
    let won = tokio::select! {
        won = campaign(store, LeaseConfig::new(with.identity.as_str()), lease_end.clone()) => won?,
        () = stop.cancelled() => None,
    };
    let Some(Held { leadership, renewing, succeeds_itself }) = won else { return Ok(()) };
    with.metrics.leader.set(1);

    // Another leader may have written what our watches have not shown yet. An earlier process of our own
    // ended before our first lists, which are consistent, so after an outage each kind is listed once.
    let caught_up = tokio::select! {
        () = caches::catch_up(&with.client, &with.index), if !succeeds_itself => true,
        () = std::future::ready(()), if succeeds_itself => true,
        () = leadership.lost() => false,
        () = stop.cancelled() => false,
    };
    if !caught_up {
        let lost = !leadership.is_current();
        with.metrics.leader.set(0);
        lease_end.cancel();
        let ended = tokio::time::timeout(Duration::from_secs(5), renewing).await;
        return if lost { Err(anyhow::anyhow!("leadership is lost: {ended:?}")) } else { Ok(()) };
    }
    let writer =
        Writer::new(with.client.clone(), usize::from(args.writes), leadership.clone(), with.metrics.clone());
    let mut settings = with.settings;
    if let Some(certificates) = &with.certificates {
        tokio::select! {
            () = certificates.begin(&writer) => {}
            () = stop.cancelled() => {}
        }
        settings.progress = certificates.endpoint();
    }
    let reporter = Reporter { controller: "andreas-operator".into(), instance: Some(with.identity.clone()) };
    let (events, send_events) = Events::new(with.client.clone(), reporter);
    let sending = tokio::spawn(send_events);
    let shared = Arc::new(Shared {
        index: Arc::clone(&with.index),
        ledger: Mutex::new(Ledger::new(clock::now())),
        writer,
        settings: Mutex::new(Arc::new(settings)),
        metrics: with.metrics.clone(),
        wanted_power: Mutex::default(),
    });
    let profile_updates = Arc::<ProfileUpdates>::default();
    let executor = Arc::new(Executor {
        shared: Arc::clone(&shared),
        events: events.clone(),
        profile_updates: Arc::clone(&profile_updates),
        reports: with.reports,
        rejected_reports: with.rejected_reports,
        dry_runs: DryRunCache::default(),
        rate_limits: RateLimits::default(),
    });
    with.leader.lead(&shared);
    let led = Arc::downgrade(&shared);
    shared.metrics.state.lead(move || {
        let led = led.upgrade()?;
        let view = gauges::view(&led.index.lock(), clock::now());
        Some(view)
    });
    shared.index.lock().expect_reports();
    shared.index.lock().mark_all();
    shared.index.lock().replan();

    let signals = shared.index.lock().signals();
    let loops_end = CancellationToken::new();
    let loops = TaskTracker::new();
    let heartbeat = with.health.heartbeat("executor", Duration::from_secs(60));
    loops.spawn(executor::run(executor, heartbeat, loops_end.clone()));
    let pace = PlanCadence {
        settle: Duration::from_millis(args.plan_settle_ms),
        every: Duration::from_secs(args.plan_every),
    };
    let heartbeat = with.health.heartbeat("planning", pace.every * 2 + Duration::from_secs(120));
    loops.spawn(planning::run(
        Arc::clone(&shared),
        (with.options, Buffers::new(args.namespace.clone())),
        with.learner,
        pace,
        heartbeat,
        (with.latest, with.sampled),
        loops_end.clone(),
    ));
    loops.spawn(nodes::run(Arc::clone(&shared), loops_end.clone()));
    loops.spawn(adoption::run(Arc::clone(&shared), events.clone(), loops_end.clone()));
    if !args.notify_hosts.is_empty() {
        let (shared, events, hosts) = (Arc::clone(&shared), events.clone(), args.notify_hosts.clone());
        let (metrics, end) = (with.watch_metrics, loops_end.clone());
        loops.spawn(async move { notify::run(shared, events, &hosts, &metrics, end).await });
    }
    loops.spawn(profiles::run(Arc::clone(&shared), profile_updates, loops_end.clone()));
    if let Some(certificates) = with.certificates {
        loops.spawn(certificates.lead(Arc::clone(&shared), loops_end.clone()));
    }
    loops.close();

    let lost = tokio::select! {
        () = stop.cancelled() => false,
        () = leadership.lost() => true,
        // As after a lost leadership: memory is stale.
        () = signals.rewound.notified() => true,
        () = loops_end.cancelled() => true,
    };
    loops_end.cancel();
    let _ = tokio::time::timeout(Duration::from_secs(12), loops.wait()).await;
    with.metrics.leader.set(0);
    // Released only after our last write. Events change nothing, and the last ones are worth a short wait.
    lease_end.cancel();
    events.finish();
    let (ended, sent) = tokio::join!(
        tokio::time::timeout(Duration::from_secs(5), renewing),
        tokio::time::timeout(LAST_EVENTS, sending),
    );
    if sent.is_err() {
        tracing::warn!("the last events are lost: the API server did not take them in time");
    }
    if lost {
        bail!("leadership or what was known is lost: {ended:?}");
    }
    tracing::info!(?ended, "ended in order");
    Ok(())
}
