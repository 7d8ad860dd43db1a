//! The cluster, through the `kubectl` whose plugin this is: its contexts, credentials and proxies hold here too.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;

/// Which cluster and namespace.
#[derive(Clone, Debug, Args)]
pub(super) struct Cluster {
    /// Namespace of the profile; kubectl's own when absent
    #[arg(long, short, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Context of the kubeconfig
    #[arg(long, value_name = "CONTEXT")]
    pub context: Option<String>,
    /// The kubeconfig file
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<String>,
}

impl Cluster {
    /// Runs kubectl; its answer.
    ///
    /// # Errors
    /// No kubectl, or what it says when it fails.
    pub fn run(&self, args: &[&str], input: Option<&[u8]>) -> Result<Vec<u8>> {
        let mut command = Command::new("kubectl");
        let options = [
            ("--namespace", &self.namespace),
            ("--context", &self.context),
            ("--kubeconfig", &self.kubeconfig),
        ];
        for (name, value) in options {
            if let Some(value) = value {
                command.arg(format!("{name}={value}"));
            }
        }
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().context("kubectl is needed to reach the cluster, and cannot be run")?;
        if let Some(mut stdin) = child.stdin.take() {
            // A kubectl that fails at once closes its end: what it says then counts.
            let _ = stdin.write_all(input.unwrap_or_default());
        }
        let output = child.wait_with_output().context("kubectl")?;
        if !output.status.success() {
            bail!("kubectl {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(output.stdout)
    }
}
