//! What makes a file impossible to convert.

use thiserror::Error;

use super::request::AnnotationError;

/// A file that cannot be converted, with the document and field.
#[derive(Debug, Error)]
pub enum ConvertError {
    /// It is no YAML.
    #[error("cannot be read as YAML: {0} (an sbatch script begins with #!)")]
    Syntax(String),
    /// It has no job of a known kind.
    #[error("holds no Job, PyTorchJob, TrainJob, JobSet, RayJob or sbatch script{0}")]
    NoJob(String),
    /// A field has a value of the wrong type, or one that it cannot have.
    #[error("{field}: {problem}")]
    Field {
        /// Path of the field.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An annotation has an invalid value.
    #[error(transparent)]
    Annotation(#[from] AnnotationError),
    /// A line of a script cannot be read.
    #[error("line {line}: {problem}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// An error of one of several documents.
    #[error("{document}: {error}")]
    Document {
        /// Which one: its number, kind and name.
        document: String,
        /// What is wrong with it.
        error: Box<ConvertError>,
    },
}

impl ConvertError {
    /// Of a field.
    pub fn field(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Field { field: field.into(), problem: problem.into() }
    }
}
