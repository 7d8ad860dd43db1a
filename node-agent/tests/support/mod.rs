//! A node to test on: simulated GPUs, a kubelet's socket, an API server of a few objects, and the agent's real processes.

pub mod api;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use andreas_node_agent::podresources::messages::{ContainerDevices, ContainerResources, PodResources};
use nvidia_ml::{ENV_SPEC, GpuView, Sim, Spec};
use parking_lot::Mutex;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use api::Api;

/// Time to live of the setter and of the Lease, in these tests.
pub const TTL: Duration = Duration::from_secs(2);
/// What a crowded machine may add to any wait.
pub const SLACK: Duration = Duration::from_secs(15);

/// Who holds which GPU, by the kubelet.
#[derive(Default)]
pub struct Pods(Mutex<Vec<PodResources>>);

impl andreas_node_agent::podresources::Source for Pods {
    fn pods(&self) -> Vec<PodResources> {
        self.0.lock().clone()
    }
}

/// A process that is killed with the test.
pub struct Process(pub Child);

impl Process {
    /// Whether it is a setter that waits for the end of another one: then a thread of it has that name.
    pub fn stands_by(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.0.id()));
        tasks.into_iter().flatten().flatten().any(|task| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == "standby")
        })
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.0.id() as i32).expect("a child has a process id");
        rustix::process::kill_process(pid, signal).expect("the child is there");
    }

    pub fn kill(mut self) {
        self.0.kill().expect("the child is there");
        self.0.wait().expect("the child ended");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One node.
pub struct TestNode {
    pub folder: tempfile::TempDir,
    pub sim: Arc<Sim>,
    pub api: Api,
    /// What the programs load as NVML.
    pub library: OsString,
    pods: Arc<Pods>,
    /// Ends the kubelet's socket.
    kubelet: Mutex<CancellationToken>,
    admin: SocketAddr,
}

/// A loopback address that no other test of this machine uses: a free port of 127.0.0.1 may be taken before the agent listens.
pub fn own_address() -> SocketAddr {
    static NODES: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    SocketAddr::from(([127, 64 | (high & 63), low, NODES.fetch_add(1, Ordering::Relaxed)], 9090))
}

impl TestNode {
    /// A node with these GPUs, in a cluster whose operator leads and lets GPUs rest after one second. Their clocks are high without any
    /// process: one at its bare idle is left alone.
    pub async fn new(uuids: &[&str]) -> Self {
        let mut spec = Spec::of(uuids);
        spec.gpus.iter_mut().for_each(|gpu| gpu.kept_busy = true);
        Self::of(spec).await
    }

    /// A node with GPUs of these specs.
    pub async fn of(node: Spec) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let spec = folder.path().join("node.json");
        // With the real rights where this test may have them: then the setter's one capability must be enough.
        let root = rustix::process::geteuid().is_root();
        let node = Spec { settings_need_admin: root, ..node };
        node.write(&spec).expect("the spec is right");
        let sim = Arc::new(Sim::open(&spec).expect("a simulated node"));
        let api = Api::start().await;
        api.put(
            "energypolicies",
            json!({
                "apiVersion": "andreas.dev/v1alpha1", "kind": "EnergyPolicy", "metadata": {"name": "default"},
                "spec": {"rest": {"mode": "On", "after": "1s"}, "placementTimeout": "1s", "limits": "On"},
            }),
        );
        api.put(
            "gpunodes",
            json!({
                "apiVersion": "andreas.dev/v1alpha1", "kind": "GpuNode",
                "metadata": {"name": "node-0", "uid": "node-uid", "generation": 1}, "spec": {"wakeGeneration": 0},
            }),
        );
        api.lead();
        let pods = Arc::new(Pods::default());
        let (kubelet, admin) = (Mutex::new(CancellationToken::new()), own_address());
        let library = std::env::current_exe().expect("a test has a path").with_file_name("libnvidia_ml.so");
        let node = Self { folder, sim, api, library: library.into(), pods, kubelet, admin };
        node.start_kubelet();
        node
    }

    /// The kubelet answers, after [`Self::stop_kubelet`] again.
    pub fn start_kubelet(&self) {
        let end = CancellationToken::new();
        *self.kubelet.lock() = end.clone();
        let (socket, source) = (self.path("kubelet.sock"), Arc::clone(&self.pods));
        tokio::spawn(async move {
            andreas_node_agent::podresources::serve(&socket, source, end.cancelled_owned())
                .await
                .expect("a socket");
        });
    }

    /// The kubelet answers no more.
    pub fn stop_kubelet(&self) {
        self.kubelet.lock().cancel();
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(["--log-format", "text", "--nvml-library"]).arg(&self.library).stdout(Stdio::null());
        // The library of this machine, named without a path, takes no spec of ours.
        if Path::new(&self.library).is_absolute() {
            command.env(ENV_SPEC, self.path("node.json"));
        }
        command
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn setter(&self) -> Process {
        self.setter_with(&[])
    }

    pub fn setter_with(&self, flags: &[&str]) -> Process {
        let mut command = self.command(env!("CARGO_BIN_EXE_andreas-node-setter"));
        command.arg("--socket").arg(self.path("setter.sock")).arg("--state").arg(self.path("state"));
        command.args(["--ttl", "2"]).args(flags);
        Process(command.spawn().expect("the setter starts"))
    }

    pub fn agent(&self) -> Process {
        self.agent_with(&[])
    }

    pub fn agent_with(&self, flags: &[&str]) -> Process {
        let kubeconfig = self.path("kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": self.api.address()}}],
            "users": [{"name": "c", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        });
        std::fs::write(&kubeconfig, config.to_string()).expect("a file");
        let mut command = self.command(env!("CARGO_BIN_EXE_andreas-node-agent"));
        command.arg("--kubeconfig").arg(kubeconfig).arg("--setter-socket").arg(self.path("setter.sock"));
        command.arg("--pod-resources").arg(self.path("kubelet.sock"));
        command.args(["--node-name", "node-0", "--lease-ttl", "2"]);
        // What is measured of rest takes time, and ends it on bare idle GPUs.
        if !flags.contains(&"--rest-trial") {
            command.args(["--rest-trial", "0"]);
        }
        if !flags.contains(&"--interval") {
            command.args(["--interval", "100"]);
        }
        if !flags.contains(&"--admin-listen") {
            command.arg("--admin-listen").arg(self.admin.to_string());
        }
        Process(command.args(flags).spawn().expect("the agent starts"))
    }

    /// Gives GPUs to a pod, in place of what it had; none takes them away.
    pub fn hold(&self, pod: &str, uuids: &[&str]) {
        let devices = vec![ContainerDevices {
            resource_name: "nvidia.com/gpu".into(),
            device_ids: uuids.iter().map(|uuid| (*uuid).to_owned()).collect(),
        }];
        let container = ContainerResources { devices, ..ContainerResources::default() };
        let mut pods = self.pods.0.lock();
        pods.retain(|held| held.name != pod);
        if !uuids.is_empty() {
            pods.push(PodResources {
                name: pod.into(),
                namespace: "team".into(),
                containers: vec![container],
            });
        }
    }

    pub fn gpu(&self, uuid: &str) -> GpuView {
        self.sim.gpu(uuid).expect("the GPU is there")
    }

    pub fn is_default(&self, uuid: &str) -> bool {
        self.gpu(uuid).is_default()
    }

    /// Lets a process of this id use a GPU fully, or none at all.
    pub fn run(&self, uuid: &str, pid: Option<u32>) {
        let of = |pid| nvidia_ml::Process { pid, util: 1.0, memory_mib: 1024 };
        let processes: Vec<_> = pid.map(of).into_iter().collect();
        self.sim.set_processes(uuid, &processes).expect("the GPU is there");
    }

    /// What the admin port answers: status and body.
    pub async fn ask(&self, path: &str) -> (u16, String) {
        let mut stream = tokio::net::TcpStream::connect(self.admin).await.expect("it listens");
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).await.expect("it answers");
        let status = text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        (status, text)
    }

    /// Its metrics, once they are as they should be.
    ///
    /// # Panics
    /// When they are not within [`SLACK`].
    pub async fn metrics_once(&self, what: &str, are: impl Fn(&str) -> bool) -> String {
        let since = Instant::now();
        loop {
            let (_, metrics) = self.ask("/metrics").await;
            if are(&metrics) {
                return metrics;
            }
            assert!(since.elapsed() < SLACK, "not within {SLACK:?}: {what}:\n{metrics}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Waits until `done` holds, and says how long that took.
///
/// # Panics
/// When it does not hold `within` the time.
pub async fn until(what: &str, within: Duration, mut done: impl FnMut() -> bool) -> Duration {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < within, "not within {within:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    since.elapsed()
}

/// Watches for some time that something goes on to hold: what must not happen needs that time to happen in.
///
/// # Panics
/// When it no longer holds.
pub async fn stays(what: &str, time: Duration, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while since.elapsed() < time {
        assert!(holds(), "no longer so after {:?}: {what}", since.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(holds(), "no longer so after {time:?}: {what}");
}
