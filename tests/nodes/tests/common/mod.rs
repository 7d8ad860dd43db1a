//! A test bed with pretend kubelets, and short ways to look at it.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::PathBuf;
use std::time::Duration;

use andreas_test_nodes::NodesClient;
use andreas_testbed::{Kubelets, Testbed, wait};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{WatchEvent, WatchParams};
use serde_json::{Value, json};

/// Room for a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

pub struct Bed {
    testbed: Testbed,
    pub nodes: NodesClient,
    _config: tempfile::TempDir,
}

/// A pod that never restarts, in `default`.
pub fn pod(name: &str, spec: Value) -> Value {
    let mut spec = spec;
    spec["restartPolicy"] = json!("Never");
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

/// A part of an object's status, null where it is not.
pub fn status(object: &Value, pointer: &str) -> Value {
    object["status"].pointer(pointer).cloned().unwrap_or(Value::Null)
}

impl Bed {
    /// Starts control plane and kubelets; `config` is YAML. A node is silent after four seconds, so it must be heard every second.
    pub async fn start(config: &str) -> Self {
        let trainer = andreas_testbed::workspace_binary("andreas-trainer").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nodes.yaml");
        let images = format!("images: [{{image: andreas.dev/trainer, program: {}}}]", trainer.display());
        std::fs::write(&file, format!("{config}\n{images}\nleaseRenewSeconds: 1\n")).unwrap();
        let program = PathBuf::from(env!("CARGO_BIN_EXE_pretend-kubelets"));
        let kubelets = Kubelets { program, args: vec!["--config".into(), file.into()] };
        let grace = Duration::from_secs(4);
        let builder = Testbed::builder().name("nodes").node_monitor_grace_period(grace).kubelets(kubelets);
        let testbed = builder.start().await.unwrap_or_else(|error| panic!("{error:?}"));
        let nodes = NodesClient::new(testbed.kubelets_socket());
        Self { testbed, nodes, _config: folder }
    }

    pub async fn stop(self) {
        self.testbed.stop().await;
    }

    pub fn data(&self, path: &str) -> PathBuf {
        self.testbed.data_dir().join(path)
    }

    pub fn testbed(&self) -> &Testbed {
        &self.testbed
    }

    pub async fn apply(&self, object: Value) {
        self.testbed.kubectl_apply(&object.to_string()).await.unwrap().checked().unwrap();
    }

    pub async fn kubectl<const N: usize>(&self, args: [&str; N]) -> String {
        self.testbed.kubectl(args).await.unwrap().checked().unwrap().stdout
    }

    /// An object; null where there is none.
    pub async fn get(&self, kind: &str, name: &str) -> Value {
        let output =
            self.testbed.kubectl(["get", kind, name, "-o", "json", "--ignore-not-found"]).await.unwrap();
        serde_json::from_str(&output.stdout).unwrap_or(Value::Null)
    }

    pub async fn phase(&self, pod: &str) -> String {
        status(&self.get("pod", pod).await, "/phase").as_str().unwrap_or_default().to_owned()
    }

    /// Why the first container waits.
    pub async fn waiting(&self, pod: &str) -> String {
        let reason = status(&self.get("pod", pod).await, "/containerStatuses/0/state/waiting/reason");
        reason.as_str().unwrap_or_default().to_owned()
    }

    pub fn has_condition(&self, object: &Value, kind: &str, reason: &str) -> bool {
        let conditions = status(object, "/conditions");
        conditions.as_array().unwrap().iter().any(|one| one["type"] == kind && one["reason"] == reason)
    }

    /// Status of a node's condition Ready.
    pub async fn ready(&self, node: &str) -> String {
        let conditions = status(&self.get("node", node).await, "/conditions");
        let ready =
            conditions.as_array().and_then(|all| all.iter().find(|one| one["type"] == "Ready").cloned());
        ready.unwrap_or_default()["status"].as_str().unwrap_or_default().to_owned()
    }

    pub fn log(&self, pod: &str, container: &str) -> String {
        std::fs::read_to_string(self.data(&format!("kubelets/logs/default/{pod}/{container}.log")))
            .unwrap_or_default()
    }

    /// The first container's state in the last form of a pod, known when its object is gone.
    pub async fn last_state(&self, pod: &str) -> tokio::task::JoinHandle<Value> {
        let pods: Api<Pod> = Api::default_namespaced(self.testbed.client());
        let params = WatchParams::default().fields(&format!("metadata.name={pod}"));
        let mut events = pods.watch(&params, "0").await.unwrap().boxed();
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                if let WatchEvent::Deleted(pod) = event.unwrap() {
                    return status(&serde_json::to_value(&pod).unwrap(), "/containerStatuses/0/state");
                }
            }
            Value::Null
        })
    }

    pub async fn until(&self, what: &str, check: impl AsyncFn() -> bool) {
        if let Err(error) = wait::until(what, LIMIT, async || Ok(check().await)).await {
            let seen = self.kubectl(["get", "nodes,pods,events", "--all-namespaces", "-o", "wide"]).await;
            panic!("{error}\n{}\n{seen}", self.kubelets_log());
        }
    }

    /// Watches for a while that something goes on to hold.
    pub async fn stays(&self, what: &str, check: impl AsyncFn() -> bool) {
        wait::stays(what, Duration::from_millis(1500), async || Ok(check().await)).await.unwrap();
    }

    fn kubelets_log(&self) -> String {
        std::fs::read_to_string(self.data("logs/kubelets.log")).unwrap_or_default()
    }
}
