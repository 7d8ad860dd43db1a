//! Files that are written at the end of a long run.

use std::fs::OpenOptions;
use std::path::Path;

use anyhow::{Context as _, Result};

/// Whether a file can be written, said before a run of minutes. It is made where it is missing, and else left as it is.
///
/// # Errors
/// When it cannot be opened for writing; the message names it.
pub fn check_writable(path: &Path) -> Result<()> {
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.map(drop).with_context(|| format!("cannot write {}", path.display()))
}
