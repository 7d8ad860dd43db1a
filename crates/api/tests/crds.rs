//! The definitions: bounded everywhere, small enough to apply, readable by the types, and committed as generated.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use andreas_api::crd::{self, bounds, rules};
use andreas_api::slim::{SlimEnergyPolicy, SlimGpuNode, SlimTrainingJob, SlimTrainingProfile};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde_json::{Map, Value, json};

/// Where the definitions are committed.
const FOLDER: &str = "charts/andreas/files/crds";
const REFRESH: &str = "make generate WHAT=crds";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn schema(crd: &CustomResourceDefinition) -> &JSONSchemaProps {
    crd.spec.versions[0].schema.as_ref().unwrap().open_api_v3_schema.as_ref().unwrap()
}

#[test]
fn the_committed_files_are_what_the_types_give() {
    let update = std::env::var_os("UPDATE").is_some();
    let folder = root().join(FOLDER);
    let generated = crd::files();
    for (name, text) in &generated {
        let path = folder.join(name);
        if update {
            fs::create_dir_all(&folder).unwrap();
            fs::write(&path, text).unwrap();
        }
        let committed = fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == *text, "{} is stale; refresh it with: {REFRESH}", path.display());
    }
    let files = fs::read_dir(&folder).unwrap().count();
    assert_eq!(files, generated.len(), "{} holds files that no type gives", folder.display());
}

#[test]
fn everything_that_has_a_size_is_bounded() {
    for crd in crd::all() {
        let mut places = BTreeMap::new();
        bounds::walk(schema(&crd), "", &mut places);
        let kind = &crd.spec.names.kind;
        assert!(places.len() > 20, "{kind}: the walk saw {} places", places.len());
        for (path, place) in places {
            let at = format!("{kind}.{path}");
            assert!(place.nullable.is_none(), "{at} is nullable");
            assert!(place.x_kubernetes_preserve_unknown_fields.is_none(), "{at} preserves unknown fields");
            assert!(!at.contains(".managedFields"), "{at}: managedFields nest without end");
            match place.type_.as_deref() {
                Some("string") => {
                    assert!(place.enum_.is_some() || place.max_length.is_some(), "{at}: string")
                }
                Some("array") => assert!(place.max_items.is_some(), "{at}: list"),
                Some("integer") => {
                    let format = place.format.as_deref();
                    assert!(matches!(format, Some("int32" | "int64")), "{at}: format {format:?}");
                }
                Some("object") if place.additional_properties.is_some() => {
                    assert!(place.max_properties.is_some(), "{at}: map");
                }
                Some("object") => assert!(place.properties.is_some(), "{at}: an object of any shape"),
                Some("boolean") => {}
                None => assert!(
                    place.x_kubernetes_int_or_string == Some(true) && place.max_length.is_some(),
                    "{at}: anything goes"
                ),
                other => panic!("{at}: type {other:?}"),
            }
        }
    }
}

#[test]
fn what_is_written_as_a_whole_has_one_owner() {
    for crd in crd::all() {
        let status = &schema(&crd).properties.as_ref().expect("properties")["status"];
        assert_eq!(status.x_kubernetes_map_type.as_deref(), Some("atomic"), "{}", crd.spec.names.kind);
    }
    let jobs = crd::all().into_iter().find(|crd| crd.spec.names.kind == "TrainingJob").expect("TrainingJob");
    let spec = &schema(&jobs).properties.as_ref().expect("properties")["spec"];
    let fields = spec.properties.as_ref().expect("fields of the spec");
    assert_eq!(fields["template"].x_kubernetes_map_type.as_deref(), Some("atomic"));
    assert_eq!(spec.x_kubernetes_map_type, None, "other fields may have an owner each");
}

#[test]
fn a_plain_kubectl_apply_can_hold_each_definition_in_its_annotation() {
    for crd in crd::all() {
        let size = serde_json::to_vec(&crd).unwrap().len();
        assert!(size < crd::MAX_APPLIED_BYTES / 2, "{}: {size} bytes", crd.spec.names.kind);
    }
}

/// An instance with every field filled: the largest or the smallest of what the schema admits.
fn filled(schema: &JSONSchemaProps, largest: bool) -> Value {
    if let Some(values) = &schema.enum_ {
        return if largest { values.last() } else { values.first() }.unwrap().0.clone();
    }
    if schema.x_kubernetes_int_or_string == Some(true) {
        return if largest { json!(schema.maximum.map_or(i64::MAX, |m| m as i64)) } else { json!("1") };
    }
    match schema.type_.as_deref() {
        Some("boolean") => json!(largest),
        Some("integer") => {
            let (least, most) = match schema.format.as_deref() {
                Some("int32") => (i64::from(i32::MIN), i64::from(i32::MAX)),
                _ => (i64::MIN, i64::MAX),
            };
            let bound = if largest { schema.maximum } else { schema.minimum };
            json!(bound.map_or(if largest { most } else { least }, |b| b as i64))
        }
        Some("string") if schema.format.as_deref() == Some("date-time") => {
            json!(if largest { "8999-12-31T23:59:59.999999999-23:59" } else { "1000-01-01T00:00:00+23:59" })
        }
        Some("string") => match schema.pattern.as_deref() {
            Some(pattern) if pattern.contains("s|m|h|d") => {
                json!(if largest { "999999d999999d999999d999999d" } else { "0s" })
            }
            Some(pattern) if pattern.contains("[0-5][0-9]") => json!(if largest { "23:59" } else { "00:00" }),
            Some("^/") => json!("/"),
            Some(pattern) if pattern.contains("^https://") => json!("https://bmc.example.com"),
            Some(pattern) if pattern.contains("[0-9a-f]{64}") => json!("a".repeat(64)),
            // Names of objects and of members of a collection.
            Some(pattern) if pattern.starts_with("^[a-z0-9](") || pattern.starts_with("^[A-Za-z0-9]") => {
                json!("a")
            }
            Some(pattern) if pattern.contains("[.]") => json!(if largest { "999999999.999999" } else { "0" }),
            Some(pattern) if pattern.contains("_+/-") => {
                json!(if largest { "America/Argentina/ComodRivadavia" } else { "z" })
            }
            Some(pattern) => panic!("no example for the pattern {pattern}"),
            None if largest => json!("\u{10ffff}".repeat(schema.max_length.unwrap().min(64) as usize)),
            None => json!("x".repeat(schema.min_length.unwrap_or(0) as usize)),
        },
        Some("array") => match &schema.items {
            Some(JSONSchemaPropsOrArray::Schema(items)) => json!([filled(items, largest)]),
            _ => panic!("a list without items"),
        },
        Some("object") => {
            let mut object = Map::new();
            for (name, property) in schema.properties.iter().flatten() {
                object.insert(name.clone(), filled(property, largest));
            }
            if let Some(JSONSchemaPropsOrBool::Schema(values)) = &schema.additional_properties {
                object.insert("key".into(), filled(values, largest));
            }
            Value::Object(object)
        }
        other => panic!("type {other:?}"),
    }
}

fn read<K: serde::de::DeserializeOwned>(kind: &str) {
    let definitions = crd::all();
    let crd = definitions.iter().find(|crd| crd.spec.names.kind == kind).unwrap();
    for largest in [true, false] {
        let mut object = filled(schema(crd), largest);
        object["metadata"] = json!({"name": "x"});
        // From text, as it comes from the wire.
        let text = object.to_string();
        if let Err(error) = serde_json::from_str::<K>(&text) {
            let column = error.column();
            let around = &text[column.saturating_sub(120)..(column + 20).min(text.len())];
            panic!("{kind} (largest: {largest}): {error}\n{around}");
        }
    }
}

#[test]
fn whatever_the_schema_admits_can_be_read() {
    // Else one such object would be missing from every watch.
    read::<SlimTrainingJob>("TrainingJob");
    read::<SlimTrainingProfile>("TrainingProfile");
    read::<SlimEnergyPolicy>("EnergyPolicy");
    read::<SlimGpuNode>("GpuNode");
    read::<andreas_api::NodePower>("NodePower");
}

#[test]
fn every_rule_is_in_its_definition_once() {
    let text = crd::yaml();
    let definitions = crd::all();
    for rule in rules::all() {
        let crd = definitions.iter().find(|crd| crd.spec.names.kind == rule.kind).expect("a kind of ours");
        let mut places = BTreeMap::new();
        bounds::walk(schema(crd), "", &mut places);
        let there = places[rule.path].x_kubernetes_validations.iter().flatten();
        let same =
            there.filter(|v| v.rule == rule.rule && v.message.as_deref() == Some(rule.message)).count();
        assert_eq!(same, 1, "{} {}: {}", rule.kind, rule.path, rule.rule);
    }
    assert!(rules::all().count() > 40, "{}", rules::all().count());
    assert!(text.starts_with("---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n"));
}

/// Fields below `schema` without a description, and optional ones whose description names no default. Pod templates
/// are Kubernetes' own.
fn unexplained(schema: &Value, path: &str, found: &mut Vec<String>) {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let text = field["description"].as_str().unwrap_or_default();
        if text.is_empty() || !required.contains(&name.as_str()) && !text.contains("Default:") {
            found.push(format!("{path}: {text:?}"));
        }
        if name == "template" {
            continue;
        }
        unexplained(field, &path, found);
        unexplained(&field["items"], &format!("{path}[]"), found);
    }
}

#[test]
fn kubectl_explain_says_the_default_of_every_field_of_a_spec() {
    let mut found = Vec::new();
    for crd in crd::all() {
        let crd = serde_json::to_value(&crd).expect("plain data");
        let kind = crd["spec"]["names"]["kind"].as_str().expect("a kind");
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        assert!(schema["properties"].is_object(), "{kind}");
        unexplained(schema, &format!("{kind}.spec"), &mut found);
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
