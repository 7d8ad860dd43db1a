//! Which parts of an object have one owner as a whole (`x-kubernetes-map-type: atomic`).
//!
//! With every write the API server records the manager of each field, which costs time and space. A part that is only
//! written as a whole, or by one writer, needs no such record: a status is written by our programs only, and a pod template
//! cannot change once the job exists.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;

/// Marks `status` and `spec.template` as atomic.
pub fn apply(schema: &mut JSONSchemaProps) {
    for path in [&["status"][..], &["spec", "template"]] {
        if let Some(part) = schema_at(schema, path) {
            part.x_kubernetes_map_type = Some("atomic".into());
        }
    }
}

fn schema_at<'a>(schema: &'a mut JSONSchemaProps, path: &[&str]) -> Option<&'a mut JSONSchemaProps> {
    path.iter().try_fold(schema, |schema, name| schema.properties.as_mut()?.get_mut(*name))
}
