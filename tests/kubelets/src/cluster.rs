//! The nodes of a test bed, and what a cluster has beside them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use andreas_test_nodes::GPU_RESOURCE;
use andreas_test_nodes::control::{NodeInfo, PodInfo};
use andreas_testbed::wait::until;
use andreas_testbed::{Testbed, built, workspace_library};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::cgroups::Cgroups;
use crate::driver::Driver;
use crate::gpus::Gpus;
use crate::images::Images;
use crate::network::Network;
use crate::node::{Common, Node};
use crate::pods::Pods;
use crate::policies::Enforcer;
use crate::runtime::DefaultRuntime;

/// How long a cluster of some nodes may take to be ready on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);

/// What the GPU operator with its default values deploys on a node with GPUs and no MIG in use, by its own labels
/// (`tests/nodes/labels/gpu-operator-a100.yaml`).
const OPERATORS: [&str; 9] = [
    "container-toolkit",
    "dcgm",
    "dcgm-exporter",
    "device-plugin",
    "driver",
    "gpu-feature-discovery",
    "mig-manager",
    "node-status-exporter",
    "operator-validator",
];

/// Real nodes; dropped, they lose their power.
pub struct Kubelets {
    nodes: Vec<Arc<Node>>,
    pods: Arc<Pods>,
    _driver: Driver,
}

impl Kubelets {
    /// Adds nodes `node-1`, `node-2`... with these GPUs to a test bed whose API server listens at [`Network::ADDRESS`], and CoreDNS
    /// and NVIDIA's device plug-in. Returns when all are Ready and offer their GPUs.
    ///
    /// # Errors
    /// When a program is missing or a node is not ready in time, with what its kubelet logged last.
    pub async fn start(
        testbed: &Testbed,
        gpus: Vec<Gpus>,
        images: Images,
        default_runtime: DefaultRuntime,
    ) -> Result<Self> {
        ensure!(gpus.len() <= usize::from(Network::MAX_NODES), "at most {} nodes", Network::MAX_NODES);
        let name = testbed.data_dir().file_name().context("the test bed's folder has a name")?;
        let common = Common {
            testbed,
            cgroups: Arc::new(Cgroups::new(&name.to_string_lossy())?),
            programs: built("nodes").await?,
            library: workspace_library("libnvidia_ml.so")?,
            proxy: testbed.kubeconfig_for_user("system:kube-proxy", None)?,
            status_seconds: 10,
            disk: images.disk()?,
            default_runtime,
        };
        apply(testbed, include_str!("../manifests/cluster.yaml")).await?;
        apply(testbed, &default_runtime.device_plugin()).await?;
        let mut nodes = Vec::new();
        for (number, gpus) in (1..).zip(gpus) {
            nodes.push(Arc::new(Node::start(&common, number, gpus).await?));
        }
        let pods = Arc::new(Pods::start(&testbed.client(), &nodes));
        let kubelets = Self { _driver: Driver::start(&nodes, &pods), pods, nodes };
        for node in &kubelets.nodes {
            kubelets.registered(testbed, node).await?;
            label(testbed, node).await.with_context(|| format!("the labels of {}", node.name()))?;
        }
        for node in &kubelets.nodes {
            kubelets.offers(testbed, node, node.gpus().count()).await?;
        }
        let args =
            ["--namespace", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=120s"];
        testbed.kubectl(args).await?.checked()?;
        Ok(kubelets)
    }

    /// All of them.
    pub fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// Every node as its kubelet and its driver see it.
    ///
    /// # Errors
    /// When a driver's state cannot be read.
    pub fn node_infos(&self) -> Result<Vec<NodeInfo>> {
        self.nodes.iter().map(|node| self.pods.node_info(node)).collect()
    }

    /// The pods that have an object and are on one of the nodes, and those without whose containers run there.
    pub fn pod_infos(&self) -> Vec<PodInfo> {
        self.pods.pod_infos(&self.nodes)
    }

    /// Enforces NetworkPolicies on all nodes from now on; see [`Enforcer`].
    pub fn enforce_network_policies(&self, testbed: &Testbed) -> Enforcer {
        Enforcer::start(&testbed.client(), &self.nodes)
    }

    /// All nodes lose their power.
    pub fn power_off(&self) {
        for node in &self.nodes {
            node.power_off();
        }
    }

    /// A node by its name.
    ///
    /// # Errors
    /// When there is none.
    pub fn node(&self, name: &str) -> Result<&Node> {
        let node = self.nodes.iter().find(|node| node.name() == name);
        node.map(AsRef::as_ref).with_context(|| format!("no node {name}"))
    }

    async fn registered(&self, testbed: &Testbed, node: &Node) -> Result<()> {
        let api: Api<NodeObject> = Api::all(testbed.client());
        let known = async || Ok(api.get_opt(node.name()).await?.is_some());
        let waited = until(&format!("{} registers", node.name()), LIMIT, known).await;
        waited.with_context(|| node.log(crate::Service::Kubelet)).map(drop)
    }

    /// Waits until a node is Ready, said since it has power, and offers so many GPUs; how long that took.
    ///
    /// # Errors
    /// When it is not in time.
    pub async fn offers(&self, testbed: &Testbed, node: &Node, wanted: usize) -> Result<Duration> {
        let began = Instant::now();
        let api: Api<NodeObject> = Api::all(testbed.client());
        let what = format!("{} is Ready with {wanted} GPUs", node.name());
        let waited = until(&what, LIMIT, async || {
            let status = api.get(node.name()).await?.status.unwrap_or_default();
            let since = node.started();
            let ready = status.conditions.iter().flatten().any(|c| {
                // What was said before a power cut says nothing.
                let said = c.last_heartbeat_time.as_ref().is_some_and(|time| time.0.as_second() >= since);
                c.type_ == "Ready" && c.status == "True" && said
            });
            let gpus =
                status.allocatable.unwrap_or_default().get(GPU_RESOURCE).map(|quantity| quantity.0.clone());
            Ok(ready && gpus.as_deref() == Some(&wanted.to_string()))
        });
        waited.await.with_context(|| node.log(crate::Service::Kubelet))?;
        Ok(began.elapsed())
    }
}

async fn apply(testbed: &Testbed, manifest: &str) -> Result<()> {
    testbed.kubectl_apply(manifest).await?.checked()?;
    Ok(())
}

/// What the GPU operator does to a node that it finds: its own labels, and those that GPU feature discovery wrote for node feature
/// discovery. The program is NVIDIA's; carrying its file to the node object is node feature discovery's part, played here.
async fn label(testbed: &Testbed, node: &Node) -> Result<()> {
    let program = built("nvidia").await?.join("gpu-feature-discovery");
    let labels = node.discovered_labels(&program).await?;
    ensure!(labels.contains_key("nvidia.com/gpu.product"), "no product among {labels:?}");
    let operators = OPERATORS.map(|part| (format!("nvidia.com/gpu.deploy.{part}"), "true".to_owned()));
    let present = ("nvidia.com/gpu.present".to_owned(), "true".to_owned());
    let labels: BTreeMap<String, String> = operators.into_iter().chain([present]).chain(labels).collect();
    let api: Api<NodeObject> = Api::all(testbed.client());
    let patch = json!({"metadata": {"labels": labels}});
    let patched = api.patch(node.name(), &PatchParams::default(), &Patch::Merge(&patch)).await?;
    ensure!(patched.labels().contains_key("nvidia.com/gpu.present"), "not labelled");
    Ok(())
}

impl Node {
    /// What NVIDIA's GPU feature discovery says of the node.
    async fn discovered_labels(&self, program: &std::path::Path) -> Result<BTreeMap<String, String>> {
        let (program, out) = (program.display().to_string(), self.driver().with_file_name("labels"));
        let out = out.display().to_string();
        let mut command = vec!["env".to_owned()];
        if matches!(self.gpus(), Gpus::Simulated { .. }) {
            command.push(format!("LD_LIBRARY_PATH={}", self.library_folder()?.display()));
            command.push(format!("{}={}", nvidia_ml::ENV_SPEC, self.driver().display()));
        }
        let flags = ["--oneshot", "--mig-strategy=single", "--use-node-feature-api=false"];
        command.extend([program].into_iter().chain(flags.map(str::to_owned)));
        command.push(format!("--output-file={out}"));
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        self.run(&command).await?;
        let text = std::fs::read_to_string(&out)?;
        Ok(text
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .collect())
    }

    /// A folder in which the simulated library has the name that programs load.
    fn library_folder(&self) -> Result<PathBuf> {
        let folder = self.driver().with_file_name("library");
        std::fs::create_dir_all(&folder)?;
        let link = folder.join("libnvidia-ml.so.1");
        if !link.exists() {
            std::os::unix::fs::symlink(workspace_library("libnvidia_ml.so")?, &link)?;
        }
        Ok(folder)
    }
}
