//! The brain's process: flags, confinement, wiring, and an orderly end.

use std::sync::Arc;

use andreas_node_agent::brain::{self, BrainArgs};
use andreas_node_agent::gpu::Library;
use andreas_node_agent::gpu::nvml::NvmlLibrary;
use andreas_node_agent::setter::confine;
use andreas_runtime::telemetry::{self, TelemetryArgs};
use andreas_runtime::{admin::AdminArgs, client::ClientArgs, shutdown};
use clap::{Parser, Subcommand};
use rustix::thread::CapabilitySet;

/// Node agent of ANDREAS: reads GPUs, decides which of them rest, reports. What sets them is `andreas-node-setter`.
#[derive(Debug, Parser)]
#[command(name = "andreas-node-agent", version)]
struct Args {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Sees, decides and reports; needs the API server and the kubelet's PodResources socket, and no capability.
    Brain {
        #[command(flatten)]
        own: Box<BrainArgs>,
        #[command(flatten)]
        admin: AdminArgs,
        #[command(flatten)]
        client: ClientArgs,
        #[command(flatten)]
        telemetry: TelemetryArgs,
    },
}

fn main() -> anyhow::Result<()> {
    let Role::Brain { own, admin, client, telemetry } = Args::parse().role;
    telemetry::init(&telemetry)?;
    // Confinement belongs to threads, so it comes before there is a second one.
    confine::keep_only(CapabilitySet::empty());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        let shutdown = shutdown::on_signals()?;
        let library: Arc<dyn Library> = Arc::new(NvmlLibrary::new(&own.nvml_library));
        brain::run(*own, admin, client, library, shutdown).await
    });
    // A thread that hangs in the driver must not keep the process.
    runtime.shutdown_background();
    ended
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
