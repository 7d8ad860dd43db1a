//! The CustomResourceDefinitions, generated from the types.
//!
//! What flows in: the schemas that the types derive. What is added here, each in one file: bounds for everything that
//! has a size ([`bounds`]), the rules across fields in CEL ([`rules`]), parts that have one owner as a whole
//! ([`ownership`]), the columns of `kubectl get` and the fields that can be selected on ([`columns`]). What flows out: the definitions, and the same as YAML for
//! `andreas-operator crds` and for the chart. A test fails when the committed files are stale.
//!
//! What must never be here: anything that a user of the objects needs at run time, and hand-written schemas. Where a
//! bound is wrong, the type is wrong.

pub mod bounds;
pub mod columns;
pub mod ownership;
pub mod rules;
mod text;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion, JSONSchemaProps,
};
use kube::CustomResourceExt;

/// The largest definition, as JSON, that a plain `kubectl apply` can handle: it keeps the whole object in an
/// annotation, and the API server refuses annotations above 256 KiB in total.
pub const MAX_APPLIED_BYTES: usize = 262_144;

/// The definitions, complete: bounds, rules, columns.
pub fn all() -> Vec<CustomResourceDefinition> {
    [
        crate::TrainingJob::crd(),
        crate::TrainingProfile::crd(),
        crate::EnergyPolicy::crd(),
        crate::GpuNode::crd(),
        crate::NodePower::crd(),
    ]
    .into_iter()
    .map(complete)
    .collect()
}

/// All definitions as one YAML stream, ready for `kubectl apply -f -`.
pub fn yaml() -> String {
    all().iter().map(|crd| format!("---\n{}", text::yaml(crd))).collect()
}

/// Each definition as a YAML file: its name (`andreas.dev_trainingjobs.yaml`) and its text.
pub fn files() -> Vec<(String, String)> {
    all()
        .iter()
        .map(|crd| (format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural), text::yaml(crd)))
        .collect()
}

fn complete(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    let kind = crd.spec.names.kind.clone();
    crd.spec.names.categories = Some(vec!["andreas".into()]);
    crd.spec.names.list_kind = Some(format!("{kind}List"));
    for version in &mut crd.spec.versions {
        version.additional_printer_columns = Some(columns::printed(&kind));
        version.selectable_fields = Some(columns::selectable(&kind));
        if let Some(schema) = schema_of(version) {
            bounds::apply(schema);
            rules::apply(&kind, schema);
            ownership::apply(schema);
        }
    }
    crd
}

fn schema_of(version: &mut CustomResourceDefinitionVersion) -> Option<&mut JSONSchemaProps> {
    version.schema.as_mut()?.open_api_v3_schema.as_mut()
}
