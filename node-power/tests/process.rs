//! The program on a real API server, with a BMC of this process and what stands for a kubelet: On, Off and On again.
#![allow(clippy::unwrap_used, reason = "a test may panic where it fails")]

use std::path::PathBuf;
use std::time::Duration;

use andreas_bmc_sim::Bmc;
use andreas_testbed::wait::{stays, until};
use andreas_testbed::{PortLease, Process, ProcessSpec, Testbed};
use serde_json::{Value, json};

const NODE: &str = "gpu-1";
const TIMEOUT: Duration = Duration::from_secs(120);

struct World {
    testbed: Testbed,
    bmc: Bmc,
    port: PortLease,
    program: Option<Process>,
}

impl World {
    async fn start() -> Self {
        let testbed =
            Testbed::builder().without_scheduler().without_controller_manager().start().await.unwrap();
        let bmc = Bmc::start("secret").await;
        let world = Self { testbed, bmc, port: PortLease::take().unwrap(), program: None };
        for namespace in ["andreas-system", "team"] {
            world.kubectl(&["create", "namespace", namespace]).await;
        }
        world.install_chart().await;
        world.kubectl(&["create", "serviceaccount", "default", "-n", "team"]).await;
        let secret = ["--from-literal=username=root", "--from-literal=password=secret"];
        world
            .kubectl(&[&["create", "secret", "generic", "bmc", "-n", "andreas-power"], &secret[..]].concat())
            .await;
        world
    }

    /// The definitions, rights and policies of the chart; no controller starts its pods.
    async fn install_chart(&self) {
        let chart = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../charts/andreas");
        let mut args = vec!["template", "andreas", chart.to_str().unwrap(), "-n", "andreas-system"];
        args.extend(["--set", "nodePower.enabled=true"]);
        for template in [
            "templates/crds.yaml",
            "templates/node-power/deployment.yaml",
            "templates/rbac/node-power.yaml",
            "templates/policies/node-power.yaml",
        ] {
            args.extend(["--show-only", template]);
        }
        let manifest = self.testbed.helm(args).await.unwrap().checked().unwrap().stdout;
        self.testbed.kubectl_apply(&manifest).await.unwrap().checked().unwrap();
        self.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"]).await;
        until("NodePowers are served", TIMEOUT, async || {
            Ok(self.testbed.kubectl(["get", "nodepowers"]).await?.success())
        })
        .await
        .unwrap();
    }

    /// What stands for the machine's kubelet: it registers the Node at each boot, and renews its Lease while there is power.
    fn boot_with_power(&self) -> tokio::task::JoinHandle<()> {
        let (client, mut power) = (self.testbed.client(), self.bmc.power());
        tokio::spawn(async move {
            let nodes = kube::Api::<k8s_openapi::api::core::v1::Node>::all(client.clone());
            let leases =
                kube::Api::<k8s_openapi::api::coordination::v1::Lease>::namespaced(client, "kube-node-lease");
            let server_side = kube::api::PatchParams::apply("kubelet").force();
            for boot in 1_u64.. {
                power.wait_for(|on| *on).await.unwrap();
                let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}}});
                let _ = nodes.create(&Default::default(), &serde_json::from_value(node).unwrap()).await;
                for second in 0.. {
                    if !*power.borrow() {
                        break;
                    }
                    // Ready some seconds after it registered.
                    let ready = if second >= 6 { "True" } else { "False" };
                    let status = json!({"status": {"nodeInfo": node_info(boot), "allocatable": {"nvidia.com/gpu": "8", "cpu": "64"},
                        "conditions": [{"type": "Ready", "status": ready, "reason": "Test", "message": "", "lastTransitionTime": null}]}});
                    let _ =
                        nodes.patch_status(NODE, &Default::default(), &kube::api::Patch::Merge(status)).await;
                    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": NODE},
                        "spec": {"holderIdentity": NODE, "renewTime": format!("2026-01-{:02}T00:{:02}:{:02}.000000Z", boot, second / 60, second % 60)}});
                    let _ = leases.patch(NODE, &server_side, &kube::api::Patch::Apply(lease)).await;
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        })
    }

    async fn run_program(&mut self) {
        let admin = format!("127.0.0.1:{}", self.port.port());
        let spec = ProcessSpec::new("node-power", env!("CARGO_BIN_EXE_andreas-node-power"))
            .args(["--log-format", "text", "--identity", "test", "--min-on", "0", "--admin-listen", &admin])
            .arg("--kubeconfig")
            .arg(self.account().await);
        let program = self.testbed.spawn(spec).unwrap();
        program.wait_for_http(&admin, "/readyz", TIMEOUT).await.unwrap();
        self.program = Some(program);
    }

    /// With the rights that the chart gives to the program.
    async fn account(&self) -> PathBuf {
        self.testbed.kubeconfig_for_service_account("andreas-power", "andreas-node-power").await.unwrap()
    }

    /// What the API server answers to the program's account.
    async fn refusal(&self, args: &[&str]) -> String {
        let output = self.testbed.kubectl_as(&self.account().await, args).await.unwrap();
        if output.success() { "accepted".into() } else { output.stderr }
    }

    async fn kubectl(&self, args: &[&str]) -> String {
        self.testbed.kubectl(args).await.unwrap().checked().unwrap().stdout
    }

    async fn apply(&self, object: &Value) {
        self.testbed.kubectl_apply(&object.to_string()).await.unwrap().checked().unwrap();
    }

    async fn wish(&self, patch: &Value) {
        let patch = json!({ "spec": patch }).to_string();
        self.kubectl(&["patch", "nodepower", NODE, "--type=merge", "-p", &patch]).await;
    }

    async fn get(&self, kind: &str) -> Option<Value> {
        let output = self.testbed.kubectl(["get", kind, NODE, "-o", "json"]).await.unwrap();
        output.success().then(|| serde_json::from_str(&output.stdout).unwrap())
    }

    async fn is_in(&self, state: &str) {
        let what = format!("the machine is {state}");
        let looks = until(&what, TIMEOUT, async || {
            let power = self.get("nodepower").await.unwrap();
            Ok(power["status"]["state"] == state)
        });
        if let Err(error) = looks.await {
            panic!(
                "{error}: {:#}\n{:#}",
                self.get("nodepower").await.unwrap(),
                self.get("node").await.unwrap_or_default()
            );
        }
    }
}

fn node_info(boot: u64) -> Value {
    let mut info = json!({"bootID": format!("boot-{boot}")});
    for field in [
        "architecture",
        "containerRuntimeVersion",
        "kernelVersion",
        "kubeProxyVersion",
        "kubeletVersion",
        "machineID",
        "operatingSystem",
        "osImage",
        "systemUUID",
    ] {
        info[field] = json!("");
    }
    info
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_goes_off_when_it_is_empty_and_comes_back_as_it_was() {
    // given a machine whose node carries what people gave it, and a pod
    let mut world = World::start().await;
    let kubelet = world.boot_with_power();
    until("the node registers", TIMEOUT, async || Ok(world.get("node").await.is_some())).await.unwrap();
    world.kubectl(&["label", "node", NODE, "team=vision"]).await;
    world.kubectl(&["taint", "node", NODE, "vip=yes:NoSchedule"]).await;
    world.kubectl(&["patch", "node", NODE, "-p", r#"{"spec":{"providerID":"metal://7"}}"#]).await;
    let pod = |name: &str, more: Value| {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "team"},
            "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "example.com/x"}]}});
        pod["metadata"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        pod
    };
    world.apply(&pod("other", json!({}))).await;
    let owner =
        json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": true});
    world.apply(&pod("daemon", json!({"ownerReferences": [owner]}))).await;
    let (endpoint, fingerprint) = (world.bmc.endpoint(), world.bmc.fingerprint().to_owned());
    let spec = json!({"redfish": {"endpoint": endpoint, "credentials": "bmc", "fingerprint": fingerprint}, "wanted": "Off"});
    world
        .apply(&json!({"apiVersion": "andreas.dev/v1alpha1", "kind": "NodePower", "metadata": {"name": NODE}, "spec": spec}))
        .await;

    // the account may delete no Node that is not proven off, and takes nothing away
    for (what, args, said) in [
        ("an unmarked Node", &["delete", "node", NODE, "--dry-run=server"][..], "cordoned"),
        ("a label", &["label", "node", NODE, "team-", "--dry-run=server"], "no label"),
        ("a taint", &["taint", "node", NODE, "vip-", "--dry-run=server"], "no taint"),
        ("a Secret elsewhere", &["get", "secret", "bmc", "-n", "team"], "cannot get"),
        (
            "the wish",
            &["patch", "nodepower", NODE, "--type=merge", "-p", r#"{"spec":{"wanted":"On"}}"#],
            "cannot",
        ),
    ] {
        let what = format!("{what} is refused");
        until(&what, TIMEOUT, async || Ok(world.refusal(args).await.contains(said))).await.unwrap();
    }
    world.kubectl(&["annotate", "node", NODE, "andreas.dev/going-off=forged"]).await;
    assert!(
        world.refusal(&["delete", "node", NODE, "--dry-run=server"]).await.contains("asked to shut down")
    );
    world.kubectl(&["annotate", "node", NODE, "andreas.dev/going-off-"]).await;

    // when it should be off, then the pod keeps it on, and says so
    world.run_program().await;
    until("it says what keeps it on", TIMEOUT, async || {
        Ok(world.get("nodepower").await.unwrap()["status"]["keptOnBy"] == "PodsOfOthers: team/other")
    })
    .await
    .unwrap();
    stays("it stays on", Duration::from_secs(3), async || Ok(world.bmc.is_on())).await.unwrap();

    // when the pod is gone, then it goes off, the Node is deleted after the proof, and the program may die meanwhile
    world.kubectl(&["delete", "pod", "other", "-n", "team", "--force"]).await;
    world.is_in("GoingOff").await;
    until("the machine is off", TIMEOUT, async || Ok(!world.bmc.is_on())).await.unwrap();
    assert_eq!(
        world.get("node").await.unwrap()["spec"]["unschedulable"],
        true,
        "cordoned before it was asked"
    );
    drop(world.program.take());
    world.run_program().await;
    world.is_in("Off").await;
    assert!(world.get("node").await.is_none());
    assert_eq!(world.bmc.resets(), ["GracefulShutdown"], "once, and nothing forced");

    // when it is wanted again, then it starts, and has its label, taint and identity before it is ready
    world.wish(&json!({"wanted": "On"})).await;
    until("the node registers again", TIMEOUT, async || Ok(world.get("node").await.is_some())).await.unwrap();
    until("it is restored before it is ready", TIMEOUT, async || {
        let node = world.get("node").await.unwrap();
        let ready = node["status"]["conditions"].as_array().into_iter().flatten();
        let ready =
            ready.into_iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
        let taints = node["spec"]["taints"].to_string();
        let restored = node["metadata"]["labels"]["team"] == "vision"
            && taints.contains("vip")
            && node["spec"]["providerID"] == "metal://7";
        assert!(restored || !ready, "{node:#}");
        Ok(restored)
    })
    .await
    .unwrap();
    world.is_in("On").await;
    let node = world.get("node").await.unwrap();
    assert!(
        node["spec"]["unschedulable"].is_null()
            && node["metadata"]["annotations"]["andreas.dev/going-off"].is_null()
    );
    let power = world.get("nodepower").await.unwrap();
    until("its power is read anew", TIMEOUT, async || {
        Ok(world.get("nodepower").await.unwrap()["status"]["power"] == "On")
    })
    .await
    .unwrap();
    assert_eq!(power["status"]["boots"].as_array().unwrap().len(), 1);
    assert_eq!(world.bmc.resets(), ["GracefulShutdown", "On"]);
    kubelet.abort();
}
