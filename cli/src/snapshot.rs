//! `kubectl-andreas snapshot`: what the operator's last plan was made from, saved.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use andreas_planner::Snapshot;
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use http::{Request, header};
use http_body_util::Full;
use k8s_openapi::api::core::v1::Pod;

use crate::cluster::{Cluster, ConnectArgs, PodPort, Selection, block_on};
use crate::name;

/// Save what the operator's last plan was made from; `plan --snapshot FILE` makes that plan again.
///
/// Makes a token of the chart's account andreas-plan-reader that is good for ten minutes, and asks the operator's pods by port-forward.
/// Needs the rights to list pods, to create pods/portforward and serviceaccounts/token in the operator's namespace. The file names jobs of
/// all namespaces.
#[derive(Debug, Args)]
pub struct SnapshotArgs {
    /// Where to write it; standard output without
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Namespace of the operator
    #[arg(long, short, value_name = "NAME", default_value = "andreas-system", value_parser = name::namespace)]
    namespace: String,
    /// Account in that namespace that may get the non-resource URL /snapshot
    #[arg(long, value_name = "NAME", default_value = "andreas-plan-reader", value_parser = name::object)]
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
    #[command(flatten)]
    cluster: ConnectArgs,
}

/// Most bytes of a snapshot: far above 200,000 jobs.
const MAX_BYTES: usize = 2 << 30;

/// Runs the subcommand.
pub fn run(args: &SnapshotArgs) -> Result<()> {
    let text = block_on(read(args))?;
    // Nothing that cannot be planned is saved as a snapshot.
    let snapshot: Snapshot =
        serde_json::from_slice(&text).context("what the operator answered is not a snapshot")?;
    match &args.out {
        Some(file) => {
            fs::write(file, &text).with_context(|| file.display().to_string())?;
            crate::output::print_error(&format!(
                "{}: {} jobs, {} nodes",
                file.display(),
                snapshot.jobs.len(),
                snapshot.nodes.len()
            ));
        }
        None => io::stdout().lock().write_all(&text)?,
    }
    Ok(())
}

/// Asks one pod after the other: only the leader has made a plan.
async fn read(args: &SnapshotArgs) -> Result<Vec<u8>> {
    let cluster = Cluster::connect(&args.cluster).await?;
    let namespace = args.namespace.as_str();
    let token = cluster.account_token(namespace, &args.service_account).await?;
    let token = token.context("the API server gave no token")?;
    let pods: Vec<Pod> = cluster.list(Some(namespace), &Selection::labels(&args.selector)).await?.items;
    let mut answers = Vec::new();
    for pod in &pods {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let to = PodPort { namespace, pod: name, port: args.port };
        let request = Request::get("/snapshot")
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .body(Full::default())?;
        let timeout = args.cluster.request_timeout;
        // The certificate names the Service, which is not what is asked here, and the token is good for nothing but these pages.
        match cluster.ask_pod(&to, request, MAX_BYTES, timeout).await {
            Ok(reply) if reply.status.is_success() => return Ok(reply.body.to_vec()),
            Ok(reply) => answers.push(format!(
                "{to}: {}: {}",
                reply.status,
                String::from_utf8_lossy(&reply.body).trim()
            )),
            Err(error) if error.is_forbidden() => return Err(error.into()),
            Err(error) => answers.push(error.to_string()),
        }
    }
    if answers.is_empty() {
        bail!("no pod in {namespace} has the labels {}", args.selector);
    }
    Err(anyhow!("no operator pod gave a snapshot:\n{}", answers.join("\n")))
}
