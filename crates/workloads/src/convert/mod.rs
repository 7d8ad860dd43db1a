//! TrainingJobs from the jobs that people have.
//!
//! **Holds** one module for each kind that is read, what all of them share (`template`, `launch`, `kueue`, `request`, `draft`), what an adopted job
//! was before its first release (`found`), and the reader of fields (`fields`): a field that nobody takes is reported as lost, so that nothing gets
//! lost in silence.
//!
//! **Flows**: text in; TrainingJobs with [`Note`]s out ([`convert`]). One object in; one TrainingJob out ([`object`]).
//!
//! **Must never be here**: I/O, or a panic on any input.

mod documents;
mod draft;
mod error;
mod fields;
pub mod found;
mod job;
mod job_set;
mod kueue;
mod launch;
mod notes;
mod peers;
mod pytorch_job;
mod ray_job;
mod request;
mod sbatch;
mod template;
mod train_job;

pub use documents::{Converted, convert, object};
pub use draft::{MAX_NODES, duration_text, job_name};
pub use error::ConvertError;
pub use notes::{Level, Note};
pub use request::{AnnotationError, MAX_GPUS, Request, Totals, may_follow};
pub use template::per_gpu;

#[cfg(test)]
mod tests;
