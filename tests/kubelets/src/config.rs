//! The files that a node's programs read. JSON is YAML.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::gpus::{Gpus, uuids};
use crate::network::Network;
use crate::registry::Registry;
use crate::runtime::DefaultRuntime;

/// Image of the container that holds a pod's namespaces.
pub(crate) const PAUSE: &str = "registry.k8s.io/pause:3.10.2";
/// The network plug-ins' configuration, in the node's folder.
pub(crate) const CNI: &str = "cni/10-nodes.conflist";
/// Where containers find the simulated driver's description of the node's GPUs.
pub const DRIVER: &str = "/run/nvidia-sim";

/// Who the node is, and where things lie.
pub(crate) struct NodeFiles<'a> {
    pub folder: &'a Path,
    pub number: u8,
    /// kubelet, containerd, CNI plug-ins...
    pub programs: &'a Path,
    /// The authority of the API server's clients.
    pub ca: &'a Path,
    /// kube-proxy's kubeconfig.
    pub proxy: &'a Path,
    /// The simulated `libnvidia-ml`.
    pub library: &'a Path,
    pub gpus: &'a Gpus,
    pub default_runtime: DefaultRuntime,
    /// How often the kubelet reports the node's status.
    pub status_seconds: u32,
}

impl NodeFiles<'_> {
    /// Writes them all, but for `node.env`, `images` and `kubelet.kubeconfig`.
    pub fn write(&self) -> Result<()> {
        self.put("resolv.conf", "nameserver 127.0.0.1\n")?;
        self.put("containerd.toml", &self.containerd())?;
        let registry = Registry::address();
        // Plain HTTP.
        let host = format!("server = \"http://{registry}\"\n[host.\"http://{registry}\"]\n");
        self.put(&format!("registries/{registry}/hosts.toml"), &host)?;
        self.put("container-runtime.toml", &self.container_runtime())?;
        self.put("kubelet.yaml", &json_text(&self.kubelet()))?;
        self.put("proxy.yaml", &json_text(&self.proxy()))?;
        self.put(CNI, &json_text(&self.cni()))?;
        self.put("cdi/nvidia.json", &json_text(&self.devices()))?;
        self.default_runtime.write_driver(self.folder, self.gpus)
    }

    fn put(&self, name: &str, text: &str) -> Result<()> {
        let path = self.folder.join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }

    fn at(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn program(&self, name: &str) -> String {
        self.programs.join(name).display().to_string()
    }

    /// NVIDIA's runtime does nothing to containers that ask for no GPU.
    fn containerd(&self) -> String {
        // Without CAP_SYS_RESOURCE no score can be lowered, and every pod would fail.
        let restricted = !has_cap_sys_resource();
        let runtime = "[plugins.'io.containerd.cri.v1.runtime'.containerd";
        format!(
            "version = 3\n\
             [plugins.'io.containerd.cri.v1.images'.pinned_images]\n\
             sandbox = '{PAUSE}'\n\
             [plugins.'io.containerd.cri.v1.images'.registry]\n\
             config_path = '{registries}'\n\
             [plugins.'io.containerd.cri.v1.runtime']\n\
             restrict_oom_score_adj = {restricted}\n\
             {runtime}]\n\
             default_runtime_name = '{default}'\n\
             {runtime}.runtimes.runc]\n\
             runtime_type = 'io.containerd.runc.v2'\n\
             {runtime}.runtimes.runc.options]\n\
             BinaryName = '{runc}'\n\
             {runtime}.runtimes.nvidia]\n\
             runtime_type = 'io.containerd.runc.v2'\n\
             {runtime}.runtimes.nvidia.options]\n\
             BinaryName = '{nvidia}'\n\
             [plugins.'io.containerd.cri.v1.runtime'.cni]\n\
             bin_dirs = ['{programs}']\n\
             conf_dir = '{cni}'\n",
            default = self.default_runtime.name(),
            runc = self.program("runc"),
            nvidia = self.program("nvidia-container-runtime"),
            programs = self.programs.display(),
            cni = self.at("cni"),
            registries = self.at("registries"),
        )
    }

    /// NVIDIA's container runtime looks up `NVIDIA_VISIBLE_DEVICES` among the devices of [`Self::devices`].
    fn container_runtime(&self) -> String {
        format!(
            "[nvidia-container-runtime]\n\
             runtimes = ['{}']\n\
             mode = 'cdi'\n\
             debug = '{}'\n\
             [nvidia-container-runtime.modes.cdi]\n\
             default-kind = 'nvidia.com/gpu'\n\
             spec-dirs = ['{}']\n",
            self.program("runc"),
            self.at("container-runtime.log"),
            self.at("cdi"),
        )
    }

    /// The GPUs as the Container Device Interface describes them: by UUID, by index, and all. A simulated GPU has no device node:
    /// its driver is a library and a folder.
    fn devices(&self) -> Value {
        let count = match self.gpus {
            Gpus::Simulated { count, .. } => *count,
            Gpus::OfMachine(machine) => return machine.devices(),
        };
        let names = uuids(self.number, count).into_iter().chain((0..count).map(|index| index.to_string()));
        let devices: Vec<Value> = names
            .chain(["all".to_owned()])
            .map(|name| json!({"name": name, "containerEdits": {"env": ["NVIDIA_SIMULATED=1"]}}))
            .collect();
        let library = format!("/usr/lib/{}-linux-gnu/libnvidia-ml.so.1", std::env::consts::ARCH);
        json!({
            "cdiVersion": "0.6.0",
            "kind": "nvidia.com/gpu",
            "devices": devices,
            "containerEdits": {
                "env": [format!("{}={DRIVER}/node.json", nvidia_ml::ENV_SPEC)],
                "mounts": [
                    {"hostPath": self.library, "containerPath": library, "options": ["ro", "bind"]},
                    {"hostPath": self.at("nvidia"), "containerPath": DRIVER, "options": ["rw", "bind"]},
                ],
            },
        })
    }

    fn cni(&self) -> Value {
        json!({
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
                    "ipam": {
                        "type": "host-local", "ranges": [[{"subnet": Network::pods(self.number)}]],
                        "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "/run/cni",
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": true}, "backend": "nftables"},
            ],
        })
    }

    fn kubelet(&self) -> Value {
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": false,
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": true,
            "enforceNodeAllocatable": ["pods"],
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "authentication": {
                "anonymous": {"enabled": false}, "webhook": {"enabled": true}, "x509": {"clientCAFile": self.ca},
            },
            "authorization": {"mode": "Webhook"},
            "clusterDNS": ["10.96.0.10"],
            "clusterDomain": "cluster.local",
            "resolvConf": self.at("resolv.conf"),
            "failSwapOn": false,
            "makeIPTablesUtilChains": false,
            "oomScoreAdj": 0,
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
            // Nodes share the machine's disk: only their memory is theirs to watch.
            "evictionHard": {"memory.available": "100Mi"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "nodeStatusUpdateFrequency": format!("{}s", self.status_seconds),
        })
    }

    fn proxy(&self) -> Value {
        json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clusterCIDR": Network::PODS,
            "clientConnection": {"kubeconfig": self.proxy},
            // These are settings of the whole machine.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            "nftables": {"syncPeriod": "30s", "minSyncPeriod": "100ms"},
        })
    }
}

fn json_text(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Whether this process may lower scores of the kernel's memory killer.
fn has_cap_sys_resource() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|set| set >> CAP_SYS_RESOURCE & 1 == 1)
}
