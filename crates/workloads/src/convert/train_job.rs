//! A TrainJob of Kubeflow Trainer 2, with its runtime where that is in the same file.

use serde_json::{Map, Value, json};

use super::draft::{Draft, Workers};
use super::error::ConvertError;
use super::fields::Fields;
use super::job;
use super::job_set;
use super::notes::Notes;
use super::template::{self, Template};

/// Name of the container that trains, by the runtimes that come with Trainer.
const CONTAINER: &str = "node";
/// Label by which a runtime marks the job that trains.
const ANCESTOR: &str = "trainer.kubeflow.org/trainjob-ancestor-step";

/// The TrainingJob of a TrainJob; `objects` are those of the file.
///
/// # Errors
/// When a field is missing or of another type.
pub fn convert(object: Value, objects: &[Value], notes: &mut Notes) -> Result<Value, ConvertError> {
    let (mut draft, mut spec) = Draft::begin(object, notes)?;
    let (limit, seconds) = (spec.path("activeDeadlineSeconds"), spec.number("activeDeadlineSeconds")?);
    spec.lost("managedBy", notes, "a TrainingJob has one operator");
    spec.lost("initializer", notes, "copy dataset and model initializers into init containers");
    spec.lost("podTemplateOverrides", notes, "write them into the template");
    spec.lost("runtimePatches", notes, "write them into the template");
    spec.lost("labels", notes, "write them into the template");
    spec.lost("annotations", notes, "write them into the template");
    let mut reference = spec.object("runtimeRef")?;
    let name = reference.text("name")?.unwrap_or_default();
    reference.ignore(&["kind", "apiGroup"]);
    reference.rest(notes);
    let (runtime, nodes, processes) = match objects.iter().find(|object| is_runtime(object, &name)) {
        Some(runtime) => of_runtime(runtime, &mut draft, notes)?,
        None => {
            notes.lost(
                "spec.runtimeRef",
                format!("runtime {name} is not in the file: copy what it adds into the template"),
            );
            (
                Template {
                    value: json!({"spec": {"containers": [{"name": CONTAINER}]}}),
                    ..Template::default()
                },
                1,
                None,
            )
        }
    };
    // Its own limit goes before that of its runtime.
    draft.set_max_run_time(limit, seconds, notes);
    let mut trainer = spec.object("trainer")?;
    spec.rest(notes);
    let nodes = trainer.number("numNodes")?.unwrap_or(nodes).max(1);
    let per_node = match trainer.take("numProcPerNode") {
        Some(value) => number(value),
        None => processes,
    };
    let template = with_trainer(runtime, trainer, notes)?;
    let gpus = if template.gpus > 0 { template.gpus } else { per_node.unwrap_or(0) };
    Ok(draft.finish(Workers::fixed(nodes, gpus), template, notes))
}

fn is_runtime(object: &Value, name: &str) -> bool {
    let kind = object["kind"].as_str().unwrap_or_default();
    matches!(kind, "TrainingRuntime" | "ClusterTrainingRuntime") && object["metadata"]["name"] == name
}

/// Template, nodes, and processes of each node of a runtime.
type Runtime = (Template, i64, Option<i64>);

/// Reads a runtime; its limits go to the draft.
fn of_runtime(runtime: &Value, draft: &mut Draft, notes: &mut Notes) -> Result<Runtime, ConvertError> {
    let mut spec = Fields::new("runtime.spec", runtime["spec"].clone())?;
    let mut policy = spec.object("mlPolicy")?;
    let nodes = policy.number("numNodes")?.unwrap_or(1);
    let mut torch = policy.object("torch")?;
    let processes = torch.take("numProcPerNode").and_then(number);
    torch.lost("elasticPolicy", notes, "the number of nodes is fixed: widen gpus.min and gpus.max");
    torch.rest(notes);
    policy.lost("mpi", notes, "there is no host file: start the program with torchrun");
    policy.rest(notes);
    spec.changed("podGroupPolicy", notes, "gangs start as a whole anyway");
    let mut template = spec.object("template")?;
    spec.rest(notes);
    template.ignore(&["metadata"]);
    let mut set = template.object("spec")?;
    template.rest(notes);
    let limited = job_set::policies(&mut set, draft, notes)?;
    let path = set.path("replicatedJobs");
    let jobs = set.list("replicatedJobs")?;
    set.rest(notes);
    let trains = |job: &Value| {
        job["template"]["metadata"]["labels"][ANCESTOR] == "trainer" || job["name"] == CONTAINER
    };
    let chosen = jobs.iter().find(|job| trains(job)).or(jobs.last());
    let Some(chosen) = chosen else {
        return Err(ConvertError::field(path, "is missing or empty"));
    };
    for other in jobs.iter().filter(|job| *job != chosen) {
        let name = other["name"].as_str().unwrap_or_default();
        notes.lost(format!("runtime.replicatedJobs.{name}"), "its work must become init containers");
    }
    let mut job = Fields::new(path, chosen.clone())?;
    let (replicas, copies) = (job.path("replicas"), job.number("replicas")?);
    let inner = job_set::job_spec(job, draft, notes)?;
    if copies.is_some_and(|copies| copies > 1) {
        notes.lost(replicas, "the number of workers is that of mlPolicy.numNodes");
    }
    let backoff = inner.path("backoffLimit");
    let parts = job::parts(inner, Some(CONTAINER), notes)?;
    if !limited {
        draft.set_retries(backoff, parts.retries, notes);
    }
    Ok((parts.template, nodes, processes))
}

/// A number, also one that is written as text; `auto` is none.
fn number(value: Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.parse().ok())
}

/// The runtime's template with what the TrainJob says of its trainer.
fn with_trainer(runtime: Template, mut trainer: Fields, notes: &mut Notes) -> Result<Template, ConvertError> {
    let mut container = Map::new();
    for (field, name) in [("image", "image"), ("command", "command"), ("args", "args"), ("env", "env")] {
        if let Some(value) = trainer.take(field) {
            container.insert(name.to_owned(), value);
        }
    }
    if let Some(resources) = trainer.take("resourcesPerNode") {
        container.insert("resources".to_owned(), resources);
    }
    trainer.rest(notes);
    let mut value = runtime.value;
    let containers = value.pointer_mut("/spec/containers").and_then(Value::as_array_mut);
    let name = runtime.container.as_deref();
    let found = containers.and_then(|all| {
        let at = name.and_then(|name| all.iter().position(|one| one["name"] == name)).unwrap_or(0);
        all.get_mut(at)?.as_object_mut()
    });
    if let Some(kept) = found {
        for (field, value) in container {
            let merged = match (field.as_str(), kept.get_mut(&field), value) {
                // Variables of the runtime stay beside those of the job.
                ("env", Some(Value::Array(old)), Value::Array(new)) => {
                    old.retain(|one| new.iter().all(|other| other["name"] != one["name"]));
                    Value::Array(old.iter().cloned().chain(new).collect())
                }
                (_, _, value) => value,
            };
            kept.insert(field, merged);
        }
    }
    let gpus = runtime.gpus;
    let mut made = template::convert("spec.trainer", value, name, notes)?;
    if made.gpus == 0 {
        made.gpus = gpus;
    }
    made.gpu_type = made.gpu_type.or(runtime.gpu_type);
    made.max_run_time = made.max_run_time.or(runtime.max_run_time);
    Ok(made)
}
