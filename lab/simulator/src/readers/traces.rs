//! Traces of jobs.

use std::path::Path;

use jiff::civil::DateTime;
use serde::{Deserialize, Serialize};

use super::ReadError;
use super::table::rows;

andreas_model::names! {
    /// A format of traces.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Format {
        /// Our own: columns `id, submit_s, gpus, duration_s`, optionally `deadline_s, weight, model, batch, types,
        /// namespace, ended_early`.
        Csv = "csv",
        /// Instances of the published ANDREAS simulator; a folder with its own cluster.
        Andreas = "andreas",
        /// Microsoft ITP with deadlines (ElasticFlow's traces).
        Itp = "itp",
        /// Microsoft Philly as CSV: `timestamp, duration, num_gpus, gpu_time, cluster`.
        Philly = "philly",
        /// Chronus: Philly with strict, soft and no deadlines, in minutes.
        Chronus = "chronus",
        /// Alibaba's pods of 2023.
        Openb = "openb",
    }
    else "no trace format is called {name:?}; there are {names}"
}

/// A job of a trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceJob {
    /// Its name.
    pub id: String,
    /// Seconds since any origin.
    pub submit_s: f64,
    /// Requested GPUs, >= 1.
    pub gpus: u32,
    /// Duration on these GPUs in seconds, > 0.
    pub duration_s: f64,
    /// Seconds since the same origin.
    #[serde(default)]
    pub deadline_s: Option<f64>,
    /// Factor on the default weight.
    #[serde(default)]
    pub weight: Option<f64>,
    /// Model.
    #[serde(default)]
    pub model: Option<String>,
    /// Batch over all GPUs.
    #[serde(default)]
    pub batch: Option<u32>,
    /// Allowed GPU types, separated by `|`; default: all.
    #[serde(default)]
    pub types: Option<String>,
    /// Namespace; jobs without one share the same.
    #[serde(default)]
    pub namespace: Option<String>,
    /// It failed or was cancelled after its duration: it announced more work than it did.
    #[serde(default)]
    pub ended_early: bool,
}

/// Reads a trace; jobs without GPUs or duration are skipped.
///
/// # Errors
/// [`ReadError`], with row and column.
pub fn read(format: Format, file: &Path) -> Result<Vec<TraceJob>, ReadError> {
    let mut jobs = match format {
        Format::Csv => rows::<TraceJob>(file)?,
        Format::Andreas => {
            return Err(ReadError::bad(
                file,
                "format",
                "andreas instances are read as a folder with their cluster",
            ));
        }
        Format::Itp => rows::<ItpRow>(file)?.into_iter().map(ItpRow::job).collect(),
        Format::Philly => philly(file)?,
        Format::Chronus => chronus(file)?,
        Format::Openb => rows::<OpenbRow>(file)?.into_iter().filter_map(OpenbRow::job).collect(),
    };
    for (i, job) in jobs.iter().enumerate() {
        let at = |what: &str| format!("row {} ({}), {what}", i + 1, job.id);
        if !(job.submit_s.is_finite() && job.submit_s.abs() < 1e12) {
            return Err(ReadError::bad(file, at("submit"), format!("{} is out of range", job.submit_s)));
        }
        if !(job.duration_s >= 0.0 && job.duration_s < 1e10) {
            return Err(ReadError::bad(file, at("duration"), format!("{} is out of range", job.duration_s)));
        }
        if job.weight.is_some_and(|w| !(0.0..=1e9).contains(&w)) {
            return Err(ReadError::bad(file, at("weight"), "is out of range"));
        }
        if job.deadline_s.is_some_and(|d| !(d.is_finite() && d.abs() < 1e12)) {
            return Err(ReadError::bad(file, at("deadline"), "is out of range"));
        }
    }
    jobs.retain(|job| job.gpus > 0 && job.duration_s > 0.0);
    let mut seen = std::collections::BTreeSet::new();
    if let Some(twice) = jobs.iter().find(|job| !seen.insert(job.id.as_str())) {
        return Err(ReadError::bad(file, "id", format!("{:?} is there twice", twice.id)));
    }
    Ok(jobs)
}

#[derive(Deserialize)]
struct ItpRow {
    job: u64,
    submission_time: f64,
    model_name: String,
    deadline: f64,
    batch_size: u32,
    num_gpu: u32,
    duration: f64,
}

impl ItpRow {
    fn job(self) -> TraceJob {
        TraceJob {
            id: format!("itp-{}", self.job),
            submit_s: self.submission_time,
            gpus: self.num_gpu,
            duration_s: self.duration,
            deadline_s: Some(self.deadline),
            model: Some(self.model_name),
            batch: Some(self.batch_size),
            ..TraceJob::default()
        }
    }
}

#[derive(Deserialize)]
struct PhillyRow {
    timestamp: String,
    duration: f64,
    num_gpus: u32,
    #[serde(default)]
    cluster: Option<String>,
}

fn philly(file: &Path) -> Result<Vec<TraceJob>, ReadError> {
    let mut jobs = Vec::new();
    for (i, row) in rows::<PhillyRow>(file)?.into_iter().enumerate() {
        let time: DateTime = row.timestamp.parse().map_err(|e: jiff::Error| {
            ReadError::bad(file, format!("row {}, timestamp", i + 1), e.to_string())
        })?;
        // Local times of one place: differences across a daylight saving change are off by an hour, as in the
        // source.
        let since = time.duration_since(DateTime::constant(2017, 1, 1, 0, 0, 0, 0));
        jobs.push(TraceJob {
            id: format!("philly-{i}"),
            submit_s: since.as_secs_f64(),
            gpus: row.num_gpus,
            duration_s: row.duration,
            namespace: row.cluster,
            ..TraceJob::default()
        });
    }
    Ok(jobs)
}

#[derive(Deserialize)]
struct ChronusRow {
    job_id: u64,
    #[serde(default)]
    user: Option<String>,
    num_gpu: u32,
    submit_time: f64,
    model_name: String,
    duration: f64,
    expect_time_list: String,
    job_type: String,
}

/// Strict jobs weigh five times as much as soft ones. The first value step of a soft job is its deadline;
/// best effort has none.
fn chronus(file: &Path) -> Result<Vec<TraceJob>, ReadError> {
    let mut jobs = Vec::new();
    for (i, row) in rows::<ChronusRow>(file)?.into_iter().enumerate() {
        let submit = row.submit_time * 60.0;
        let first = row.expect_time_list.split('-').next().unwrap_or_default();
        let strict = row.job_type == "strict";
        let deadline = match row.job_type.as_str() {
            "best_effort" | "best" => None,
            _ => {
                let minutes: f64 = first.parse().map_err(|_| {
                    ReadError::bad(
                        file,
                        format!("row {}, expect_time_list", i + 1),
                        format!("{first:?} is not a number"),
                    )
                })?;
                Some(submit + minutes * 60.0)
            }
        };
        jobs.push(TraceJob {
            id: format!("chronus-{}", row.job_id),
            submit_s: submit,
            gpus: row.num_gpu,
            duration_s: row.duration * 60.0,
            deadline_s: deadline,
            weight: Some(if strict { 5.0 } else { 1.0 }),
            model: Some(row.model_name),
            namespace: row.user,
            ..TraceJob::default()
        });
    }
    Ok(jobs)
}

#[derive(Deserialize)]
struct OpenbRow {
    name: String,
    num_gpu: u32,
    gpu_spec: String,
    creation_time: f64,
    deletion_time: Option<f64>,
    scheduled_time: Option<f64>,
    #[serde(default)]
    pod_phase: String,
}

impl OpenbRow {
    /// A pod that requests a part of a GPU gets a whole one: GPUs are not shared here.
    fn job(self) -> Option<TraceJob> {
        let begin = self.scheduled_time?;
        Some(TraceJob {
            submit_s: self.creation_time,
            gpus: self.num_gpu,
            duration_s: (self.deletion_time? - begin).max(0.0),
            types: (!self.gpu_spec.is_empty()).then_some(self.gpu_spec),
            ended_early: self.pod_phase == "Failed",
            id: self.name,
            ..TraceJob::default()
        })
    }
}
