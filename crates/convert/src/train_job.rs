//! A TrainJob of Kubeflow Trainer 2, with its runtime where that is in the same file.

use serde_json::{Map, Value, json};

use super::draft::{Draft, Workers};
use super::error::ConvertError;
use super::fields::Fields;
use super::job;
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
    let limit = spec.path("activeDeadlineSeconds");
    draft.max_run_time(limit, spec.number("activeDeadlineSeconds")?, notes);
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
    let (runtime, nodes, processes, retries) = match objects.iter().find(|object| is_runtime(object, &name)) {
        Some(runtime) => of_runtime(runtime, notes)?,
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
                None,
            )
        }
    };
    draft.retries("runtime.backoffLimit".into(), retries, notes);
    let mut trainer = spec.object("trainer")?;
    spec.rest(notes);
    let nodes = trainer.number("numNodes")?.unwrap_or(nodes).max(1);
    let per_node = match trainer.take("numProcPerNode") {
        Some(number) => number.as_i64().or_else(|| number.as_str()?.parse().ok()),
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

/// Template, nodes, processes and retries of a runtime.
type Runtime = (Template, i64, Option<i64>, Option<i64>);

fn of_runtime(runtime: &Value, notes: &mut Notes) -> Result<Runtime, ConvertError> {
    let policy = &runtime["spec"]["mlPolicy"];
    let nodes = policy["numNodes"].as_i64().unwrap_or(1);
    let processes = policy["torch"]["numProcPerNode"].as_i64();
    if !policy["mpi"].is_null() {
        notes.lost("runtime.spec.mlPolicy.mpi", "there is no host file: start the program with torchrun");
    }
    let jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"].as_array().cloned().unwrap_or_default();
    let trains = |job: &Value| {
        job["template"]["metadata"]["labels"][ANCESTOR] == "trainer" || job["name"] == CONTAINER
    };
    let chosen = jobs.iter().find(|job| trains(job)).or(jobs.last());
    let Some(chosen) = chosen else {
        return Err(ConvertError::field("runtime.spec.template.spec.replicatedJobs", "is missing or empty"));
    };
    for other in jobs.iter().filter(|job| *job != chosen) {
        let name = other["name"].as_str().unwrap_or_default();
        notes.lost(format!("runtime.replicatedJobs.{name}"), "its work must become init containers");
    }
    let spec = Fields::of(
        "runtime.spec.template.spec.replicatedJobs.template.spec",
        chosen["template"]["spec"].clone(),
    )?;
    let parts = job::parts(spec, Some(CONTAINER), notes)?;
    Ok((parts.template, nodes, processes, parts.retries))
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
    made.types.extend(runtime.types);
    made.max_run_time = made.max_run_time.or(runtime.max_run_time);
    Ok(made)
}
