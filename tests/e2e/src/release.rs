//! A release as a platform team gets it: a folder of files, and a registry of their own.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use andreas_kubelets::Registry;
use andreas_testbed::Testbed;
use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

use crate::install;

/// Copies the images into the registry and installs the chart, by the release's own script; returns when all of it is ready.
///
/// # Errors
/// When the script fails, or a pod is not ready in time.
pub async fn install(testbed: &Testbed, release: &Path) -> Result<()> {
    let (script, registry) = (release.join("install").display().to_string(), Registry::address());
    println!(
        "{}",
        bash(testbed, release, &format!("{script} --push {registry} --dest-tls-verify=false")).await?
    );
    bash(testbed, release, &format!("{script} --set image.registry={registry}")).await?;
    install::rolled_out(testbed).await?;
    install::kinds_known(testbed).await
}

/// Runs a script as somebody would who has kubectl, helm, this cluster and the release's command line; what it printed.
///
/// # Errors
/// When a command of it fails, with what was printed.
pub async fn bash(testbed: &Testbed, release: &Path, script: &str) -> Result<String> {
    let home = testbed.data_dir().join("home");
    let programs = testbed.programs().folder().display().to_string();
    let path = format!("{}:{programs}:{}", command_line(testbed, release)?.display(), std::env::var("PATH")?);
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", script])
        .env("PATH", path)
        .env("KUBECONFIG", testbed.kubeconfig())
        .env("HOME", &home)
        .env("HELM_CACHE_HOME", home.join("helm/cache"))
        .env("HELM_CONFIG_HOME", home.join("helm/config"))
        .env("HELM_DATA_HOME", home.join("helm/data"))
        .current_dir(release)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = bash.output().await.context("bash")?;
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{script}\n{}\n{said}\n{errors}", output.status);
    Ok(said.into_owned())
}

/// A folder with the release's `kubectl-andreas`, unpacked once.
fn command_line(testbed: &Testbed, release: &Path) -> Result<PathBuf> {
    let folder = testbed.data_dir().join("command-line");
    if folder.join("kubectl-andreas").exists() {
        return Ok(folder);
    }
    std::fs::create_dir_all(&folder)?;
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let wanted = format!("-linux-{arch}.tar.gz");
    let archive = std::fs::read_dir(release)
        .with_context(|| format!("no release in {}: run tests/kubelets/prepare", release.display()))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.to_string_lossy().ends_with(&wanted))
        .context("the release has no command line for this machine")?;
    let unpacked =
        std::process::Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(&folder).status()?;
    ensure!(unpacked.success(), "tar: {unpacked}");
    Ok(folder)
}

/// This machine's architecture, as images name it.
#[must_use]
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
