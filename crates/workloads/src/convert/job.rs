//! A Job of Kubernetes.

use serde_json::Value;

use super::draft::{Draft, Workers};
use super::error::ConvertError;
use super::fields::Fields;
use super::notes::Notes;
use super::template::{self, Template};

/// What a Job's spec describes.
pub struct JobParts {
    /// Pods that run at once.
    pub workers: i64,
    /// It is held by a parallelism of 0.
    pub held: bool,
    /// How often its pods are started again at most, where that is given.
    pub retries: Option<i64>,
    /// Its template.
    pub template: Template,
}

/// The TrainingJob of a Job.
///
/// # Errors
/// When a field is missing or of another type.
pub fn convert(object: Value, notes: &mut Notes) -> Result<Value, ConvertError> {
    let (mut draft, mut spec) = Draft::begin(object, notes)?;
    draft.set_ttl(spec.number("ttlSecondsAfterFinished")?);
    let backoff = spec.path("backoffLimit");
    draft.set_retries(backoff, spec.number("backoffLimit")?, notes);
    let limit = spec.path("activeDeadlineSeconds");
    draft.set_max_run_time(limit, spec.number("activeDeadlineSeconds")?, notes);
    let path = spec.path("parallelism");
    let parts = parts(spec, None, notes)?;
    if parts.held {
        draft.set("suspend", true);
        notes.changed(path, "0 holds the Job: the TrainingJob is suspended, with one worker");
    }
    let workers = Workers::fixed(parts.workers, parts.template.gpus);
    Ok(draft.finish(workers, parts.template, notes))
}

/// Pods of a Job that run at the same time, at least 1, and whether a parallelism of 0 suspends it.
///
/// # Errors
/// When a field is of another type.
pub fn parallel_pods(spec: &mut Fields, notes: &mut Notes) -> Result<(i64, bool), ConvertError> {
    let parallelism = spec.number("parallelism")?.unwrap_or(1);
    let path = spec.path("completions");
    let completions = spec.number("completions")?;
    let workers = completions.map_or(parallelism, |runs| runs.min(parallelism)).max(1);
    if let Some(runs) = completions.filter(|runs| *runs > workers) {
        notes.lost(
            path,
            format!("{runs} runs of {workers} at once are several jobs: submit one TrainingJob for each"),
        );
    }
    Ok((workers, parallelism == 0))
}

/// Pods and template of a Job's spec; retries, limits of time and suspension are taken before.
///
/// # Errors
/// When a field is missing or of another type.
pub fn parts(mut spec: Fields, trains: Option<&str>, notes: &mut Notes) -> Result<JobParts, ConvertError> {
    spec.ignore(&["selector", "manualSelector", "podReplacementPolicy", "activeDeadlineSeconds"]);
    let retries = spec.number("backoffLimit")?;
    let (workers, held) = parallel_pods(&mut spec, notes)?;
    let indexed = spec.text("completionMode")?.is_some_and(|mode| mode == "Indexed");
    if indexed && workers > 1 {
        notes.changed(
            spec.path("completionMode"),
            "the index of a worker is PET_NODE_RANK and not JOB_COMPLETION_INDEX",
        );
    } else if workers > 1 {
        notes.lost(
            spec.path("parallelism"),
            "the pods become workers of one gang: independent runs are one TrainingJob each",
        );
    }
    spec.lost(
        "podFailurePolicy",
        notes,
        "failures of the program use spec.retries, those of the cluster do not",
    );
    spec.lost("successPolicy", notes, "a gang is done when all workers are");
    spec.lost("backoffLimitPerIndex", notes, "a gang is started again as a whole: use spec.retries");
    spec.lost("maxFailedIndexes", notes, "a gang is started again as a whole: use spec.retries");
    spec.lost("managedBy", notes, "a TrainingJob has one operator");
    let path = spec.path("template");
    let given = spec.take("template").ok_or_else(|| ConvertError::field(path.clone(), "is missing"))?;
    let template = template::convert(&path, given, trains, notes)?;
    spec.rest(notes);
    Ok(JobParts { workers, held, retries, template })
}
