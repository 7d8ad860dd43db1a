//! Scripts on machines that lack something, and programs that stand in for a machine's own.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Writes a program in the shell's language.
pub fn script(path: &Path, text: &str) -> Result<()> {
    fs::write(path, format!("#!/bin/sh\n{text}\n"))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// A folder whose programs come before the machine's.
pub struct StandIns(TempDir);

impl StandIns {
    pub fn new(programs: &[(&str, &str)]) -> Result<Self> {
        let folder = TempDir::new()?;
        fs::create_dir(folder.path().join("bin"))?;
        // Debian's own programs, also where the tests run on another distribution.
        let dpkg = format!(
            "case $1 in --print-architecture) echo {} ;; \
             --compare-versions) [ \"$(printf '%s\\n' \"$2\" \"$4\" | sort -V | head -n 1)\" = \"$2\" ] ;; esac",
            andreas_e2e::release::architecture()
        );
        for (name, text) in [("dpkg", dpkg.as_str()), ("dpkg-deb", "")].iter().chain(programs) {
            script(&folder.path().join("bin").join(name), text)?;
        }
        Ok(Self(folder))
    }

    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// A file beside these programs.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A program that finds these before the machine's.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        let mut command = Command::new(program);
        let path = std::env::var("PATH")?;
        command.env("PATH", format!("{}:{path}", self.file("bin").display()));
        Ok(command)
    }

    /// A layer of images as `hack/images` keeps it, with this version of glibc.
    pub fn layer(&self, release: &str, glibc: &str) -> Result<PathBuf> {
        let architecture = andreas_e2e::release::architecture();
        let (files, folder) =
            (self.file("files"), self.file(&format!("cache/debian/{release}-{architecture}")));
        let packages = files.join("var/lib/dpkg/status.d");
        fs::create_dir_all(&packages)?;
        fs::create_dir_all(&folder)?;
        fs::write(packages.join("libc6"), format!("Package: libc6\nVersion: {glibc}\n"))?;
        let layer = folder.join("base.tar");
        let packed =
            Command::new("tar").arg("-cf").arg(&layer).arg("-C").arg(&files).arg("./var").status()?;
        ensure!(packed.success(), "tar: {packed}");
        Ok(layer)
    }
}

/// What a program printed, and what it printed of its errors.
pub fn printed(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// Given a machine that allows namespaces, cgroups and the rest; when it is asked whether it allows real nodes; then it does, or says in
/// one line that their images cannot be made.
#[test]
fn real_nodes_are_not_to_be_had_where_their_images_cannot_be_made() -> Result<()> {
    let machine = StandIns::new(&[
        ("id", "echo 0"),
        ("unshare", ""),
        ("nsenter", ""),
        ("ip", ""),
        ("cargo", ""),
        ("go", ""),
        ("find", "echo \"$CGROUPS\""),
        ("grep", "case \"$*\" in *.subtree_control) exit 1 ;; esac"),
        ("apt-get", ""),
        ("getconf", "echo \"glibc $GLIBC\""),
    ])?;
    machine.layer("trixie", "2.41-12")?;
    machine.layer("forky", "2.43-7")?;
    fs::create_dir(machine.file("cgroups"))?;
    for (glibc, wanted) in [
        ("2.36", ""),
        (
            "2.99",
            "no real nodes on this machine: images: programs are linked with glibc 2.99 here, and Debian forky has 2.43-7: \
             name a newer release of it by IMAGES_DEBIAN\n",
        ),
    ] {
        let mut available = machine.command(root().join("tests/kubelets/available"))?;
        available.env("CGROUPS", machine.file("cgroups")).env("GLIBC", glibc);
        available.env("ANDREAS_CACHE", machine.file("cache")).env_remove("IMAGES_DEBIAN");
        let output = available.output()?;
        let (said, errors) = printed(&output);
        ensure!(output.status.success() == wanted.is_empty() && said == wanted, "{said}{errors}");
    }
    // When controllers cannot be handed down to the nodes, of which a kubelet would say so after all builds; the kernel refuses to write.
    fs::write(machine.file("cgroups/cgroup.controllers"), "cpu memory pids\n")?;
    fs::create_dir(machine.file("cgroups/cgroup.subtree_control"))?;
    let mut available = machine.command(root().join("tests/kubelets/available"))?;
    available.env("CGROUPS", machine.file("cgroups")).env("GLIBC", "2.36");
    let output = available.env("ANDREAS_CACHE", machine.file("cache")).output()?;
    let (said, errors) = printed(&output);
    ensure!(!output.status.success() && said.contains("cannot hand down cpu"), "{said}{errors}");
    Ok(())
}

/// Makes a target in a folder that has the Makefile, and scripts that stand in for those that it calls: whether it ended well, what it
/// printed, and cargo's calls.
fn make(target: &str, scripts: &[(&str, &str)]) -> Result<(bool, String, String)> {
    let folder = TempDir::new()?;
    let at = |path: &str| folder.path().join(path);
    fs::create_dir_all(at("home/.cargo/bin"))?;
    fs::copy(root().join("Makefile"), at("Makefile"))?;
    let cargo = ("home/.cargo/bin/cargo", "echo \"$*\" >>\"$CALLS\"");
    for &(path, text) in [("hack/prepare", ""), ("tests/tools/build", ""), cargo].iter().chain(scripts) {
        let path = at(path);
        fs::create_dir_all(path.parent().context("no folder")?)?;
        script(&path, text)?;
    }
    let mut make = Command::new("make");
    make.arg(target).current_dir(folder.path()).env("HOME", at("home")).env("CALLS", at("calls"));
    // Those of a `make` that runs this test.
    for variable in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL", "DEMO_ARGS", "TESTS"] {
        make.env_remove(variable);
    }
    let output = make.output().context("make")?;
    let (said, errors) = printed(&output);
    let calls = fs::read_to_string(at("calls")).unwrap_or_default();
    Ok((output.status.success(), format!("{said}{errors}"), calls))
}

/// Targets of the Makefile whose recipe prepares real nodes.
fn on_real_nodes(makefile: &str) -> Vec<&str> {
    let recipes = makefile.split("\n.PHONY: ").skip(1).filter(|part| part.contains("tests/kubelets/prepare"));
    recipes.filter_map(|part| part.lines().next()).collect()
}

/// Given a machine that allows no real nodes; when somebody asks for what needs them; then it ends at once with that line, before
/// anything is built, and the demo takes pretend nodes.
#[test]
fn where_there_are_no_real_nodes_make_says_so_before_it_builds() -> Result<()> {
    let makefile = fs::read_to_string(root().join("Makefile"))?;
    let targets = on_real_nodes(&makefile);
    ensure!(targets.len() > 5 && targets.contains(&"test") && targets.contains(&"demo"), "{targets:?}");
    let why = "no real nodes on this machine: a reason";
    for target in targets {
        let available = format!("echo '{why}'; exit 1");
        let (ended_well, said, calls) = make(target, &[("tests/kubelets/available", available.as_str())])?;
        ensure!(said.lines().filter(|line| *line == why).count() == 1, "{target}: {said}");
        if target == "demo" {
            ensure!(ended_well && calls.contains("--bin demo"), "{calls}{said}");
        } else {
            ensure!(!ended_well && calls.is_empty(), "{target}: {calls}{said}");
        }
    }
    Ok(())
}

/// Given a machine on which no Python is found; when the package is to be tried under each; then that is a failure, not a success of none.
#[test]
fn a_target_for_each_python_fails_where_there_is_none() -> Result<()> {
    let (ended_well, said, calls) = make("python-operator", &[("hack/python", "exit 1")])?;
    ensure!(!ended_well && !calls.contains("python::"), "{calls}{said}");
    let (ended_well, said, calls) = make("python-operator", &[("hack/python", "echo a; echo b")])?;
    ensure!(ended_well && calls.matches("python::").count() == 2, "{calls}{said}");
    Ok(())
}

/// Given a machine whose real nodes cannot be prepared; when all is tested; then their suite is left out, and that is a failure.
#[test]
fn the_suite_on_real_nodes_is_not_run_where_they_were_not_prepared() -> Result<()> {
    let suite = "--test kubelets --";
    for (prepare, prepared) in [("", true), ("exit 1", false)] {
        let scripts = [
            ("tests/kubelets/available", ""),
            ("tests/kubelets/prepare", prepare),
            // Lints and builds.
            ("home/.cargo/bin/make", ""),
        ];
        let (ended_well, said, calls) = make("test", &scripts)?;
        ensure!(ended_well == prepared && calls.contains(suite) == prepared, "{calls}{said}");
        ensure!(prepared || said.contains("failed: preparation of real nodes\n"), "{said}");
        ensure!(calls.contains("--test scenarios --"), "{calls}{said}");
    }
    Ok(())
}

/// What a command of apt does that another one keeps from the lists until it was called so often.
fn apt_after(calls: u32, error: &str) -> String {
    format!(
        "[ \"$1\" = install ] || [ \"$(grep -c ^update \"$CALLS\")\" -ge {calls} ] || {{ echo '{error}' >&2; exit 100; }}"
    )
}

/// Given a machine on which another apt is at work, or whose mirror has no lists; when packages are to be installed; then that one's end
/// is waited for as long as apt waits when it installs, and lists are asked for once more.
#[test]
fn another_apts_end_is_waited_for_and_lists_that_are_away_for_a_moment_are_asked_for_again() -> Result<()> {
    const LOCK: &str = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)";
    // apt itself ends well without lists, unless it was told not to.
    let away = "case $* in *Error-Mode=any*) exit 100 ;; esac".to_owned();
    for (apt, waited, ended) in [
        (apt_after(25, LOCK), 240, None),
        (apt_after(1_000, LOCK), 300, Some("another apt has been at work for five minutes (to install: jq)")),
        (apt_after(2, "E: 502"), 10, None),
        (apt_after(1_000, "E: 502"), 20, Some("no lists of packages, in 3 tries (to install: jq)")),
        (away, 20, None),
    ] {
        let apt = format!("echo \"$*\" >>\"$CALLS\"; {apt}");
        let sleep = "echo \"sleep $1\" >>\"$CALLS\"";
        let machine = StandIns::new(&[("id", "echo 0"), ("sleep", sleep), ("apt-get", apt.as_str())])?;
        let mut packages = machine.command(root().join("hack/packages"))?;
        let output = packages.arg("jq").env("CALLS", machine.file("calls")).output()?;
        let (said, errors) = printed(&output);
        let calls = fs::read_to_string(machine.file("calls"))?;
        let installed = calls.lines().any(|line| line.starts_with("install ") && line.ends_with(" jq"));
        let well = ended.is_none();
        ensure!(output.status.success() == well && installed == well, "{apt}: {calls}{said}{errors}");
        let (pauses, calls): (Vec<_>, Vec<_>) = calls.lines().partition(|line| line.starts_with("sleep "));
        let seconds: u32 =
            pauses.iter().filter_map(|line| line.strip_prefix("sleep ")?.parse::<u32>().ok()).sum();
        assert_eq!(seconds, waited, "{apt}: {errors}");
        // A mirror's single failure must not keep apt for ever.
        for line in calls {
            ensure!(line.contains("Acquire::Retries::Delay=false"), "{line}");
        }
        // `tests/kubelets/available` shows the last line alone.
        ensure!(ended.is_none_or(|why| errors.trim_end().ends_with(why)), "{apt}: {errors}");
    }
    Ok(())
}

/// Given a machine whose Python has neither pip nor virtual environments, as Debian's has none; when what needs them is prepared; then
/// their packages are installed.
#[test]
fn what_python_lacks_is_installed_before_anything_is_downloaded() -> Result<()> {
    let machine = StandIns::new(&[
        ("id", "echo 0"),
        ("cargo", ""),
        ("go", ""),
        ("python3", "exit 1"),
        ("apt-get", "echo \"$*\" >>\"$CALLS\""),
    ])?;
    for (part, package) in [("frameworks", "python3-pip"), ("anchors", "python3-venv")] {
        let calls = machine.file(part);
        let mut prepare = machine.command(root().join("hack/prepare"))?;
        let output = prepare.arg(part).env("CALLS", &calls).output()?;
        let (said, errors) = printed(&output);
        ensure!(output.status.success(), "{said}{errors}");
        let calls = fs::read_to_string(calls)?;
        let installs = calls.lines().find(|line| line.starts_with("install ")).context("no install")?;
        ensure!(installs.split(' ').any(|word| word == package), "{part}: {installs}");
    }
    for (user, part) in [("tests/frameworks/root", "frameworks"), ("Makefile", "anchors")] {
        let text = fs::read_to_string(root().join(user))?;
        let asks = format!("hack/prepare {part}");
        ensure!(
            text.lines().any(|line| line.trim_start().starts_with(asks.as_str())),
            "{user} does not call {asks}"
        );
    }
    Ok(())
}
