//! Commands of pages in a shell, on the demo's cluster.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use andreas_e2e::cluster::Cluster;
use anyhow::{Context as _, Result, bail, ensure};
use tokio::process::Command;

use super::page::Step;
use super::root;

/// How long an unseen command is tried.
const UNTIL: Duration = Duration::from_secs(180);
/// How long a command may take.
const LIMIT: Duration = Duration::from_secs(120);

/// Where a page's commands run: a folder, and a kubeconfig with a namespace of its own.
pub struct Place {
    folder: PathBuf,
    kubeconfig: PathBuf,
    path: String,
}

impl Place {
    /// Makes folder and namespace for a page.
    ///
    /// # Errors
    /// When they cannot be made.
    pub async fn new(cluster: &Cluster, page: &str) -> Result<Self> {
        let name = page.rsplit('/').next().and_then(|name| name.strip_suffix(".md")).unwrap_or(page);
        let folder = cluster.testbed.data_dir().join("pages").join(name);
        std::fs::create_dir_all(&folder)?;
        // Pages name files of the repository by their paths.
        for name in ["crates", "deploy", "tests"] {
            std::os::unix::fs::symlink(root().join(name).canonicalize()?, folder.join(name))?;
        }
        let kubeconfig = folder.join(".kubeconfig");
        std::fs::copy(cluster.testbed.kubeconfig(), &kubeconfig)?;
        std::fs::set_permissions(&kubeconfig, std::fs::Permissions::from_mode(0o600))?;
        // `kubectl andreas` is a program beside kubectl.
        let programs = cluster.testbed.programs().folder().display().to_string();
        let cli = andreas_testbed::workspace_binary("kubectl-andreas")?;
        let own = cli.parent().context("a folder")?.display().to_string();
        let path = format!("{programs}:{own}:{}", std::env::var("PATH")?);
        let place = Self { folder, kubeconfig, path };
        if name != "quickstart" {
            let namespace = format!("team-{name}");
            place.unseen(&format!("kubectl create namespace {namespace}"), false).await?;
            place
                .unseen(&format!("kubectl config set-context --current --namespace {namespace}"), false)
                .await?;
        }
        Ok(place)
    }

    /// Writes a file of the page.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        ensure!(!name.contains('/'), "{name}: wanted a name without folders");
        std::fs::write(self.folder.join(name), text).with_context(|| name.to_owned())
    }

    /// The lines that a command prints.
    ///
    /// # Errors
    /// When it ends with another code than the page says.
    pub async fn run(&self, step: &Step) -> Result<Vec<String>> {
        println!("$ {}", step.command);
        let ended = self.shell(&step.command, step.ends_after).await?;
        print!("{}", ended.printed);
        // The exit code of `timeout` for a program that it ends.
        let as_said = ended.code == step.exit || (step.ends_after.is_some() && ended.code == 124);
        if !as_said {
            bail!("$ {}: exit code {}\n{}{}", step.command, ended.code, ended.printed, ended.errors);
        }
        Ok(ended.printed.lines().map(|line| line.trim_end().to_owned()).collect())
    }

    /// Runs a command that readers do not see, once or until it ends well.
    ///
    /// # Errors
    /// When it does not end well.
    pub async fn unseen(&self, command: &str, until: bool) -> Result<()> {
        let began = Instant::now();
        loop {
            let ended = self.shell(command, None).await?;
            if ended.code == 0 {
                return Ok(());
            }
            if !until || began.elapsed() > UNTIL {
                bail!("{command}: exit code {}\n{}{}", ended.code, ended.printed, ended.errors);
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Deletes the page's jobs, so that the next page begins with free nodes.
    ///
    /// # Errors
    /// When they cannot be deleted.
    pub async fn clean(&self) -> Result<()> {
        self.unseen("kubectl delete trainingjobs --all --wait --timeout=60s", false).await
    }

    async fn shell(&self, command: &str, ends_after: Option<Duration>) -> Result<Ended> {
        let limit = ends_after.unwrap_or(LIMIT).as_secs().to_string();
        let output = Command::new("timeout")
            .args(["--foreground", "--signal=INT", "--kill-after=10", &limit, "bash", "-c", command])
            .current_dir(&self.folder)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("PATH", &self.path)
            .env("COLUMNS", "120")
            .stdin(Stdio::null())
            .output()
            .await?;
        Ok(Ended {
            code: output.status.code().unwrap_or(-1),
            printed: String::from_utf8(output.stdout)?,
            errors: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }
}

struct Ended {
    code: i32,
    printed: String,
    errors: String,
}
