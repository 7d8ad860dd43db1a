//! Readers for traces of jobs, tables of models, and cluster files.
//!
//! **Contains** one reader per format ([`Format`]), the cluster file ([`ClusterFile`]) and the rules for
//! jobs ([`JobRules`]). The rules turn a row of a trace into a job with times and watts on every GPU
//! type. All assumptions about missing data are in these rules.
//!
//! **Data flow**: paths become [`crate::Scenario`]s; errors name file, row and column. `.gz` files are
//! decompressed.
//!
//! **Not allowed**: the replay itself.

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
pub use models::{ModelTables, ModelVariant};
pub use rules::JobRules;
pub use traces::{Format, TraceJob, UnknownFormat, read as read_trace};

use std::path::Path;

use crate::scenario::Scenario;

/// The part of a trace to replay, and its speed.
#[derive(Clone, Copy, Debug)]
pub struct TraceRange {
    /// Number of jobs to skip, in order of submission.
    pub skip: usize,
    /// Maximum number of jobs to take.
    pub take: usize,
    /// Divisor of the times between submissions.
    pub pace: f64,
}

impl Default for TraceRange {
    fn default() -> Self {
        Self { skip: 0, take: usize::MAX, pace: 1.0 }
    }
}

/// The scenario of a part of a trace on a described cluster.
///
/// # Errors
/// [`ReadError`].
pub fn scenario(
    format: Format,
    trace: &Path,
    cluster: &Path,
    range: TraceRange,
) -> Result<Scenario, ReadError> {
    let (description, models) = ClusterFile::read(cluster)?;
    let mut rows = traces::read(format, trace)?;
    rows.sort_by(|a, b| a.submit_s.total_cmp(&b.submit_s).then_with(|| a.id.cmp(&b.id)));
    let rows: Vec<TraceJob> = rows.into_iter().skip(range.skip).take(range.take).collect();
    if rows.is_empty() {
        return Err(ReadError::bad(trace, "rows", "none is left to replay"));
    }
    let name = format!("{}: {} jobs", trace.file_name().unwrap_or_default().to_string_lossy(), rows.len());
    description.scenario(cluster, name, &models, &rows, range.pace)
}
