//! The weight that counts for a job.

use andreas_api::names::ANNOTATION_MAX_WEIGHT;
use andreas_model::ObjectKey;
use kube::ResourceExt;

use crate::index::ClusterIndex;

/// Effective weight of a job, in plans and costs. It is the job's own, bounded by the namespace's annotation
/// `andreas.dev/max-weight`. Without one, or with one that is not a whole number, by what holds for all namespaces.
pub fn bounded_weight(index: &ClusterIndex, namespace: &str, weight: i32) -> i32 {
    let key = ObjectKey { namespace: String::new(), name: namespace.to_owned() };
    let annotations = index.rules().namespaces.get(&key).map(|namespace| namespace.annotations());
    let bound = annotations
        .and_then(|all| all.get(ANNOTATION_MAX_WEIGHT))
        .and_then(|text| text.parse().ok())
        .or(index.rules().max_weight);
    bound.map_or(weight, |bound: i32| weight.min(bound.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_bounds_the_weight_of_its_jobs() {
        use andreas_model::Index;

        use crate::index::SlimNamespace;

        let mut index = ClusterIndex::new();
        let mut namespace = |version: u32, bound: &str| {
            let object: SlimNamespace = serde_json::from_value(serde_json::json!({
                "metadata": {"name": "team", "resourceVersion": version.to_string(),
                    "annotations": {"andreas.dev/max-weight": bound}}}))
            .expect("a namespace");
            index.apply(object);
            [5, 500].map(|weight| bounded_weight(&index, "team", weight))
        };
        assert_eq!(namespace(1, "20"), [5, 20]);
        assert_eq!(namespace(2, "0"), [1, 1]);
        assert_eq!(namespace(3, "a lot"), [5, 500]);
        assert_eq!(bounded_weight(&index, "other", 500), 500);
        let index = index.with_max_weight(50);
        assert_eq!(["team", "other"].map(|namespace| bounded_weight(&index, namespace, 500)), [50, 50]);
    }
}
