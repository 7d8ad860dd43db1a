//! The stock kube-scheduler with the extender beside it: what the two make of each other's answers.
#![allow(clippy::unwrap_used, reason = "a test may panic where it fails")]

mod support;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use andreas_testbed::wait::{stays, until};
use andreas_testbed::{PortLease, Process, ProcessSpec, SchedulerConfig, Testbed};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use serde_json::{Value, json};
use support::trainingjob;

const TIMEOUT: Duration = Duration::from_secs(20);

struct World {
    testbed: Testbed,
    extender: Process,
    scheduler: Process,
    admin: String,
    _ports: [Arc<PortLease>; 2],
}

impl World {
    async fn start() -> Self {
        let testbed =
            Testbed::builder().without_scheduler().without_controller_manager().start().await.unwrap();
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../charts/andreas/files/crds");
        kubectl(&testbed, &["apply", "--server-side", "-f", &folder.display().to_string()]).await;
        kubectl(&testbed, &["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"]).await;
        kubectl(&testbed, &["create", "namespace", "team"]).await;
        kubectl(&testbed, &["create", "serviceaccount", "default", "-n", "team"]).await;
        for name in ["gpu-1", "gpu-2", "gpu-3"] {
            let capacity = json!({"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"});
            apply(&testbed, &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})).await;
            let status = json!({"status": {"capacity": capacity, "allocatable": capacity,
                "conditions": [{"type": "Ready", "status": "True"}]}});
            patch_status(&testbed, &["node", name], &status).await;
            // Put there by admission until a controller finds the node ready.
            kubectl(&testbed, &["taint", "node", name, "node.kubernetes.io/not-ready-"]).await;
        }

        let ports = [Arc::new(PortLease::take().unwrap()), Arc::new(PortLease::take().unwrap())];
        let [listen, admin] = [&ports[0], &ports[1]].map(|port| format!("127.0.0.1:{}", port.port()));
        let spec = ProcessSpec::new("extender", env!("CARGO_BIN_EXE_andreas-extender"))
            .args(["--log-format", "text", "--listen", &listen, "--admin-listen", &admin])
            .arg("--kubeconfig")
            .arg(testbed.kubeconfig());
        let extender = testbed.spawn(spec).unwrap();
        extender.wait_for_http(&admin, "/readyz", TIMEOUT).await.unwrap();

        let common =
            json!({"urlPrefix": format!("http://{listen}"), "nodeCacheCapable": true, "ignorable": false});
        let with = |more: Value| {
            let mut entry = common.clone();
            entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            entry
        };
        let config = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "percentageOfNodesToScore": 100,
            "profiles": [{"schedulerName": "andreas", "plugins": {"postFilter": {"disabled": [{"name": "DefaultPreemption"}]}}}],
            "extenders": [
                with(json!({"managedResources": [{"name": "nvidia.com/gpu", "ignoredByScheduler": false}], "filterVerb": "filter", "prioritizeVerb": "prioritize", "weight": 1, "httpTimeout": "500ms"})),
                with(json!({"bindVerb": "bind", "httpTimeout": "5s"})),
            ],
        });
        let scheduler = testbed
            .spawn_scheduler("andreas-scheduler", &SchedulerConfig::Inline(config), &testbed.kubeconfig())
            .await
            .unwrap();
        Self { testbed, extender, scheduler, admin, _ports: ports }
    }

    /// Makes the TrainingJob `run` if need be, gives it an allocation and returns its UID.
    async fn allocate(&self, generation: i64, nodes: &[&str]) -> String {
        let job = json!({
            "apiVersion": "andreas.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "run", "namespace": "team"},
            "spec": {"gpus": {"min": 1, "max": 4}, "epochs": 3,
                "template": {"spec": {"containers": [{"name": "main", "image": "example.com/trainer"}]}}},
        });
        apply(&self.testbed, &job).await;
        let mut status = trainingjob(generation, 1, nodes)["status"].clone();
        status["generation"] = json!(generation);
        patch_status(&self.testbed, &["trainingjob", "run", "-n", "team"], &json!({"status": status})).await;
        kubectl(&self.testbed, &["get", "trainingjob", "run", "-n", "team", "-o", "jsonpath={.metadata.uid}"])
            .await
    }

    /// A worker pod as the operator makes it: labelled, owned, pinned.
    async fn make_member(&self, uid: &str, index: usize, generation: i64, pinned_to: &str) -> String {
        let name = format!("run-1-{index}");
        let mut pod = gpu_pod(&name);
        pod["metadata"]["labels"] = json!({
            "andreas.dev/job": "run", "andreas.dev/job-uid": uid, "andreas.dev/attempt": "1",
            "andreas.dev/index": index.to_string(), "andreas.dev/allocation": generation.to_string(),
        });
        pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "andreas.dev/v1alpha1", "kind": "TrainingJob",
            "name": "run", "uid": uid, "controller": true}]);
        pod["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [pinned_to]}]}]}}});
        apply(&self.testbed, &pod).await;
        name
    }

    async fn pod(&self, name: &str) -> Pod {
        Api::<Pod>::namespaced(self.testbed.client(), "team").get(name).await.unwrap()
    }

    /// What there is to be seen of a pod, once there is.
    async fn seen<T>(&self, what: &str, name: &str, see: impl Fn(Pod) -> Option<T>) -> T {
        let mut seen = None;
        let look = async || {
            seen = see(self.pod(name).await);
            Ok(seen.is_some())
        };
        if let Err(error) = until(what, TIMEOUT, look).await {
            panic!("{name}: {error}\n{}", self.logs());
        }
        seen.unwrap()
    }

    /// Node and allocation annotation of a pod, once it is bound.
    async fn bound(&self, name: &str) -> (String, Option<String>) {
        let see = |pod: Pod| {
            let allocation = pod.metadata.annotations.unwrap_or_default().remove("andreas.dev/allocation");
            Some((pod.spec?.node_name?, allocation))
        };
        self.seen("it is bound", name, see).await
    }

    /// What the scheduler says of a pod that it did not place.
    async fn refusal(&self, name: &str) -> String {
        let see = |pod: Pod| {
            let mut conditions = pod.status?.conditions?.into_iter();
            conditions.find(|condition| condition.status == "False")?.message
        };
        self.seen("it has a verdict", name, see).await
    }

    fn logs(&self) -> String {
        format!("{}\n{}", self.extender.log_tail(20), self.scheduler.log_tail(20))
    }

    async fn metric(&self, series: &str) -> u64 {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(&self.admin).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.map_or(0, |value| value.trim().parse().unwrap())
    }
}

async fn kubectl(testbed: &Testbed, args: &[&str]) -> String {
    testbed.kubectl(args).await.unwrap().checked().unwrap().stdout
}

async fn apply(testbed: &Testbed, object: &Value) {
    testbed.kubectl_apply(&object.to_string()).await.unwrap().checked().unwrap();
}

async fn patch_status(testbed: &Testbed, what: &[&str], patch: &Value) {
    let patch = patch.to_string();
    let args = [&["patch"], what, &["--subresource=status", "--type=merge", "-p", &patch]].concat();
    kubectl(testbed, &args).await;
}

fn gpu_pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "team"},
        "spec": {"schedulerName": "andreas", "containers": [{"name": "main", "image": "example.com/trainer",
            "resources": {"limits": {"nvidia.com/gpu": "2"}}}]},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stock_scheduler_places_what_the_allocation_says_and_nothing_else() {
    let world = World::start().await;
    let uid = world.allocate(7, &["gpu-2", "gpu-3", "gpu-1"]).await;

    // a worker pod is bound to its node, with the generation in the same write
    let member = world.make_member(&uid, 0, 7, "gpu-2").await;
    assert_eq!(world.bound(&member).await, ("gpu-2".into(), Some("7".into())));

    // one of an older decision, and one pinned elsewhere than its allocation says, are not, and the scheduler says why
    let stale = world.make_member(&uid, 1, 6, "gpu-3").await;
    let message = world.refusal(&stale).await;
    assert!(message.contains("made for allocation 6, the current one is 7"), "{message}");
    let astray = world.make_member(&uid, 2, 7, "gpu-2").await;
    let message = world.refusal(&astray).await;
    assert!(message.contains("allocation 7 places it on gpu-1"), "{message}");

    // somebody else's GPU pod is placed and bound plainly
    apply(&world.testbed, &gpu_pod("notebook")).await;
    assert_eq!(world.bound("notebook").await.1, None);

    // while the extender is away nothing of ours is bound; when it is back, what waited is
    world.extender.kill();
    let uid = world.allocate(8, &["gpu-2", "gpu-3", "gpu-1", "gpu-3"]).await;
    let late = world.make_member(&uid, 3, 8, "gpu-3").await;
    let unbound = async || Ok(world.pod(&late).await.spec.unwrap().node_name.is_none());
    stays("not bound", Duration::from_secs(1), unbound).await.unwrap();
    world.extender.restart().await.unwrap();
    assert_eq!(world.bound(&late).await, ("gpu-3".into(), Some("8".into())));

    // the refused ones do not make the scheduler spin
    let refused = world.metric(r#"andreas_extender_requests_total{verb="filter",result="refused"}"#).await;
    assert!(refused < 20, "asked {refused} times for two pods that cannot be placed");
    world.testbed.stop().await;
}
