//! The setter, the privileged helper: the only process with CAP_SYS_ADMIN.
//!
//! # What it holds
//!
//! | module | what it does |
//! |---|---|
//! | [`confine`] | leaves the network, drops all capabilities but one |
//! | [`record`] | file of original values, and the lock against a second setter |
//! | [`clocks`] | locked clocks of the administrator |
//! | [`applier`] | validates, records, applies, restores; GPUs do not wait for each other |
//! | [`server`] | Unix socket server |
//!
//! # What flows in and out
//!
//! In: [`SettingsRequest`](crate::setting::SettingsRequest) lines from the agent process, each also a
//! heartbeat. Out: settings through NVML, and [`SettingsResponse`](crate::setting::SettingsResponse) lines. A
//! GPU gets back its original limit and the administrator's clocks when no request arrived for the time to live, and at
//! SIGTERM. The same happens at start for every GPU in the record.
//!
//! Several setters may share one record. One is active; the standbys wait for its lock, which the kernel
//! releases when the process dies. The next one restores first, so a killed setter leaves no GPU slow.
//!
//! # What must never be here
//!
//! A token, network access, decisions.

pub mod applier;
pub mod clocks;
pub mod confine;
pub mod record;
mod server;

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokio::sync::Mutex;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::gpu::{GpuError, Library, module, reach};
use crate::setting::Floor;
use applier::Applier;
use clocks::LockedClocks;
use record::Record;

/// Flags of the setter.
#[derive(Clone, Debug, Args)]
pub struct SetterArgs {
    /// Path of the Unix socket to listen on. Only processes of the same user may connect.
    #[arg(
        long,
        env = "ANDREAS_SETTER_SOCKET",
        default_value = "/run/andreas/setter.sock",
        value_name = "PATH"
    )]
    pub socket: PathBuf,
    /// Directory for the record of original GPU settings. It must outlive the container.
    #[arg(long, env = "ANDREAS_SETTER_STATE", default_value = "/var/lib/andreas", value_name = "DIR")]
    pub state: PathBuf,
    /// Seconds without a request of the agent process after which all settings end. The operator holds a silent agent's GPUs for
    /// awake after a minute.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=45), value_name = "SECONDS")]
    pub ttl: u64,
    /// Path or name of the NVML library.
    #[arg(long, env = "ANDREAS_NVML_LIBRARY", default_value = "libnvidia-ml.so.1", value_name = "PATH")]
    pub nvml_library: PathBuf,
    /// Lowest power limit that is accepted, in watts, in addition to the driver's range.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100_000), value_name = "WATTS")]
    pub floor_watts: u32,
    /// Lowest locked SM clock that is accepted, in MHz, in addition to the driver's range.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100_000), value_name = "MHZ")]
    pub floor_clock: u32,
    /// SM clocks, in MHz, that a GPU gets back whose clocks the setter has locked, by GPU type as in the label nvidia.com/gpu.product; *
    /// stands for all other types. Others are unlocked. May be given several times.
    #[arg(long, value_name = "TYPE=MIN,MAX")]
    pub locked_clocks: Vec<LockedClocks>,
    /// Stay in the pod's network. By default the process leaves it, or warns and continues if that is not
    /// permitted.
    #[arg(long)]
    pub keep_network: bool,
    /// Seconds without reaching a driver after which it ends, to be started in a new container. Another value is for tests.
    #[arg(long, hide = true, default_value_t = crate::gpu::DRIVER_PATIENCE, value_name = "SECONDS")]
    pub driver_patience: u64,
    /// File in which the kernel names the version of the loaded driver. Another one is for tests.
    #[arg(long, hide = true, default_value = module::VERSION_FILE, value_name = "FILE")]
    pub module_version: PathBuf,
}

/// Runs until `shutdown`. Restores every changed GPU before it returns, even after an error.
///
/// # Errors
/// When the state directory or the socket cannot be used, a GPU could not be restored, no GPU can be reached any more, or another driver
/// was loaded.
pub async fn run(
    args: SetterArgs,
    library: Arc<dyn Library>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let mut replaced = std::pin::pin!(module::replaced(args.module_version.clone()));
    // Also while it stands by: it is to restore what others set, and a handle that is open outlasts a loss of the devices.
    let patience = Duration::from_secs(args.driver_patience);
    let mut lost = std::pin::pin!(reach::lost(Arc::clone(&library), patience));
    let unreachable = |lost: std::io::Result<GpuError>| match lost {
        Ok(error) => anyhow::anyhow!("{error}, for {patience:?}: a new container is needed"),
        Err(error) => anyhow::Error::from(error),
    };
    let opened = tokio::select! {
        opened = Record::open_when_free(&args.state) => opened,
        () = &mut replaced => anyhow::bail!(module::REPLACED),
        lost = &mut lost => return Err(unreachable(lost)),
        () = shutdown.cancelled() => return Ok(()),
    };
    let record =
        opened.with_context(|| format!("the state folder {} cannot be used", args.state.display()))?;
    let floor = Floor { limit_mw: args.floor_watts * 1000, clock_mhz: args.floor_clock };
    let ttl = Duration::from_secs(args.ttl);
    let mut applier = Applier::new(library, record, floor, ttl).with_locked_clocks(args.locked_clocks);
    // Restore what an earlier run left, then accept requests.
    applier.restore_all().await;
    let applier = Arc::new(Mutex::new(applier));
    let listener = server::listen(&args.socket)
        .with_context(|| format!("cannot listen on {}", args.socket.display()))?;
    tracing::info!(socket = %args.socket.display(), ttl_s = args.ttl, "serving the agent");
    let served = tokio::select! {
        ended = server::serve(listener, Arc::clone(&applier), ttl) => ended.map_err(anyhow::Error::from),
        never = watchdog(Arc::clone(&applier), ttl) => match never {},
        lost = &mut lost => Err(unreachable(lost)),
        () = &mut replaced => Err(anyhow::anyhow!(module::REPLACED)),
        () = shutdown.cancelled() => Ok(()),
    };
    let left = applier.lock().await.restore_all().await;
    // A stale socket would mislead clients.
    let _ = std::fs::remove_file(&args.socket);
    served?;
    anyhow::ensure!(left.is_empty(), "not restored (the record keeps them): {}", left.join(", "));
    Ok(())
}

/// Restores all GPUs when requests stop, and retries failed restores.
async fn watchdog(applier: Arc<Mutex<Applier>>, ttl: Duration) -> Infallible {
    let mut tick = tokio::time::interval((ttl / 8).clamp(Duration::from_millis(100), Duration::from_secs(1)));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let mut applier = applier.lock().await;
        if applier.since_last_request() > ttl && !applier.is_clean() {
            tracing::warn!("no request from the agent: restoring all GPUs");
            applier.restore_all().await;
        }
    }
}
