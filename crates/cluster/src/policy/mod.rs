//! What an EnergyPolicy says of an instant and of a node: one rule for all who ask.
//!
//! | module | what |
//! |---|---|
//! | [`rules`] | tariff, budget and cost of lateness over time, as the planner takes them |
//! | [`boards`] | idle and maximum power of GPU types, and the draw of hosts |
//! | [`gpu_type`] | the GPU type of a node by its labels |
//!
//! **In**: an [`EnergyPolicySpec`], labels of nodes, agents' readings. **Out**: plain values.
//!
//! **Not allowed**: a clock, I/O, the state of a cluster.

pub mod boards;
pub mod rules;

use andreas_api::EnergyPolicySpec;
use andreas_api::slim::SlimNode;
use kube::ResourceExt;

/// Type label values without GPU information: these distributions write their own name as the machine type.
const NO_TYPES: [&str; 3] = ["", "k3s", "rke2"];

/// The GPU type by labels alone: the first of the policy's type labels that the node has.
#[must_use]
pub fn gpu_type<'a>(node: &'a SlimNode, policy: &EnergyPolicySpec) -> Option<&'a str> {
    type_label(node, policy).map(|(_, value)| value)
}

/// The label that says a node's GPU type, as its place in the policy's type labels, and the type.
#[must_use]
pub fn type_label<'a>(node: &'a SlimNode, policy: &EnergyPolicySpec) -> Option<(usize, &'a str)> {
    let labels = node.labels();
    let values =
        policy.type_labels.iter().enumerate().filter_map(|(at, label)| Some((at, labels.get(label)?)));
    values.map(|(at, value)| (at, value.as_str())).find(|(_, value)| !NO_TYPES.contains(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_type_that_names_the_distribution_is_no_gpu_type() {
        let node = |labels: serde_json::Value| -> SlimNode {
            serde_json::from_value(serde_json::json!({"metadata": {"name": "n", "labels": labels}}))
                .expect("a node")
        };
        let policy =
            EnergyPolicySpec { type_labels: vec!["a".into(), "b".into()], ..EnergyPolicySpec::default() };
        let k3s = node(serde_json::json!({"a": "k3s", "b": "Tesla-T4"}));
        assert_eq!(gpu_type(&k3s, &policy), Some("Tesla-T4"));
        assert_eq!(gpu_type(&node(serde_json::json!({"a": ""})), &policy), None);
    }
}
