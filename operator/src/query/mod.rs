//! Answers of the query API: when a job will be done, why it waits, and what would help.
//!
//! **In**: the last plan with its input ([`Latest`](crate::planning::last::Latest)), the cluster's state as it is now, forecasts by
//! sampling, questions. **Out**: answers as types of `andreas_api::query`. Everything here is computed from a copy of the cluster's
//! state; nothing is created, written or reserved.
//!
//! What was decided is answered from the last plan, what would happen from a plan of now that nobody carries out.
//! Only the leader answers.
//!
//! | file | what |
//! |---|---|
//! | [`view`] | a plan with its forecast: what all answers are computed from |
//! | [`background`] | the thread that makes views of the operator's plans |
//! | [`live`] | the cluster's state as it is now |
//! | [`jobs`] | a job in an answer, the order of the queue |
//! | [`hypothetical`] | a job, node or budget that does not exist, in the planner's input |
//! | [`what_if`] | the effect of a change |
//! | [`explain`] | what decided about a job, and what would help it |
//!
//! **Never here**: HTTP, rights, writes; the name of a job of another namespace in an answer.

pub mod background;
pub mod explain;
pub mod hypothetical;
pub mod jobs;
pub mod live;
#[cfg(test)]
mod tests;
pub mod view;
pub mod what_if;

pub use background::Background;
pub use hypothetical::Hypothetical;
pub use live::Live;
pub use view::View;

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The namespace has no such job.
    #[error("there is no TrainingJob {0} in this namespace")]
    NoSuchJob(String),
    /// A field of the question is invalid.
    #[error("{field}: {problem}")]
    Invalid {
        /// The field.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The changed cluster cannot be planned.
    #[error("the change cannot be planned: {0}")]
    Refused(String),
    /// The cluster as it is cannot be planned.
    #[error("the cluster cannot be planned now: try again")]
    NotPlanned,
}

impl From<andreas_planner::SnapshotError> for QueryError {
    fn from(error: andreas_planner::SnapshotError) -> Self {
        Self::Refused(error.to_string())
    }
}

impl QueryError {
    fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), problem: problem.into() }
    }
}
