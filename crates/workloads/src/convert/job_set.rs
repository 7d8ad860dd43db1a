//! A JobSet.

use serde_json::Value;

use super::draft::{Draft, Workers};
use super::error::ConvertError;
use super::fields::Fields;
use super::job;
use super::notes::Notes;

/// The TrainingJob of a JobSet: its first job with GPUs, and those with the same pod template, become one gang.
///
/// # Errors
/// When a field is missing or of another type.
pub fn convert(object: Value, notes: &mut Notes) -> Result<Value, ConvertError> {
    let (mut draft, mut spec) = Draft::begin(object, notes)?;
    let limited = policies(&mut spec, &mut draft, notes)?;
    let path = spec.path("replicatedJobs");
    let jobs = spec.list("replicatedJobs")?;
    spec.rest(notes);
    let at = jobs.iter().position(asks_for_gpus).unwrap_or(0);
    let pods = |job: &Value| job["template"]["spec"]["template"].clone();
    let alike = jobs.get(at).map(pods);
    let limits = jobs.get(at).map(|job| job["template"]["spec"].clone()).unwrap_or_default();
    let (mut chosen, mut others) = (None, 0_i64);
    for (number, job) in jobs.into_iter().enumerate() {
        let same = Some(pods(&job)) == alike;
        let mut fields = Fields::new(format!("{path}[{number}]"), job)?;
        let name = fields.text("name")?.unwrap_or_default();
        if number == at {
            chosen = Some(fields);
        } else if same {
            others = others.saturating_add(workers_of(fields, &limits, notes)?);
        } else {
            notes.lost(format!("{path}.{name}"), "a gang has one template: its pods are not made");
        }
    }
    let Some(mut job) = chosen else { return Err(ConvertError::field(path, "is missing or empty")) };
    let replicas = job.number("replicas")?.unwrap_or(1).max(1);
    let inner = job_spec(job, &mut draft, notes)?;
    let parallelism = inner.path("parallelism");
    let parts = job::parts(inner, None, notes)?;
    if parts.held {
        notes.changed(parallelism, "0 runs no pod: here it is one worker");
    }
    if !limited {
        draft.set_retries(format!("{path}.template.spec.backoffLimit"), parts.retries, notes);
    }
    let all = replicas.saturating_mul(parts.workers).saturating_add(others);
    let workers = Workers::fixed(all, parts.template.gpus);
    Ok(draft.finish(workers, parts.template, notes))
}

/// What a JobSet says of all its jobs. Whether it limits their restarts.
///
/// # Errors
/// When a field is of another type.
pub fn policies(spec: &mut Fields, draft: &mut Draft, notes: &mut Notes) -> Result<bool, ConvertError> {
    draft.set_ttl(spec.number("ttlSecondsAfterFinished")?);
    let mut failure = spec.object("failurePolicy")?;
    let restarts = failure.path("maxRestarts");
    let given = failure.number("maxRestarts")?;
    draft.set_retries(restarts, given, notes);
    failure.lost("rules", notes, "failures of the program use spec.retries, those of the cluster do not");
    failure.changed("restartStrategy", notes, "a gang is started again as a whole");
    failure.rest(notes);
    spec.changed("network", notes, "workers find each other by PET_MASTER_ADDR");
    spec.lost("successPolicy", notes, "a gang is done when all workers are");
    spec.lost("startupPolicy", notes, "all workers start together");
    spec.lost("coordinator", notes, "the coordinator is worker 0: PET_MASTER_ADDR");
    spec.lost("managedBy", notes, "a TrainingJob has one operator");
    Ok(given.is_some())
}

/// The Job's spec of a replicated job whose `replicas` are taken. Its limit of time goes to the draft.
///
/// # Errors
/// When a field is of another type.
pub fn job_spec(mut job: Fields, draft: &mut Draft, notes: &mut Notes) -> Result<Fields, ConvertError> {
    job.ignore(&["name", "groupName"]);
    job.lost("dependsOn", notes, "all workers start together");
    let mut template = job.object("template")?;
    job.rest(notes);
    template.ignore(&["metadata"]);
    let mut spec = template.object("spec")?;
    template.rest(notes);
    let limit = spec.path("activeDeadlineSeconds");
    draft.set_max_run_time(limit, spec.number("activeDeadlineSeconds")?, notes);
    Ok(spec)
}

/// Pods of a replicated job that run at once. The gang has the `limits` of another job: what differs is lost.
fn workers_of(mut job: Fields, limits: &Value, notes: &mut Notes) -> Result<i64, ConvertError> {
    let replicas = job.number("replicas")?.unwrap_or(1).max(1);
    job.lost("dependsOn", notes, "all workers start together");
    let mut spec = job.object("template")?.object("spec")?;
    let (pods, _) = job::parallel_pods(&mut spec, notes)?;
    spec.ignore(&["template", "completionMode"]);
    let names: Vec<String> = spec.names().map(str::to_owned).collect();
    for name in names {
        if spec.take(&name).is_some_and(|value| value != limits[&name]) {
            notes.lost(spec.path(&name), "the gang has that of its first job with GPUs");
        }
    }
    Ok(replicas.saturating_mul(pods))
}

fn asks_for_gpus(job: &Value) -> bool {
    let containers = job["template"]["spec"]["template"]["spec"]["containers"].as_array();
    containers.is_some_and(|all| {
        all.iter().any(|one| {
            ["limits", "requests"].iter().any(|kind| !one["resources"][kind]["nvidia.com/gpu"].is_null())
        })
    })
}
