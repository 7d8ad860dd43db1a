//! Files of the machine: read as YAML or JSON, replaced at once.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// A file cannot be read or is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not what it should be.
    #[error("{path}: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        message: String,
    },
}

/// Reads YAML or JSON.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<T, FileError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| FileError::Read { path: path.to_owned(), source })?;
    serde_saphyr::from_str(&text)
        .map_err(|error| FileError::Parse { path: path.to_owned(), message: error.to_string() })
}

/// Writes beside the file, with this mode, and renames.
pub(crate) fn replace(target: &Path, bytes: &[u8], mode: u32) -> std::io::Result<()> {
    if std::fs::read(target).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let beside = target.with_file_name(format!(".{name}.new"));
    std::fs::write(&beside, bytes)?;
    std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(mode))?;
    std::fs::rename(&beside, target)
}
