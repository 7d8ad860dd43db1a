//! `kubectl-andreas snapshot`: what the operator's last plan was made from, saved.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use andreas_planner::Snapshot;
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;

/// Snapshot: save what the operator's last plan was made from; `plan --snapshot FILE` makes that plan again.
///
/// Asks the operator's admin port through the API server's proxy, with the kubectl on the PATH and its current context (needs the
/// right to list pods and to get pods/proxy there), or directly with --url. The file names jobs of all namespaces.
#[derive(Debug, Args)]
pub struct SnapshotArgs {
    /// Where to write it; standard output without
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The operator's admin port, such as http://127.0.0.1:9090, instead of the API server's proxy
    #[arg(long, value_name = "URL", conflicts_with_all = ["namespace", "context", "kubeconfig"])]
    url: Option<String>,
    /// Namespace of the operator
    #[arg(long, short, value_name = "NAME", default_value = "andreas-system")]
    namespace: String,
    /// Labels of the operator's pods
    #[arg(
        long,
        value_name = "LABELS",
        default_value = "app.kubernetes.io/name=andreas,app.kubernetes.io/component=operator"
    )]
    selector: String,
    /// The operator's admin port
    #[arg(long, value_name = "PORT", default_value_t = 9090)]
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
const MOST_BYTES: u64 = 2 << 30;

/// Does it.
pub fn run(args: &SnapshotArgs) -> Result<()> {
    let text = match &args.url {
        Some(url) => direct(args, url)?,
        None => proxied(args)?,
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

fn direct(args: &SnapshotArgs, url: &str) -> Result<Vec<u8>> {
    let url = format!("{}/snapshot", url.trim_end_matches('/'));
    let timeout = Some(Duration::from_secs(args.timeout));
    let config = ureq::Agent::config_builder().timeout_global(timeout).build();
    let mut answer = ureq::Agent::new_with_config(config).get(&url).call().with_context(|| url.clone())?;
    answer.body_mut().with_config().limit(MOST_BYTES).read_to_vec().with_context(|| url.clone())
}

/// Asks one pod after the other: only the leader has made a plan.
fn proxied(args: &SnapshotArgs) -> Result<Vec<u8>> {
    let selector = args.selector.as_str();
    let pods = kubectl(args, &["get", "pods", "-n", &args.namespace, "-l", selector, "-o", "name"])?;
    let pods = String::from_utf8(pods).context("names of pods")?;
    let mut answers = Vec::new();
    for pod in pods.lines().map(|line| line.trim_start_matches("pod/")).filter(|name| !name.is_empty()) {
        let path = format!("/api/v1/namespaces/{}/pods/{pod}:{}/proxy/snapshot", args.namespace, args.port);
        match kubectl(args, &["get", "--raw", &path]) {
            Ok(text) => return Ok(text),
            Err(error) => answers.push(format!("{pod}: {error:#}")),
        }
    }
    if answers.is_empty() {
        bail!("no pod in {} has the labels {selector}", args.namespace);
    }
    Err(anyhow!("no operator pod gave a snapshot:\n{}", answers.join("\n")))
}

fn kubectl(args: &SnapshotArgs, what: &[&str]) -> Result<Vec<u8>> {
    let mut command = Command::new("kubectl");
    command.args(what).arg(format!("--request-timeout={}s", args.timeout));
    if let Some(context) = &args.context {
        command.arg("--context").arg(context);
    }
    if let Some(file) = &args.kubeconfig {
        command.arg("--kubeconfig").arg(file);
    }
    let output = command.output().context("kubectl cannot be run; is it on the PATH? (--url needs none)")?;
    if !output.status.success() {
        bail!("kubectl {}: {}", what[0], String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output.stdout)
}
