//! Programs whose wall clock is off, by libfaketime. Their monotonic clock is left alone, as it is on a machine whose time was set.

use std::path::{Path, PathBuf};

use andreas_testbed::write_executables;
use anyhow::{Context as _, Result};

/// Variables under which a program's wall clock is that many seconds ahead; none for 0.
///
/// # Errors
/// When libfaketime is not installed.
pub fn environment(seconds: i64) -> Result<Vec<(&'static str, String)>> {
    if seconds == 0 {
        return Ok(Vec::new());
    }
    with([("FAKETIME", format!("{seconds:+}s"))])
}

/// Variables under which a program's wall clock can be set while it runs, by [`set`] with the same file. It is right at first.
///
/// # Errors
/// When libfaketime is not installed or the file cannot be written.
pub fn settable(file: &Path) -> Result<Vec<(&'static str, String)>> {
    if !file.exists() {
        set(file, 0)?;
    }
    let file = file.display().to_string();
    // The file is read again every second.
    with([("FAKETIME_TIMESTAMP_FILE", file), ("FAKETIME_CACHE_DURATION", "1".to_owned())])
}

/// Sets the clock of the programs that were started with this file: so many seconds ahead.
///
/// # Errors
/// When the file cannot be written.
pub fn set(file: &Path, seconds: i64) -> Result<()> {
    // Never half written for a reader.
    let next = file.with_extension("next");
    std::fs::write(&next, format!("{seconds:+}s\n"))?;
    std::fs::rename(&next, file).with_context(|| file.display().to_string())
}

fn with<const N: usize>(clock: [(&'static str, String); N]) -> Result<Vec<(&'static str, String)>> {
    let library = library().context("libfaketime is not installed: run hack/prepare")?;
    let mut variables = vec![
        ("LD_PRELOAD", library.display().to_string()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        // Nothing is shared with other programs.
        ("FAKETIME_DISABLE_SHM", "1".to_owned()),
    ];
    variables.extend(clock);
    Ok(variables)
}

/// The program, or a script in `folder` that runs it with these variables.
///
/// # Errors
/// When the script cannot be written.
pub fn wrapped(program: PathBuf, variables: &[(&'static str, String)], folder: &Path) -> Result<PathBuf> {
    if variables.is_empty() {
        return Ok(program);
    }
    let set: String = variables.iter().map(|(name, value)| format!("export {name}='{value}'\n")).collect();
    let script = format!("#!/bin/sh\n{set}exec '{}' \"$@\"\n", program.display());
    write_executables(folder, [("with-wrong-clock", script)])?;
    Ok(folder.join("with-wrong-clock"))
}

/// Where Debian has it.
fn library() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten();
    let candidates = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
    candidates.chain([PathBuf::from("/usr/lib/faketime/libfaketimeMT.so.1")]).find(|path| path.exists())
}
