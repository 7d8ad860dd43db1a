//! JSON merge patches (RFC 7386) of changes, and JSON patches (RFC 6902) of a status whose object changes all the time.

use andreas_api::TrainingJobStatus;
use andreas_api::training_job::Progress;
use andreas_lifecycle::status::percent_text;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use kube::api::{Patch, PatchParams};
use kube::core::Request;
use kube::core::request::Error;
use serde_json::{Map, Value, json};

/// The content type of RFC 6902.
const JSON_PATCH: &str = "application/json-patch+json";

/// A JSON patch of the status of the object `name` below `url`. (kube's own needs another crate for its type.)
///
/// # Errors
/// When `url` or `name` make no URI.
pub fn by_operations(
    url: &str,
    name: &str,
    params: &PatchParams,
    operations: &Value,
) -> Result<http::Request<Vec<u8>>, Error> {
    let patch = Patch::Merge(operations);
    let mut request = Request::new(url).patch_subresource("status", name, params, &patch)?;
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON_PATCH));
    Ok(request)
}

/// The merge patch from `old` to `new`; `None` if equal. Lists are replaced as a whole.
pub fn diff(old: &Value, new: &Value) -> Option<Value> {
    let (Value::Object(before), Value::Object(after)) = (old, new) else {
        return (old != new).then(|| new.clone());
    };
    let mut patch = Map::new();
    for (name, value) in after {
        match before.get(name) {
            None => {
                patch.insert(name.clone(), value.clone());
            }
            Some(was) => {
                if let Some(changed) = diff(was, value) {
                    patch.insert(name.clone(), changed);
                }
            }
        }
    }
    for name in before.keys().filter(|name| !after.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// A status patch with preconditions: this UID, and no other write since `version`.
pub fn status_body(uid: &str, version: Option<&str>, status: Value) -> Value {
    let mut metadata = json!({ "uid": uid });
    if let (Some(version), Some(metadata)) = (version, metadata.as_object_mut()) {
        metadata.insert("resourceVersion".to_owned(), version.into());
    }
    json!({ "metadata": metadata, "status": status })
}

/// The API server takes a test for null as one for a field that is absent.
fn test(path: &str, value: &Value) -> Value {
    json!({"op": "test", "path": path, "value": value})
}

/// Operations that set the fields of `changes` to those of `new`, with preconditions that hold whatever users edit meanwhile: this UID, and
/// the attempts, decisions and phase of `old`. All three are statuses, or parts of one.
pub fn status_operations(uid: &str, old: &Value, new: &Value, changes: &Value) -> Value {
    let guards = ["attempts", "decisions", "phase"];
    let mut operations = vec![test("/metadata/uid", &json!(uid))];
    operations.extend(guards.map(|field| test(&format!("/status/{field}"), &old[field])));
    // Its part about progress is written by whoever gets the reports.
    operations.extend(changes.get("display").map(|_| test("/status/display", &old["display"])));
    operations.extend(changes.as_object().into_iter().flat_map(Map::keys).map(|field| {
        let path = format!("/status/{field}");
        match new.get(field) {
            Some(value) => json!({"op": "add", "path": path, "value": value}),
            None => json!({"op": "remove", "path": path}),
        }
    }));
    Value::Array(operations)
}

/// The part of a status that says how far a run is.
pub fn progress_fields(progress: &Progress) -> Value {
    json!({ "progress": progress, "display": { "progress": percent_text(progress.milli_percent) } })
}

/// Operations that set the progress of an attempt, while it is the present one and its progress is still that of `old`.
pub fn progress_operations(uid: &str, old: &TrainingJobStatus, new: &Progress) -> Value {
    let mut operations =
        vec![test("/metadata/uid", &json!(uid)), test("/status/allocation/attempt", &json!(new.attempt))];
    match &old.progress {
        Some(old) => operations.extend([
            test("/status/progress/attempt", &json!(old.attempt)),
            test("/status/progress/milliPercent", &json!(old.milli_percent)),
        ]),
        None => operations.push(test("/status/progress", &Value::Null)),
    }
    operations.push(json!({"op": "add", "path": "/status/progress", "value": new}));
    if old.display.is_empty() {
        operations.push(test("/status/display", &Value::Null));
        operations.push(json!({"op": "add", "path": "/status/display", "value": {}}));
    }
    let text = percent_text(new.milli_percent);
    operations.push(json!({"op": "add", "path": "/status/display/progress", "value": text}));
    Value::Array(operations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_set_whole_fields_and_test_what_was_decided() {
        let old = json!({"phase": "Running", "attempts": 2, "decisions": 3, "reason": "X", "progress": {"milliPercent": 1}});
        let new = json!({"phase": "Stopping", "attempts": 2, "decisions": 4, "stop": {"attempt": 1}, "progress": {"milliPercent": 1}});
        let changes = diff(&old, &new).unwrap();
        let operations = status_operations("u", &old, &new, &changes);
        let all: Vec<(&str, &str, &Value)> = operations
            .as_array()
            .unwrap()
            .iter()
            .map(|one| (one["op"].as_str().unwrap(), one["path"].as_str().unwrap(), &one["value"]))
            .collect();
        assert_eq!(
            all,
            [
                ("test", "/metadata/uid", &json!("u")),
                ("test", "/status/attempts", &json!(2)),
                ("test", "/status/decisions", &json!(3)),
                ("test", "/status/phase", &json!("Running")),
                ("add", "/status/decisions", &json!(4)),
                ("add", "/status/phase", &json!("Stopping")),
                ("remove", "/status/reason", &json!(null)),
                ("add", "/status/stop", &json!({"attempt": 1})),
            ]
        );
    }

    #[test]
    fn what_was_absent_must_still_be_absent() {
        let new = json!({"milliPercent": 1, "attempt": 1, "at": "2026-01-01T00:00:00Z"});
        let new: Progress = serde_json::from_value(new).unwrap();
        let operations = progress_operations("u", &TrainingJobStatus::default(), &new);
        assert_eq!(operations[2], json!({"op": "test", "path": "/status/progress", "value": null}));
        let operations = status_operations("u", &json!({}), &json!({}), &json!({}));
        assert_eq!(operations[2], json!({"op": "test", "path": "/status/decisions", "value": null}));
    }

    #[test]
    fn only_what_changed_and_null_for_what_went() {
        let old = json!({"phase": "Pending", "reason": "X", "allocation": {"gpus": 1, "nodes": ["a"]}, "kept": {"a": 1}});
        let new = json!({"phase": "Running", "allocation": {"gpus": 1, "nodes": ["a", "b"]}, "kept": {"a": 1}, "more": 2});
        assert_eq!(
            diff(&old, &new),
            Some(json!({"phase": "Running", "reason": null, "allocation": {"nodes": ["a", "b"]}, "more": 2}))
        );
        assert_eq!(diff(&new, &new), None);
    }
}
