//! What the test bed's own tests share.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::time::Duration;

use andreas_testbed::{Builder, Testbed, wait};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;

/// Room for a busy machine; nothing here needs more than a few seconds on an idle one.
pub const LIMIT: Duration = Duration::from_secs(60);

pub async fn start(builder: Builder) -> Testbed {
    builder.start().await.unwrap_or_else(|error| panic!("{error}"))
}

pub async fn eventually<F: Future<Output = bool>>(what: &str, mut check: impl FnMut() -> F) {
    wait::until(what, LIMIT, async || Ok(check().await)).await.unwrap();
}

/// A node object that pods can be bound to, with no kubelet behind it.
pub async fn ready_node(client: &kube::Client, name: &str) {
    let nodes: Api<Node> = Api::all(client.clone());
    let node: Node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let status = json!({"status": {
        "capacity": {"cpu": "8", "memory": "32Gi", "pods": "110"},
        "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
    }});
    nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
}

pub fn pids(testbed: &Testbed) -> Vec<u32> {
    testbed.status().iter().filter_map(|component| component.pid).collect()
}

/// The kernel's letter for the state of a process that exists.
pub fn process_state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
}

/// Whether a process exists and is not merely waiting to be reaped.
pub fn is_alive(pid: u32) -> bool {
    process_state(pid).is_some_and(|state| state != 'Z')
}
