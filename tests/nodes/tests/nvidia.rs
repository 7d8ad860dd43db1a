//! NVIDIA's own programs on the simulated driver: labels and devices of a node as they make them.
//!
//! The programs are those of `tests/tools/build nvidia`. Each runs in a container as on a node: the driver's library
//! and the kernel's files about PCI devices are mounted.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use andreas_test_nodes::Recorded;
use andreas_test_nodes::sandbox::{Container, ContainerSpec, Mount, Sandbox};
use andreas_testbed::wait::until;
use hyper_util::rt::TokioIo;
use nvidia_ml::{ENV_SPEC, GpuSpec, Spec};
use tokio::net::UnixStream;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

/// Room for a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Where containers find the driver's library and the simulator's spec.
const DRIVER: &str = "/run/nvidia";
/// Where GPU feature discovery writes labels for node feature discovery.
const FEATURES: &str = "/etc/kubernetes/node-feature-discovery/features.d";
/// Where device plug-ins serve their sockets.
const PLUGINS: &str = "/var/lib/kubelet/device-plugins";
/// Labels that the GPU operator's controller and its MIG manager write themselves.
const OF_THE_OPERATOR: [&str; 3] =
    ["nvidia.com/gpu.deploy.", "nvidia.com/gpu.present", "nvidia.com/mig.config"];

/// The folder with the programs: built on first use (three minutes on two cores), found in the cache from then on.
static PROGRAMS: LazyLock<PathBuf> = LazyLock::new(|| {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/build");
    let output =
        Command::new(script).arg("nvidia").stdin(Stdio::null()).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim_end())
});

/// A node with simulated GPUs, and its folders for programs.
struct Node {
    dir: tempfile::TempDir,
    sandbox: Sandbox,
}

impl Node {
    fn new(product: &str, gpus: usize, memory_mib: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for folder in ["driver", "pci", "root", "etc", "out"] {
            fs::create_dir(at(folder)).unwrap();
        }
        let library = std::env::current_exe().unwrap().with_file_name("libnvidia_ml.so");
        fs::copy(library, at("driver/libnvidia-ml.so.1")).unwrap();
        let gpu = |index| GpuSpec::of_product(product, &format!("GPU-{index}"), memory_mib);
        let spec = Spec { gpus: (0..gpus).map(gpu).collect(), ..Spec::of(&[]) };
        spec.write(&at("driver/node.json")).unwrap();
        spec.write_pci_devices(&at("pci")).unwrap();
        let sandbox = Sandbox::start(Path::new(env!("CARGO_BIN_EXE_pretend-kubelets"))).unwrap();
        Self { dir, sandbox }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs a program with the folder `out` mounted at `out_at`.
    async fn run(&self, program: &str, arguments: &[&str], out_at: &str) -> Container {
        let mount = |source: &str, target: &str| Mount {
            source: self.file(source),
            target: target.into(),
            read_only: false,
        };
        let program = PROGRAMS.join(program).to_str().unwrap().to_owned();
        let spec = ContainerSpec {
            argv: [program].into_iter().chain(arguments.iter().map(|&text| text.to_owned())).collect(),
            env: vec![
                ("LD_LIBRARY_PATH".into(), DRIVER.into()),
                (ENV_SPEC.into(), format!("{DRIVER}/node.json")),
            ],
            working_dir: "/".into(),
            pod_ip: None,
            hostname: "node".into(),
            root: self.file("root"),
            log: self.file("log"),
            etc: self.file("etc"),
            mounts: vec![mount("driver", DRIVER), mount("pci", "/sys/bus/pci/devices"), mount("out", out_at)],
            programs: vec![],
            host_paths: vec![],
        };
        fs::write(self.file("container.json"), serde_json::to_vec(&spec).unwrap()).unwrap();
        self.sandbox.spawn(self.file("container.json")).await.unwrap()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.file("log")).unwrap_or_default()
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn feature_discovery_writes_the_recorded_labels() {
    for name in [
        "gpu-operator-t4",
        "gpu-operator-a100",
        "gpu-operator-l40s",
        "gpu-operator-h100-all-disabled",
        "gfd-alone",
    ] {
        // Given a node of the recorded product, number of GPUs, memory, machine and MIG strategy
        let Recorded { labels, .. } = Recorded::named(name).unwrap();
        let of = |label: &str| labels[&format!("nvidia.com/{label}")].as_str();
        let (gpus, memory) = (of("gpu.count").parse().unwrap(), of("gpu.memory").parse().unwrap());
        let node = Node::new(of("gpu.product"), gpus, memory);
        fs::write(node.file("out/machine"), of("gpu.machine")).unwrap();
        let strategy = labels.get("nvidia.com/mig.strategy").map_or("none", String::as_str);

        // When GPU feature discovery looks once
        let machine = format!("--machine-type-file={FEATURES}/machine");
        let mig = format!("--mig-strategy={strategy}");
        let once = ["--oneshot", "--no-timestamp", "--use-node-feature-api=false", &machine, &mig];
        let ended = runtime().block_on(async {
            node.run("gpu-feature-discovery", &once, FEATURES).await.ended.await.unwrap()
        });
        assert_eq!(ended.exit_code(), 0, "{name}: {}", node.log());

        // Then its labels are the recorded ones, without those that others write
        let text = fs::read_to_string(node.file("out/gfd")).unwrap();
        let written: BTreeMap<String, String> = text
            .lines()
            .map(|line| line.split_once('=').unwrap())
            .map(|(k, v)| (k.into(), v.into()))
            .collect();
        let recorded: BTreeMap<String, String> = labels
            .into_iter()
            .filter(|(label, _)| !OF_THE_OPERATOR.iter().any(|prefix| label.starts_with(prefix)))
            .collect();
        assert_eq!(written, recorded, "{name}");
    }
}

/// As the node agent reads them (`node-agent/src/agent/holders.rs`).
#[test]
fn the_device_plugin_offers_a_time_sliced_gpu_as_replicas_that_begin_with_its_uuid() {
    let node = Node::new("Tesla-T4", 2, 15_360);
    let sharing = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n";
    fs::write(node.file("out/config.yaml"), sharing).unwrap();
    runtime().block_on(async {
        let config = format!("--config-file={PLUGINS}/config.yaml");
        let _container = node.run("nvidia-device-plugin", &["--kubelet-socket=", &config], PLUGINS).await;
        let socket = node.file("out/nvidia-gpu.sock");
        let waited = until("it serves its socket", LIMIT, async || Ok(socket.exists())).await;
        waited.unwrap_or_else(|error| panic!("{error}: {}", node.log()));
        let mut plugin = Plugin::connect(socket).await;
        let offered = plugin.list_and_watch().await.message().await.unwrap().unwrap();
        let ids: Vec<&str> = offered.health().into_keys().collect();
        assert_eq!(ids, ["GPU-0::0", "GPU-0::1", "GPU-1::0", "GPU-1::1"]);
        let given = plugin.allocate(vec!["GPU-1::0".to_owned()]).await;
        assert_eq!(given["NVIDIA_VISIBLE_DEVICES"], "GPU-1");
    });
}

/// A device plug-in as the kubelet sees it: `v1beta1.DevicePlugin` of k8s.io/kubelet, with the fields that are used.
struct Plugin(tonic::client::Grpc<Channel>);

impl Plugin {
    async fn connect(socket: PathBuf) -> Self {
        let connector = tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let channel =
            Endpoint::from_static("http://localhost").connect_with_connector(connector).await.unwrap();
        Self(tonic::client::Grpc::new(channel))
    }

    async fn list_and_watch(&mut self) -> tonic::Streaming<Devices> {
        self.0.ready().await.unwrap();
        let path = PathAndQuery::from_static("/v1beta1.DevicePlugin/ListAndWatch");
        let codec = ProstCodec::<(), Devices>::default();
        self.0.server_streaming(tonic::Request::new(()), path, codec).await.unwrap().into_inner()
    }

    async fn allocate(&mut self, ids: Vec<String>) -> HashMap<String, String> {
        self.0.ready().await.unwrap();
        let path = PathAndQuery::from_static("/v1beta1.DevicePlugin/Allocate");
        let codec = ProstCodec::<AllocateRequest, AllocateResponse>::default();
        let request = AllocateRequest { containers: vec![Ids { ids }] };
        let mut answer = self.0.unary(tonic::Request::new(request), path, codec).await.unwrap().into_inner();
        answer.containers.remove(0).envs
    }
}

/// `ListAndWatchResponse`.
#[derive(Clone, PartialEq, prost::Message)]
struct Devices {
    #[prost(message, repeated, tag = "1")]
    devices: Vec<Device>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Device {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "2")]
    health: String,
}

impl Devices {
    fn health(&self) -> BTreeMap<&str, &str> {
        self.devices.iter().map(|device| (device.id.as_str(), device.health.as_str())).collect()
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct Ids {
    #[prost(string, repeated, tag = "1")]
    ids: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AllocateRequest {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<Ids>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AllocateResponse {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<Given>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Given {
    #[prost(map = "string, string", tag = "1")]
    envs: HashMap<String, String>,
}
