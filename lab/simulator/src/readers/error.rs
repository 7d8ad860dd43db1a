//! Errors in input files.

use std::path::{Path, PathBuf};

/// A file and, if known, the line or field.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be opened or read.
    #[error("{file}: cannot be read", file = .file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A row or field is invalid.
    #[error("{file}: {at}: {problem}", file = .file.display())]
    Bad {
        /// The file.
        file: PathBuf,
        /// `row 3, num_gpu` or `cluster.nodes[0].gpus`.
        at: String,
        /// Description of the problem.
        problem: String,
    },
}

impl ReadError {
    /// An invalid field.
    pub fn bad(file: &Path, at: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Bad { file: file.to_owned(), at: at.into(), problem: problem.into() }
    }
}
