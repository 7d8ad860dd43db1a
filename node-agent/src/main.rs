//! Entry point of the agent process: flags, confinement, wiring, shutdown.

use andreas_node_agent::brain::{self, BrainArgs};
use andreas_node_agent::process;
use andreas_node_agent::setter::confine;
use andreas_runtime::telemetry::{self, TelemetryArgs};
use andreas_runtime::{admin::AdminArgs, client::ClientArgs};
use clap::{Parser, Subcommand};
use rustix::thread::CapabilitySet;

/// Node agent of ANDREAS: reads GPUs, decides which of them rest, reports status. Settings are applied by
/// `andreas-node-setter`.
#[derive(Debug, Parser)]
#[command(name = "andreas-node-agent", version)]
struct Args {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Observe, decide and report. Needs the API server and the kubelet's PodResources socket, and no
    /// capability.
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
    // Capabilities and namespaces are per thread: confine before a second thread starts.
    confine::keep_only(CapabilitySet::empty());
    let library = own.nvml_library.clone();
    process::run(&library, |library, shutdown| brain::run(*own, admin, client, library, shutdown))
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
