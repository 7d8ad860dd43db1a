//! Entry point of the agent process: flags, confinement, wiring, shutdown.

use andreas_node_agent::agent::{self, AgentArgs};
use andreas_node_agent::process;
use andreas_node_agent::setter::confine;
use andreas_runtime::telemetry::{self, TelemetryArgs};
use andreas_runtime::{admin::AdminArgs, client::ClientArgs};
use clap::Parser;
use rustix::thread::CapabilitySet;

/// Node agent of ANDREAS: reads GPUs, decides which of them rest, reports status. Needs the API server and the
/// kubelet's PodResources socket, and no capability. Settings are applied by `andreas-node-setter`.
#[derive(Debug, Parser)]
#[command(name = "andreas-node-agent", version)]
struct Args {
    #[command(flatten)]
    own: AgentArgs,
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
}

fn main() -> anyhow::Result<()> {
    let Args { own, admin, client, telemetry } = Args::parse();
    telemetry::init(&telemetry)?;
    // Capabilities and namespaces are per thread: confine before a second thread starts.
    confine::keep_only(CapabilitySet::empty());
    let library = own.nvml_library.clone();
    process::run(&library, |library, shutdown| agent::run(own, admin, client, library, shutdown))
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
