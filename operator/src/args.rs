//! Flags. Every flag has an environment variable; the names are a contract with the chart and the tests.

use std::net::SocketAddr;
use std::path::PathBuf;

use andreas_planner::MethodName;
use andreas_runtime::admin::AdminArgs;
use andreas_runtime::certificates::LivesArgs;
use andreas_runtime::client::ClientArgs;
use andreas_runtime::telemetry::TelemetryArgs;
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};

use crate::learner::LearningScope;

/// The controller of ANDREAS: watches TrainingJobs and nodes, plans, carries plans out.
#[derive(Debug, Parser)]
#[command(name = "andreas-operator", version, about, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// What to do; `run` when absent.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Flags of `run`.
    #[command(flatten)]
    pub run: RunArgs,
}

/// What the program does.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the controller (the default).
    Run(Box<RunArgs>),
    /// Print the CustomResourceDefinitions as YAML.
    Crds,
}

/// Who binds the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SchedulerMode {
    /// Our scheduler profile with the extender: pods say `schedulerName: andreas`.
    Extender,
    /// The cluster's own scheduler, for clusters where no second one may run: pods are pinned by affinity alone.
    Affinity,
}

/// Flags of the controller.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// Which API server.
    #[command(flatten)]
    pub client: ClientArgs,
    /// Where `/metrics` and probes are.
    #[command(flatten)]
    pub admin: AdminArgs,
    /// How to log.
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
    /// Progress endpoint.
    #[command(flatten)]
    pub progress: ProgressArgs,

    /// Namespace of the operator: its leader Lease is there.
    #[arg(long, env = "ANDREAS_NAMESPACE", default_value = "andreas-system", value_name = "NAMESPACE")]
    pub namespace: String,
    /// Name of this replica in the leader Lease; the host's name and a random part when absent.
    #[arg(long, env = "ANDREAS_IDENTITY", value_name = "NAME")]
    pub identity: Option<String>,
    /// Name of the leader Lease.
    #[arg(long, env = "ANDREAS_LEASE", default_value = "andreas-operator", value_name = "NAME")]
    pub lease: String,
    /// Planning method.
    #[arg(long, env = "ANDREAS_METHOD", default_value_t = MethodName::default(), value_name = "METHOD")]
    pub method: MethodName,
    /// Seed of the randomised methods.
    #[arg(long, env = "ANDREAS_SEED", default_value_t = 0, value_name = "N")]
    pub seed: u64,
    /// Most constructions that a randomised method tries for one plan.
    #[arg(long, env = "ANDREAS_TRIALS", default_value_t = 1000, value_name = "N")]
    pub trials: u64,
    /// Milliseconds without a further event before a plan is made.
    #[arg(long, env = "ANDREAS_PLAN_QUIET_MS", default_value_t = 100, value_name = "MS")]
    pub plan_quiet_ms: u64,
    /// Milliseconds after the first event when a plan is made at the latest.
    #[arg(long, env = "ANDREAS_PLAN_WITHIN_MS", default_value_t = 1000, value_name = "MS")]
    pub plan_within_ms: u64,
    /// Seconds between plans when nothing happens.
    #[arg(long, env = "ANDREAS_PLAN_EVERY", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600), value_name = "SECONDS")]
    pub plan_every: u64,
    /// Writes to the API server in flight at a time.
    #[arg(long, env = "ANDREAS_WRITES", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256), value_name = "N")]
    pub writes: u16,
    /// Who binds the pods.
    #[arg(long, env = "ANDREAS_SCHEDULER_MODE", value_enum, default_value_t = SchedulerMode::Extender)]
    pub scheduler_mode: SchedulerMode,
    /// Whose families teach a job's predictions whole.
    #[arg(long, env = "ANDREAS_LEARNING_TRUST", value_enum, default_value_t = LearningScope::Namespace)]
    pub learning_trust: LearningScope,
}

/// Where training programs post their progress.
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("certificates").args(["certificates_secret", "tls_cert"]).multiple(true))]
pub struct ProgressArgs {
    /// Address of the progress endpoint (HTTPS; needs --certificates-secret, or --tls-cert and --tls-key). Off when absent.
    #[arg(long, env = "ANDREAS_PROGRESS_LISTEN", value_name = "ADDR", requires = "certificates")]
    pub progress_listen: Option<SocketAddr>,
    /// Address of the progress endpoint as pods reach it, for example https://andreas-operator.andreas-system.svc:8443.
    /// Pods get no progress address without it.
    #[arg(long, env = "ANDREAS_PROGRESS_URL", value_name = "URL", requires = "progress_listen")]
    pub progress_url: Option<String>,
    /// Secret of our namespace in which the leader keeps the endpoint's certificates. Without --tls-cert it makes and renews them.
    #[arg(long, env = "ANDREAS_CERTIFICATES_SECRET", value_name = "NAME")]
    pub certificates_secret: Option<String>,
    /// PEM file with the CA of the progress endpoint; given to pods by an annotation and a downward-API volume.
    #[arg(long, env = "ANDREAS_PROGRESS_CA", value_name = "FILE")]
    pub progress_ca: Option<PathBuf>,
    /// PEM file with the certificate chain of the progress endpoint.
    #[arg(long, env = "ANDREAS_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with its private key.
    #[arg(long, env = "ANDREAS_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// For tests of renewal.
    #[command(flatten)]
    pub lives: LivesArgs,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn flags_stand_alone_and_after_the_subcommand() {
        Cli::command().debug_assert();
        let bare = Cli::parse_from(["andreas-operator", "--method", "edf", "--namespace", "x"]);
        assert!(bare.command.is_none());
        assert_eq!((bare.run.method, bare.run.namespace.as_str()), (MethodName::Edf, "x"));
        let named = Cli::parse_from(["andreas-operator", "run", "--scheduler-mode", "affinity"]);
        assert!(
            matches!(named.command, Some(Command::Run(run)) if run.scheduler_mode == SchedulerMode::Affinity)
        );
        assert!(matches!(Cli::parse_from(["andreas-operator", "crds"]).command, Some(Command::Crds)));
    }

    #[test]
    fn an_endpoint_without_certificate_is_refused() {
        let parse = |flags: &[&str]| {
            let all = [&["andreas-operator", "--progress-listen", "127.0.0.1:8443"], flags].concat();
            Cli::try_parse_from(all)
        };
        assert!(parse(&[]).is_err() && parse(&["--tls-cert", "c"]).is_err());
        let (secret, files) = (["--certificates-secret", "s"], ["--tls-cert", "c", "--tls-key", "k"]);
        assert!(parse(&secret).is_ok() && parse(&files).is_ok());
        assert!(parse(&[secret.as_slice(), &files].concat()).is_ok());
    }
}
