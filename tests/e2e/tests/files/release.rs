//! The scripts of a release, without building one: what is checked before, and how its files are installed.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use andreas_e2e::release::architecture;
use andreas_testbed::{Programs, write_executables};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Writes programs in the shell's language into a folder.
fn scripts(folder: &Path, programs: &[(&str, &str)]) -> Result<()> {
    Ok(write_executables(folder, programs.iter().map(|(name, text)| (name, format!("#!/bin/sh\n{text}\n"))))?)
}

/// Copies a program into a folder.
fn copy(program: &Path, folder: &Path) -> Result<()> {
    Ok(write_executables(folder, [(program.file_name().context("a program")?, fs::read(program)?)])?)
}

/// A folder whose programs come before the machine's.
struct StandIns(TempDir);

impl StandIns {
    fn new(programs: &[(&str, &str)]) -> Result<Self> {
        let folder = TempDir::new()?;
        fs::create_dir(folder.path().join("bin"))?;
        // Debian's own programs, also where the tests run on another distribution.
        let dpkg = format!(
            "case $1 in --print-architecture) echo {} ;; \
             --compare-versions) [ \"$(printf '%s\\n' \"$2\" \"$4\" | sort -V | head -n 1)\" = \"$2\" ] ;; esac",
            andreas_e2e::release::architecture()
        );
        let bin = folder.path().join("bin");
        scripts(&bin, &[("dpkg", dpkg.as_str()), ("dpkg-deb", "")])?;
        scripts(&bin, programs)?;
        Ok(Self(folder))
    }

    fn folder(&self) -> &Path {
        self.0.path()
    }

    /// A file beside these programs.
    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A program that finds these before the machine's.
    fn command(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        let mut command = Command::new(program);
        let path = std::env::var("PATH")?;
        command.env("PATH", format!("{}:{path}", self.file("bin").display()));
        Ok(command)
    }
}

/// What a program printed, and what it printed of its errors.
fn printed(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
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
        copy(&root().join("hack/release"), &folder.path().join("hack"))?;
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
    copy(&root().join("deploy/install"), &release)?;
    fs::write(release.join("andreas-1.2.3.tgz"), "a chart")?;
    fs::write(folder.path().join("my.yaml"), "{}")?;
    let sums = "sha256sum install andreas-1.2.3.tgz >SHA256SUMS";
    ensure!(Command::new("sh").args(["-c", sums]).current_dir(&release).status()?.success(), "sha256sum");
    // helm upgrade --install andreas CHART ...
    let helm = "[ -s \"$4\" ] && [ -s my.yaml ] && echo \"$*\" >>said";
    scripts(&programs, &[("helm", helm), ("kubectl", "")])?;
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

/// Runs lines of Python that know a script of the repository as `script`, and a folder.
fn python(machine: &StandIns, path: &str, lines: &str) -> Result<String> {
    const LOAD: &str = "
import importlib.machinery, importlib.util, io, pathlib, sys, tarfile
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader('script', sys.argv[1])
script = importlib.util.module_from_spec(importlib.util.spec_from_loader('script', loader))
loader.exec_module(script)
folder = pathlib.Path(sys.argv[2])
";
    let mut python = machine.command("python3")?;
    python.arg("-c").arg(format!("{LOAD}{lines}")).arg(root().join(path)).arg(machine.folder());
    let output = python.output().context("python3")?;
    let (stdout, stderr) = printed(&output);
    ensure!(output.status.success(), "{path}: {stdout}{stderr}");
    Ok(stdout)
}

/// Given a release for the other architecture alone, and this machine's command line of an earlier build; when it is made; then nothing
/// that the earlier one prints goes into it, and a line tells of that.
#[test]
fn what_an_older_command_line_prints_goes_into_no_release() -> Result<()> {
    let strip = "cp \"$3\" \"$2\"";
    let machine = StandIns::new(&[
        ("strip", strip),
        ("aarch64-linux-gnu-strip", strip),
        ("x86_64-linux-gnu-strip", strip),
    ])?;
    for folder in ["release", "x86_64-unknown-linux-gnu/release", "aarch64-unknown-linux-gnu/release"] {
        fs::create_dir_all(machine.file(folder))?;
        scripts(&machine.file(folder), &[("kubectl-andreas", "echo printed")])?;
    }
    let (here, other) = (architecture(), if architecture() == "amd64" { "arm64" } else { "amd64" });
    let made = |archs: &[&str]| -> Result<String> {
        let lines = format!(
            "
for name in script.command_lines(folder, '1', {archs:?}, folder / 'release', 0).values():
    print(name, *tarfile.open(folder / name).getnames())
"
        );
        python(&machine, "hack/release", &lines)
    };
    let alone = format!(
        "no shell completion: the program for {here} prints it (--arch {here})\n\
         kubectl-andreas-1-linux-{other}.tar.gz LICENSE kubectl-andreas\n"
    );
    assert_eq!(made(&[other])?, alone);
    let all = "LICENSE completion.bash completion.fish completion.zsh kubectl-andreas";
    let both = [other, here].map(|arch| format!("kubectl-andreas-1-linux-{arch}.tar.gz {all}\n")).concat();
    assert_eq!(made(&[other, here])?, both);
    Ok(())
}

/// Given the chart; when a release is made; then what can be applied without helm are the definitions, and all but our pods.
#[tokio::test]
async fn plain_manifests_hold_the_definitions_and_no_pods() -> Result<()> {
    let machine = StandIns::new(&[])?;
    let helm = Programs::find().await?.path("helm");
    python(
        &machine,
        "hack/release",
        &format!("\nscript.manifests(folder, {:?})\n", helm.display().to_string()),
    )?;
    let kinds = |file: &str| -> Result<Vec<String>> {
        let objects: Vec<Value> = serde_saphyr::from_multiple(&fs::read_to_string(machine.file(file))?)?;
        let kind = |object: &Value| object["kind"].as_str().map(str::to_owned).context("a kind");
        objects.iter().filter(|object| object.is_object()).map(kind).collect()
    };
    assert_eq!(kinds("crds.yaml")?, ["CustomResourceDefinition"; 5]);
    let of_cluster = kinds("cluster.yaml")?;
    assert_eq!(of_cluster[0], "Namespace");
    for kind in ["PriorityClass", "ClusterRole", "ValidatingAdmissionPolicy"] {
        ensure!(of_cluster.iter().any(|each| each == kind), "no {kind}: {of_cluster:?}");
    }
    let pods = ["Deployment", "DaemonSet", "Job", "Pod", "CustomResourceDefinition"];
    ensure!(!of_cluster.iter().any(|kind| pods.contains(&kind.as_str())), "{of_cluster:?}");
    Ok(())
}

/// Given an image, and the Python of Debian 12, whose archives know no filters; when `tests/arm64` unpacks it; then its files are there.
#[test]
fn an_image_is_unpacked_by_an_older_python() -> Result<()> {
    let machine = StandIns::new(&[])?;
    fs::create_dir_all(machine.file("files/usr"))?;
    fs::write(machine.file("files/usr/file"), "text")?;
    let (layer, image) = (machine.file("layer.tar"), machine.file("image.tar"));
    let packed = Command::new("tar")
        .arg("-cf")
        .arg(&layer)
        .arg("-C")
        .arg(machine.file("files"))
        .arg("./usr")
        .status()?;
    ensure!(packed.success(), "tar: {packed}");
    let mut made = machine.command(root().join("hack/image"))?;
    made.args(["--reference", "registry.example/files:1", "--base"]).arg(&layer).arg("--out").arg(&image);
    ensure!(made.output()?.status.success(), "hack/image");
    let lines = format!(
        "
if hasattr(tarfile, 'tar_filter'):
    del tarfile.tar_filter
now = tarfile.TarFile.extractall
def before(self, path='.', members=None, *, numeric_owner=False):
    now(self, path, members, numeric_owner=numeric_owner)
tarfile.TarFile.extractall = before
script.unpack(folder / 'image.tar', '{}', folder / 'unpacked')
",
        architecture()
    );
    python(&machine, "tests/arm64", &lines)?;
    assert_eq!(fs::read_to_string(machine.file("unpacked/usr/file"))?, "text");
    Ok(())
}

/// Given the files of an image with a loader and a glibc of its own; when `tests/arm64` runs its program for amd64; then it has that glibc,
/// and a library that the image lacks is not taken from this machine.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_program_that_is_compared_has_the_libraries_of_its_image() -> Result<()> {
    let machine = StandIns::new(&[])?;
    let layer = machine.file("layer");
    let (programs, libraries) = (layer.join("usr/local/bin"), layer.join("usr/lib/x86_64-linux-gnu"));
    for folder in [&programs, &libraries, &layer.join("usr/lib64")] {
        fs::create_dir_all(folder)?;
    }
    let found = Command::new("cc").arg("-print-file-name=libc.so.6").output().context("cc")?;
    fs::copy(printed(&found).0.trim(), libraries.join("libc.so.6"))?;
    copy(Path::new("/lib64/ld-linux-x86-64.so.2"), &layer.join("usr/lib64"))?;
    let source = machine.file("program.c");
    fs::write(
        &source,
        r#"#include <stdio.h>
int main(void) {
  FILE *maps = fopen("/proc/self/maps", "r");
  for (int one; (one = getc(maps)) != EOF;) putchar(one);
}
"#,
    )?;
    let compile = |name: &str, flags: &[&str]| -> Result<()> {
        let mut cc = Command::new("cc");
        let compiled = cc.arg("-o").arg(programs.join(name)).arg(&source).args(flags).status()?;
        ensure!(compiled.success(), "cc: {compiled}");
        Ok(())
    };
    compile("maps", &[])?;
    compile("lacks", &["-Wl,--no-as-needed", "-lgcc_s"])?;
    let run = |name: &str| {
        let lines = format!("\nprint(script.run(folder / 'layer', 'amd64', ['{name}']))\n");
        python(&machine, "tests/arm64", &lines)
    };
    let maps = run("maps")?;
    let its = format!("{}/libc.so.6", libraries.display());
    let libcs = maps.lines().filter(|line| line.ends_with("/libc.so.6"));
    ensure!(maps.contains(&its) && libcs.clone().all(|line| line.ends_with(&its)), "{maps}");
    let lacks = run("lacks").unwrap_err().to_string();
    ensure!(lacks.contains("arm64: lacks: libgcc_s.so.1 is not in its image"), "{lacks}");
    Ok(())
}
