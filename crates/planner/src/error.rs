//! Why a snapshot cannot be planned.

/// A number or name that makes no sense, with the path of its field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct SnapshotError {
    /// Path of the field, e.g. `jobs[team/bert].estimates[3].epoch`.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
}

impl SnapshotError {
    pub(crate) fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into() }
    }
}
