//! `kubectl-andreas snapshot`: what the operator's last plan was made from, saved.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use andreas_planner::Snapshot;
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// Snapshot: save what the operator's last plan was made from; `plan --snapshot FILE` makes that plan again.
///
/// With the kubectl on the PATH and its current context: makes a token of the chart's account andreas-plan-reader that is good for ten
/// minutes, and asks the operator's pods through `kubectl port-forward`. Needs the rights to list pods, to create pods/portforward and
/// serviceaccounts/token in the operator's namespace. Or directly, with --url. The file names jobs of all namespaces.
#[derive(Debug, Args)]
pub struct SnapshotArgs {
    /// Where to write it; standard output without
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The operator's port with certificates, such as https://andreas-operator.andreas-system.svc:8443, instead of port-forward
    #[arg(long, value_name = "URL", conflicts_with_all = ["namespace", "context", "kubeconfig"])]
    url: Option<String>,
    /// File with a bearer token whose owner may get the non-resource URL /snapshot
    #[arg(long, value_name = "FILE", requires = "url")]
    token_file: Option<PathBuf>,
    /// File with the authority of the operator's certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "url")]
    ca_file: Option<PathBuf>,
    /// Namespace of the operator
    #[arg(long, short, value_name = "NAME", default_value = "andreas-system")]
    namespace: String,
    /// Account in that namespace that may get the non-resource URL /snapshot
    #[arg(long, value_name = "NAME", default_value = "andreas-plan-reader")]
    service_account: String,
    /// Labels of the operator's pods
    #[arg(
        long,
        value_name = "LABELS",
        default_value = "app.kubernetes.io/name=andreas,app.kubernetes.io/component=operator"
    )]
    selector: String,
    /// The operator's port with certificates
    #[arg(long, value_name = "PORT", default_value_t = 8443)]
    port: u16,
    /// Context of the kubeconfig; the current one without
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Kubeconfig; kubectl's own choice without
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Seconds to wait for an answer
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
}

/// Most bytes of a snapshot: far above 200,000 jobs.
const MAX_BYTES: u64 = 2 << 30;

/// Runs the subcommand.
pub fn run(args: &SnapshotArgs) -> Result<()> {
    let text = match &args.url {
        Some(url) => read_from_url(args, url)?,
        None => read_through_kubectl(args)?,
    };
    // Nothing that cannot be planned is saved as a snapshot.
    let snapshot: Snapshot =
        serde_json::from_slice(&text).context("what the operator answered is not a snapshot")?;
    match &args.out {
        Some(file) => {
            fs::write(file, &text).with_context(|| file.display().to_string())?;
            eprintln!("{}: {} jobs, {} nodes", file.display(), snapshot.jobs.len(), snapshot.nodes.len());
        }
        None => io::stdout().lock().write_all(&text)?,
    }
    Ok(())
}

/// Reads the snapshot from `--url`.
fn read_from_url(args: &SnapshotArgs, url: &str) -> Result<Vec<u8>> {
    let read = |file: &PathBuf| fs::read(file).with_context(|| file.display().to_string());
    let token = match &args.token_file {
        Some(file) => Some(String::from_utf8(read(file)?).context("the token is not text")?),
        None => None,
    };
    let mut tls = TlsConfig::builder();
    if let Some(file) = &args.ca_file {
        let mut authorities: Vec<Certificate<'static>> = Vec::new();
        let text = read(file)?;
        for item in parse_pem(&text) {
            if let PemItem::Certificate(certificate) = item.with_context(|| file.display().to_string())? {
                authorities.push(certificate);
            }
        }
        tls = tls.root_certs(RootCerts::from(authorities));
    }
    get_snapshot(args, url, token.as_deref(), tls.build())
}

/// `GET /snapshot`.
fn get_snapshot(args: &SnapshotArgs, url: &str, token: Option<&str>, tls: TlsConfig) -> Result<Vec<u8>> {
    let url = format!("{}/snapshot", url.trim_end_matches('/'));
    let timeout = Some(Duration::from_secs(args.timeout));
    let config = ureq::Agent::config_builder()
        .timeout_global(timeout)
        .tls_config(tls)
        .http_status_as_error(false)
        .build();
    let mut request = ureq::Agent::new_with_config(config).get(&url);
    if let Some(token) = token {
        request = request.header("Authorization", format!("Bearer {}", token.trim()));
    }
    let mut answer = request.call().with_context(|| url.clone())?;
    let status = answer.status();
    let body = answer.body_mut().with_config().limit(MAX_BYTES).read_to_vec().with_context(|| url.clone())?;
    if !status.is_success() {
        bail!("{url}: {status}: {}", String::from_utf8_lossy(&body).trim());
    }
    Ok(body)
}

/// Asks one pod after the other: only the leader has made a plan.
fn read_through_kubectl(args: &SnapshotArgs) -> Result<Vec<u8>> {
    let (namespace, selector) = (args.namespace.as_str(), args.selector.as_str());
    let token =
        kubectl(args, &["create", "token", &args.service_account, "-n", namespace, "--duration=10m"])?;
    let token = String::from_utf8(token).context("the token is not text")?;
    let pods = kubectl(args, &["get", "pods", "-n", namespace, "-l", selector, "-o", "name"])?;
    let pods = String::from_utf8(pods).context("names of pods")?;
    let mut answers = Vec::new();
    for pod in pods.lines().filter(|name| !name.is_empty()) {
        match read_from_pod(args, pod, &token) {
            Ok(text) => return Ok(text),
            Err(error) => answers.push(format!("{pod}: {error:#}")),
        }
    }
    if answers.is_empty() {
        bail!("no pod in {namespace} has the labels {selector}");
    }
    Err(anyhow!("no operator pod gave a snapshot:\n{}", answers.join("\n")))
}

/// A child process that is killed when this is dropped.
struct Forward(Child);

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads the snapshot from one pod through `kubectl port-forward`.
fn read_from_pod(args: &SnapshotArgs, pod: &str, token: &str) -> Result<Vec<u8>> {
    let port = format!(":{}", args.port);
    let mut command = command(args, &["port-forward", "-n", &args.namespace, pod, &port]);
    command.arg("--address=127.0.0.1").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut forward = Forward(command.spawn().context(NO_KUBECTL)?);
    // "Forwarding from 127.0.0.1:41234 -> 8443". It says more later, so its output stays open.
    let mut output = BufReader::new(forward.0.stdout.take().context("no output of kubectl port-forward")?);
    let mut line = String::new();
    output.read_line(&mut line)?;
    let Some(address) = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:")) else {
        let mut message = String::new();
        if let Some(mut stderr) = forward.0.stderr.take() {
            io::Read::read_to_string(&mut stderr, &mut message)?;
        }
        bail!("kubectl port-forward: {}{}", line.trim(), message.trim());
    };
    // The tunnel ends in that pod: the API server has authenticated both ends of it. Its certificate names the Service, which is not
    // what is asked here, and the token is good for nothing but these pages.
    let tls = TlsConfig::builder().disable_verification(true).build();
    let answer = get_snapshot(args, &format!("https://{address}"), Some(token), tls);
    drop(output);
    answer
}

const NO_KUBECTL: &str = "kubectl cannot be run; is it on the PATH? (--url needs none)";

fn command(args: &SnapshotArgs, what: &[&str]) -> Command {
    let mut command = Command::new("kubectl");
    command.args(what);
    if let Some(context) = &args.context {
        command.arg("--context").arg(context);
    }
    if let Some(file) = &args.kubeconfig {
        command.arg("--kubeconfig").arg(file);
    }
    command
}

fn kubectl(args: &SnapshotArgs, what: &[&str]) -> Result<Vec<u8>> {
    let mut command = command(args, what);
    command.arg(format!("--request-timeout={}s", args.timeout));
    let output = command.output().context(NO_KUBECTL)?;
    if !output.status.success() {
        bail!("kubectl {}: {}", what[0], String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output.stdout)
}
