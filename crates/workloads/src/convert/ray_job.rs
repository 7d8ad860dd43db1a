//! A RayJob: its cluster becomes a gang whose worker 0 is the head and runs the entrypoint.

use serde_json::{Value, json};

use super::draft::{Draft, MAX_NODES, Workers};
use super::error::ConvertError;
use super::fields::Fields;
use super::notes::Notes;
use super::template;

/// Port of Ray's head.
const PORT: u16 = 6379;

/// The TrainingJob of a RayJob.
///
/// # Errors
/// When a field is missing or of another type.
pub fn convert(object: Value, notes: &mut Notes) -> Result<Value, ConvertError> {
    let (mut draft, mut spec) = Draft::begin(object, notes)?;
    draft.set_ttl(spec.number("ttlSecondsAfterFinished")?);
    let (backoff, limit) = (spec.path("backoffLimit"), spec.path("activeDeadlineSeconds"));
    draft.set_retries(backoff.clone(), spec.number("backoffLimit")?, notes);
    draft.set_no_retries(backoff, notes);
    draft.set_max_run_time(limit, spec.number("activeDeadlineSeconds")?, notes);
    let path = spec.path("entrypoint");
    let entrypoint = spec.text("entrypoint")?.ok_or_else(|| ConvertError::field(path, "is missing"))?;
    spec.ignore(&[
        "shutdownAfterJobFinishes",
        "submissionMode",
        "submitterPodTemplate",
        "submitterConfig",
        "jobId",
        "rayVersion",
    ]);
    spec.lost("runtimeEnvYAML", notes, "build the environment into the image, or give it to ray.init");
    spec.lost("clusterSelector", notes, "the cluster is made for the job");
    spec.lost("metadata", notes, "it is of Ray's own job");
    spec.lost("entrypointNumCpus", notes, "the entrypoint runs on worker 0");
    spec.lost("entrypointNumGpus", notes, "the entrypoint runs on worker 0");
    spec.lost("entrypointResources", notes, "the entrypoint runs on worker 0");
    spec.lost("deletionStrategy", notes, "pods end with the job");
    let mut cluster = spec.object("rayClusterSpec")?;
    spec.rest(notes);
    let groups = groups(&mut cluster, notes)?;
    cluster.ignore(&["rayVersion"]);
    cluster.lost("enableInTreeAutoscaling", notes, "the plan decides the number of GPUs, between attempts");
    cluster.lost("autoscalerOptions", notes, "the plan decides the number of GPUs, between attempts");
    cluster.rest(notes);
    let (path, given, range) = groups;
    let mut template = template::convert(&path, given, None, notes)?;
    let one = range.1 <= 1;
    let command = if one { entrypoint } else { script(&entrypoint) };
    if !one {
        notes.changed(
            "spec.rayClusterSpec",
            "worker 0 is Ray's head, works too, and runs the entrypoint; there is no pod for the head alone",
        );
    }
    let at = template.container.clone();
    let containers = template.value.pointer_mut("/spec/containers").and_then(Value::as_array_mut);
    let container = containers.and_then(|all| {
        let at = at.and_then(|name| all.iter().position(|one| one["name"] == name)).unwrap_or(0);
        all.get_mut(at)?.as_object_mut()
    });
    if let Some(container) = container {
        let args = container.remove("args");
        let before = container.insert("command".to_owned(), json!(["/bin/sh", "-c", command]));
        if args.or(before).is_some() {
            let text = "command and args are replaced: what they did besides starting Ray must go into the entrypoint";
            notes.lost(template.field.as_str(), text);
        }
    }
    // Ray starts the processes that use the GPUs: a single process of python is as it should be.
    template.words.clear();
    let workers = Workers { min: range.0, max: range.1, gpus: template.gpus };
    Ok(draft.finish(workers, template, notes))
}

/// The group that becomes the gang: path and value of its template, fewest and most pods.
fn groups(cluster: &mut Fields, notes: &mut Notes) -> Result<(String, Value, (i64, i64)), ConvertError> {
    let mut head = cluster.object("headGroupSpec")?;
    head.ignore(&["serviceType", "headService", "enableIngress"]);
    start_params(&mut head, notes)?;
    let path = cluster.path("workerGroupSpecs");
    let mut chosen = None;
    let all = cluster.list("workerGroupSpecs")?;
    // The group with GPUs trains.
    let trains = all.iter().position(|group| template::asks_for_gpus(&group["template"])).unwrap_or(0);
    for (number, group) in all.into_iter().enumerate() {
        let mut group = Fields::new(format!("{path}[{number}]"), group)?;
        let name = group.text("groupName")?.unwrap_or_default();
        if number != trains {
            notes.lost(format!("{path}.{name}"), "a gang has one template: its pods are not made");
            continue;
        }
        let replicas = group.number("replicas")?;
        let min = group.number("minReplicas")?.or(replicas).unwrap_or(1).max(1);
        let max = group.number("maxReplicas")?.or(replicas).unwrap_or(1).max(min);
        let (min, max) = match replicas {
            // KubeRay's default for maxReplicas is far above any cluster.
            Some(replicas) => {
                (min.min(replicas.max(1)), if max > 512 { replicas.max(min) } else { max.max(replicas) })
            }
            None => (min, max.min(512).max(min)),
        };
        let template = group.path("template");
        let given =
            group.take("template").ok_or_else(|| ConvertError::field(template.clone(), "is missing"))?;
        let hosts = group.number("numOfHosts")?.unwrap_or(1).clamp(1, MAX_NODES);
        start_params(&mut group, notes)?;
        group.ignore(&["scaleStrategy"]);
        group.rest(notes);
        chosen = Some((template, given, (min.saturating_mul(hosts), max.saturating_mul(hosts))));
    }
    if let Some(chosen) = chosen {
        head.lost(
            "template",
            notes,
            "worker 0 is the head: what only the head had must go into the workers' template",
        );
        head.rest(notes);
        return Ok(chosen);
    }
    let template = head.path("template");
    let given = head.take("template").ok_or_else(|| ConvertError::field(template.clone(), "is missing"))?;
    head.rest(notes);
    Ok((template, given, (1, 1)))
}

/// Parameters of `ray start` beside those that every cluster has.
fn start_params(group: &mut Fields, notes: &mut Notes) -> Result<(), ConvertError> {
    let path = group.path("rayStartParams");
    let mut params = group.object("rayStartParams")?;
    params.ignore(&["dashboard-host", "port", "block"]);
    if !params.is_empty() {
        let names: Vec<&str> = params.names().collect();
        notes.lost(path, format!("ray starts without {}: write them into the command", names.join(", ")));
    }
    Ok(())
}

/// Starts Ray on every worker, and the entrypoint on worker 0. When the head ends, the others end well.
fn script(entrypoint: &str) -> String {
    format!(
        "if [ \"$PET_NODE_RANK\" = 0 ]; then\n  ray start --head --port={PORT} && {{\n{entrypoint}\n  }}\nelse\n  \
         until ray health-check --address \"$PET_MASTER_ADDR:{PORT}\"; do sleep 2; done\n  \
         ray start --address=\"$PET_MASTER_ADDR:{PORT}\" --block\n  exit 0\nfi\n"
    )
}
