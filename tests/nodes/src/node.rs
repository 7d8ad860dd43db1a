//! A pretend node: its Node object, Lease and heartbeats.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node as NodeObject;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use nvidia_ml::GpuSpec;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore, watch};

use crate::config::{NodeGroup, NodesConfig, parse_taint};
use crate::devices::{Devices, GPU_RESOURCE, uuid};
use crate::hardware::Hardware;
use crate::quantity;
use crate::time::whole_seconds;

/// Version the nodes claim; that of the control plane the testbed runs.
const KUBELET_VERSION: &str = "v1.36.4";

/// One pretend node.
pub(crate) struct Node {
    pub name: String,
    pub address: String,
    pub group: Arc<NodeGroup>,
    pub devices: Mutex<Devices>,
    /// What the driver says of its GPUs, where that is simulated.
    pub hardware: OnceLock<Hardware>,
    state: Mutex<State>,
    /// Whether its kubelet reaches the API server.
    online: watch::Sender<bool>,
    /// Something in the status has changed.
    changed: Notify,
}

struct State {
    boot_id: String,
    boots: u32,
    ready_since: Timestamp,
    registered: bool,
}

impl Node {
    pub fn new(group: &Arc<NodeGroup>, index: usize, number: usize) -> Self {
        let name = group.name.clone().unwrap_or_else(|| format!("{}{index}", group.name_prefix));
        let cpu = quantity(&group.cpu).unwrap_or(1.0);
        let memory = quantity(&group.memory).unwrap_or(1e9);
        let state =
            State { boot_id: String::new(), boots: 0, ready_since: Timestamp::now(), registered: false };
        let node = Self {
            address: format!("10.243.{}.{}", number / 250 % 256, number % 250 + 1),
            devices: Mutex::new(Devices::new(&name, group.gpus, cpu, memory, group.pods as usize)),
            group: Arc::clone(group),
            hardware: OnceLock::new(),
            state: Mutex::new(state),
            online: watch::Sender::new(true),
            changed: Notify::new(),
            name,
        };
        node.new_boot();
        node
    }

    /// Whether its kubelet reaches the API server, now and later.
    pub fn online(&self) -> watch::Receiver<bool> {
        self.online.subscribe()
    }

    pub fn is_online(&self) -> bool {
        *self.online.borrow()
    }

    pub fn set_online(&self, online: bool) {
        if online && !self.is_online() {
            self.state.lock().ready_since = Timestamp::now();
        }
        self.online.send_replace(online);
        self.changed.notify_one();
    }

    /// The status is worth sending now.
    pub fn status_changed(&self) {
        self.changed.notify_one();
    }

    pub fn boot_id(&self) -> String {
        self.state.lock().boot_id.clone()
    }

    /// A boot ID not seen before, not even by an earlier run of this program.
    pub fn new_boot(&self) {
        let mut state = self.state.lock();
        state.boots += 1;
        let now = Timestamp::now();
        state.boot_id = uuid(&[&self.name, "boot", &state.boots.to_string(), &now.to_string()]);
        state.ready_since = now;
    }

    pub fn forget(&self) {
        self.state.lock().registered = false;
    }

    /// Labels as a kubelet and NVIDIA's GPU operator write them, or as they are recorded.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let group = &self.group;
        let mut labels: BTreeMap<String, String> = [
            ("kubernetes.io/hostname", self.name.clone()),
            ("kubernetes.io/arch", "amd64".to_owned()),
            ("kubernetes.io/os", "linux".to_owned()),
            ("beta.kubernetes.io/arch", "amd64".to_owned()),
            ("beta.kubernetes.io/os", "linux".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        match &group.set {
            Some(set) => labels.extend(set.labels.clone()),
            None if group.gpus > 0 => labels.extend(gpu_operator(group)),
            None => {}
        }
        labels.extend(group.labels.clone());
        labels
    }

    fn object(&self) -> Value {
        let taints: Vec<Value> = self
            .group
            .taints
            .iter()
            .filter_map(|taint| parse_taint(taint).ok())
            .map(|(key, value, effect)| json!({"key": key, "value": value, "effect": effect}))
            .collect();
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": self.name, "labels": self.labels()},
            "spec": {"taints": taints, "providerID": format!("pretend://{}", self.name)},
        })
    }

    fn status(&self) -> Value {
        let now = Timestamp::now().to_string();
        // Its lock is given back before the devices' is taken.
        let (boot_id, since) = {
            let state = self.state.lock();
            (state.boot_id.clone(), whole_seconds(state.ready_since))
        };
        let group = &self.group;
        let mut capacity = json!({
            "cpu": group.cpu, "memory": group.memory, "pods": group.pods.to_string(),
            "ephemeral-storage": "1Ti", "hugepages-1Gi": "0", "hugepages-2Mi": "0",
        });
        let mut allocatable = capacity.clone();
        for (amounts, recorded) in [
            (&mut capacity, group.set.as_ref().map(|set| &set.capacity)),
            (&mut allocatable, group.set.as_ref().map(|set| &set.allocatable)),
        ] {
            for (name, amount) in recorded.into_iter().flatten() {
                amounts[name] = json!(amount);
            }
        }
        if group.gpus > 0 {
            let devices = self.devices.lock();
            capacity[GPU_RESOURCE] = json!(devices.gpus().len().to_string());
            allocatable[GPU_RESOURCE] = json!(devices.gpus().len().to_string());
        }
        let condition = |kind: &str, status: &str, reason: &str, message: &str| {
            json!({
                "type": kind, "status": status, "reason": reason, "message": message,
                "lastHeartbeatTime": now, "lastTransitionTime": since,
            })
        };
        json!({"status": {
            "capacity": capacity, "allocatable": allocatable,
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
                condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
            ],
            "addresses": [
                {"type": "InternalIP", "address": self.address}, {"type": "Hostname", "address": self.name},
            ],
            "nodeInfo": {
                "architecture": "amd64", "operatingSystem": "linux", "osImage": "Pretend Linux",
                "kernelVersion": "6.12.0", "containerRuntimeVersion": "pretend://1.0.0",
                "kubeletVersion": KUBELET_VERSION, "kubeProxyVersion": KUBELET_VERSION,
                "machineID": uuid(&[&self.name, "machine"]), "systemUUID": uuid(&[&self.name, "system"]),
                "bootID": boot_id,
            },
        }})
    }

    /// Makes or brings up to date the Node object and its status.
    pub async fn register(&self, client: &kube::Client) -> kube::Result<()> {
        let nodes: Api<NodeObject> = Api::all(client.clone());
        let object = serde_json::from_value(self.object()).map_err(kube::Error::SerdeError)?;
        match nodes.create(&PostParams::default(), &object).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let labels = json!({"metadata": {"labels": self.labels()}});
                nodes.patch(&self.name, &PatchParams::default(), &Patch::Merge(labels)).await?;
            }
            Err(error) => return Err(error),
        }
        self.report(client).await?;
        self.renew(client, 40).await?;
        self.state.lock().registered = true;
        Ok(())
    }

    async fn report(&self, client: &kube::Client) -> kube::Result<()> {
        let nodes: Api<NodeObject> = Api::all(client.clone());
        nodes
            .patch_status(&self.name, &PatchParams::default(), &Patch::Strategic(self.status()))
            .await
            .map(drop)
    }

    async fn renew(&self, client: &kube::Client, duration_seconds: i32) -> kube::Result<()> {
        let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
        let spec = json!({
            "holderIdentity": self.name, "leaseDurationSeconds": duration_seconds,
            "renewTime": format!("{:.6}", Timestamp::now()),
        });
        let patch = Patch::Merge(json!({"spec": spec}));
        match leases.patch(&self.name, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => {
                let lease =
                    json!({"metadata": {"name": self.name, "namespace": "kube-node-lease"}, "spec": spec});
                let lease = serde_json::from_value(lease).map_err(kube::Error::SerdeError)?;
                leases.create(&PostParams::default(), &lease).await.map(drop)
            }
            other => other.map(drop),
        }
    }

    /// Deletes the Node object, as an administrator does with a dead machine.
    pub async fn delete(&self, client: &kube::Client) -> kube::Result<()> {
        self.forget();
        let nodes: Api<NodeObject> = Api::all(client.clone());
        match nodes.delete(&self.name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            other => other.map(drop),
        }
    }

    /// Renews the Lease and reports the status for as long as the node is online and registered.
    pub async fn heartbeat(
        self: Arc<Self>,
        client: kube::Client,
        config: Arc<NodesConfig>,
        writes: Arc<Semaphore>,
    ) {
        let renew = Duration::from_secs(config.lease_renew_seconds.max(1));
        // Nodes that start together would renew together for ever.
        let offset = self.address.bytes().fold(0u64, |sum, byte| (sum * 31 + u64::from(byte)) % 1000);
        let mut beat = tokio::time::interval_at(
            tokio::time::Instant::now() + renew.mul_f64(offset as f64 / 1000.0),
            renew,
        );
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let beats_per_status = (config.status_seconds / renew.as_secs()).max(1);
        let mut beats = offset;
        loop {
            let report = tokio::select! {
                _ = beat.tick() => { beats += 1; beats.is_multiple_of(beats_per_status) }
                () = self.changed.notified() => true,
            };
            if !self.is_online() || !self.state.lock().registered {
                continue;
            }
            let Ok(_permit) = writes.acquire().await else { return };
            let limit = Duration::from_secs(10);
            let lease = tokio::time::timeout(limit, self.renew(&client, config.lease_seconds)).await;
            if let Ok(Err(error)) = lease {
                tracing::warn!(node = self.name, %error, "lease not renewed");
            }
            if report && let Ok(Err(error)) = tokio::time::timeout(limit, self.report(&client)).await {
                tracing::warn!(node = self.name, %error, "status not reported");
                if !matches!(&error, kube::Error::Api(status) if status.is_not_found()) {
                    self.changed.notify_one();
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }
}

/// What GPU feature discovery and the GPU operator write with the default values of the operator's chart.
fn gpu_operator(group: &NodeGroup) -> BTreeMap<String, String> {
    let GpuSpec { compute_capability, mig_capable: capable, .. } =
        GpuSpec::of_product(&group.gpu, "", group.gpu_memory_mib);
    let (major, minor) = compute_capability;
    let mut found: BTreeMap<String, String> = [
        ("gpu.present", "true".to_owned()),
        ("gpu.product", group.gpu.clone()),
        ("gpu.count", group.gpus.to_string()),
        ("gpu.memory", group.gpu_memory_mib.to_string()),
        ("gpu.family", family(compute_capability).to_owned()),
        ("gpu.machine", "Pretend-Node".to_owned()),
        ("gpu.mode", "compute".to_owned()),
        ("gpu.replicas", "1".to_owned()),
        ("gpu.sharing-strategy", "none".to_owned()),
        ("gpu.compute.major", major.to_string()),
        ("gpu.compute.minor", minor.to_string()),
        ("cuda.driver-version.full", "580.95.05".to_owned()),
        ("cuda.driver-version.major", "580".to_owned()),
        ("cuda.driver-version.minor", "95".to_owned()),
        ("cuda.driver-version.revision", "05".to_owned()),
        ("cuda.driver.major", "580".to_owned()),
        ("cuda.driver.minor", "95".to_owned()),
        ("cuda.driver.rev", "05".to_owned()),
        ("cuda.runtime-version.full", "13.0".to_owned()),
        ("cuda.runtime-version.major", "13".to_owned()),
        ("cuda.runtime-version.minor", "0".to_owned()),
        ("cuda.runtime.major", "13".to_owned()),
        ("cuda.runtime.minor", "0".to_owned()),
        ("mig.capable", capable.to_string()),
        ("mig.strategy", "single".to_owned()),
        ("mps.capable", "false".to_owned()),
        ("vgpu.present", "false".to_owned()),
    ]
    .map(|(name, value)| (format!("nvidia.com/{name}"), value))
    .into();
    let parts =
        ["driver", "device-plugin", "gpu-feature-discovery", "container-toolkit", "dcgm", "dcgm-exporter"];
    let others = ["node-status-exporter", "operator-validator"];
    let deployed = parts.into_iter().chain(others).chain(capable.then_some("mig-manager"));
    found.extend(deployed.map(|part| (format!("nvidia.com/gpu.deploy.{part}"), "true".to_owned())));
    found
}

/// The family that GPU feature discovery derives from a compute capability.
fn family(capability: (u32, u32)) -> &'static str {
    match capability {
        (7, ..5) => "volta",
        (7, _) => "turing",
        (8, ..9) => "ampere",
        (8, _) => "ada-lovelace",
        (9, _) => "hopper",
        (10 | 12, _) => "blackwell",
        _ => "undefined",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_that_waits_for_the_devices_holds_no_other_lock() {
        let group =
            serde_json::from_value(json!({"namePrefix": "t4-", "count": 1, "gpu": "Tesla-T4", "gpus": 4}));
        let node = Node::new(&Arc::new(group.unwrap()), 0, 300);
        std::thread::scope(|threads| {
            let devices = node.devices.lock();
            threads.spawn(|| node.status());
            // It waits for the devices by now, which cannot be seen; whoever has these may take the state.
            std::thread::sleep(std::time::Duration::from_millis(50));
            let free = node.state.try_lock_for(std::time::Duration::from_secs(5)).is_some();
            drop(devices);
            assert!(free);
        });
    }

    #[test]
    fn labels_and_resources_are_those_that_the_gpu_operator_writes_by_default() {
        let group = serde_json::from_value(json!({
            "namePrefix": "t4-", "count": 2, "gpu": "Tesla-T4", "gpus": 4, "gpuMemoryMiB": 15360,
            "labels": {"topology.kubernetes.io/zone": "z1"}, "taints": ["nvidia.com/gpu=present:NoSchedule"],
        }));
        let node = Node::new(&Arc::new(group.unwrap()), 1, 300);
        let labels = node.labels();
        for (name, value) in [
            ("kubernetes.io/hostname", "t4-1"),
            ("nvidia.com/gpu.product", "Tesla-T4"),
            ("nvidia.com/gpu.family", "turing"),
            ("nvidia.com/gpu.memory", "15360"),
            ("topology.kubernetes.io/zone", "z1"),
            // The default of the GPU operator's chart, on boards without MIG too.
            ("nvidia.com/mig.strategy", "single"),
            ("nvidia.com/mig.capable", "false"),
            ("nvidia.com/gpu.deploy.device-plugin", "true"),
        ] {
            assert_eq!(labels[name], value, "{name}");
        }
        let status = &node.status()["status"];
        assert_eq!(status["capacity"][GPU_RESOURCE], "4");
        assert_eq!(status["allocatable"][GPU_RESOURCE], "4");
        let first = node.boot_id();
        node.new_boot();
        assert_ne!(first, node.boot_id());
    }
}
