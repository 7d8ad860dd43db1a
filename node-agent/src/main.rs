//! Entry point of the agent process: flags, confinement, wiring, shutdown.

use std::io::Write as _;

use andreas_node_agent::agent::{self, AgentArgs, local};
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
    /// Read the node once, print what was read as JSON in the form of GpuNode.status, and exit. Sets nothing and needs no API
    /// server; what only the running agent knows, as earlier Xid errors, is in the GpuNode.
    #[arg(long)]
    once: bool,
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
    let Args { once, own, admin, client, mut telemetry } = Args::parse();
    if once {
        telemetry.format = telemetry::LogFormat::Text;
        telemetry.filter = "warn".into();
    }
    telemetry::init(&telemetry)?;
    // Capabilities and namespaces are per thread: confine before a second thread starts.
    confine::keep_only(CapabilitySet::empty());
    let library = own.nvml_library.clone();
    process::run(&library, |library, shutdown| async move {
        if !once {
            return agent::run(own, admin, client, library, shutdown).await;
        }
        let text = local::once(&own, library).await? + "\n";
        Ok(std::io::stdout().write_all(text.as_bytes())?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flags_do_not_contradict_each_other() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_node_name_is_needed_only_by_the_agent_itself() {
        let parses = |flags: &[&str]| Args::try_parse_from([&["andreas-node-agent"], flags].concat()).is_ok();
        assert!(parses(&["--once"]) && parses(&["--node-name", "n1"]));
        assert!(std::env::var_os("NODE_NAME").is_some() || !parses(&[]));
    }
}
