//! A file as documents, and each document by its kind.

use andreas_api::names::{ANNOTATION_GPUS, GROUP};
use serde_json::Value;

use super::error::ConvertError;
use super::notes::{Note, Notes};
use super::request::may_follow;
use super::{found, job, job_set, peers, pytorch_job, ray_job, sbatch, train_job};

/// Most documents of a file.
const MAX_DOCUMENTS: usize = 1000;

/// A TrainingJob and what became of the job that it was.
#[derive(Clone, Debug, PartialEq)]
pub struct Converted {
    /// Kind and name of what it was.
    pub source: String,
    /// The TrainingJob.
    pub job: Value,
    /// What was lost or changed.
    pub notes: Vec<Note>,
}

impl Converted {
    /// Name of the TrainingJob, or the beginning of the name that the API server will make.
    pub fn name(&self) -> &str {
        let metadata = &self.job["metadata"];
        metadata["name"].as_str().or(metadata["generateName"].as_str()).unwrap_or_default()
    }
}

/// The TrainingJobs for all jobs of a file; `image` is for containers without one, `arguments` are those of an sbatch script.
///
/// # Errors
/// When it is neither YAML nor a script, has no job, or a field has a value of the wrong type.
pub fn convert(
    text: &str,
    image: Option<&str>,
    arguments: &[String],
) -> Result<Vec<Converted>, ConvertError> {
    let mut converted =
        if sbatch::is_script(text) { vec![script(text, arguments)?] } else { manifests(text)? };
    for one in &mut converted {
        complete(one, image);
    }
    Ok(converted)
}

fn script(text: &str, arguments: &[String]) -> Result<Converted, ConvertError> {
    let mut notes = Notes::default();
    let (source, job) = sbatch::convert(text, arguments, &mut notes)?;
    Ok(Converted { source, job, notes: notes.into_vec() })
}

fn manifests(text: &str) -> Result<Vec<Converted>, ConvertError> {
    // As kubectl reads YAML: modes of files are octal.
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|error| ConvertError::Syntax(first_line(&error)))?;
    let objects: Vec<Value> =
        documents.into_iter().flat_map(items).filter(|object| !object.is_null()).collect();
    if objects.len() > MAX_DOCUMENTS {
        return Err(ConvertError::NoJob(format!(": it has more than {MAX_DOCUMENTS} documents")));
    }
    let (mut converted, mut others) = (Vec::new(), Vec::new());
    for (number, object) in objects.iter().enumerate() {
        let (kind, source) = kind_and_source(object);
        let at = |error| ConvertError::Document {
            document: format!("document {}: {source}", number + 1),
            error: Box::new(error),
        };
        match (kind, group(object)) {
            ("TrainingRuntime" | "ClusterTrainingRuntime", "trainer.kubeflow.org") => {}
            _ => match self::object(object, &objects).map_err(at)? {
                Some(made) => converted.push(made),
                None if kind.is_empty() => others.push("an object without kind".to_owned()),
                // A kind that is read, of another group.
                None if kind.ends_with("Job") || kind == "JobSet" => {
                    others.push(match object["apiVersion"].as_str() {
                        Some(version) => format!("{source} of {version}"),
                        None => format!("{source} without apiVersion"),
                    })
                }
                None => others.push(source),
            },
        }
    }
    of_one_name(&mut converted);
    if converted.is_empty() {
        let others = if others.is_empty() { String::new() } else { format!(", but {}", others.join(", ")) };
        return Err(ConvertError::NoJob(others));
    }
    if let Some(first) = converted.first_mut() {
        let note = |other: String| Note {
            level: super::Level::Changed,
            field: other,
            text: "is no job and is not written: apply it from the file as before".to_owned(),
        };
        first.notes.extend(others.into_iter().map(note));
    }
    Ok(converted)
}

/// The kind of an object, and its kind with its name, as messages call it.
fn kind_and_source(object: &Value) -> (&str, String) {
    let kind = object["kind"].as_str().unwrap_or_default();
    let name = object["metadata"]["name"].as_str().or(object["metadata"]["generateName"].as_str());
    (kind, format!("{kind} {}", name.unwrap_or("without a name")))
}

/// Names what would be written over: jobs that get the same name in a namespace.
fn of_one_name(converted: &mut [Converted]) {
    let mut seen = std::collections::BTreeSet::new();
    for one in converted {
        let metadata = &one.job["metadata"];
        let Some(name) = metadata["name"].as_str() else { continue };
        let namespace = metadata["namespace"].as_str().unwrap_or_default();
        if !seen.insert((namespace.to_owned(), name.to_owned())) {
            let text = format!("another job of the file is named {name} too: rename one of them");
            one.notes.insert(0, Note { level: super::Level::Lost, field: "metadata.name".to_owned(), text });
        }
    }
}

/// The TrainingJob for one object; `None`: its kind is none that is read. `others` are objects that it may refer to, as
/// a TrainJob refers to its runtime.
///
/// # Errors
/// When a field has a value of the wrong type.
pub fn object(object: &Value, others: &[Value]) -> Result<Option<Converted>, ConvertError> {
    let (kind, source) = kind_and_source(object);
    let mut notes = Notes::default();
    let job = match (kind, group(object)) {
        ("Job", "batch") => job::convert(submitted(object, &mut notes), &mut notes),
        ("PyTorchJob", "kubeflow.org") => pytorch_job::convert(submitted(object, &mut notes), &mut notes),
        ("TrainJob", "trainer.kubeflow.org") => {
            train_job::convert(submitted(object, &mut notes), others, &mut notes)
        }
        ("JobSet", "jobset.x-k8s.io") => job_set::convert(submitted(object, &mut notes), &mut notes),
        ("RayJob", "ray.io") => ray_job::convert(submitted(object, &mut notes), &mut notes),
        ("TrainingJob", "" | GROUP) => Ok(object.clone()),
        _ => return Ok(None),
    }?;
    if kind != "TrainingJob" {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        peers::note(&job["spec"]["template"], name, "spec.template", &mut notes);
    }
    Ok(Some(Converted { source, job, notes: notes.into_vec() }))
}

/// A job as its owner submitted it: without what our releases wrote. Where its number of pods cannot follow the plan, adoption
/// refuses the annotation; here it is lost.
fn submitted(object: &Value, notes: &mut Notes) -> Value {
    let mut object = object.clone();
    found::restore(&mut object);
    let refused = may_follow(object["kind"].as_str().unwrap_or_default(), &object["spec"]);
    let annotations = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
    if let Err(error) = refused
        && annotations.is_some_and(|annotations| annotations.remove(ANNOTATION_GPUS).is_some())
    {
        notes.lost(format!("metadata.annotations.{ANNOTATION_GPUS}"), error.problem);
    }
    object
}

/// The group of an object's apiVersion.
fn group(object: &Value) -> &str {
    object["apiVersion"].as_str().and_then(|version| version.split_once('/')).map_or("", |(group, _)| group)
}

/// The objects of a list, or the object.
fn items(document: Value) -> Vec<Value> {
    match document {
        Value::Object(mut list) if list.get("kind").and_then(Value::as_str) == Some("List") => {
            match list.remove("items") {
                Some(Value::Array(items)) => items,
                _ => Vec::new(),
            }
        }
        other => vec![other],
    }
}

/// Gives an image to containers that have none.
fn complete(one: &mut Converted, image: Option<&str>) {
    let Some(containers) =
        one.job.pointer_mut("/spec/template/spec/containers").and_then(Value::as_array_mut)
    else {
        return;
    };
    for (number, container) in containers.iter_mut().enumerate() {
        let Some(container) = container.as_object_mut() else { continue };
        if container.get("image").and_then(Value::as_str).is_some_and(|image| !image.is_empty()) {
            continue;
        }
        match image {
            Some(image) => drop(container.insert("image".to_owned(), image.into())),
            None => one.notes.insert(
                0,
                Note {
                    level: super::Level::Lost,
                    field: format!("spec.template.spec.containers[{number}].image"),
                    text: "the file names no image: fill it in, or give --image".to_owned(),
                },
            ),
        }
    }
}

/// What is wrong with the YAML, in the words of its writer and not of the library.
fn first_line(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    let line = line.strip_prefix("error: ").unwrap_or(line);
    if let Some((at, key)) = line.split_once("duplicate mapping key: ") {
        return format!("{at}the key {} is there twice", key.split(", set ").next().unwrap_or(key));
    }
    match line.split_once("budget breached: ") {
        Some((at, _)) => format!("{at}it has more values than are read"),
        None => line.to_owned(),
    }
}
