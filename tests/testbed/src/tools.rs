//! kubectl and helm, run against the test bed with nothing of the user's own settings.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::testbed::Testbed;

/// A tool could not be run, or failed where success was required.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// It could not be started or fed.
    #[error("cannot run {tool}")]
    Run {
        /// The command line.
        tool: String,
        /// Why.
        source: std::io::Error,
    },
    /// It ended with another exit code than 0.
    #[error("{tool} ended with {code}:\n{stderr}{stdout}")]
    Failed {
        /// The command line.
        tool: String,
        /// Exit code (or "a signal").
        code: String,
        /// Its standard error.
        stderr: String,
        /// Its standard output.
        stdout: String,
    },
}

/// What a command printed and how it ended.
#[derive(Debug, Clone)]
pub struct Output {
    /// The command line, for messages.
    pub command: String,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// The exit code; `None` when a signal ended it.
    pub code: Option<i32>,
}

impl Output {
    /// Whether the exit code was 0.
    pub fn success(&self) -> bool {
        self.code == Some(0)
    }

    /// The output when the exit code was 0, an error with everything it printed otherwise.
    pub fn checked(self) -> Result<Self, ToolError> {
        if self.success() {
            return Ok(self);
        }
        Err(ToolError::Failed {
            tool: self.command,
            code: self.code.map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}")),
            stderr: self.stderr,
            stdout: self.stdout,
        })
    }
}

impl Testbed {
    /// Runs kubectl as administrator.
    pub async fn kubectl<A: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
    ) -> Result<Output, ToolError> {
        self.tool("kubectl", &self.kubeconfig(), args, None).await
    }

    /// Runs kubectl with another identity.
    pub async fn kubectl_as<A: AsRef<OsStr>>(
        &self,
        kubeconfig: &Path,
        args: impl IntoIterator<Item = A>,
    ) -> Result<Output, ToolError> {
        self.tool("kubectl", kubeconfig, args, None).await
    }

    /// `kubectl apply --filename -` of a manifest, as administrator.
    pub async fn kubectl_apply(&self, manifest: &str) -> Result<Output, ToolError> {
        self.tool("kubectl", &self.kubeconfig(), ["apply", "--filename", "-"], Some(manifest)).await
    }

    /// Runs helm as administrator; its caches and settings lie in the test bed's folder.
    pub async fn helm<A: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
    ) -> Result<Output, ToolError> {
        self.tool("helm", &self.kubeconfig(), args, None).await
    }

    async fn tool<A: AsRef<OsStr>>(
        &self,
        tool: &str,
        kubeconfig: &Path,
        args: impl IntoIterator<Item = A>,
        input: Option<&str>,
    ) -> Result<Output, ToolError> {
        let args: Vec<_> = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
        let line: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).collect();
        let command = format!("{tool} {}", line.join(" "));
        let failed = |source| ToolError::Run { tool: command.clone(), source };
        let home = self.data_dir().join("home");
        let (mark, value) = self.sandbox().mark();
        let mut child = Command::new(self.programs().path(tool))
            .args(&args)
            .env("KUBECONFIG", kubeconfig)
            .env("HOME", &home)
            .env("HELM_CACHE_HOME", home.join("helm/cache"))
            .env("HELM_CONFIG_HOME", home.join("helm/config"))
            .env("HELM_DATA_HOME", home.join("helm/data"))
            .env(mark, value)
            .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let feed = child.stdin.take();
        let feeding = async {
            if let (Some(mut pipe), Some(text)) = (feed, input) {
                // A tool that ends early closes the pipe; its exit code and messages tell why.
                let _ = pipe.write_all(text.as_bytes()).await;
            }
        };
        let (output, ()) = tokio::join!(child.wait_with_output(), feeding);
        let output = output.map_err(failed)?;
        Ok(Output {
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            code: output.status.code(),
            command,
        })
    }
}
