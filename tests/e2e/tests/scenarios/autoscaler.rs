//! Nodes that an autoscaler adds: Karpenter on the real control plane, and a cloud whose nodes are pretend kubelets.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use andreas_api::phase::{Phase, Reason};
use andreas_e2e::cluster::{A100, Cluster, Options, short_runs};
use andreas_e2e::controllers;
use andreas_e2e::job::job;
use andreas_e2e::scenario::scenario;
use andreas_testbed::wait::until;
use andreas_testbed::workspace_binary;
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, GetParams, ListParams};
use kube::core::Request;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

const LONG: Duration = Duration::from_secs(300);
/// Label of the pool.
const POOL: (&str, &str) = ("pool", "a100");
/// From the order of a node to its kubelet.
const BOOT: Duration = Duration::from_secs(4);

/// Starts a kubelet for each Node that Karpenter makes, and ends it with the Node.
struct Cloud {
    task: JoinHandle<()>,
    /// Most nodes and most replicas of the buffer that were seen at once.
    most: Arc<Mutex<(usize, i64)>>,
}

impl Drop for Cloud {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Cloud {
    async fn start(c: &Cluster) -> Result<Self> {
        let (data, kubeconfig) = (c.testbed.data_dir().to_owned(), c.testbed.kubeconfig());
        let client = c.testbed.client_for(&kubeconfig).await?;
        let nodes = Api::<Node>::all(client.clone());
        let most = Arc::new(Mutex::new((0, 0)));
        let seen = Arc::clone(&most);
        let task = tokio::spawn(async move {
            let mut kubelets: BTreeMap<String, Option<Child>> = BTreeMap::new();
            loop {
                if let Ok(list) = nodes.list(&ListParams::default().labels("pool=a100")).await {
                    let names: Vec<String> =
                        list.items.into_iter().filter_map(|node| node.metadata.name).collect();
                    kubelets.retain(|name, _| names.contains(name));
                    if names.iter().any(|name| !kubelets.contains_key(name)) {
                        tokio::time::sleep(BOOT).await;
                    }
                    for name in &names {
                        if !kubelets.contains_key(name) {
                            let kubelet = kubelet(&data, &kubeconfig, name);
                            if let Err(error) = &kubelet {
                                println!("{name} has no kubelet: {error:#}");
                            }
                            kubelets.insert(name.clone(), kubelet.ok());
                        }
                    }
                    let asked = replicas(&client).await.unwrap_or(0);
                    let mut most = seen.lock();
                    *most = (most.0.max(names.len()), most.1.max(asked));
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
        Ok(Self { task, most })
    }
}

/// What the operator asks for.
async fn replicas(client: &Client) -> Result<i64> {
    let url = "/apis/autoscaling.x-k8s.io/v1beta1/namespaces/andreas-system/capacitybuffers";
    let request = Request::new(url).get("andreas-a100", &GetParams::default())?;
    let buffer: Value = client.request(request).await?;
    buffer["spec"]["replicas"].as_i64().context("no replicas")
}

/// The kubelet of one node; it ends when it is dropped.
fn kubelet(data: &Path, kubeconfig: &Path, name: &str) -> Result<Child> {
    let folder = data.join(name);
    std::fs::create_dir_all(&folder)?;
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(data.join("nodes.json"))?)?;
    config["nodes"] = json!([{"namePrefix": "", "count": 1, "name": name, "gpu": A100, "gpus": 8,
        "gpuMemoryMiB": 81_920, "cpu": "96", "memory": "1024Gi"}]);
    // Workers on different machines do not reach one another: what matters here is where they are.
    config["containers"] = json!("simulated");
    let path = folder.join("nodes.json");
    std::fs::write(&path, config.to_string())?;
    let socket = std::env::temp_dir().join(format!("{}.sock", name.rsplit('-').next().unwrap_or(name)));
    let mut command = Command::new(workspace_binary("pretend-kubelets")?);
    command.arg("--kubeconfig").arg(kubeconfig).arg("--control-socket").arg(socket);
    command.arg("--data-dir").arg(&folder).arg("--config").arg(path);
    let log = std::fs::File::create(folder.join("log"))?;
    command.stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
    command.spawn().context("pretend kubelet")
}

async fn are_there(c: &Cluster, count: usize) -> Result<()> {
    let what = format!("{count} nodes are there");
    let look = async || {
        let get = ["get", "nodes", "-l", "pool=a100", "-o", "name"];
        Ok(c.testbed.kubectl(get).await?.checked()?.stdout.lines().count() == count)
    };
    until(&what, LONG, look).await.map(drop)
}

/// Given a pool without nodes; when a gang needs four, then Karpenter adds four, the gang trains, and they go again. When the pool gives
/// one of the two that another gang needs, then the job names the pool, and the node is given back.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds Karpenter: make long WHAT=autoscaler"]
async fn a_gang_gets_the_nodes_it_needs_and_a_pool_without_them_is_named() -> Result<()> {
    let mut policy = short_runs();
    policy["nodeSleep"] = json!({"idleAfter": "5s"});
    policy["capacity"] = json!([{"name": "a100", "gpuType": A100, "gpus": 8, "maxNodes": 4, "startTime": "20s",
        "allocatable": {"cpu": "90", "memory": "1000Gi", "pods": "100"}, "nodeSelector": {POOL.0: POOL.1}}]);
    let options = Options {
        name: "autoscaler".into(),
        groups: Vec::new(),
        policy: policy.clone(),
        operator_log: "info,kube=warn,andreas_operator=debug",
        ..Options::default()
    };
    scenario(options, async |c| {
        let _karpenter = controllers::karpenter(c, 4, POOL).await?;
        let cloud = Cloud::start(c).await?;
        are_there(c, 0).await?;

        let gang = job("gang").gpus(32, 4);
        let mut object = gang.build();
        object["spec"]["template"]["metadata"] =
            json!({"annotations": {"testbed.andreas.dev/run-seconds": "5"}});
        c.apply(&object).await?;
        c.wait_for_reason(&gang, Reason::NodeStarting).await?;
        let message = c.observer.seen().message(&gang.key(), Reason::NodeStarting);
        ensure!(message.starts_with("a node of a100 and 3 more"), "{message}");
        c.wait_for_phase(&gang, Phase::Succeeded).await?;
        let status = c.observer.seen().status(&gang.key());
        ensure!(status.attempts == 1 && status.restarts == 0, "no start of it was lost: {status:?}");
        ensure!(*cloud.most.lock() == (4, 4), "as many as it needs: {:?}", cloud.most.lock());
        are_there(c, 0).await?;

        let limit = json!({"spec": {"limits": {"nvidia.com/gpu": "8"}}}).to_string();
        c.testbed.kubectl(["patch", "nodepool", "a100", "--type=merge", "-p", &limit]).await?.checked()?;
        let two = job("two").gpus(16, 2).spec("gpus", json!({"min": 16, "max": 16, "maxNodes": 2}));
        c.submit(&two).await?;
        let what = "the pool is named";
        let named = until(what, LONG, async || {
            let get = ["get", "tj", "-A", "-o", "jsonpath={.items[*].status.conditions[*].message}"];
            let said = c.testbed.kubectl(get).await?.checked()?.stdout;
            Ok(said.contains("a100: it gave no node within 1 min, and is asked again at"))
        });
        named.await?;
        are_there(c, 0).await?;

        policy["capacity"] = json!([]);
        c.apply(&json!({"apiVersion": "andreas.dev/v1alpha1", "kind": "EnergyPolicy", "metadata": {"name": "default"}, "spec": policy}))
            .await?;
        until("nothing is asked for", LONG, async || {
            let of_policy = c.kubectl("get capacitybuffers,podtemplates -n andreas-system -o name").await?;
            Ok(of_policy.trim().is_empty())
        })
        .await
        .map(drop)
    })
    .await
}
