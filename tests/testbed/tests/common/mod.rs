//! What the test bed's own tests share.
#![allow(dead_code, unused_imports, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod waiting;

use andreas_testbed::{Builder, Testbed};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
pub use waiting::{LIMIT, eventually, is_alive, process_state};

pub async fn start(builder: Builder) -> Testbed {
    builder.start().await.unwrap_or_else(|error| panic!("{error}"))
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
