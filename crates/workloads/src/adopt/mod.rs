//! Jobs of other kinds, adopted: planned, released, accounted and stopped as if they were TrainingJobs.
//!
//! An adopted job (the *workload*) keeps its kind, its pods and its controller. The operator makes a TrainingJob for it (the
//! *mirror*, `spec.adopts`), so that plans, predictions, status, questions and bills know only TrainingJobs. What differs is how
//! pods begin and end: the workload's own switch `suspend`.
//!
//! | module | what |
//! |---|---|
//! | [`kind`] | the kinds that can be adopted |
//! | [`workload`] | what a watch keeps of a workload: whether it is suspended, whether it has ended, what its annotations ask for |
//! | [`groups`] | its pod templates with GPUs, and how many pods each makes |
//! | [`mirror`] | the TrainingJob made for it |
//! | [`release`] | the changes of a workload: released on nodes, stopped |
//!
//! **In**: objects as JSON. **Out**: the mirror, changed objects.
//!
//! **Must never be here**: I/O, a clock, or a panic on any input.

pub mod groups;
pub mod kind;
pub mod mirror;
pub mod release;
pub mod workload;

pub use crate::convert::found::restore;
pub use groups::{Group, groups};
pub use kind::Kind;
pub use mirror::{mirror, name};
pub use release::{Directives, hold, release, write_directives};
pub use workload::{End, Workload};

/// Why a workload is not adopted, for its owner.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// An annotation has an invalid value.
    #[error(transparent)]
    Annotation(#[from] crate::convert::AnnotationError),
    /// The workload is another program's to start.
    #[error("{0}")]
    ManagedByOther(String),
    /// It does not ask for GPUs in a way that can be planned.
    #[error("{0}")]
    Gpus(String),
    /// It could not be read.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] crate::convert::ConvertError),
}

#[cfg(test)]
mod tests;
