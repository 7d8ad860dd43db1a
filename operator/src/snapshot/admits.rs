//! Which nodes admit a worker by taints, node selector and node affinity, with kube-scheduler's rules.

use andreas_api::names::GPU_RESOURCE;
use andreas_api::slim::{SlimNode, SlimPodSpec, SlimTaint};
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Toleration};
use kube::ResourceExt;

/// Whether the node admits a pod with this spec. Cordon and readiness are checked elsewhere.
pub fn admits(spec: &SlimPodSpec, node: &SlimNode) -> bool {
    let labels = node.labels();
    spec.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
        && spec.required_nodes().is_none_or(|required| selects(required, node))
        && tolerates_taints(&spec.tolerations, node)
}

/// Whether a node selector (alternative terms) matches the node.
pub fn selects(selector: &NodeSelector, node: &SlimNode) -> bool {
    selector.node_selector_terms.iter().any(|term| matches_term(term, node))
}

/// All requirements of a term must match; an empty term matches nothing.
fn matches_term(term: &NodeSelectorTerm, node: &SlimNode) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let name = node.name_any();
    expressions
        .iter()
        .all(|requirement| meets(requirement, node.labels().get(&requirement.key).map(String::as_str)))
        && fields
            .iter()
            .all(|requirement| requirement.key == "metadata.name" && meets(requirement, Some(&name)))
}

fn meets(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let number = |text: &str| text.parse::<i64>().ok();
    match requirement.operator.as_str() {
        "In" => value.is_some_and(|value| values.iter().any(|v| v == value)),
        "NotIn" => value.is_none_or(|value| values.iter().all(|v| v != value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        operator @ ("Gt" | "Lt") => {
            let bound = values.first().and_then(|v| number(v));
            match (value.and_then(number), bound) {
                (Some(value), Some(bound)) => {
                    if operator == "Gt" {
                        value > bound
                    } else {
                        value < bound
                    }
                }
                _ => false,
            }
        }
        _ => false,
    }
}

fn tolerates_taints(tolerations: &[Toleration], node: &SlimNode) -> bool {
    let hard =
        node.spec.taints.iter().filter(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"));
    let mut hard = hard.filter(|taint| !is_node_condition(taint) && taint.key != GPU_RESOURCE);
    hard.all(|taint| tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

/// Our pods tolerate these taints (LIFECYCLE section 3); the node's conditions decide whether it is used.
fn is_node_condition(taint: &SlimTaint) -> bool {
    taint.effect == "NoExecute"
        && matches!(taint.key.as_str(), "node.kubernetes.io/not-ready" | "node.kubernetes.io/unreachable")
}

fn tolerates(toleration: &Toleration, taint: &SlimTaint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    if !effect.is_empty() && effect != taint.effect || !key.is_empty() && key != taint.key {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or("Equal") {
        "Exists" => true,
        "Equal" | "" => !key.is_empty() && toleration.value.as_deref().unwrap_or_default() == taint.value,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(taints: Value) -> SlimNode {
        serde_json::from_value(json!({
            "metadata": {"name": "n1", "labels": {"zone": "a", "gen": "4"}},
            "spec": {"taints": taints},
        }))
        .expect("a node")
    }

    fn spec(json: Value) -> SlimPodSpec {
        let mut whole = json!({"containers": []});
        whole.as_object_mut().expect("object").extend(json.as_object().expect("object").clone());
        serde_json::from_value(whole).expect("a spec")
    }

    fn affinity(expression: Value) -> Value {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [expression]}}}})
    }

    #[test]
    fn selectors_and_affinity_are_read_as_the_scheduler_reads_them() {
        let node = node(json!([]));
        let expression = |key: &str, operator: &str, values: Value| {
            affinity(json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]}))
        };
        for (json, admitted) in [
            (json!({}), true),
            (json!({"nodeSelector": {"zone": "a"}}), true),
            (json!({"nodeSelector": {"zone": "b"}}), false),
            (expression("zone", "In", json!(["a", "b"])), true),
            (expression("zone", "NotIn", json!(["a"])), false),
            (expression("none", "NotIn", json!(["a"])), true),
            (expression("none", "Exists", json!(null)), false),
            (expression("gen", "Gt", json!(["3"])), true),
            (expression("gen", "Lt", json!(["4"])), false),
            (
                affinity(
                    json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}),
                ),
                true,
            ),
            (
                affinity(
                    json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}),
                ),
                false,
            ),
            (affinity(json!({})), false),
        ] {
            assert_eq!(admits(&spec(json.clone()), &node), admitted, "{json}");
        }
    }

    #[test]
    fn taints_need_tolerations_but_for_those_that_are_ours() {
        let team = json!([{"key": "team", "value": "x", "effect": "NoSchedule"}]);
        let ours = json!([{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
                          {"key": "soft", "value": "", "effect": "PreferNoSchedule"}]);
        assert!(admits(&spec(json!({})), &node(ours)));
        assert!(!admits(&spec(json!({})), &node(team.clone())));
        for (toleration, admitted) in [
            (json!({"key": "team", "operator": "Equal", "value": "x"}), true),
            (json!({"key": "team", "value": "y"}), false),
            (json!({"key": "team", "operator": "Exists", "effect": "NoExecute"}), false),
            (json!({"operator": "Exists"}), true),
        ] {
            let spec = spec(json!({"tolerations": [toleration]}));
            assert_eq!(admits(&spec, &node(team.clone())), admitted, "{toleration}");
        }
    }
}
