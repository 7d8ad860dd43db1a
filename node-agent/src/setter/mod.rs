//! The setter: the one process with CAP_SYS_ADMIN, and nothing else.
//!
//! # What it holds
//!
//! | module | what it does |
//! |---|---|
//! | [`confine`] | leaves the network, drops every capability but one |
//! | [`record`] | the file that says what a GPU had before it was changed, and the lock against a second setter |
//! | [`applier`] | checks, records, sets, restores; one GPU never waits for another |
//! | [`server`] | the Unix socket |
//!
//! # What flows in and out
//!
//! In: [`Wanted`](crate::setting::Wanted) lines of the brain, each a sign of life too. Out: settings through NVML, and
//! [`Done`](crate::setting::Done) lines. When no line came for the time to live, at SIGTERM, and at start for whatever the record
//! names, each GPU gets back the limit it had and free clocks.
//!
//! Any number of setters may be started on one record: one works, the others wait for its lock, which the kernel takes from a process
//! that dies. The next one restores first. So a setter that is killed leaves no GPU slow until somebody starts it again.
//!
//! # What must never be here
//!
//! A token, a network, a decision.

pub mod applier;
pub mod confine;
pub mod record;
mod server;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokio::sync::Mutex;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::gpu::Library;
use applier::{Applier, Floor};
use record::Record;

/// Flags of the setter.
#[derive(Clone, Debug, Args)]
pub struct SetterArgs {
    /// Unix socket to listen on; only processes of the same user may speak.
    #[arg(
        long,
        env = "ANDREAS_SETTER_SOCKET",
        default_value = "/run/andreas/setter.sock",
        value_name = "PATH"
    )]
    pub socket: PathBuf,
    /// Folder that outlives the container: what GPUs had before they were changed.
    #[arg(long, env = "ANDREAS_SETTER_STATE", default_value = "/var/lib/andreas", value_name = "DIR")]
    pub state: PathBuf,
    /// Settings end when the brain was not heard for this time, in seconds.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=600), value_name = "SECONDS")]
    pub ttl: u64,
    /// NVIDIA's management library.
    #[arg(long, env = "ANDREAS_NVML_LIBRARY", default_value = "libnvidia-ml.so.1", value_name = "PATH")]
    pub nvml_library: PathBuf,
    /// Power limits below this are refused, W; the driver's own range holds too.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100_000), value_name = "WATTS")]
    pub floor_watts: u32,
    /// SM clocks locked below this are refused, MHz; the driver's own range holds too.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100_000), value_name = "MHZ")]
    pub floor_clock: u32,
    /// Keep the network. Without this flag the process leaves it, and goes on with a warning where that is not allowed.
    #[arg(long)]
    pub keep_network: bool,
}

/// Runs until `shutdown`; every GPU that was changed is restored before it returns, however it ends.
///
/// # Errors
/// When the state folder or the socket cannot be used, or a GPU could not be restored.
pub async fn run(
    args: SetterArgs,
    library: Arc<dyn Library>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let opened = tokio::select! {
        opened = Record::open_when_free(&args.state) => opened,
        () = shutdown.cancelled() => return Ok(()),
    };
    let record =
        opened.with_context(|| format!("the state folder {} cannot be used", args.state.display()))?;
    let floor = Floor { limit_mw: args.floor_watts * 1000, clock_mhz: args.floor_clock };
    let ttl = Duration::from_secs(args.ttl);
    let mut applier = Applier::new(library, record, floor, ttl);
    // First what an earlier life left, then the door.
    applier.restore_all().await;
    let applier = Arc::new(Mutex::new(applier));
    let listener = server::listen(&args.socket)
        .with_context(|| format!("cannot listen on {}", args.socket.display()))?;
    tracing::info!(socket = %args.socket.display(), ttl_s = args.ttl, "serving the brain");
    let served = tokio::select! {
        ended = server::serve(listener, Arc::clone(&applier), ttl) => ended,
        () = dead_man(Arc::clone(&applier), ttl) => Ok(()),
        () = shutdown.cancelled() => Ok(()),
    };
    let left = applier.lock().await.restore_all().await;
    // The socket of a process that has gone would only mislead.
    let _ = std::fs::remove_file(&args.socket);
    served?;
    anyhow::ensure!(left.is_empty(), "not restored (the record keeps them): {}", left.join(", "));
    Ok(())
}

/// Restores when the brain is silent, and tries again what failed.
async fn dead_man(applier: Arc<Mutex<Applier>>, ttl: Duration) {
    let mut tick = tokio::time::interval((ttl / 8).clamp(Duration::from_millis(100), Duration::from_secs(1)));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let mut applier = applier.lock().await;
        if applier.silent_for() > ttl && !applier.is_clean() {
            tracing::warn!("the brain is silent: restoring all GPUs");
            applier.restore_all().await;
        }
    }
}
