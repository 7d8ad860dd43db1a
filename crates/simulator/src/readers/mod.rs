//! Files in: traces of jobs, tables of models, and the cluster they are to run on.
//!
//! **Holds** one reader per format ([`Format`]), the description of a cluster ([`ClusterFile`]), and the rules by which a row of a
//! trace becomes a job with times and watts on every GPU type ([`JobRules`]): what a trace does not say is assumed there and nowhere
//! else.
//!
//! **Flows**: paths in, [`crate::Scenario`]s out; errors name file, row and column. `.gz` is unpacked.
//!
//! **Must never be here**: the course of a replay.

pub mod andreas;
mod cluster;
mod error;
mod models;
mod rules;
mod table;
mod throughput;
mod traces;

pub use cluster::{ClusterFile, peak};
pub use error::ReadError;
pub use models::{Family, ModelTables};
pub use rules::JobRules;
pub use traces::{Format, TraceJob, UnknownFormat, read as read_trace};

use std::path::Path;

use crate::scenario::Scenario;

/// Which part of a trace.
#[derive(Clone, Copy, Debug)]
pub struct Stretch {
    /// Jobs to leave out, in order of submission.
    pub skip: usize,
    /// Most jobs to take.
    pub take: usize,
    /// Times between submissions are divided by this.
    pub pace: f64,
}

impl Default for Stretch {
    fn default() -> Self {
        Self { skip: 0, take: usize::MAX, pace: 1.0 }
    }
}

/// A stretch of a trace on a described cluster.
///
/// # Errors
/// [`ReadError`].
pub fn scenario(
    format: Format,
    trace: &Path,
    cluster: &Path,
    stretch: Stretch,
) -> Result<Scenario, ReadError> {
    let (description, models) = ClusterFile::read(cluster)?;
    let mut rows = traces::read(format, trace)?;
    rows.sort_by(|a, b| a.submit_s.total_cmp(&b.submit_s).then_with(|| a.id.cmp(&b.id)));
    let rows: Vec<TraceJob> = rows.into_iter().skip(stretch.skip).take(stretch.take).collect();
    if rows.is_empty() {
        return Err(ReadError::bad(trace, "rows", "none is left to replay"));
    }
    let name = format!("{}: {} jobs", trace.file_name().unwrap_or_default().to_string_lossy(), rows.len());
    description.scenario(cluster, name, &models, &rows, stretch.pace)
}
