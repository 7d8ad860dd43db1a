//! The layer below the programs of `hack/images`: glibc of Debian's packages, and what is asked of it before anything is compiled.

use std::fs;
use std::process::Command;

use andreas_e2e::release::architecture;
use anyhow::{Context as _, Result, ensure};

use crate::scripts::{StandIns, printed, root};

/// `hack/images` on a machine with these programs, and with a cache of its own.
fn images(machine: &StandIns, arguments: &[&str]) -> Result<Command> {
    let mut images = machine.command(root().join("hack/images"))?;
    images.args(arguments).env("ANDREAS_CACHE", machine.file("cache")).env("BUILT", machine.file("built"));
    for variable in ["DEBIAN_MIRROR", "IMAGES_DEBIAN", "RUSTC", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
        images.env_remove(variable);
    }
    Ok(images)
}

/// What apt does where a list cannot be had: that is a failure only if it was told so.
const APT_REACHES_NOTHING: &str = "case \"$*\" in *APT::Update::Error-Mode=any*) exit 100 ;; esac";

/// Given a machine whose apt reaches nothing; when an image is to be built; then that ends before a program is, and Debian's archive was
/// asked, whichever distribution the machine has.
#[test]
fn glibc_that_cannot_be_had_is_missed_before_anything_is_built() -> Result<()> {
    let machine = StandIns::new(&[("apt-get", APT_REACHES_NOTHING), ("cargo", "touch \"$BUILT\"; exit 1")])?;
    let out = machine.file("out").display().to_string();
    let arguments = ["--arch", architecture(), "--profile", "debug", "--out", &out, "trainer"];
    let made = images(&machine, &arguments)?.output()?;
    let (_, stderr) = printed(&made);
    ensure!(!made.status.success() && stderr.contains("no lists of Debian trixie"), "{stderr}");
    ensure!(!machine.file("built").exists(), "cargo was called: {stderr}");
    let sources = machine.file(&format!("cache/debian/trixie-{}/sources.list", architecture()));
    let sources = fs::read_to_string(sources)?;
    assert_eq!(sources.lines().count(), 3, "{sources}");
    for line in sources.lines() {
        let (before, after) = line.split_once("] ").context("no keyring")?;
        assert!(before.ends_with("/debian-archive-keyring.gpg"), "{line}");
        assert!(after.starts_with("http://deb.debian.org/debian") && after.contains(" trixie"), "{line}");
    }
    Ok(())
}

#[test]
fn every_script_with_lists_of_its_own_fails_where_one_is_missing() -> Result<()> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join("hack"))? {
        let path = entry?.path();
        let text = if path.is_file() { fs::read_to_string(&path)? } else { String::new() };
        if text.contains("Dir::State::Lists") {
            // And none waits for ever where one of them fails once.
            for wanted in [
                "APT::Update::Error-Mode",
                "Acquire::Retries::Delay",
                "timeout --foreground",
                "[ \"$1\" = 124 ]",
            ] {
                ensure!(text.contains(wanted), "{}: {wanted}", path.display());
            }
            found.push(path);
        }
    }
    ensure!(found.len() == 2, "{found:?}");
    Ok(())
}

/// Given a machine whose glibc is newer than that of the release of Debian that images stand on; when their layer is asked for; then it
/// is that of the next release, or none where no known release is as new.
#[test]
fn a_machine_with_a_newer_glibc_gets_that_of_a_later_release() -> Result<()> {
    let machine = StandIns::new(&[("getconf", "echo \"glibc $GLIBC\"")])?;
    let (trixie, forky) = (machine.layer("trixie", "2.41-12+deb13u5")?, machine.layer("forky", "2.43-7")?);
    let base = |glibc: &str| -> Result<(bool, String, String)> {
        let output = images(&machine, &["--base"])?.env("GLIBC", glibc).output()?;
        let (stdout, stderr) = printed(&output);
        Ok((output.status.success(), stdout, stderr))
    };
    for glibc in ["2.36", "2.41"] {
        assert_eq!(base(glibc)?, (true, format!("{}\n", trixie.display()), String::new()));
    }
    let (made, path, said) = base("2.42")?;
    ensure!(made && path == format!("{}\n", forky.display()), "{path}{said}");
    let wanted =
        "linked with glibc 2.42 here, and Debian trixie has 2.41-12+deb13u5: the images get that of the next";
    ensure!(said.contains(wanted), "{said}");
    let (made, path, said) = base("2.44")?;
    ensure!(
        !made && path.is_empty() && said.contains("Debian forky has 2.43-7: name a newer"),
        "{path}{said}"
    );
    Ok(())
}

/// Given a mirror that lacks one of the packages; when the layer is asked for; then there is none, rather than one without it that is
/// kept; and one that an older build kept is named.
#[test]
fn no_layer_is_kept_that_lacks_a_package() -> Result<()> {
    let machine = StandIns::new(&[
        ("getconf", "echo 'glibc 2.36'"),
        ("apt-get", "case \"$*\" in *' download libc6 '*) : >libgcc-s1_1.deb; exit 100 ;; esac"),
        ("dpkg-deb", "case $1 in -f) echo gcc-14-base ;; *) tar -c -T /dev/null ;; esac"),
    ])?;
    let layer = machine.file(&format!("cache/debian/trixie-{}/base.tar", architecture()));
    let output = images(&machine, &["--base"])?.output()?;
    let (_, stderr) = printed(&output);
    ensure!(!output.status.success() && stderr.contains("no packages of glibc"), "{stderr}");
    ensure!(!layer.exists(), "{stderr}");

    let packed = Command::new("tar").arg("-cf").arg(&layer).args(["-T", "/dev/null"]).status()?;
    ensure!(packed.success(), "tar: {packed}");
    let output = images(&machine, &["--base"])?.output()?;
    let (_, stderr) = printed(&output);
    ensure!(!output.status.success() && stderr.contains("names no glibc: delete "), "{stderr}");
    Ok(())
}

/// Given a mirror that is too slow for the lists, or for the packages; when the layer is asked for; then that is named, and no missing key.
#[test]
fn a_mirror_that_is_too_slow_is_named() -> Result<()> {
    for slow in ["update", "download"] {
        let timeout = format!("case \"$*\" in *' {slow}'*) exit 124 ;; esac");
        let machine = StandIns::new(&[
            ("getconf", "echo 'glibc 2.36'"),
            ("apt-get", ""),
            ("timeout", timeout.as_str()),
            ("dpkg-deb", "echo gcc-14-base"),
        ])?;
        let output = images(&machine, &["--base"])?.output()?;
        let (_, stderr) = printed(&output);
        let named = stderr.trim_end().ends_with("debian was too slow: apt-get was ended after 5 minutes");
        ensure!(!output.status.success() && named, "{slow}: {stderr}");
    }
    Ok(())
}

/// Given two that want the layer at once; when one of them has waited for the other; then it takes what that one made.
#[test]
fn whoever_waited_for_the_layer_takes_the_others() -> Result<()> {
    // The wait for the lock, in which the other one finishes.
    let waits = "[ \"$1\" != -n ] || exit 1; mkdir -p \"${LAYER%/*}\"; cp \"$MADE\" \"$LAYER\"";
    let machine = StandIns::new(&[
        ("getconf", "echo 'glibc 2.36'"),
        ("flock", waits),
        ("apt-get", "touch \"$BUILT\"; exit 100"),
    ])?;
    let made = machine.layer("elsewhere", "2.41-12")?;
    let layer = machine.file(&format!("cache/debian/trixie-{}/base.tar", architecture()));
    let output = images(&machine, &["--base"])?.env("LAYER", &layer).env("MADE", made).output()?;
    let (stdout, stderr) = printed(&output);
    ensure!(output.status.success() && stdout == format!("{}\n", layer.display()), "{stdout}{stderr}");
    ensure!(!machine.file("built").exists(), "it was fetched again: {stderr}");
    ensure!(stderr.contains("waiting for another one"), "{stderr}");
    Ok(())
}

/// The flags that cargo is called with for programs of a profile.
fn flags(profile: &str) -> Result<Vec<String>> {
    let machine = StandIns::new(&[
        ("getconf", "echo 'glibc 2.36'"),
        ("cargo", "printf %s \"$CARGO_ENCODED_RUSTFLAGS\" >\"$BUILT\"; exit 1"),
    ])?;
    machine.layer("trixie", "2.41-12")?;
    let out = machine.file("out").display().to_string();
    let arguments = ["--arch", architecture(), "--profile", profile, "--out", &out, "operator"];
    let mut images = images(&machine, &arguments)?;
    images.env("CARGO_HOME", "/home/me/.cargo").env("CARGO_TARGET_DIR", "/home/me/built");
    let output = images.env("RUSTFLAGS", "-C opt-level=1").output()?;
    let text = fs::read_to_string(machine.file("built")).with_context(|| format!("{output:?}"))?;
    Ok(text.split('\u{1f}').map(str::to_owned).collect())
}

/// Given two homes; when a release is compiled in each; then its programs name neither.
#[test]
fn programs_of_a_release_do_not_name_the_folders_in_which_they_were_compiled() -> Result<()> {
    let wanted = [
        "-C",
        "opt-level=1",
        "--remap-path-prefix=/home/me/.cargo=/cargo",
        "--remap-path-prefix=/home/me/built=/target",
    ];
    assert_eq!(flags("release")?, wanted);
    // Those that `make build` made are used again.
    assert_eq!(flags("debug")?, [""]);
    Ok(())
}

/// Given a machine of the other architecture without Debian's compiler for this one; when an image is to be built for it; then the packages
/// are called as Debian calls them.
#[test]
fn a_missing_compiler_is_named_by_its_package() -> Result<()> {
    let machine = StandIns::new(&[("rustc", "echo host: aarch64-unknown-linux-gnu")])?;
    // Nothing else of this machine: it may have that compiler.
    for name in ["bash", "dirname", "sed", "git", "mkdir"] {
        let found = std::env::var("PATH")?
            .split(':')
            .map(|folder| format!("{folder}/{name}"))
            .find(|path| fs::metadata(path).is_ok_and(|file| file.is_file()));
        std::os::unix::fs::symlink(found.context(name)?, machine.file("bin").join(name))?;
    }
    let out = machine.file("out").display().to_string();
    let mut images = images(&machine, &["--arch", "amd64", "--out", &out, "trainer"])?;
    let output = images.env("PATH", machine.file("bin")).output()?;
    let (_, stderr) = printed(&output);
    let wanted =
        "no x86_64-linux-gnu-gcc on PATH: apt-get install gcc-x86-64-linux-gnu libc6-dev-amd64-cross";
    ensure!(!output.status.success() && stderr.contains(wanted), "{stderr}");
    Ok(())
}
