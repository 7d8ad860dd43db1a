//! The error of an invalid snapshot.

/// An invalid number or name, with the path of its field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct SnapshotError {
    /// Path of the field, e.g. `jobs[team/bert].estimates[3].epoch`.
    pub field: String,
    /// Description of the problem.
    pub problem: String,
}

impl SnapshotError {
    pub(crate) fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into() }
    }
}
