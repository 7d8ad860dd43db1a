//! The OpenAPI document, generated from the types.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Value, json};

use crate::answer::{Can, Explanation, Failure, Queue, WhatIf};
use crate::path;
use crate::request::{CanRequest, WhatIfRequest};
use crate::{DEFAULT_QUEUE, MAX_QUEUE};

/// The document as the operator serves it and `docs/openapi.json` holds it.
///
/// OpenAPI 3.1: its schemas are JSON Schema 2020-12.
#[must_use]
pub fn document() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    let mut generator = settings.into_generator();
    let namespace = parameter("namespace", "Namespace that is asked about.");
    let job = parameter("job", "Name of a TrainingJob.");
    let mut paths = serde_json::Map::new();
    let mut add = |path: String, method: &str, operation: Value| {
        paths.insert(path, json!({ method: operation }));
    };
    let queue = operation::<Queue>(&mut generator, "queue", "The jobs of a namespace that have not ended.");
    let limit = json!({ "name": "limit", "in": "query", "description": "Maximum jobs in the answer.",
                        "schema": { "type": "integer", "minimum": 1, "maximum": MAX_QUEUE, "default": DEFAULT_QUEUE } });
    add(path::queue("{namespace}"), "get", with_parameters(queue, json!([namespace, limit]), None));
    let changes = json!({ "name": "changes", "in": "query",
                          "description": "Whether changes are tried where the plan has more than 300 jobs; that takes some seconds.",
                          "schema": { "type": "string", "enum": ["Auto", "Always"], "default": "Auto" } });
    let explain = operation::<Explanation>(
        &mut generator,
        "explain",
        "What decided about a job, and what would help it.",
    );
    add(
        path::explain("{namespace}", "{job}"),
        "get",
        with_parameters(explain, json!([namespace, job, changes]), None),
    );
    let what_if = operation::<WhatIf>(&mut generator, "whatIf", "The effect of a change that is not made.");
    let body = request_body::<WhatIfRequest>(&mut generator);
    add(path::what_if("{namespace}"), "post", with_parameters(what_if, json!([namespace]), Some(body)));
    let can = operation::<Can>(&mut generator, "can", "Whether a job submitted now would be on time.");
    let body = request_body::<CanRequest>(&mut generator);
    add(path::can("{namespace}"), "post", with_parameters(can, json!([namespace]), Some(body)));
    let schemas = generator.take_definitions(false);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "ANDREAS query API",
            "version": crate::VERSION,
            "description": "When a TrainingJob will be done, why it waits, and what would help. A caller needs a bearer token \
                            of the cluster, and the right to get (one job) or list TrainingJobs in the namespace. Jobs of other \
                            namespaces are only counted.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
        "security": [{ "token": [] }],
    })
}

/// The document as text, one field per line, with a final newline.
#[must_use]
pub fn text() -> String {
    let text = serde_json::to_string_pretty(&document()).unwrap_or_default();
    text + "\n"
}

fn parameter(name: &str, description: &str) -> Value {
    json!({ "name": name, "in": "path", "required": true, "description": description,
            "schema": { "type": "string", "maxLength": 253 } })
}

fn content<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    json!({ "application/json": { "schema": generator.subschema_for::<T>() } })
}

/// An operation that answers with a `T`, without parameters.
fn operation<T: JsonSchema>(generator: &mut SchemaGenerator, id: &str, summary: &str) -> Value {
    json!({
        "operationId": id,
        "summary": summary,
        "responses": {
            "200": { "description": "The answer.", "content": content::<T>(generator) },
            "default": { "description": "An error.", "content": content::<Failure>(generator) },
        },
    })
}

/// A required JSON body of type `T`.
fn request_body<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    json!({ "required": true, "content": content::<T>(generator) })
}

/// Adds path parameters and, for a `POST`, the body.
fn with_parameters(mut operation: Value, parameters: Value, body: Option<Value>) -> Value {
    operation["parameters"] = parameters;
    if let Some(body) = body {
        operation["requestBody"] = body;
    }
    operation
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_of_the_document_is_defined_and_every_operation_has_an_answer_and_an_error() {
        let document = document();
        let text = document.to_string();
        let references = text.split("\"$ref\":\"#/components/schemas/").skip(1);
        let names: Vec<&str> = references.filter_map(|rest| rest.split('"').next()).collect();
        assert!(names.len() > 10, "{names:?}");
        for name in names {
            assert!(document["components"]["schemas"][name].is_object(), "{name} is not defined");
        }
        let paths = document["paths"].as_object().expect("paths");
        assert_eq!(paths.len(), 4);
        for operation in paths.values().flat_map(|path| path.as_object().expect("operations").values()) {
            assert!(
                operation["responses"]["200"].is_object() && operation["responses"]["default"].is_object()
            );
        }
        assert!(!text.contains("#/$defs/"), "a reference out of the document");
    }

    #[test]
    fn the_committed_document_is_that_of_the_types() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(file, text()).expect("written");
        }
        let committed = std::fs::read_to_string(file).unwrap_or_default();
        assert!(committed == text(), "docs/openapi.json is stale: make openapi");
    }
}
