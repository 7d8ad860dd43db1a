//! A Node: what is read of it, what is remembered while its machine is off, and how that is put back. Pure.
//!
//! A new registration loses labels and taints that people set by hand; a pod without their toleration must not meet the node
//! in between. What is restored is therefore written before the node is ready. What its own programs write again is not: a
//! GPU label of another day would be a lie.

use std::collections::BTreeMap;

use andreas_api::names::{ANNOTATION_GOING_OFF, ANNOTATION_KEEP, ANNOTATION_WAS_CORDONED, GPU_RESOURCE};
use andreas_api::node_power::{RememberedMachine, RememberedTaint};
use andreas_api::quantity;
use andreas_api::slim::{SlimNodeInfo, SlimPodCondition, metadata};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
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
/// Annotations by which other controllers know the machine.
const KEPT_ANNOTATIONS: [&str; 3] = ["cluster.x-k8s.io/", "machine.openshift.io/", "metal3.io/"];

/// A Node, with the fields that count here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LiveNode {
    /// Name, UID, version, labels, annotations.
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// Cordon, taints, identity at the provider.
    #[serde(default)]
    pub spec: LiveNodeSpec,
    /// Health and resources.
    #[serde(default)]
    pub status: LiveNodeStatus,
}

/// `spec` of a Node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LiveNodeSpec {
    /// Cordoned.
    pub unschedulable: bool,
    /// Identity at the provider.
    #[serde(rename = "providerID")]
    pub provider_id: Option<String>,
    /// Taints, as they are written.
    pub taints: Vec<Map<String, Value>>,
}

/// `status` of a Node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LiveNodeStatus {
    /// What pods may ask for.
    pub allocatable: BTreeMap<String, Quantity>,
    /// `Ready` and others.
    pub conditions: Vec<SlimPodCondition>,
    /// Identity of the boot.
    pub node_info: SlimNodeInfo,
}

fn starts_with_any(text: &str, starts: &[&str]) -> bool {
    starts.iter().any(|start| text.starts_with(start))
}

impl LiveNode {
    fn annotation(&self, name: &str) -> Option<&String> {
        self.metadata.annotations.as_ref()?.get(name)
    }

    /// What the state machine needs; `remembered` is what a restored Node must have.
    pub fn seen(&self, remembered: Option<&RememberedMachine>) -> SeenNode {
        let labels = self.metadata.labels.clone().unwrap_or_default();
        let control_plane = ["control-plane", "master"]
            .iter()
            .any(|role| labels.contains_key(&format!("node-role.kubernetes.io/{role}")));
        let ready = |condition: &SlimPodCondition| condition.type_ == "Ready" && condition.status == "True";
        SeenNode {
            uid: self.metadata.uid.clone().unwrap_or_default(),
            version: self.metadata.resource_version.clone().unwrap_or_default(),
            ready: self.status.conditions.iter().any(ready),
            cordoned: self.spec.unschedulable,
            going_off: self.annotation(ANNOTATION_GOING_OFF).cloned(),
            control_plane,
            boot_id: self.status.node_info.boot_id.clone(),
            gpus: self.gpus(),
            restored: remembered.is_none_or(|machine| self.missing(machine).is_none()),
            machine: self.remembered(),
        }
    }

    fn gpus(&self) -> i32 {
        let gpus = self.status.allocatable.get(GPU_RESOURCE).map_or(0, quantity::units);
        i32::try_from(gpus).unwrap_or(i32::MAX).min(64)
    }

    fn remembered(&self) -> Result<RememberedMachine, String> {
        let meta = &self.metadata;
        let named = self.annotation(ANNOTATION_KEEP).cloned().unwrap_or_default();
        let named: Vec<&str> = named.split(',').map(str::trim).collect();
        let mut annotations = meta.annotations.clone().unwrap_or_default();
        annotations.retain(|key, _| {
            key == ANNOTATION_KEEP
                || starts_with_any(key, &KEPT_ANNOTATIONS)
                || named.contains(&key.as_str())
                    && key != ANNOTATION_GOING_OFF
                    && key != ANNOTATION_WAS_CORDONED
        });
        let text = |taint: &Map<String, Value>, field: &str| {
            taint.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let taints = self.spec.taints.iter().map(|taint| RememberedTaint {
            key: text(taint, "key"),
            value: text(taint, "value"),
            effect: text(taint, "effect"),
        });
        let machine = RememberedMachine {
            node_uid: meta.uid.clone().unwrap_or_default(),
            boot_id: self.status.node_info.boot_id.clone(),
            provider_id: self.spec.provider_id.clone().filter(|id| !id.is_empty()),
            cordoned: self.annotation(ANNOTATION_WAS_CORDONED).is_some(),
            labels: meta.labels.clone().unwrap_or_default(),
            annotations,
            taints: taints.filter(|taint| !starts_with_any(&taint.key, &FOREIGN_TAINTS)).collect(),
            allocatable: self
                .status
                .allocatable
                .iter()
                .map(|(key, value)| (key.clone(), value.0.clone()))
                .collect(),
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
            return Err(
                "TooLarge: its labels, annotations, taints and resources are too many to be remembered"
                    .into(),
            );
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
        let mut labels = of(&self.metadata.labels, &machine.labels);
        labels.retain(|key, _| !starts_with_any(key, &FOREIGN_LABELS));
        let annotations = of(&self.metadata.annotations, &machine.annotations);
        let has = |wanted: &RememberedTaint| {
            let same = |taint: &Map<String, Value>| {
                taint.get("key").and_then(Value::as_str) == Some(&wanted.key)
                    && taint.get("effect").and_then(Value::as_str) == Some(&wanted.effect)
            };
            self.spec.taints.iter().any(same)
        };
        let taints: Vec<_> = machine.taints.iter().filter(|taint| !has(taint)).collect();
        let mut spec = Map::new();
        if !taints.is_empty() {
            let all = self
                .spec
                .taints
                .iter()
                .map(|taint| json!(taint))
                .chain(taints.iter().map(|taint| json!(taint)));
            spec.insert("taints".into(), all.collect());
        }
        let without_provider = self.spec.provider_id.as_ref().is_none_or(String::is_empty);
        if let Some(id) = machine.provider_id.as_ref().filter(|_| without_provider) {
            spec.insert("providerID".into(), json!(id));
        }
        if machine.cordoned && !self.spec.unschedulable {
            spec.insert("unschedulable".into(), json!(true));
        }
        if labels.is_empty() && annotations.is_empty() && spec.is_empty() {
            return None;
        }
        let version = &self.metadata.resource_version;
        Some(json!({
            "metadata": {"resourceVersion": version, "labels": labels, "annotations": annotations},
            "spec": spec,
        }))
    }

    /// The merge patch that cordons the Node for the NodePower with this UID.
    pub fn cordon(&self, uid: &str) -> Value {
        let mut annotations = json!({ANNOTATION_GOING_OFF: uid});
        if self.spec.unschedulable && self.annotation(ANNOTATION_GOING_OFF).is_none() {
            annotations[ANNOTATION_WAS_CORDONED] = json!("true");
        }
        json!({
            "metadata": {"resourceVersion": self.metadata.resource_version, "annotations": annotations},
            "spec": {"unschedulable": true},
        })
    }

    /// The merge patch that takes [`LiveNode::cordon`] back. A cordon of before stays.
    pub fn uncordon(&self) -> Value {
        let stays = self.annotation(ANNOTATION_WAS_CORDONED).map(|_| true);
        json!({
            "metadata": {"resourceVersion": self.metadata.resource_version,
                "annotations": {ANNOTATION_GOING_OFF: null, ANNOTATION_WAS_CORDONED: null}},
            "spec": {"unschedulable": stays},
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(value: Value) -> LiveNode {
        serde_json::from_value(value).unwrap()
    }

    fn before() -> LiveNode {
        node(json!({
            "metadata": {"name": "n", "uid": "1", "resourceVersion": "7",
                "labels": {"team": "vision", "nvidia.com/gpu.product": "A100", "kubernetes.io/hostname": "n"},
                "annotations": {"cluster.x-k8s.io/machine": "m", "projectcalico.org/IPv4Address": "10.0.0.1",
                    "andreas.dev/keep-annotations": "rack", "rack": "r7"}},
            "spec": {"providerID": "metal://7", "taints": [
                {"key": "vip", "value": "yes", "effect": "NoSchedule"},
                {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]},
            "status": {"allocatable": {"nvidia.com/gpu": "8", "cpu": "64"},
                "conditions": [{"type": "Ready", "status": "True", "reason": "", "message": ""}],
                "nodeInfo": {"bootID": "a"}},
        }))
    }

    #[test]
    fn a_node_that_registers_anew_gets_back_what_people_gave_it() {
        let machine = before().remembered().unwrap();
        assert_eq!((machine.gpus, machine.taints.len()), (8, 1));
        let fresh = node(json!({"metadata": {"name": "n", "uid": "2", "resourceVersion": "9"},
            "spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]}}));
        assert!(!fresh.seen(Some(&machine)).restored);
        let patch = fresh.missing(&machine).unwrap();
        assert_eq!(
            patch,
            json!({
                "metadata": {"resourceVersion": "9", "labels": {"team": "vision"},
                    "annotations": {"cluster.x-k8s.io/machine": "m", "andreas.dev/keep-annotations": "rack", "rack": "r7"}},
                "spec": {"providerID": "metal://7", "taints": [
                    {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
                    {"key": "vip", "value": "yes", "effect": "NoSchedule"}]},
            })
        );
        assert!(before().seen(Some(&machine)).restored, "nothing is missing on the Node itself");
    }

    #[test]
    fn a_cordon_of_before_outlives_ours() {
        let mut cordoned = before();
        cordoned.spec.unschedulable = true;
        assert_eq!(cordoned.cordon("u")["metadata"]["annotations"][ANNOTATION_WAS_CORDONED], "true");
        assert_eq!(before().cordon("u")["metadata"]["annotations"].get(ANNOTATION_WAS_CORDONED), None);
        let annotations = cordoned.metadata.annotations.as_mut().unwrap();
        annotations.insert(ANNOTATION_WAS_CORDONED.into(), "true".into());
        assert_eq!(cordoned.uncordon()["spec"]["unschedulable"], true);
        assert_eq!(before().uncordon()["spec"]["unschedulable"], Value::Null);
    }

    #[test]
    fn what_is_too_large_to_remember_keeps_the_machine_on() {
        let mut large = before();
        let labels = large.metadata.labels.get_or_insert_default();
        (0..200).for_each(|i| drop(labels.insert(format!("l{i}"), "x".into())));
        assert!(large.remembered().unwrap_err().starts_with("TooLarge"));
    }
}
