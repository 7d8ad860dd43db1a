//! Flags. Every flag has an environment variable. The chart and the tests depend on the names.

use std::net::SocketAddr;
use std::path::PathBuf;

use andreas_planner::MethodName;
use andreas_runtime::admin::AdminArgs;
use andreas_runtime::arguments;
use andreas_runtime::certificates::CertificateLifetimeArgs;
use andreas_runtime::client::ClientArgs;
use andreas_runtime::telemetry::TelemetryArgs;
use andreas_workloads::adopt::Kind;
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};

/// Kubernetes operator for deep-learning training: plans TrainingJobs on GPU nodes and runs them.
#[derive(Debug, Parser)]
#[command(name = "andreas-operator", version, about, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// Command; `run` if absent.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Flags of `run`.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the controller (the default).
    Run(Box<RunArgs>),
    /// Print the CustomResourceDefinitions as YAML.
    Crds,
}

/// How pods are bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SchedulerMode {
    /// The ANDREAS scheduler profile with its extender binds: pods have `schedulerName: andreas`.
    Extender,
    /// The cluster's own scheduler binds, for clusters without a second scheduler: node affinity pins the
    /// pods.
    Affinity,
}

/// Flags of the controller.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// API server connection.
    #[command(flatten)]
    pub client: ClientArgs,
    /// Address of `/metrics` and probes.
    #[command(flatten)]
    pub admin: AdminArgs,
    /// Logging.
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
    /// Progress endpoint.
    #[command(flatten)]
    pub progress: ProgressArgs,

    /// Namespace of the operator and its leader Lease.
    #[arg(long, env = "ANDREAS_NAMESPACE", default_value = "andreas-system", value_name = "NAMESPACE", value_parser = arguments::namespace)]
    pub namespace: String,
    /// Identity of this replica in the leader Lease; by default the host name with a random part.
    #[arg(long, env = "ANDREAS_IDENTITY", value_name = "NAME", value_parser = arguments::non_empty)]
    pub identity: Option<String>,
    /// Name of the leader Lease.
    #[arg(long, env = "ANDREAS_LEASE", default_value = "andreas-operator", value_name = "NAME", value_parser = arguments::object)]
    pub lease: String,
    /// Planning method: randomized-greedy, edf or fifo.
    #[arg(long, env = "ANDREAS_METHOD", default_value_t = MethodName::default(), value_name = "METHOD")]
    pub method: MethodName,
    /// Seed of the randomised planning methods.
    #[arg(long, env = "ANDREAS_SEED", default_value_t = 0, value_name = "N")]
    pub seed: u64,
    /// Maximum candidate plans that a randomised method constructs for one plan.
    #[arg(long, env = "ANDREAS_TRIALS", default_value_t = 1000, value_name = "N")]
    pub trials: u64,
    /// Milliseconds that a plan for new jobs waits for more of them, while others run. What frees or takes GPUs is planned at once.
    #[arg(long, env = "ANDREAS_PLAN_SETTLE_MS", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(..=10_000), value_name = "MS")]
    pub plan_settle_ms: u64,
    /// Seconds between plans without any event. The alert AndreasNoPlans fires where there was none for 900.
    #[arg(long, env = "ANDREAS_PLAN_EVERY", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=600), value_name = "SECONDS")]
    pub plan_every: u64,
    /// Maximum concurrent writes to the API server.
    #[arg(long, env = "ANDREAS_WRITES", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256), value_name = "N")]
    pub writes: u16,
    /// How pods are bound.
    #[arg(long, env = "ANDREAS_SCHEDULER_MODE", value_enum, default_value_t = SchedulerMode::Extender)]
    pub scheduler_mode: SchedulerMode,
    /// The largest weight that counts in namespaces without the annotation andreas.dev/max-weight.
    #[arg(long, env = "ANDREAS_MAX_WEIGHT", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000), value_name = "N")]
    pub max_weight: u16,
    /// Kinds of jobs that are adopted, separated by commas: Job, JobSet, TrainJob, PyTorchJob, RayJob. Kinds that the
    /// cluster does not have are waited for.
    #[arg(long, env = "ANDREAS_ADOPT", value_delimiter = ',', value_parser = kind, value_name = "KINDS")]
    pub adopt: Vec<Kind>,
    /// Hosts that namespaces may have notifications sent to, separated by commas: hooks.slack.com, or *.example.com for all below one.
    /// Without any nobody is told, and no Secret is read.
    #[arg(long, env = "ANDREAS_NOTIFY_HOSTS", value_delimiter = ',', value_name = "HOSTS", value_parser = host)]
    pub notify_hosts: Vec<String>,
}

/// A name of a host, or `*.` and the end of some. An address of the Web would match nothing.
fn host(text: &str) -> Result<String, String> {
    let name = text.strip_prefix("*.").unwrap_or(text);
    let label = |label: &str| {
        let allowed = label.chars().all(|one| one.is_ascii_alphanumeric() || one == '-');
        allowed && !label.is_empty() && !label.starts_with('-') && !label.ends_with('-')
    };
    if name.split('.').all(label) {
        return Ok(text.to_owned());
    }
    Err("must be a host as hooks.slack.com, or *.example.com, without https:// and port".to_owned())
}

fn kind(text: &str) -> Result<Kind, String> {
    let names = || Kind::ALL.map(Kind::name).join(", ");
    Kind::parse(text).ok_or_else(|| format!("{text} cannot be adopted; these can: {}", names()))
}

/// Progress endpoint for training programs.
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("certificates").args(["certificates_secret", "tls_cert"]).multiple(true))]
pub struct ProgressArgs {
    /// Listen address of the progress endpoint (HTTPS). Needs --certificates-secret, or --tls-cert and
    /// --tls-key; off if absent.
    #[arg(long, env = "ANDREAS_PROGRESS_LISTEN", value_name = "ADDR", requires = "certificates")]
    pub progress_listen: Option<SocketAddr>,
    /// URL of the progress endpoint for pods, for example https://andreas-operator.andreas-system.svc:8443.
    /// Without it pods get no progress address.
    #[arg(long, env = "ANDREAS_PROGRESS_URL", value_name = "URL", requires = "progress_listen", value_parser = arguments::https)]
    pub progress_url: Option<String>,
    /// Secret in the operator's namespace for the endpoint's certificates. The leader creates and renews them
    /// unless --tls-cert is given.
    #[arg(long, env = "ANDREAS_CERTIFICATES_SECRET", value_name = "NAME", value_parser = arguments::object)]
    pub certificates_secret: Option<String>,
    /// PEM file with the CA of the progress endpoint; pods get it by an annotation and a downward-API volume.
    #[arg(long, env = "ANDREAS_PROGRESS_CA", value_name = "FILE")]
    pub progress_ca: Option<PathBuf>,
    /// PEM file with the certificate chain of the progress endpoint.
    #[arg(long, env = "ANDREAS_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with its private key.
    #[arg(long, env = "ANDREAS_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Lifetime of certificates, for tests of renewal.
    #[command(flatten)]
    pub lifetime: CertificateLifetimeArgs,
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
    fn a_method_that_is_not_the_products_is_refused_with_the_list_of_those_that_are() {
        let parse = |method| Cli::try_parse_from(["andreas-operator", "--method", method]);
        for method in MethodName::ALL {
            assert_eq!(parse(method.as_str()).unwrap().run.method, method);
        }
        for other in ["tiresias", "fifo-fixed", "priority", "andreas", "lottery"] {
            let error = parse(other).unwrap_err().to_string();
            assert!(error.contains(other), "{error}");
            assert!(error.contains("randomized-greedy, edf, fifo"), "{error}");
        }
    }

    #[test]
    fn plans_are_made_before_an_alert_calls_their_lack_a_failure() {
        let parse = |seconds| Cli::try_parse_from(["andreas-operator", "--plan-every", seconds]);
        assert_eq!(parse("600").unwrap().run.plan_every, 600);
        assert!(parse("601").is_err() && parse("0").is_err());
    }

    #[test]
    fn hosts_of_notifications_are_names() {
        let parse =
            |hosts: &str| Cli::try_parse_from(["andreas-operator", &format!("--notify-hosts={hosts}")]);
        let hosts = parse("hooks.slack.com,*.example.com,localhost").expect("hosts").run.notify_hosts;
        assert_eq!(hosts, ["hooks.slack.com", "*.example.com", "localhost"]);
        for wrong in
            ["https://hooks.slack.com", "a.b:443", "a.b/c", "*", "a..b", "*.", "a.*.b", "a,,b", "-a.b", ""]
        {
            let error = parse(wrong).expect_err(wrong).to_string();
            assert!(error.contains("--notify-hosts") && error.contains("without https://"), "{error}");
        }
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
