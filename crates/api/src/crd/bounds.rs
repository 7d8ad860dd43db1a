//! A size for everything: strings, lists, maps, whole numbers. And the pod template without its prose.
//!
//! Three reasons. The API server estimates the cost of every CEL rule from the largest object that the schema
//! admits, and refuses the definition when it is too dear. What the schema admits must be readable by the types here,
//! else one object stops a watch. And a definition must fit into an annotation, or a plain `kubectl apply` fails.
//!
//! Fields of our own kinds state their bounds in the types; what is here are the bounds of Kubernetes' types, which
//! state none, and the fallbacks.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

/// Longest string where nothing else is said.
pub const STRING: i64 = 4096;
/// Longest value of an environment variable, argument or word of a command.
pub const TEXT: i64 = 32_768;
/// Most items of a list where nothing else is said.
pub const ITEMS: i64 = 256;
/// Most entries of a map where nothing else is said.
pub const ENTRIES: i64 = 64;
/// What is left of an embedded object's metadata: the API server ignores the rest in a pod template, and
/// `managedFields` may nest without end.
const METADATA: [&str; 3] = ["annotations", "creationTimestamp", "labels"];
/// Instants as the types read them: the years 1000 to 8999 and at most nine digits of a second's fraction.
const INSTANT: &str =
    "^[1-8][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})$";

/// Bounds a whole definition's schema.
pub fn apply(schema: &mut JSONSchemaProps) {
    bound(schema, "", false);
}

fn bound(schema: &mut JSONSchemaProps, name: &str, in_template: bool) {
    // Without `nullable` an explicit null is the same as an absent field: dropped before defaults and rules.
    schema.nullable = None;
    schema.title = None;
    if in_template {
        schema.description = None;
    }
    if schema.x_kubernetes_int_or_string == Some(true) {
        bound_int_or_string(schema, name);
    }
    match schema.type_.as_deref() {
        Some("string") if schema.enum_.is_none() => string(schema, name),
        Some("integer") => integer(schema),
        Some("array") => {
            schema.max_items.get_or_insert(items_of(name));
            if schema.x_kubernetes_list_type.is_none() && in_template {
                keyed_list(schema, name);
            }
            match name {
                _ if in_template => {}
                "conditions" => list_map(schema, &["type"]),
                "gpuTypes" | "capacity" => list_map(schema, &["name"]),
                "limits" => list_map(schema, &["pod"]),
                "excludedNodes" => list_map(schema, &["node"]),
                "history" => list_map(schema, &["attempt"]),
                "measurements" => list_map(schema, &["gpuType", "gpus", "nodes"]),
                "gpus" => list_map(schema, &["uuid"]),
                "counts" | "types" | "sent" => schema.x_kubernetes_list_type = Some("set".into()),
                // Their order counts, or nothing names an item: whoever applies one applies all.
                _ => schema.x_kubernetes_list_type = Some("atomic".into()),
            }
        }
        _ => {}
    }
    if let Some(properties) = &mut schema.properties {
        // An embedded object's own metadata.
        if properties.contains_key("managedFields") {
            properties.retain(|key, _| METADATA.contains(&key.as_str()));
        }
        // Only for running pods; the API server refuses them at creation.
        properties.remove("ephemeralContainers");
        for (key, property) in properties {
            // The template itself keeps the description that our own type gives it.
            let description = property.description.clone();
            let is_template = key == "template";
            bound(property, key, in_template || is_template);
            if is_template && !in_template {
                property.description = description;
            }
        }
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        bound(items, name, in_template);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        schema.max_properties.get_or_insert(ENTRIES);
        bound(values, name, in_template);
    }
}

fn string(schema: &mut JSONSchemaProps, name: &str) {
    match schema.format.as_deref() {
        Some("date-time") => {
            schema.max_length.get_or_insert(40);
            schema.pattern.get_or_insert(INSTANT.into());
        }
        _ => {
            schema.max_length.get_or_insert(length_of(name));
        }
    }
    if name == "status" {
        // Of a condition.
        schema.enum_ = Some(
            ["True", "False", "Unknown"]
                .map(|s| k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSON(s.into()))
                .into(),
        );
    }
}

/// Maximum length of a string in Kubernetes' own types, in characters, by the name of the field.
fn length_of(name: &str) -> i64 {
    match name {
        "value" | "args" | "command" | "annotations" | "message" => TEXT,
        // Names of objects, containers, volumes; label values are checked when the pod is tried.
        "name" | "claimName" | "secretName" | "namespace" | "serviceAccountName" | "labels"
        | "matchLabels" | "nodeSelector" => 253,
        "type" => 316,
        "reason" => 1024,
        // A rule looks for a word in each: its cost is counted from the longest.
        "mountPath" => 512,
        _ => STRING,
    }
}

/// Maximum number of items of a list in Kubernetes' own types, by the name of the field.
fn items_of(name: &str) -> i64 {
    match name {
        "containers" | "initContainers" => 32,
        "env" => 512,
        _ => ITEMS,
    }
}

fn integer(schema: &mut JSONSchemaProps) {
    // `uint32` and friends are no formats of Kubernetes.
    if let Some(unsigned) = schema.format.as_deref().and_then(|f| f.strip_prefix('u')) {
        schema.format = Some(unsigned.to_owned());
        schema.minimum.get_or_insert(0.0);
    }
}

/// Bounds an `IntOrString` field: text to 253 characters, a `port` to 65,535 because
/// `IntOrString::Int` is 32 bits.
fn bound_int_or_string(schema: &mut JSONSchemaProps, name: &str) {
    if name == "port" {
        schema.maximum = Some(65_535.0);
    }
    schema.max_length = Some(253);
}

/// Lists of a pod whose items have a name: two of one name are refused at once, and server-side apply merges by it.
fn keyed_list(schema: &mut JSONSchemaProps, name: &str) {
    if matches!(name, "containers" | "initContainers" | "volumes") {
        list_map(schema, &["name"]);
    }
}

fn list_map(schema: &mut JSONSchemaProps, keys: &[&str]) {
    schema.x_kubernetes_list_type = Some("map".into());
    schema.x_kubernetes_list_map_keys = Some(keys.iter().map(|key| (*key).to_owned()).collect());
}

/// Every node of a schema with its path, for tests: `spec.template.spec.containers[].name`, `...labels{}`.
pub fn walk<'a>(schema: &'a JSONSchemaProps, path: &str, found: &mut BTreeMap<String, &'a JSONSchemaProps>) {
    found.insert(path.to_owned(), schema);
    for (name, property) in schema.properties.iter().flatten() {
        let dot = if path.is_empty() { "" } else { "." };
        walk(property, &format!("{path}{dot}{name}"), found);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
        walk(items, &format!("{path}[]"), found);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &schema.additional_properties {
        walk(values, &format!("{path}{{}}"), found);
    }
}
