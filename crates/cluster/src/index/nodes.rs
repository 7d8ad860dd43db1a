//! What one node says: whether it takes workers, its GPUs, and its agent's report.

use std::collections::BTreeMap;

use andreas_api::GpuNodeStatus;
use andreas_api::gpu_node::{GpuCondition, GpuState};
use andreas_api::names::{GPU_RESOURCE, LABEL_GPU_MEMORY};
use andreas_api::node_power::PowerMode;
use andreas_api::quantity;
use andreas_api::slim::SlimNode;
use andreas_model::ObjectKey;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::ClusterIndex;
use super::amounts::Amounts;
use super::{owner, takes};

/// A worker may be placed there now: ready, not cordoned, not being deleted, not to be switched off by hand, and its agent, if it has
/// one, reaches the driver. A kubelet offers GPUs for as long as the device plug-in runs, also where the kernel's driver no longer fits its
/// library.
pub fn usable(index: &ClusterIndex, key: &ObjectKey, node: &SlimNode) -> bool {
    let conditions = agent_status(index, key).map(|status| status.conditions.as_slice()).unwrap_or_default();
    let no_driver = |c: &Condition| c.type_ == "Ready" && c.status == "False" && c.reason == "NoDriver";
    let goes_off = index.node_powers.get(key).is_some_and(|power| power.spec.mode == PowerMode::Off);
    ready(node)
        && !goes_off
        && !node.spec.unschedulable
        && node.metadata.deletion_timestamp.is_none()
        && !conditions.iter().any(no_driver)
}

/// Its kubelet answers, so it has power.
pub fn ready(node: &SlimNode) -> bool {
    node.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// Most GPUs of a node. The largest machines have 16. Beyond it one kubelet's figure would take the whole power budget, or keep the
/// planner from any plan.
pub const MOST_GPUS: u64 = 64;

/// What a node offers to pods, with at most [`MOST_GPUS`] GPUs, whatever its kubelet says.
pub fn offered(node: &SlimNode) -> Amounts {
    let mut offered = Amounts::from_resources(&node.status.allocatable);
    offered.gpus = offered.gpus.min(MOST_GPUS);
    offered
}

/// GPUs offered by the device plug-in, as its kubelet says, without a bound. During its restart the kubelet keeps them in `capacity` for five
/// minutes.
pub fn whole_gpus(node: &SlimNode) -> u64 {
    let of = |amounts: &BTreeMap<String, Quantity>| amounts.get(GPU_RESOURCE).map_or(0, quantity::units);
    of(&node.status.allocatable).max(of(&node.status.capacity))
}

/// Memory of one GPU, MiB; 0 without a label.
pub fn gpu_memory(node: &SlimNode) -> i64 {
    node.labels().get(LABEL_GPU_MEMORY).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Status of a node's agent; `None`: no agent, or it has ended.
pub fn agent_status<'a>(index: &'a ClusterIndex, key: &ObjectKey) -> Option<&'a GpuNodeStatus> {
    let status = index.gpu_nodes.get(key)?.status.as_ref()?;
    status.agent_version.is_some().then_some(status)
}

/// GPUs that must not be used but are still allocatable. `ours` says by pod name whether the caller counts a
/// pod's GPUs as free or held by jobs. All others' GPUs are in use anyway, broken or not.
///
/// The device plug-in removes broken GPUs from `allocatable` and leaves them in `capacity`; one that starts after a board was lost does
/// not count that at all. The agent names them too, at another time or for other reasons. Which ones the plug-in removed is unknown, so as
/// many as possible are assumed the same.
pub fn broken_gpus(
    index: &ClusterIndex,
    key: &ObjectKey,
    node: &SlimNode,
    ours: impl Fn(&str) -> bool,
) -> u64 {
    let gpus = agent_status(index, key).map(|status| status.gpus.as_slice()).unwrap_or_default();
    let broken = gpus.iter().filter(|gpu| gpu.state == GpuCondition::Unhealthy);
    let (of_others, open): (Vec<_>, Vec<_>) =
        broken.partition(|gpu| gpu.holder.as_deref().is_some_and(|pod| !ours(pod)));
    let is_lost = |gpu: &&GpuState| gpu.problems.iter().any(|problem| problem.reason == "GpuLost");
    let capacity = Amounts::from_resources(&node.status.capacity).gpus;
    let not_counted = if capacity == 0 { 0 } else { (gpus.len() as u64).saturating_sub(capacity) };
    let lost = not_counted.min(gpus.iter().filter(is_lost).count() as u64);
    let taken_out = capacity.saturating_sub(Amounts::from_resources(&node.status.allocatable).gpus);
    let taken_out_of_ours = (taken_out + lost).saturating_sub(of_others.len() as u64);
    (open.len() as u64).saturating_sub(taken_out_of_ours)
}

/// GPUs that pods may have by claims (DRA): the kubelet does not say which, so with one such pod all GPUs without a known holder count. Not
/// while the agent has yet to name some that pods of the device plug-in have.
pub(super) fn claimed_gpus(index: &ClusterIndex, key: &ObjectKey) -> u64 {
    let gpus = agent_status(index, key).map(|status| status.gpus.as_slice()).unwrap_or_default();
    let held = || gpus.iter().filter(|gpu| gpu.state == GpuCondition::Held);
    let unexplained = held().filter(|gpu| gpu.holder.is_none() && gpu.shares.is_empty()).count() as u64;
    if unexplained == 0 {
        return 0;
    }
    let ours = index.pods_on(&key.name).filter(|pod| owner(&pod.metadata).is_some());
    let ours = ours.filter_map(|pod| Some(takes(pod)?.1.gpus)).fold(0, u64::saturating_add);
    let asked = index.foreign_use(&key.name).gpus.saturating_add(ours);
    let told = gpus.iter().filter(|gpu| gpu.holder.is_some()).count() as u64;
    if asked <= told { unexplained } else { 0 }
}

/// Whether two states of a node are equal for plans and runs.
pub(super) fn same_node(a: &SlimNode, b: &SlimNode) -> bool {
    a.labels() == b.labels()
        && a.annotations() == b.annotations()
        && a.metadata.deletion_timestamp == b.metadata.deletion_timestamp
        && a.spec == b.spec
        && a.status == b.status
}

#[cfg(test)]
mod tests {
    use andreas_api::slim::SlimGpuNode;
    use andreas_model::Index;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_whose_agent_reaches_no_driver_takes_no_new_run() {
        let node: SlimNode = serde_json::from_value(json!({
            "metadata": {"name": "n1"}, "spec": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}))
        .expect("a node");
        let key = ObjectKey { namespace: String::new(), name: "n1".into() };
        let mut index = ClusterIndex::new();
        assert!(usable(&index, &key, &node), "without an agent");
        for (version, status, reason, expected) in [
            (1, "False", "NoDriver", false),
            (2, "False", "SetterNotResponding", true),
            (3, "True", "Working", true),
        ] {
            let condition = json!({"type": "Ready", "status": status, "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"});
            let agent: SlimGpuNode = serde_json::from_value(json!({
                "metadata": {"name": "n1", "resourceVersion": version.to_string()}, "spec": {},
                "status": {"agentVersion": "1", "conditions": [condition]}}))
            .expect("a GpuNode");
            index.apply(agent);
            assert_eq!(usable(&index, &key, &node), expected, "{reason}");
        }
    }
}
