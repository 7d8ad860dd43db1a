//! The rules across fields (CEL), in one table: each with its message. A test on the real API server walks this table
//! with an object that each rule accepts and one that it refuses, so a rule without effect cannot stay.
//!
//! What one field alone can say (range, length, pattern) is in the types. What needs more than the object (its time of
//! creation, its namespace, the requesting user) is in the chart's ValidatingAdmissionPolicies.

mod others;
mod template;
mod training_job;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, ValidationRule,
};

/// One rule on one place of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The kind.
    pub kind: &'static str,
    /// The place in the schema that `self` is: empty for the whole object, `spec.gpus`, `spec.template.spec.containers[]`.
    pub path: &'static str,
    /// The rule in CEL.
    pub rule: &'static str,
    /// What the user reads when it does not hold: what is wrong, and what to use instead.
    pub message: &'static str,
    /// The field that the refusal names, relative to `path`, where that is not `path` itself.
    pub field_path: Option<&'static str>,
}

/// Every rule of every kind.
pub fn all() -> impl Iterator<Item = &'static Rule> {
    training_job::RULES.iter().chain(template::RULES).chain(others::RULES)
}

/// Writes the rules of a kind into its schema.
pub(super) fn apply(kind: &str, schema: &mut JSONSchemaProps) {
    for rule in all().filter(|rule| rule.kind == kind) {
        let place =
            descend(schema, rule.path).expect("every rule's path is in the schema; a test walks them all");
        place.x_kubernetes_validations.get_or_insert_default().push(ValidationRule {
            rule: rule.rule.into(),
            message: Some(rule.message.into()),
            field_path: rule.field_path.map(Into::into),
            ..ValidationRule::default()
        });
    }
}

fn descend<'a>(schema: &'a mut JSONSchemaProps, path: &str) -> Option<&'a mut JSONSchemaProps> {
    let mut place = schema;
    for step in path.split('.').filter(|step| !step.is_empty()) {
        let name = step.trim_end_matches("[]");
        place = place.properties.as_mut()?.get_mut(name)?;
        if step.ends_with("[]") {
            place = match place.items.as_mut()? {
                JSONSchemaPropsOrArray::Schema(items) => items,
                JSONSchemaPropsOrArray::Schemas(_) => return None,
            };
        }
    }
    Some(place)
}
