//! Programs whose wall clock is off, by libfaketime. Their monotonic clock is left alone, as it is on a machine whose time was set.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Variables under which a program's wall clock is that many seconds ahead; none for 0.
///
/// # Errors
/// When libfaketime is not installed.
pub fn environment(seconds: i64) -> Result<Vec<(&'static str, String)>> {
    if seconds == 0 {
        return Ok(Vec::new());
    }
    let library = library().context("libfaketime is not installed: run hack/prepare")?;
    Ok(vec![
        ("LD_PRELOAD", library.display().to_string()),
        ("FAKETIME", format!("{seconds:+}s")),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        // Nothing is shared with other programs.
        ("FAKETIME_DISABLE_SHM", "1".to_owned()),
    ])
}

/// The program, or a script in `folder` that runs it with such a clock.
///
/// # Errors
/// When libfaketime is not installed or the script cannot be written.
pub fn wrapped(program: PathBuf, seconds: i64, folder: &Path) -> Result<PathBuf> {
    let variables = environment(seconds)?;
    if variables.is_empty() {
        return Ok(program);
    }
    let set: String = variables.iter().map(|(name, value)| format!("export {name}='{value}'\n")).collect();
    let script = folder.join("with-wrong-clock");
    std::fs::write(&script, format!("#!/bin/sh\n{set}exec '{}' \"$@\"\n", program.display()))?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    Ok(script)
}

/// Where Debian has it.
fn library() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten();
    let candidates = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
    candidates.chain([PathBuf::from("/usr/lib/faketime/libfaketimeMT.so.1")]).find(|path| path.exists())
}
