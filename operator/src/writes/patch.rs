//! JSON merge patches (RFC 7386) of changes.

use serde_json::{Map, Value, json};

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

#[cfg(test)]
mod tests {
    use super::*;

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
