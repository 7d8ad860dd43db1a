//! What an adopted job was before its first release: an annotation says it, and it is restored from there.
//!
//! What a release changes is what `batch/v1` lets change in a suspended Job (KEP-2926), because JobSet and Trainer pass it on to
//! Jobs: labels, node selector, tolerations and scheduling gates of pod templates.

use andreas_api::names::{ANNOTATION_ADOPTED_ATTEMPT, ANNOTATION_FOUND};
use serde_json::{Map, Value};

/// What is restored of a template, below it.
const FOUND: [&str; 4] =
    ["/metadata/labels", "/spec/nodeSelector", "/spec/tolerations", "/spec/schedulingGates"];

/// Noted of a template without metadata, which gets some for our labels.
const NO_METADATA: &str = "/metadata";

/// What is restored of a Job whose number of pods followed the plan, below `spec`.
const SIZE: [&str; 2] = ["/parallelism", "/completions"];

/// The fields that a release changes, as they are before it, by their path: of the templates at these JSON pointers, and with
/// `sized` the number of pods of a Job. It is the value of the annotation `andreas.dev/found`.
pub fn fields_before_release<'a>(
    object: &Value,
    templates: impl IntoIterator<Item = &'a str>,
    sized: bool,
) -> Value {
    let of = |path: &str, parts: &[&str]| {
        let place = object.pointer(path).unwrap_or(&Value::Null);
        let parts = parts.iter().filter_map(|part| Some((*part, place.pointer(part)?.clone())));
        (path.to_owned(), Value::from_iter(parts))
    };
    let size = sized.then(|| of("/spec", &SIZE));
    let templates = templates.into_iter().map(|template| {
        let (path, mut parts) = of(template, &FOUND);
        if object.pointer(&format!("{path}/metadata")).is_none() {
            parts[NO_METADATA] = Value::Null;
        }
        (path, parts)
    });
    Value::from_iter(templates.chain(size))
}

/// Makes the templates what they were before the first release, and removes our annotations. `true`: something changed.
pub fn restore(object: &mut Value) -> bool {
    let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) else {
        return false;
    };
    let attempt = annotations.remove(ANNOTATION_ADOPTED_ATTEMPT);
    let found = annotations.remove(ANNOTATION_FOUND);
    let parsed = found.as_ref().and_then(Value::as_str).and_then(|text| serde_json::from_str(text).ok());
    let templates: Map<String, Value> = parsed.unwrap_or_default();
    for (path, parts) in &templates {
        let all: &[&str] = if path == "/spec" { &SIZE } else { &FOUND };
        for part in all.iter().copied() {
            let Some((parent, field)) = part.rsplit_once('/') else { continue };
            let Some(place) = object.pointer_mut(&format!("{path}{parent}")).and_then(Value::as_object_mut)
            else {
                continue;
            };
            match &parts[part] {
                Value::Null => drop(place.remove(field)),
                value => drop(place.insert(field.to_owned(), value.clone())),
            }
        }
        if parts.get(NO_METADATA).is_some()
            && let Some(template) = object.pointer_mut(path).and_then(Value::as_object_mut)
            && template.get("metadata").and_then(Value::as_object).is_some_and(Map::is_empty)
        {
            template.remove("metadata");
        }
    }
    attempt.is_some() || found.is_some()
}
