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
mod programs;
mod rules;
mod sources;
mod table;
mod traces;

pub use cluster::{ClusterFile, peak};
pub use error::ReadError;
pub use models::{ModelTables, ModelVariant};
pub use rules::JobRules;
pub use traces::{Format, TraceJob, read as read_trace};

use std::path::Path;

use andreas_model::{Seconds, Time};
use serde::Deserialize;

use crate::scenario::{Delays, Scenario};

/// The part of a trace to replay, and its speed.
#[derive(Clone, Copy, Debug)]
pub struct TraceRange {
    /// Number of jobs to skip, in order of submission.
    pub skip: usize,
    /// Maximum number of jobs to take.
    pub take: usize,
    /// Divisor of the times between submissions.
    pub pace: f64,
    /// Share of jobs that may run on other numbers of GPUs than they request; `None`: as the cluster file says.
    pub moldable: Option<f64>,
    /// Whether the trace is repeated, so that the cluster is as busy at the end as at the beginning.
    pub looped: bool,
    /// Whether jobs have generated names and name no profile, so that they share what was learnt by their programs.
    pub programs: bool,
}

/// Rounds of a looped trace: the second is counted.
const ROUNDS: usize = 3;

impl Default for TraceRange {
    fn default() -> Self {
        Self { skip: 0, take: usize::MAX, pace: 1.0, moldable: None, looped: false, programs: false }
    }
}

/// Measured delays of a cluster, in seconds.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct MeasuredDelays {
    restart_s: Option<f64>,
    debounce_s: f64,
    bind_s: f64,
    first_start_s: f64,
    stop_s: f64,
}

/// Reads measured delays: the time of a restart if the file has it, and the others (0 where they are missing).
///
/// # Errors
/// [`ReadError`], with the field.
pub fn delays(file: &Path) -> Result<(Option<Seconds>, Delays), ReadError> {
    let text =
        std::fs::read_to_string(file).map_err(|source| ReadError::Io { file: file.to_owned(), source })?;
    let read: MeasuredDelays =
        serde_saphyr::from_str(&text).map_err(|e| ReadError::bad(file, "YAML", e.to_string()))?;
    let MeasuredDelays { restart_s, debounce_s, bind_s, first_start_s, stop_s } = read;
    let fields = [
        ("restart_s", restart_s.unwrap_or(0.0)),
        ("debounce_s", debounce_s),
        ("bind_s", bind_s),
        ("first_start_s", first_start_s),
        ("stop_s", stop_s),
    ];
    if let Some((field, value)) = fields.into_iter().find(|(_, value)| !(0.0..=1e6).contains(value)) {
        return Err(ReadError::bad(file, field, format!("{value} is not between 0 and 1e6")));
    }
    Ok((restart_s.map(Seconds), Delays { debounce_s, bind_s, first_start_s, stop_s }))
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
    if !range.looped {
        return description.scenario(cluster, name, &models, &rows, &range);
    }
    let (first, last) = (rows[0].submit_s, rows[rows.len() - 1].submit_s);
    // As long as the jobs' own gaps, and one more.
    let round = (last - first) * (1.0 + 1.0 / (rows.len() as f64 - 1.0).max(1.0));
    let again = |n: usize| {
        let rows = rows.iter();
        rows.map(move |row| {
            let by = round * n as f64;
            TraceJob {
                id: if n == 0 { row.id.clone() } else { format!("{}@{n}", row.id) },
                submit_s: row.submit_s + by,
                deadline_s: row.deadline_s.map(|deadline| deadline + by),
                ..row.clone()
            }
        })
    };
    let rounds: Vec<TraceJob> = (0..ROUNDS).flat_map(again).collect();
    let name = format!("{name}, looped");
    let mut scenario = description.scenario(cluster, name, &models, &rounds, &range)?;
    let round = round / range.pace;
    scenario.window = Some((Time(round), Time(2.0 * round)));
    Ok(scenario)
}
