//! No file of code is longer than [`MOST`] lines, tests included.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Lines of the longest file.
const MOST: usize = 500;

#[test]
fn no_file_is_above_500_lines() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = ["ls-files", "--cached", "--others", "--exclude-standard", "*.rs", "*.py", "*.sh", "*.go"];
    let listed = Command::new("git").args(files).current_dir(&root).output().context("git")?;
    ensure!(listed.status.success(), "git: {}", String::from_utf8_lossy(&listed.stderr));
    let listed = String::from_utf8(listed.stdout)?;
    let mut read = 0;
    let mut long = Vec::new();
    // A file that was just removed is still listed.
    for name in listed.lines().filter(|name| root.join(name).exists()) {
        let lines = std::fs::read_to_string(root.join(name)).context(name.to_owned())?.lines().count();
        read += 1;
        if lines > MOST {
            long.push(format!("{name}: {lines}"));
        }
    }
    ensure!(read > 200, "only {read} files");
    ensure!(long.is_empty(), "above {MOST} lines:\n{}", long.join("\n"));
    Ok(())
}
