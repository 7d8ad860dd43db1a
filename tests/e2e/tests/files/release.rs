//! The scripts of a release, without building one: what is checked before, and how its files are installed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use tempfile::TempDir;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn script(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

#[test]
fn a_release_whose_chart_has_another_version_is_not_made() -> Result<()> {
    for (chart, said) in [
        ("version: 1.2.2\nappVersion: 1.2.3\n", "version 1.2.2"),
        ("version: 1.2.3\nappVersion: 1.2.2\n", "appVersion 1.2.2"),
    ] {
        let folder = TempDir::new()?;
        fs::create_dir(folder.path().join("hack"))?;
        fs::create_dir_all(folder.path().join("charts/andreas"))?;
        fs::copy(root().join("hack/release"), folder.path().join("hack/release"))?;
        fs::write(folder.path().join("Cargo.toml"), "[workspace.package]\nversion = \"1.2.3\"\n")?;
        fs::write(folder.path().join("charts/andreas/Chart.yaml"), chart)?;
        let made = Command::new(folder.path().join("hack/release")).output()?;
        let stderr = String::from_utf8_lossy(&made.stderr);
        let refused =
            !made.status.success() && stderr.contains(&format!("Chart.yaml has {said}, Cargo.toml"));
        ensure!(refused, "{stderr}");
    }
    Ok(())
}

/// Given a release in another folder; when its script gets a file of the caller's folder for helm; then helm finds that file and the
/// release's chart.
#[test]
fn arguments_of_the_installer_name_files_of_the_callers_folder() -> Result<()> {
    let folder = TempDir::new()?;
    let (release, programs) = (folder.path().join("release"), folder.path().join("programs"));
    fs::create_dir(&release)?;
    fs::create_dir(&programs)?;
    fs::copy(root().join("deploy/install"), release.join("install"))?;
    fs::write(release.join("andreas-1.2.3.tgz"), "a chart")?;
    fs::write(folder.path().join("my.yaml"), "{}")?;
    let sums = "sha256sum install andreas-1.2.3.tgz >SHA256SUMS";
    ensure!(Command::new("sh").args(["-c", sums]).current_dir(&release).status()?.success(), "sha256sum");
    // helm upgrade --install andreas CHART ...
    script(&programs.join("helm"), "#!/bin/sh\n[ -s \"$4\" ] && [ -s my.yaml ] && echo \"$*\" >>said\n")?;
    script(&programs.join("kubectl"), "#!/bin/sh\n")?;
    let done = Command::new(release.join("install"))
        .args(["--values", "my.yaml"])
        .current_dir(folder.path())
        .env("PATH", format!("{}:{}", programs.display(), std::env::var("PATH")?))
        .output()?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let said = fs::read_to_string(folder.path().join("said"))?;
    // First to see whether helm takes the arguments.
    assert_eq!(said.matches("--values my.yaml").count(), 2, "{said}");
    Ok(())
}
