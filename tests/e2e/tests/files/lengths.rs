//! No file of code is longer than [`MOST`] lines, tests included; crates depend on those that the page of the architecture names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Lines of the longest file.
const MOST: usize = 500;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn no_file_is_above_500_lines() -> Result<()> {
    let root = root();
    let files = ["ls-files", "--cached", "--others", "--exclude-standard", "*.rs", "*.py", "*.sh", "*.go"];
    let listed = Command::new("git").args(files).current_dir(&root).output().context("git")?;
    ensure!(listed.status.success(), "git: {}", String::from_utf8_lossy(&listed.stderr));
    let listed = String::from_utf8(listed.stdout)?;
    let mut read = 0;
    let mut long = Vec::new();
    // A file that was just removed is still listed.
    for name in listed.lines().filter(|name| root.join(name).exists()) {
        let lines = fs::read_to_string(root.join(name)).context(name.to_owned())?.lines().count();
        read += 1;
        if lines > MOST {
            long.push(format!("{name}: {lines}"));
        }
    }
    ensure!(read > 200, "only {read} files");
    ensure!(long.is_empty(), "above {MOST} lines:\n{}", long.join("\n"));
    Ok(())
}

/// Our crates in `[dependencies]`, without the common beginning of their names.
fn dependencies(manifest: &str) -> BTreeSet<&str> {
    let section =
        manifest.split("\n[").find_map(|part| part.strip_prefix("dependencies]\n")).unwrap_or_default();
    let names = section.lines().filter_map(|line| line.split(['.', ' ']).next()?.strip_prefix("andreas-"));
    names.collect()
}

#[test]
fn the_page_of_the_architecture_has_the_dependencies_of_each_crate() -> Result<()> {
    let page = fs::read_to_string(root().join("docs/architecture.md"))?;
    let table = page.split("| crate | uses | what it is |").nth(1).context("no table of crates")?;
    let mut before = BTreeSet::new();
    for line in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let (name, uses) = (cells[1].trim_matches('`'), cells[2]);
        let written: BTreeSet<&str> = uses.split(", ").filter(|name| *name != "-").collect();
        let folder = [format!("crates/{name}"), name.to_owned()].map(|folder| root().join(folder));
        let folder = folder.iter().find(|folder| folder.is_dir()).with_context(|| name.to_owned())?;
        let manifest = fs::read_to_string(folder.join("Cargo.toml"))?;
        ensure!(dependencies(&manifest) == written, "{name} uses {:?}", dependencies(&manifest));
        ensure!(written.is_subset(&before), "{name} stands above one of {written:?}");
        before.insert(name);
    }
    let folders = fs::read_dir(root().join("crates"))?.count() + 5;
    ensure!(before.len() == folders, "{} crates in the table, {folders} folders", before.len());
    Ok(())
}
