//! Nodes and container states as kubelets would report them.

use andreas_api::slim::{SlimContainerState, SlimContainerStatus, SlimPod, SlimPodCondition, SlimTerminated};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use crate::NodeFact;

pub fn node() -> NodeFact {
    NodeFact { boot_id: "boot-1".into(), free_gpus: 8, ..NodeFact::default() }
}

pub fn container(pod: &mut SlimPod) -> &mut SlimContainerState {
    if pod.status.container_statuses.is_empty() {
        let name = pod.spec.containers[0].name.clone();
        pod.status.container_statuses.push(SlimContainerStatus { name, ..SlimContainerStatus::default() });
    }
    &mut pod.status.container_statuses[0].state
}

pub fn end(pod: &mut SlimPod, code: i32, reason: &str, message: &str, now: Timestamp) {
    let state = container(pod);
    let started_at = state.running.as_ref().and_then(|r| r.started_at.clone()).or(Some(Time(now)));
    *state = SlimContainerState {
        terminated: Some(SlimTerminated {
            exit_code: code,
            signal: None,
            reason: reason.into(),
            message: message.into(),
            started_at,
            finished_at: Some(Time(now)),
        }),
        ..SlimContainerState::default()
    };
    pod.status.phase = if code == 0 { "Succeeded" } else { "Failed" }.into();
}

pub fn condition(pod: &mut SlimPod, kind: &str, status: &str, message: &str, time: Option<Time>) {
    pod.status.conditions.retain(|c| c.type_ != kind);
    pod.status.conditions.push(SlimPodCondition {
        type_: kind.into(),
        status: status.into(),
        reason: String::new(),
        message: message.into(),
        last_transition_time: time,
    });
}

/// RFC 7386, with null for removal.
pub fn json_patch_merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in fields {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            json_patch_merge(&mut target[key.as_str()], value);
        }
    }
}
