//! The CustomResourceDefinitions, generated from the types.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

/// The four definitions as the types give them, before bounds, rules and columns are added.
pub fn derived() -> Vec<CustomResourceDefinition> {
    vec![
        crate::TrainingJob::crd(),
        crate::TrainingProfile::crd(),
        crate::EnergyPolicy::crd(),
        crate::GpuNode::crd(),
    ]
}
