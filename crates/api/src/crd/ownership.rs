//! Which parts of an object have one owner as a whole (`x-kubernetes-map-type: atomic`).
//!
//! With every write the API server notes for each field who set it, and compares all fields of the object for that. Where a
//! part is only ever written as a whole, or by one writer, the notes say nothing, and what they cost comes with every status:
//! a status has no owner but our own programs, and a pod template cannot change once the job exists.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;

/// Marks them.
pub fn apply(schema: &mut JSONSchemaProps) {
    for path in [&["status"][..], &["spec", "template"]] {
        if let Some(part) = at(schema, path) {
            part.x_kubernetes_map_type = Some("atomic".into());
        }
    }
}

fn at<'a>(schema: &'a mut JSONSchemaProps, path: &[&str]) -> Option<&'a mut JSONSchemaProps> {
    path.iter().try_fold(schema, |schema, name| schema.properties.as_mut()?.get_mut(*name))
}
