//! A Node: what is read of it, what is remembered while its machine is off, and how that is put back. Pure.
//!
//! A new registration loses labels and taints that people set by hand; a pod without their toleration must not meet the node
//! in between. What is restored is therefore written before the node is ready. What its own programs write again is not: a
//! GPU label of another day would be a lie.

use std::collections::BTreeMap;

use andreas_api::names::{
    ANNOTATION_CHECKS_PAUSED, ANNOTATION_GOING_OFF, ANNOTATION_KEEP, ANNOTATION_WAS_CORDONED, GPU_RESOURCE,
};
use andreas_api::node_power::{RememberedMachine, RememberedTaint};
use andreas_api::quantity;
use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus, Taint};
use serde_json::{Map, Value, json};

use crate::transition::SeenNode;

/// Largest size of what is remembered, as JSON.
const MAX_MACHINE: usize = 32 * 1024;
/// Taints of Kubernetes' controllers, which set them again.
const FOREIGN_TAINTS: [&str; 2] = ["node.kubernetes.io/", "node.cloudprovider.kubernetes.io/"];
/// Labels that the node's own programs write again.
const FOREIGN_LABELS: [&str; 6] = [
    "nvidia.com/",
    "feature.node.kubernetes.io/",
    "beta.kubernetes.io/",
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "kubernetes.io/hostname",
];
/// Labels below `nvidia.com/` that people set.
const LABELS_OF_PEOPLE: [&str; 3] =
    ["nvidia.com/mig.config", "nvidia.com/device-plugin.config", "nvidia.com/gpu.workload.config"];
/// Annotations of a Node that belongs to a Machine of Cluster API or OpenShift: health checks replace one whose Node is gone.
const MACHINE_ANNOTATIONS: [&str; 2] = ["cluster.x-k8s.io/machine", "machine.openshift.io/machine"];
/// Annotations by which other controllers know the machine, and what was said of them.
const KEPT_ANNOTATIONS: [&str; 4] =
    ["cluster.x-k8s.io/", "machine.openshift.io/", "metal3.io/", ANNOTATION_CHECKS_PAUSED];

/// A Node that was just read.
#[derive(Clone, Debug)]
pub struct LiveNode(pub Node);

fn starts_with_any(text: &str, starts: &[&str]) -> bool {
    starts.iter().any(|start| text.starts_with(start))
}

impl LiveNode {
    fn annotation(&self, name: &str) -> Option<&String> {
        self.0.metadata.annotations.as_ref()?.get(name)
    }

    fn spec(&self) -> NodeSpec {
        self.0.spec.clone().unwrap_or_default()
    }

    fn status(&self) -> NodeStatus {
        self.0.status.clone().unwrap_or_default()
    }

    /// What the state machine needs; `remembered` is what a restored Node must have, `requests` what its own pods ask for.
    pub fn seen(
        &self,
        remembered: Option<&RememberedMachine>,
        requests: BTreeMap<String, String>,
    ) -> SeenNode {
        let (meta, status) = (&self.0.metadata, self.status());
        let has = |role: &str| {
            let label = format!("node-role.kubernetes.io/{role}");
            meta.labels.as_ref().is_some_and(|labels| labels.contains_key(&label))
        };
        let owned = MACHINE_ANNOTATIONS.iter().any(|name| self.annotation(name).is_some());
        let paused = self.annotation(ANNOTATION_CHECKS_PAUSED).is_some_and(|value| value == "true");
        let never_off = (has("control-plane") || has("master")).then_some("ControlPlane");
        let never_off = never_off.or((owned && !paused).then_some("MachineOwned"));
        let mut conditions = status.conditions.into_iter().flatten();
        SeenNode {
            uid: meta.uid.clone().unwrap_or_default(),
            ready: conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True"),
            cordoned: self.spec().unschedulable == Some(true),
            going_off: self.annotation(ANNOTATION_GOING_OFF).cloned(),
            never_off,
            boot_id: status.node_info.map(|info| info.boot_id).unwrap_or_default(),
            gpus: self.gpus(),
            restored: remembered.is_none_or(|machine| self.missing(machine).is_none()),
            machine: self.remembered(requests),
        }
    }

    fn gpus(&self) -> i32 {
        let allocatable = self.status().allocatable.unwrap_or_default();
        let gpus = allocatable.get(GPU_RESOURCE).map_or(0, quantity::units);
        i32::try_from(gpus).unwrap_or(i32::MAX).min(64)
    }

    fn remembered(&self, requests: BTreeMap<String, String>) -> Result<RememberedMachine, String> {
        let (meta, spec, status) = (&self.0.metadata, self.spec(), self.status());
        let named = self.annotation(ANNOTATION_KEEP).cloned().unwrap_or_default();
        let named: Vec<&str> = named.split(',').map(str::trim).collect();
        let mut annotations = meta.annotations.clone().unwrap_or_default();
        annotations.retain(|key, _| {
            let kept = starts_with_any(key, &KEPT_ANNOTATIONS) || named.contains(&key.as_str());
            (kept || key == ANNOTATION_KEEP) && key != ANNOTATION_GOING_OFF && key != ANNOTATION_WAS_CORDONED
        });
        let taints = spec.taints.into_iter().flatten();
        let taints = taints.filter(|taint| !starts_with_any(&taint.key, &FOREIGN_TAINTS));
        let allocatable = status.allocatable.into_iter().flatten();
        let machine = RememberedMachine {
            node_uid: meta.uid.clone().unwrap_or_default(),
            boot_id: status.node_info.map(|info| info.boot_id).unwrap_or_default(),
            provider_id: spec.provider_id.filter(|id| !id.is_empty()),
            cordoned: self.annotation(ANNOTATION_WAS_CORDONED).is_some(),
            labels: meta.labels.clone().unwrap_or_default(),
            annotations,
            taints: taints
                .map(|taint| RememberedTaint {
                    key: taint.key,
                    value: taint.value.unwrap_or_default(),
                    effect: taint.effect,
                })
                .collect(),
            allocatable: allocatable.map(|(key, value)| (key, value.0)).collect(),
            daemon_set_requests: requests,
            gpus: self.gpus(),
        };
        let size = serde_json::to_string(&machine).map_or(usize::MAX, |text| text.len());
        let counts = machine.labels.len() <= 128
            && machine.taints.len() <= 32
            && machine.annotations.len() <= 64
            && machine.allocatable.len() <= 64;
        let texts = machine.annotations.values().all(|value| value.len() <= 4096)
            && machine.provider_id.as_ref().is_none_or(|id| id.len() <= 512);
        if size > MAX_MACHINE || !counts || !texts {
            return Err("TooLarge: its labels, annotations, taints and resources are too many".into());
        }
        Ok(machine)
    }

    /// The merge patch that puts on the Node what is remembered and missing; `None` if nothing is.
    pub fn missing(&self, machine: &RememberedMachine) -> Option<Value> {
        let of = |have: &Option<BTreeMap<String, String>>, want: &BTreeMap<String, String>| {
            let has = |key: &str| have.as_ref().is_some_and(|have| have.contains_key(key));
            let missing = want.iter().filter(|(key, _)| !has(key));
            missing.map(|(key, value)| (key.clone(), json!(value))).collect::<Map<_, _>>()
        };
        let meta = &self.0.metadata;
        let mut labels = of(&meta.labels, &machine.labels);
        labels.retain(|key, value| {
            // It keeps a part of the GPU operator off the node; other values are the operator's.
            let disabled = key.starts_with("nvidia.com/gpu.deploy.") && value == "false";
            let by_people = disabled || LABELS_OF_PEOPLE.contains(&key.as_str());
            by_people || !starts_with_any(key, &FOREIGN_LABELS)
        });
        let annotations = of(&meta.annotations, &machine.annotations);
        let present = self.spec();
        let mut taints = present.taints.unwrap_or_default();
        let before = taints.len();
        for wanted in &machine.taints {
            if !taints.iter().any(|taint| taint.key == wanted.key && taint.effect == wanted.effect) {
                let value = (!wanted.value.is_empty()).then(|| wanted.value.clone());
                let (key, effect) = (wanted.key.clone(), wanted.effect.clone());
                taints.push(Taint { key, value, effect, time_added: None });
            }
        }
        let mut spec = Map::new();
        if taints.len() > before {
            spec.insert("taints".into(), json!(taints));
        }
        let without_provider = present.provider_id.is_none_or(|id| id.is_empty());
        if let Some(id) = machine.provider_id.as_ref().filter(|_| without_provider) {
            spec.insert("providerID".into(), json!(id));
        }
        if machine.cordoned && present.unschedulable != Some(true) {
            spec.insert("unschedulable".into(), json!(true));
        }
        if labels.is_empty() && annotations.is_empty() && spec.is_empty() {
            return None;
        }
        let version = &meta.resource_version;
        Some(json!({
            "metadata": {"resourceVersion": version, "labels": labels, "annotations": annotations},
            "spec": spec,
        }))
    }

    /// The merge patch that cordons the Node for the NodePower with this UID, also where somebody took that back.
    pub fn cordon(&self, uid: &str) -> Value {
        let mut annotations = json!({ANNOTATION_GOING_OFF: uid});
        if self.spec().unschedulable != Some(true) {
            annotations[ANNOTATION_WAS_CORDONED] = Value::Null;
        } else if self.annotation(ANNOTATION_GOING_OFF).is_none() {
            annotations[ANNOTATION_WAS_CORDONED] = json!("true");
        }
        json!({
            "metadata": {"resourceVersion": self.0.metadata.resource_version, "annotations": annotations},
            "spec": {"unschedulable": true},
        })
    }

    /// The merge patch that takes [`LiveNode::cordon`] back. A cordon of before stays.
    pub fn uncordon(&self) -> Value {
        let stays = self.annotation(ANNOTATION_WAS_CORDONED).map(|_| true);
        json!({
            "metadata": {"resourceVersion": self.0.metadata.resource_version,
                "annotations": {ANNOTATION_GOING_OFF: null, ANNOTATION_WAS_CORDONED: null}},
            "spec": {"unschedulable": stays},
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(value: Value) -> LiveNode {
        LiveNode(serde_json::from_value(value).unwrap())
    }

    fn before() -> LiveNode {
        let info = NodeStatus::default().node_info.unwrap_or_default();
        let info = json!(k8s_openapi::api::core::v1::NodeSystemInfo { boot_id: "a".into(), ..info });
        node(json!({
            "metadata": {"name": "n", "uid": "1", "resourceVersion": "7",
                "labels": {"team": "vision", "nvidia.com/gpu.product": "A100", "kubernetes.io/hostname": "n",
                    "nvidia.com/mig.config": "all-1g.10gb", "nvidia.com/mig.config.state": "success",
                    "nvidia.com/gpu.deploy.dcgm": "false", "nvidia.com/gpu.deploy.driver": "true",
                    "nvidia.com/gpu.deploy.client": "paused-for-mig-change"},
                "annotations": {"cluster.x-k8s.io/machine": "m", "projectcalico.org/IPv4Address": "10.0.0.1",
                    "andreas.dev/keep-annotations": "rack", "rack": "r7"}},
            "spec": {"providerID": "metal://7", "taints": [
                {"key": "vip", "value": "yes", "effect": "NoSchedule"},
                {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]},
            "status": {"allocatable": {"nvidia.com/gpu": "8", "cpu": "64"},
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": null}],
                "nodeInfo": info},
        }))
    }

    fn annotations_of(node: &mut LiveNode) -> &mut BTreeMap<String, String> {
        node.0.metadata.annotations.get_or_insert_default()
    }

    #[test]
    fn a_node_that_registers_anew_gets_back_what_people_gave_it() {
        let machine = before().remembered(BTreeMap::new()).unwrap();
        assert_eq!((machine.gpus, machine.taints.len()), (8, 1));
        let fresh = node(json!({"metadata": {"name": "n", "uid": "2", "resourceVersion": "9"},
            "spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]}}));
        assert!(!fresh.seen(Some(&machine), BTreeMap::new()).restored);
        let patch = fresh.missing(&machine).unwrap();
        assert_eq!(
            patch,
            json!({
                "metadata": {"resourceVersion": "9",
                    "labels": {"team": "vision", "nvidia.com/mig.config": "all-1g.10gb", "nvidia.com/gpu.deploy.dcgm": "false"},
                    "annotations": {"cluster.x-k8s.io/machine": "m", "andreas.dev/keep-annotations": "rack", "rack": "r7"}},
                "spec": {"providerID": "metal://7", "taints": [
                    {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
                    {"key": "vip", "value": "yes", "effect": "NoSchedule"}]},
            })
        );
        assert!(
            before().seen(Some(&machine), BTreeMap::new()).restored,
            "nothing is missing on the Node itself"
        );
    }

    #[test]
    fn a_node_that_health_checks_would_replace_never_goes_off_unless_they_are_paused() {
        for owner in MACHINE_ANNOTATIONS {
            let mut owned = before();
            *annotations_of(&mut owned) = BTreeMap::from([(owner.to_owned(), "m".to_owned())]);
            let never_off = |node: &LiveNode| node.seen(None, BTreeMap::new()).never_off;
            assert_eq!(never_off(&owned), Some("MachineOwned"));
            annotations_of(&mut owned).insert(ANNOTATION_CHECKS_PAUSED.into(), "true".into());
            assert_eq!(never_off(&owned), None);
            let kept = owned.remembered(BTreeMap::new()).unwrap().annotations;
            assert!(kept.contains_key(ANNOTATION_CHECKS_PAUSED), "it may go off again");
        }
    }

    #[test]
    fn a_cordon_of_before_outlives_ours() {
        let mut cordoned = before();
        cordoned.0.spec.as_mut().unwrap().unschedulable = Some(true);
        assert_eq!(cordoned.cordon("u")["metadata"]["annotations"][ANNOTATION_WAS_CORDONED], "true");
        let fresh = before().cordon("u");
        assert_eq!(fresh["metadata"]["annotations"][ANNOTATION_WAS_CORDONED], Value::Null);
        annotations_of(&mut cordoned).insert(ANNOTATION_WAS_CORDONED.into(), "true".into());
        assert_eq!(cordoned.uncordon()["spec"]["unschedulable"], true);
        // Somebody takes the cordon back meanwhile: ours is made anew, and theirs is gone.
        annotations_of(&mut cordoned).insert(ANNOTATION_GOING_OFF.into(), "u".into());
        assert_eq!(cordoned.cordon("u")["metadata"]["annotations"].get(ANNOTATION_WAS_CORDONED), None);
        cordoned.0.spec.as_mut().unwrap().unschedulable = None;
        assert_eq!(cordoned.cordon("u")["metadata"]["annotations"][ANNOTATION_WAS_CORDONED], Value::Null);
        assert_eq!(before().uncordon()["spec"]["unschedulable"], Value::Null);
    }

    #[test]
    fn what_is_too_large_to_remember_keeps_the_machine_on() {
        let mut large = before();
        let labels = large.0.metadata.labels.get_or_insert_default();
        (0..200).for_each(|i| drop(labels.insert(format!("l{i}"), "x".into())));
        assert!(large.remembered(BTreeMap::new()).unwrap_err().starts_with("TooLarge"));
    }
}
