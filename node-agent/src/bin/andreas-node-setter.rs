//! Entry point of the setter, the privileged helper: flags, confinement, wiring, shutdown.
//!
//! It is a separate binary: the process with CAP_SYS_ADMIN has no HTTP, TLS or gRPC, and is a third as large.

use andreas_node_agent::process;
use andreas_node_agent::setter::{self, SetterArgs, confine};
use andreas_runtime::telemetry::{self, TelemetryArgs};
use clap::Parser;
use rustix::thread::CapabilitySet;

/// Privileged helper of the ANDREAS node agent: sets and restores power limits and clocks. Needs
/// CAP_SYS_ADMIN, but no network and no token.
#[derive(Debug, Parser)]
#[command(name = "andreas-node-setter", version)]
struct Args {
    #[command(flatten)]
    own: SetterArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
}

fn main() -> anyhow::Result<()> {
    let Args { own, telemetry } = Args::parse();
    telemetry::init(&telemetry)?;
    // Capabilities and namespaces are per thread: confine before a second thread starts.
    if !own.keep_network {
        confine::leave_network();
    }
    confine::keep_only(CapabilitySet::SYS_ADMIN);
    let library = own.nvml_library.clone();
    process::run(&library, |library, shutdown| setter::run(own, library, shutdown))
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
