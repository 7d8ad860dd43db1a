//! A PyTorchJob of Kubeflow's first training operator.

use serde_json::Value;

use super::draft::{Draft, Workers};
use super::error::ConvertError;
use super::fields::Fields;
use super::notes::Notes;
use super::template;

/// The container that trains, by the operator of PyTorchJobs.
const CONTAINER: &str = "pytorch";

/// The TrainingJob of a PyTorchJob.
///
/// # Errors
/// When a field is missing or of another type.
pub fn convert(object: Value, notes: &mut Notes) -> Result<Value, ConvertError> {
    let mut fields = Fields::new("", object)?;
    let mut draft = Draft::from_metadata(fields.object("metadata")?, notes)?;
    let mut spec = fields.object("spec")?;
    run_policy(spec.object("runPolicy")?, &mut draft, notes)?;
    spec.changed("nprocPerNode", notes, "torchrun starts a process for each GPU");
    let mut specs = spec.object("pytorchReplicaSpecs")?;
    let (mut workers, mut templates, mut never, mut restarted) = (0, Vec::new(), None, false);
    for role in ["Master", "Worker"] {
        let mut replicas = specs.object(role)?;
        if replicas.is_empty() {
            continue;
        }
        let number = replicas.number("replicas")?.unwrap_or(1).clamp(0, i64::from(i32::MAX));
        let restart = replicas.path("restartPolicy");
        match replicas.text("restartPolicy")?.as_deref() {
            None => {}
            Some("Never") => never = Some(restart),
            Some(_) => {
                restarted = true;
                notes.changed(restart, "becomes spec.retries: a gang is started again as a whole");
            }
        }
        let path = replicas.path("template");
        let given =
            replicas.take("template").ok_or_else(|| ConvertError::field(path.clone(), "is missing"))?;
        replicas.rest(notes);
        workers += number;
        templates.push((path, given, number));
    }
    specs.rest(notes);
    // The role with GPUs trains.
    let trains = templates.iter().position(|(_, given, _)| template::asks_for_gpus(given)).unwrap_or(0);
    if trains >= templates.len() {
        return Err(ConvertError::field(spec.path("pytorchReplicaSpecs"), "has neither Master nor Worker"));
    }
    let (path, first, _) = templates.remove(trains);
    for (other, given, number) in templates {
        if template::asks_for_gpus(&first) && !template::asks_for_gpus(&given) {
            workers -= number;
            notes.lost(other, "has no GPUs: its pods are not made");
        } else if given != first {
            notes.lost(other, format!("differs from {path}, which all workers have now"));
        }
    }
    let mut template = template::convert(&path, first, Some(CONTAINER), notes)?;
    let range = elastic(spec.object("elasticPolicy")?, workers, &mut draft, notes)?;
    if let Some(restart) = never.filter(|_| !restarted) {
        draft.set_no_retries(restart, notes);
    }
    spec.rest(notes);
    // Its operator sets them.
    template.plain_names = true;
    let workers = Workers { min: range.0, max: range.1, gpus: template.gpus };
    Ok(draft.finish(workers, template, notes))
}

fn run_policy(mut policy: Fields, draft: &mut Draft, notes: &mut Notes) -> Result<(), ConvertError> {
    let (backoff, limit) = (policy.path("backoffLimit"), policy.path("activeDeadlineSeconds"));
    draft.set_retries(backoff, policy.number("backoffLimit")?, notes);
    draft.set_max_run_time(limit, policy.number("activeDeadlineSeconds")?, notes);
    draft.set_ttl(policy.number("ttlSecondsAfterFinished")?);
    draft.take_suspend(&mut policy, notes)?;
    policy.changed("cleanPodPolicy", notes, "spec.historyLimit keeps pods of ended attempts");
    policy.lost("schedulingPolicy", notes, "gangs are planned as a whole; weight and deadline order jobs");
    policy.lost("managedBy", notes, "a TrainingJob has one operator");
    policy.rest(notes);
    Ok(())
}

/// Fewest and most workers.
fn elastic(
    mut policy: Fields,
    workers: i64,
    draft: &mut Draft,
    notes: &mut Notes,
) -> Result<(i64, i64), ConvertError> {
    if policy.is_empty() {
        return Ok((workers, workers));
    }
    let min = policy.number("minReplicas")?.unwrap_or(workers).max(1);
    let max = policy.number("maxReplicas")?.unwrap_or(workers).max(min);
    let restarts = policy.path("maxRestarts");
    draft.set_retries(restarts, policy.number("maxRestarts")?, notes);
    policy.ignore(&[
        "rdzvBackend",
        "rdzvHost",
        "rdzvPort",
        "rdzvId",
        "rdzvConf",
        "standalone",
        "nProcPerNode",
    ]);
    policy.lost("metrics", notes, "the plan decides the number of GPUs, not the load");
    notes.changed(
        "spec.elasticPolicy",
        "becomes the range of gpus: the number changes between attempts, not within one",
    );
    policy.rest(notes);
    Ok((min, max))
}
