//! Flags. Every flag has an environment variable.

use std::time::Duration;

use andreas_runtime::admin::AdminArgs;
use andreas_runtime::arguments;
use andreas_runtime::client::ClientArgs;
use andreas_runtime::telemetry::TelemetryArgs;
use clap::{Parser, value_parser};

use crate::reconcile::{Limits, OperatorLease};
use crate::transition::Settings;

/// Switches machines of ANDREAS off and on: reads NodePowers, asks BMCs, and deletes Nodes whose machine is proven off.
#[derive(Debug, Parser)]
#[command(name = "andreas-node-power", version)]
pub struct Args {
    /// Namespace of the leader Lease and of the Secrets with credentials.
    #[arg(long, env = "ANDREAS_NAMESPACE", default_value = "andreas-power", value_name = "NAMESPACE", value_parser = arguments::namespace)]
    pub namespace: String,
    /// Identity of this replica in the leader Lease, unique among replicas; the chart gives the name of the pod.
    #[arg(long, env = "ANDREAS_IDENTITY", value_name = "NAME", value_parser = arguments::non_empty)]
    pub identity: String,
    /// Name of the leader Lease.
    #[arg(long, env = "ANDREAS_LEASE", default_value = "andreas-node-power", value_name = "NAME", value_parser = arguments::object)]
    pub lease: String,
    /// Namespace of the operator's Lease: while that stands still, nothing goes off that the operator wanted off. Default: no operator
    /// is expected.
    #[arg(long, env = "ANDREAS_OPERATOR_NAMESPACE", value_name = "NAMESPACE", value_parser = arguments::namespace)]
    pub operator_namespace: Option<String>,
    /// Name of the operator's Lease.
    #[arg(long, env = "ANDREAS_OPERATOR_LEASE", default_value = "andreas-operator", value_name = "NAME", value_parser = arguments::object)]
    pub operator_lease: String,
    /// A machine that is not off so long after it was asked stays on, in seconds.
    #[arg(long, env = "ANDREAS_OFF_TIMEOUT", default_value_t = 300, value_parser = value_parser!(u64).range(60..=86_400), value_name = "SECONDS")]
    pub off_timeout: u64,
    /// A start that takes longer has failed, in seconds.
    #[arg(long, env = "ANDREAS_BOOT_TIMEOUT", default_value_t = 900, value_parser = value_parser!(u64).range(60..=86_400), value_name = "SECONDS")]
    pub boot_timeout: u64,
    /// A machine with mode Auto stays on for so long after it came on, in seconds.
    #[arg(long, env = "ANDREAS_MIN_ON", default_value_t = 1800, value_parser = value_parser!(u64).range(..=86_400), value_name = "SECONDS")]
    pub min_on: u64,
    /// A machine with mode Auto goes off at most so often in 24 h.
    #[arg(long, env = "ANDREAS_MAX_CYCLES", default_value_t = 8, value_parser = value_parser!(u8).range(1..=16), value_name = "N")]
    pub max_cycles: u8,
    /// A machine that was off for so many days is started once, so that its kubelet renews its certificates.
    #[arg(long, env = "ANDREAS_REFRESH_DAYS", default_value_t = 14, value_parser = value_parser!(u64).range(1..=365), value_name = "DAYS")]
    pub refresh_days: u64,
    /// Machines that go off at once.
    #[arg(long, env = "ANDREAS_MAX_GOING_OFF", default_value_t = 4, value_parser = value_parser!(u16).range(1..=100), value_name = "N")]
    pub max_going_off: u16,
    /// Machines that start at once.
    #[arg(long, env = "ANDREAS_MAX_STARTING", default_value_t = 20, value_parser = value_parser!(u16).range(1..=1000), value_name = "N")]
    pub max_starting: u16,
    /// Address of `/metrics` and probes.
    #[command(flatten)]
    pub admin: AdminArgs,
    /// API server connection.
    #[command(flatten)]
    pub client: ClientArgs,
    /// Logging.
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

impl Args {
    /// Times and limits.
    pub fn settings(&self) -> (Settings, Limits) {
        let settings = Settings {
            off_timeout: Duration::from_secs(self.off_timeout),
            boot_timeout: Duration::from_secs(self.boot_timeout),
            min_on: Duration::from_secs(self.min_on),
            max_cycles_per_day: self.max_cycles.into(),
            refresh_after: Duration::from_secs(self.refresh_days * 86_400),
        };
        (settings, Limits { going_off: self.max_going_off.into(), starting: self.max_starting.into() })
    }

    /// The operator's Lease, where one is expected.
    pub fn operator(&self) -> OperatorLease {
        let namespace = self.operator_namespace.clone()?;
        Some((namespace, self.operator_lease.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn flags_are_consistent() {
        Args::command().debug_assert();
        let args = Args::parse_from(["andreas-node-power", "--identity", "a", "--operator-namespace", "o"]);
        assert_eq!(args.operator(), Some(("o".into(), "andreas-operator".into())));
        assert_eq!(args.settings().0.off_timeout, Duration::from_secs(300));
    }
}
