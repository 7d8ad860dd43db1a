//! What a cluster is made of: its GPU nodes, our programs and their flags, the rules of the plan.

use std::path::PathBuf;
use std::time::Duration;

use andreas_kubelets::{DefaultRuntime, Gpus};
use andreas_testbed::Component;
use serde_json::{Value, json};

use crate::chart;
use crate::older::Older;

/// Equal GPU nodes.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Nodes are named `<prefix><number from 0>`.
    pub prefix: &'static str,
    /// How many.
    pub count: usize,
    /// GPU type: value of the product label.
    pub gpu: &'static str,
    /// GPUs of each node.
    pub gpus: usize,
    /// Memory of each GPU, MiB.
    pub memory_mib: u64,
}

/// A100 of 80 GB.
pub const A100: &str = "NVIDIA-A100-SXM4-80GB";
/// V100 of 16 GB.
pub const V100: &str = "Tesla-V100-SXM2-16GB";
/// T4.
pub const T4: &str = "Tesla-T4";

/// `count` nodes `a100-0`, `a100-1`... of 4 A100.
pub fn a100(count: usize) -> Group {
    Group { prefix: "a100-", count, gpu: A100, gpus: 4, memory_mib: 81_920 }
}

/// `count` nodes `t4-0`, `t4-1`... of 4 T4.
pub fn t4(count: usize) -> Group {
    Group { prefix: "t4-", count, gpu: T4, gpus: 4, memory_mib: 15_360 }
}

/// What shall run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name that shows in the data folder's name.
    pub name: String,
    /// GPU nodes.
    pub groups: Vec<Group>,
    /// One node more for each of these recorded label sets (`tests/nodes/labels`), named `<set>-0`.
    pub recorded: Vec<String>,
    /// Folders of this machine that pods on pretend nodes see, read-only, beside its system's.
    pub host_paths: Vec<PathBuf>,
    /// Real nodes with these GPUs, named `node-1`, `node-2`..., in place of all pretend ones; [`Options::install`] goes with them.
    /// Such a cluster needs `tests/kubelets/isolated`.
    pub real_nodes: Vec<Gpus>,
    /// Of the real nodes' containerd.
    pub default_runtime: DefaultRuntime,
    /// Replicas of the operator.
    pub operators: usize,
    /// Further flags of the operator.
    pub operator_args: Vec<String>,
    /// What the operator logs, as its flag `--log` takes it.
    pub operator_log: &'static str,
    /// `EnergyPolicy.spec`; time-outs suited to short runs when absent.
    pub policy: Value,
    /// With the extender and our scheduler profile, or in affinity mode with the cluster's own scheduler.
    pub extender: bool,
    /// How long a node may be silent before it is NotReady.
    pub node_monitor_grace_period: Duration,
    /// Values of the chart: then it is installed by helm, its pods are run by the pretend kubelets on two nodes without GPUs
    /// and, the agents, on every GPU node. Without, operator, extender and scheduler are plain processes and there is no agent.
    pub install: Option<Value>,
    /// With [`Options::install`]: a release before this one is installed, with its own programs; those of this version stand ready.
    pub older: Option<Older>,
    /// On real nodes: the files of a release (`hack/release`), with which it is installed, by its own script and from a registry that
    /// took its images, in place of the repository's chart. Without values of the chart.
    pub release: Option<PathBuf>,
    /// A folder that stays at the end.
    pub data_dir: Option<PathBuf>,
    /// For thousands of nodes: containers are simulated, node leases are not renewed, nobody observes.
    pub simulated: bool,
    /// Further flags of the control plane's programs.
    pub control_plane_args: Vec<(Component, String)>,
    /// Our programs reach the API server through a fault proxy, see [`crate::cluster::Cluster::faults`]. Its callers are `operator-0`,
    /// `operator-1`..., `extender`, and `pods` for everything that runs as a pod.
    pub fault_proxy: bool,
    /// By how many seconds the wall clock of the operator's machine is ahead.
    pub operator_clock: i64,
    /// The wall clocks of operator, extender and GPU nodes can be set while they run: [`Cluster::set_clock`].
    pub clocks_can_be_set: bool,
    /// The chart's node agents run on every GPU node, beside plain processes. [`Options::install`] brings them by itself.
    pub agents: bool,
    /// Something beside compute processes keeps clocks of GPUs up, so that agents put idle ones to rest.
    pub gpus_kept_busy: bool,
    /// Kinds of jobs that are adopted, beside their controllers; see [`crate::adoption`].
    pub adopt: &'static [&'static str],
    /// The largest weight that counts: scenarios tell jobs apart by any there is.
    pub max_weight: u16,
    /// With the rights and policies of node-power.
    pub node_power: bool,
    /// Hosts that namespaces may have notifications sent to.
    pub notify_hosts: &'static [&'static str],
    /// Keeps the machine busy: takes places of several, so that no other such scenario and few of the usual ones run beside it.
    pub heavy: bool,
}

impl Options {
    /// Whether the scenario may share a control plane with other scenarios.
    pub fn shares_control_plane(&self) -> bool {
        let usual = Self::default();
        self.install.is_none()
            && self.data_dir.is_none()
            && self.control_plane_args.is_empty()
            && self.node_monitor_grace_period == usual.node_monitor_grace_period
            && self.adopt.is_empty()
            && self.max_weight == usual.max_weight
            && self.notify_hosts.is_empty()
            && !(self.simulated || self.heavy || self.node_power)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "e2e".into(),
            groups: vec![a100(2)],
            recorded: Vec::new(),
            host_paths: Vec::new(),
            real_nodes: Vec::new(),
            default_runtime: DefaultRuntime::default(),
            operators: 1,
            operator_args: Vec::new(),
            operator_log: "info,kube=warn",
            policy: short_runs(),
            extender: true,
            node_monitor_grace_period: Duration::from_secs(50),
            install: None,
            older: None,
            release: None,
            data_dir: None,
            simulated: false,
            control_plane_args: Vec::new(),
            fault_proxy: false,
            operator_clock: 0,
            clocks_can_be_set: false,
            agents: false,
            gpus_kept_busy: false,
            adopt: &[],
            max_weight: chart::MAX_WEIGHT,
            node_power: false,
            notify_hosts: &[],
            heavy: false,
        }
    }
}

/// The rules for runs of seconds: what a restart costs and how long a run stays are scaled like the runs.
pub fn short_runs() -> Value {
    json!({
        "preemption": {"restartTime": "2s", "restartWear": "2s", "minRunTime": "3s"},
        "unknownJobs": {"runTime": "60s"},
        "placementTimeout": "20s",
    })
}
