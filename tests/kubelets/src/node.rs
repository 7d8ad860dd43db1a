//! One machine of the test: its life from power on to power off, and what can be done to it meanwhile.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use andreas_testbed::wait::until;
use andreas_testbed::{Process, ProcessSpec, Testbed};
use anyhow::{Context as _, Result, ensure};
use nvidia_ml::{Fault, GpuSpec, Sim, Spec};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

use crate::cgroups::Cgroups;
use crate::config::NodeFiles;
use crate::gpus::{Gpus, uuids};
use crate::images::Disk;
use crate::network::Network;
use crate::runtime::DefaultRuntime;

/// What a step of a node's start may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A program that runs on a node as a service of the machine.
#[derive(Clone, Copy, Debug)]
pub enum Service {
    /// The kubelet.
    Kubelet,
    /// containerd.
    Containerd,
    /// kube-proxy.
    KubeProxy,
}

impl Service {
    fn name(self) -> &'static str {
        match self {
            Self::Kubelet => "kubelet",
            Self::Containerd => "containerd",
            Self::KubeProxy => "kube-proxy",
        }
    }
}

/// Programs and files that all nodes share.
pub(crate) struct Common<'a> {
    pub testbed: &'a Testbed,
    pub cgroups: Arc<Cgroups>,
    /// The folder of `tests/tools/build nodes`.
    pub programs: PathBuf,
    /// The simulated `libnvidia-ml`.
    pub library: PathBuf,
    /// kube-proxy's kubeconfig.
    pub proxy: PathBuf,
    /// What its containerd begins with.
    pub disk: Disk,
    /// Of its containerd.
    pub default_runtime: DefaultRuntime,
    /// Seconds between two reports of a node's status (kubelet's default: 10).
    pub status_seconds: u32,
}

/// A running node, or one without power.
pub struct Node {
    name: String,
    number: u8,
    folder: PathBuf,
    programs: PathBuf,
    gpus: Gpus,
    process: Process,
    cgroups: Arc<Cgroups>,
    /// Its process 1.
    first: AtomicI32,
    /// When it got power, in seconds since 1970.
    started: AtomicI64,
    /// UUIDs of GPUs with a fault.
    broken: Mutex<BTreeSet<String>>,
}

impl Node {
    /// Switches a new node on; it registers itself later.
    pub(crate) async fn start(common: &Common<'_>, number: u8, gpus: Gpus) -> Result<Self> {
        let name = format!("node-{number}");
        let testbed = common.testbed;
        let folder = testbed.data_dir().join("nodes").join(&name);
        std::fs::create_dir_all(folder.join("nvidia"))?;
        let routes: Vec<String> = (1..=Network::MAX_NODES)
            .filter(|other| *other != number)
            .map(|other| format!("{}={}", Network::pods(other), Network::node(other)))
            .collect();
        let env = format!(
            "NAME={name} ADDRESS={} GATEWAY={} ROUTES='{}' PROGRAMS={} CGROUP={} STORE={}\n",
            Network::node(number),
            Network::ADDRESS,
            routes.join(" "),
            common.programs.display(),
            common.cgroups.of(&name),
            common.disk.store.as_deref().unwrap_or(Path::new("")).display(),
        );
        std::fs::write(folder.join("node.env"), env)?;
        std::fs::write(folder.join("hierarchies"), common.cgroups.lines())?;
        let archives: String =
            common.disk.archives.iter().map(|archive| format!("{}\n", archive.display())).collect();
        std::fs::write(folder.join("images"), archives)?;
        std::fs::copy(testbed.kubeconfig_for_node(&name)?, folder.join("kubelet.kubeconfig"))?;
        NodeFiles {
            folder: &folder,
            number,
            programs: &common.programs,
            ca: &testbed.pki().ca_file(),
            proxy: &common.proxy,
            library: &common.library,
            gpus: &gpus,
            default_runtime: common.default_runtime,
            status_seconds: common.status_seconds,
        }
        .write()?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("node");
        let spec = ProcessSpec::new(&name, "bash").arg(script).arg("enter").arg(&folder).current_dir("/");
        write_gpus(&folder, number, &gpus)?;
        let node = Self {
            process: testbed.spawn(spec)?,
            name,
            number,
            folder,
            programs: common.programs.clone(),
            gpus,
            cgroups: common.cgroups.clone(),
            first: AtomicI32::new(0),
            started: AtomicI64::new(0),
            broken: Mutex::default(),
        };
        node.join().await?;
        Ok(node)
    }

    /// Its name in the cluster.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address.
    pub fn address(&self) -> Ipv4Addr {
        Network::node(self.number)
    }

    /// Its GPUs.
    pub fn gpus(&self) -> &Gpus {
        &self.gpus
    }

    /// Description and state of the simulated GPUs.
    pub fn driver(&self) -> PathBuf {
        self.folder.join("nvidia/node.json")
    }

    /// The socket of the kubelet's PodResources API, as this machine sees it.
    pub fn pod_resources(&self) -> PathBuf {
        self.folder.join("lib/kubelet/pod-resources/kubelet.sock")
    }

    /// Where its programs' files lie.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its file system's `/var/log`.
    pub fn log_folder(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// Its first process, while it has power.
    async fn first_process(&self) -> Result<i32> {
        let mut first = None;
        let what = format!("process 1 of {}", self.name);
        let waited = until(&what, LIMIT, async || {
            let parent = self.process.pid().context("the node's process has ended")?;
            let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
            let mut children = children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok());
            // Before `unshare` the shell has other children, and those that it left behind are of the machine's namespaces.
            // One that has ended has none.
            let other =
                |child: i32| pid_namespace(child).is_some_and(|own| Some(own) != pid_namespace(parent));
            let inside = |child: &i32| is_program(parent, "unshare") && other(*child);
            first = children.find(inside);
            Ok(first.is_some())
        });
        waited.await.with_context(|| self.process.log_tail(20))?;
        first.context("no process")
    }

    /// When it got its power, to the second as the API writes times.
    pub(crate) fn started(&self) -> i64 {
        self.started.load(Ordering::Relaxed)
    }

    /// Its process 1; 0 without power.
    pub(crate) fn first(&self) -> i32 {
        self.first.load(Ordering::Relaxed)
    }

    /// Whether it is on.
    pub(crate) fn has_power(&self) -> bool {
        self.first() != 0
    }

    async fn join(&self) -> Result<()> {
        self.started.store(jiff::Timestamp::now().as_second(), Ordering::Relaxed);
        let first = self.first_process().await?;
        self.first.store(first, Ordering::Relaxed);
        Network::join(self.number, first).with_context(|| self.process.log_tail(20))
    }

    /// A power cut: everything on the node ends at once; its disk stays.
    pub fn power_off(&self) {
        self.process.kill();
        let first = self.first.swap(0, Ordering::Relaxed);
        if let Some(pid) = Pid::from_raw(first) {
            // It is gone when the kernel has ended everything else in its namespace.
            let _ = kill_process(pid, Signal::KILL);
            let end = Instant::now() + LIMIT;
            while is_alive(first) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        self.cgroups.remove(&self.name);
    }

    /// Power again; the kubelet is on its way when this returns. GPUs come with a driver that has forgotten all settings.
    ///
    /// # Errors
    /// When the node has power.
    pub async fn power_on(&self) -> Result<()> {
        write_gpus(&self.folder, self.number, &self.gpus)?;
        self.broken.lock().clear();
        self.process.start_again()?;
        self.join().await
    }

    /// Breaks a GPU in the driver's eyes, or mends it.
    ///
    /// # Errors
    /// When there is no such GPU.
    pub fn fault(&self, uuid: &str, fault: Fault) -> Result<()> {
        let mut broken = self.broken.lock();
        Sim::open(&self.driver())?.set_fault(uuid, fault)?;
        let _ = if fault == Fault::None { broken.remove(uuid) } else { broken.insert(uuid.to_owned()) };
        Ok(())
    }

    /// Stops a service; it stays down until [`Self::start_service`].
    ///
    /// # Errors
    /// When it does not end.
    pub async fn stop_service(&self, service: Service) -> Result<()> {
        let name = service.name();
        std::fs::write(self.folder.join(format!("{name}.stop")), "")?;
        let file = self.folder.join(format!("{name}.pid"));
        let pid = std::fs::read_to_string(&file)
            .with_context(|| format!("{name} of {} does not run", self.name))?;
        self.run(&["kill", "-TERM", pid.trim()]).await?;
        // The script removes the file when the program has ended.
        until(&format!("the end of {name}"), LIMIT, async || Ok(!file.exists())).await?;
        Ok(())
    }

    /// Starts it again.
    ///
    /// # Errors
    /// When it was not stopped.
    pub fn start_service(&self, service: Service) -> Result<()> {
        let file = self.folder.join(format!("{}.stop", service.name()));
        std::fs::remove_file(&file).with_context(|| format!("{} was not stopped", service.name()))
    }

    /// Stops it and starts it again.
    ///
    /// # Errors
    /// As [`Self::stop_service`].
    pub async fn restart_service(&self, service: Service) -> Result<()> {
        self.stop_service(service).await?;
        self.start_service(service)
    }

    /// Runs a program on the node, outside of containers; what it printed.
    ///
    /// # Errors
    /// When it fails, with what it said.
    pub async fn run(&self, command: &[&str]) -> Result<String> {
        let first = self.first_process().await?.to_string();
        let path = format!("PATH={}:/usr/sbin:/usr/bin:/sbin:/bin", self.programs.display());
        let mut nsenter = tokio::process::Command::new("nsenter");
        nsenter
            .args([
                "--target", &first, "--mount", "--net", "--ipc", "--uts", "--pid", "--cgroup", "--", "env",
                &path,
            ])
            .args(command)
            .stdin(Stdio::null());
        let output = nsenter.output().await.context("running nsenter")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{} on {}: {}", command.join(" "), self.name, said.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The end of what a service logged.
    pub fn log(&self, service: Service) -> String {
        let text =
            std::fs::read_to_string(self.folder.join(format!("{}.log", service.name()))).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.power_off();
    }
}

/// Whether a process exists and has not ended.
fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// The kernel's name of the namespace that a process's ids are of; `None` once it has ended.
fn pid_namespace(pid: impl std::fmt::Display) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

fn is_program(pid: u32, name: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name)
}

/// The simulated driver's description of the GPUs, and no state of theirs.
fn write_gpus(folder: &Path, number: u8, gpus: &Gpus) -> Result<()> {
    let Gpus::Simulated { product, count, memory_mib } = gpus else { return Ok(()) };
    let all = uuids(number, *count);
    let specs = all.iter().map(|uuid| GpuSpec::of_product(product, uuid, *memory_mib));
    let spec = Spec { gpus: specs.collect(), settings_need_admin: true, ..Spec::of(&[]) };
    let path = folder.join("nvidia/node.json");
    let state = folder.join("nvidia/node.json.state");
    if state.exists() {
        std::fs::remove_file(&state)?;
    }
    spec.write_pci_devices(&folder.join("pci"))?;
    Ok(spec.write(&path)?)
}
