//! The unprivileged agent process: observes, decides, reports. Its container is called `agent`.
//!
//! # What it holds
//!
//! | module | what it does |
//! |---|---|
//! | [`decide`] | desired settings of each GPU, from what was observed. Pure |
//! | [`monitor`] | reads GPUs through NVML, one thread per GPU |
//! | [`health`] | what is wrong with a GPU. Pure |
//! | [`rest`] | whether rest lowers the draw, by measurement. Pure |
//! | [`parked`] | idle contexts by pod |
//! | [`holders`] | which pod holds which GPU, from the kubelet |
//! | [`cache`] | watched objects: this node's GpuNode, the EnergyPolicy, the operator's Lease |
//! | [`energy`] | energy per GPU and holder, energy saved by rest. Pure |
//! | [`attribution`] | energy attribution: joules per pod, from taking its GPUs to releasing them. Pure |
//! | [`shares`] | estimates for pods that share a GPU. Pure |
//! | [`setter_client`] | client of the setter's socket |
//! | [`reconcile`] | the reconcile loop: observe, decide, set, report |
//! | [`status`] | `GpuNode.status`, and when it is written |
//! | [`metrics`] | metrics |
//! | [`local`] | the same for a person at the node: one pass, as JSON or as a table |
//!
//! # What flows in and out
//!
//! A reconcile runs every second, and at once when the GpuNode's spec changes. It sends one line to the
//! setter and one report to the task that writes the status. A slow API server therefore delays no setting.
//!
//! # What must never be here
//!
//! Calls that change a GPU's settings, or a capability.

pub mod attribution;
pub mod cache;
pub mod decide;
pub mod energy;
pub mod health;
pub mod holders;
pub mod local;
pub mod metrics;
pub mod monitor;
pub mod parked;
pub mod reconcile;
pub mod rest;
pub mod setter_client;
pub mod shares;
pub mod status;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use andreas_api::slim::{SlimEnergyPolicy, SlimGpuNode};
use andreas_runtime::admin::{self, AdminArgs};
use andreas_runtime::arguments;
use andreas_runtime::client::{self, ClientArgs};
use andreas_runtime::health::Health;
use andreas_runtime::watch::{Index, WatchConfig, WatchMetrics, Watcher, feed};
use anyhow::Context as _;
use clap::Args;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::USER_AGENT;
use crate::gpu::{Library, module};
use crate::podresources::Kubelet;
use cache::{ObjectCache, SlimLease};
use health::XidErrors;
use metrics::Metrics;
use monitor::GpuMonitor;
use parked::ParkedContexts;
use reconcile::{Dependencies, ReconcileLoop};
use rest::RestTrials;
use setter_client::SetterClient;
use status::{Report, Writer};

/// The loop counts as hung after this time. A reconcile takes at most ten seconds.
const HUNG: Duration = Duration::from_secs(45);

/// Time limit of the last status write at shutdown.
const DEREGISTER: Duration = Duration::from_secs(5);

/// Flags of the agent process.
#[derive(Clone, Debug, Args)]
pub struct AgentArgs {
    /// Name of this node and of its GpuNode.
    #[arg(long, env = "NODE_NAME", value_name = "NAME", required_unless_present = "once", value_parser = arguments::object)]
    pub node_name: Option<String>,
    /// Path of the setter's Unix socket.
    #[arg(
        long,
        env = "ANDREAS_SETTER_SOCKET",
        default_value = "/run/andreas/setter.sock",
        value_name = "PATH"
    )]
    pub setter_socket: PathBuf,
    /// Observe only: do not connect to a setter, never change a GPU.
    #[arg(long)]
    pub observe: bool,
    /// Path of the kubelet's PodResources socket.
    #[arg(long, env = "ANDREAS_POD_RESOURCES", default_value = crate::podresources::SOCKET, value_name = "PATH")]
    pub pod_resources: PathBuf,
    /// Path or name of the NVML library.
    #[arg(long, env = "ANDREAS_NVML_LIBRARY", default_value = "libnvidia-ml.so.1", value_name = "PATH")]
    pub nvml_library: PathBuf,
    /// Namespace of the operator's leader Lease.
    #[arg(long, env = "ANDREAS_NAMESPACE", default_value = "andreas-system", value_name = "NAMESPACE")]
    pub namespace: String,
    /// Name of the operator's leader Lease.
    #[arg(long, env = "ANDREAS_LEASE", default_value = "andreas-operator", value_name = "NAME")]
    pub lease: String,
    /// Seconds without a renewal of the leader Lease after which all settings end.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=600), value_name = "SECONDS")]
    pub lease_ttl: u64,
    /// Interval between reconciles, in milliseconds.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=60_000), value_name = "MS")]
    pub interval: u64,
    /// Let a GPU rest even if a process outside any pod keeps an idle context on it. Such a process runs
    /// slowly at first when it becomes busy.
    #[arg(long)]
    pub rest_parked: bool,
    /// Seconds for which the draw is measured before a rest and after its begin. Rest that saves nothing on a GPU type ends, and is
    /// tried again after six hours. 0: GPUs rest unmeasured.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(0..=3600), value_name = "SECONDS")]
    pub rest_trial: u64,
    /// It runs in a process namespace of its own, in which the driver names no process of a pod: whether a GPU is used without a
    /// pod, and when the processes of a pod deleted by force end, is unknown. GPUs rest only with `--rest-parked`.
    #[arg(long, env = "ANDREAS_OWN_PROCESSES_ONLY")]
    pub own_processes_only: bool,
    /// Numbers of Xid errors that leave a GPU healthy, in place of those that NVIDIA's device plug-in ignores.
    #[arg(long, value_delimiter = ',', default_values_t = health::APPLICATION_XIDS, value_name = "XID,...")]
    pub ignored_xids: Vec<u64>,
    /// Seconds without a driver after which it ends, to be started in a new container. Another value is for tests.
    #[arg(long, hide = true, default_value_t = crate::gpu::DRIVER_PATIENCE, value_name = "SECONDS")]
    pub driver_patience: u64,
    /// File in which the kernel names the version of the loaded driver. Another one is for tests.
    #[arg(long, hide = true, default_value = module::VERSION_FILE, value_name = "FILE")]
    pub module_version: PathBuf,
    /// Folder of the kubelet's logs of pods: it names the pods of processes that keep an idle context open.
    #[arg(long, env = "ANDREAS_POD_LOGS", default_value = "/var/log/pods", value_name = "DIR")]
    pub pod_logs: PathBuf,
}

impl AgentArgs {
    /// What the reconcile loop works with; without a setter nothing is ever set.
    fn dependencies(
        &self,
        library: Arc<dyn Library>,
        setter: Option<SetterClient>,
        cache: Arc<Mutex<ObjectCache>>,
        metrics: Metrics,
    ) -> std::io::Result<Dependencies> {
        Ok(Dependencies {
            monitor: GpuMonitor::new(library, !self.own_processes_only)?,
            kubelet: Kubelet::new(&self.pod_resources, Duration::from_secs(2)),
            setter,
            cache,
            metrics,
            lease_ttl: Duration::from_secs(self.lease_ttl),
            rest_parked: self.rest_parked,
            rest_trials: RestTrials::new(Duration::from_secs(self.rest_trial)),
            xids: XidErrors::ignoring(self.ignored_xids.iter().copied()),
            parked: ParkedContexts::new(Path::new("/proc"), &self.pod_logs),
        })
    }
}

/// Runs until `shutdown`. Then asks the setter to restore all GPUs and reports in the status that the agent
/// ended.
///
/// # Errors
/// When no client can be made, the admin port is taken, no thread can be started, or the driver is gone or another one.
pub async fn run(
    args: AgentArgs,
    admin_args: AdminArgs,
    client_args: ClientArgs,
    library: Arc<dyn Library>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let node_name = args.node_name.as_deref().context("--node-name is needed")?;
    let mut replaced = std::pin::pin!(module::replaced(args.module_version.clone()));
    let client = client::connect(&client_args, USER_AGENT).await?;
    let admin = admin::bind(&admin_args)?;
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry, args.observe);
    let watches = WatchMetrics::register(&mut registry);
    let health = Health::new();
    let cache = Arc::new(Mutex::new(ObjectCache::default()));
    let spec_changed = cache.lock().spec_changed();

    // A wake request must not wait long for a dead connection.
    let named = |name: &str| WatchConfig {
        watch_for: Duration::from_secs(60),
        ..WatchConfig::default().fields(format!("metadata.name={name}"))
    };
    let feeds = WatchStarter {
        client: &client,
        watches: &watches,
        cache: &cache,
        health: &health,
        shutdown: &shutdown,
    };
    feeds.start::<SlimGpuNode>("GpuNode", named(node_name));
    feeds.start::<SlimEnergyPolicy>("EnergyPolicy", named(andreas_api::names::DEFAULT_POLICY));
    feeds.start::<SlimLease>("leader Lease", named(&args.lease).namespace(args.namespace.as_str()));
    let (gpus_ready, kubelet_ready) = (health.register("GPUs"), health.register("kubelet"));
    let heartbeat = health.heartbeat("reconcile loop", HUNG);
    let admin_end = CancellationToken::new();
    let admin = tokio::spawn(admin.serve(Arc::new(registry), health, client.clone(), admin_end.clone()));

    let (reports, latest) = watch::channel(None);
    let writer = Writer::new(client.clone());
    let writes = tokio::spawn(write_status(writer, latest, Arc::clone(&cache), shutdown.clone()));
    let setter = (!args.observe).then(|| SetterClient::new(&args.setter_socket));
    let mut reconciler =
        ReconcileLoop::new(args.dependencies(library, setter, Arc::clone(&cache), metrics)?);
    tracing::info!(node = node_name, version = env!("CARGO_PKG_VERSION"), "watching");
    let mut tick = tokio::time::interval(Duration::from_millis(args.interval));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let driver_patience = Duration::from_secs(args.driver_patience);
    let ended = loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = spec_changed.notified() => {}
            () = &mut replaced => break Err(anyhow::anyhow!(module::REPLACED)),
            () = shutdown.cancelled() => break Ok(()),
        }
        let report = reconciler.reconcile().await;
        heartbeat.beat();
        if reconciler.gpus_listed() {
            gpus_ready.set()
        } else {
            gpus_ready.unset()
        }
        if reconciler.kubelet_answers() {
            kubelet_ready.set()
        } else {
            kubelet_ready.unset()
        }
        // Read the status of an earlier run before overwriting it.
        if reconciler.has_resumed() {
            reports.send_replace(Some(report));
        }
        if reconciler.monitor().driver_gone_for() >= driver_patience {
            break Err(anyhow::anyhow!("no GPU reached for {driver_patience:?}: a new container is needed"));
        }
    };
    // Ends the tasks too where the driver is the reason.
    shutdown.cancel();
    reconciler.restore_all().await;
    let deregistered = async {
        let _ = writes.await;
        let node = cache.lock().node().cloned();
        match node {
            Some(node) => status::deregister(&client, &node).await,
            None => Ok(()),
        }
    };
    match tokio::time::timeout(DEREGISTER, deregistered).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the status still says that an agent runs here"),
        Err(_) => tracing::warn!("no time to report that no agent runs here any more"),
    }
    admin_end.cancel();
    admin.await??;
    ended
}

struct WatchStarter<'a> {
    client: &'a kube::Client,
    watches: &'a WatchMetrics,
    cache: &'a Arc<Mutex<ObjectCache>>,
    health: &'a Health,
    shutdown: &'a CancellationToken,
}

impl WatchStarter<'_> {
    fn start<T>(&self, name: &str, config: WatchConfig)
    where
        T: kube::Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
        ObjectCache: Index<T>,
    {
        let watcher: Watcher<T> = Watcher::new(self.client.clone(), config, self.watches);
        let ready = self.health.register(format!("{name} watch"));
        tokio::spawn(feed(watcher, Arc::clone(self.cache), ready, self.shutdown.clone()));
    }
}

/// Writes the reports of the reconcile loop to the status, when due.
async fn write_status(
    mut writer: Writer,
    mut latest: watch::Receiver<Option<Report>>,
    cache: Arc<Mutex<ObjectCache>>,
    shutdown: CancellationToken,
) {
    loop {
        tokio::select! {
            changed = latest.changed() => if changed.is_err() { return },
            () = shutdown.cancelled() => return,
        }
        let report = latest.borrow_and_update().clone();
        let node = cache.lock().node().cloned();
        let (Some(report), Some(node)) = (report, node) else { continue };
        match writer.write(&node, report).await {
            None => {}
            Some(Ok(node)) => {
                cache.lock().store_written(node);
            }
            Some(Err(error)) => {
                tracing::warn!(%error, "the status was not written");
            }
        }
    }
}
