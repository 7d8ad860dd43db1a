//! What is wrong with a file.

use std::path::{Path, PathBuf};

/// A file and, where it is known, the line or field.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It cannot be opened or read.
    #[error("{file}: cannot be read", file = .file.display())]
    Io {
        /// Which.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A row or field makes no sense.
    #[error("{file}: {at}: {problem}", file = .file.display())]
    Bad {
        /// Which.
        file: PathBuf,
        /// `row 3, num_gpu` or `cluster.nodes[0].gpus`.
        at: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl ReadError {
    /// A field that makes no sense.
    pub fn bad(file: &Path, at: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Bad { file: file.to_owned(), at: at.into(), problem: problem.into() }
    }
}
