//! One node: its GPUs, their holders and draw, and whether they can be used.

use std::collections::BTreeMap;

use andreas_api::gpu_node::{GpuCondition, GpuNodeStatus, GpuState};
use andreas_api::names::LABEL_GPU_PRODUCT;
use andreas_api::node_power::PowerState;
use andreas_api::slim::{SlimGpuNode, SlimNode, SlimNodePower};
use serde::Serialize;

use super::{Objects, gpus};

/// Health of a node with GPUs that the operator has not seen.
pub const NO_GPU_NODE: &str = "NoGpuNode";

/// One node with GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// GPU type by which it is planned; none where it has none.
    pub gpu_type: Option<String>,
    /// Number of GPUs.
    pub gpus: u64,
    /// Held by a pod.
    pub held: u64,
    /// Free and awake.
    pub free: u64,
    /// Free and in low power.
    pub resting: u64,
    /// Not to be used.
    pub unhealthy: u64,
    /// Draw of the GPUs, W.
    pub gpu_watts: Option<i64>,
    /// Pods that hold GPUs.
    pub holders: Vec<Holder>,
    /// Why the node's GPUs are not planned; none where they are.
    pub excluded: Option<String>,
    /// That in a sentence.
    pub excluded_message: Option<String>,
    /// `ok`, or what is wrong.
    pub health: String,
    /// The agent reports no problem.
    pub healthy: bool,
    /// Version of the node's agent.
    pub agent_version: Option<String>,
    /// Since when no GPU is held.
    pub empty_since: Option<jiff::Timestamp>,
    /// Its GPUs.
    pub devices: Vec<GpuView>,
}

/// A pod that holds GPUs of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// The pod, as `namespace/name`.
    pub pod: String,
    /// The TrainingJob, as `namespace/name`; none for pods of others.
    pub job: Option<String>,
    /// GPUs that it holds here.
    pub gpus: u64,
    /// Their draw, W.
    pub watts: Option<i64>,
}

impl Holder {
    /// The job, else the pod.
    pub fn name(&self) -> &str {
        self.job.as_deref().unwrap_or(&self.pod)
    }
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuView {
    /// NVML's UUID.
    pub uuid: String,
    /// `Held`, `Free`, `Resting`, `Unhealthy`.
    pub state: &'static str,
    /// The job that holds it, else the pod, as `namespace/name`.
    pub holder: Option<String>,
    /// Draw, W.
    pub watts: Option<i32>,
    /// Power limit that is wanted for its holder, W.
    pub limit_watts: Option<i32>,
    /// Since when it is held.
    pub held_since: Option<jiff::Timestamp>,
    /// What is wrong with it.
    pub problems: Vec<String>,
}

impl NodeView {
    pub(super) fn new(node: &SlimGpuNode, objects: &Objects) -> Self {
        let name = node.metadata.name.clone().unwrap_or_default();
        let status = node.status.clone().unwrap_or_default();
        let devices: Vec<GpuView> =
            status.gpus.iter().map(|gpu| device(gpu, &node.spec.limits, objects)).collect();
        let count = |state: &str| devices.iter().filter(|gpu| gpu.state == state).count() as u64;
        let number = (devices.len() as u64).max(objects.node(&name).map_or(0, gpus));
        let excluded = node.spec.excluded.as_ref();
        let (health, healthy) = health(node, &status, &devices);
        Self {
            name,
            gpu_type: node.spec.gpu_type.clone(),
            gpus: number,
            held: count("Held"),
            free: count("Free"),
            resting: count("Resting"),
            unhealthy: count("Unhealthy"),
            gpu_watts: status.gpus.iter().filter_map(|gpu| gpu.watts.map(i64::from)).reduce(|a, b| a + b),
            holders: holders(&status, objects),
            excluded: excluded.map(|why| why.reason.clone()),
            excluded_message: excluded.map(|why| why.message.clone()),
            health,
            healthy,
            agent_version: status.agent_version.clone(),
            empty_since: status.empty_since.as_ref().map(|at| at.0),
            devices,
        }
    }

    /// A machine that is off or starts, as it was.
    pub(super) fn off(power: &SlimNodePower) -> Option<Self> {
        let status = power.status.as_ref()?;
        let machine = status.machine.as_ref()?;
        Some(Self {
            name: power.metadata.name.clone().unwrap_or_default(),
            gpu_type: machine.labels.get(LABEL_GPU_PRODUCT).cloned(),
            gpus: u64::from(machine.gpus.unsigned_abs()),
            health: format!("{:?}", status.state),
            healthy: status.state != PowerState::Quarantined,
            ..Self::default()
        })
    }

    /// A node with GPUs and without an agent's report.
    pub(super) fn without_agent(node: &SlimNode) -> Self {
        Self {
            name: node.metadata.name.clone().unwrap_or_default(),
            gpus: gpus(node),
            health: NO_GPU_NODE.to_owned(),
            ..Self::default()
        }
    }
}

fn device(gpu: &GpuState, limits: &[andreas_api::gpu_node::PodPowerLimit], objects: &Objects) -> GpuView {
    let limit = |pod: &str| limits.iter().find(|limit| limit.pod == pod).map(|limit| limit.watts);
    let problem = |problem: &andreas_api::gpu_node::GpuProblem| match problem.xid {
        Some(xid) => format!("{} {xid}", problem.reason),
        None => problem.reason.clone(),
    };
    GpuView {
        uuid: gpu.uuid.clone(),
        state: match gpu.state {
            GpuCondition::Held => "Held",
            GpuCondition::Free => "Free",
            GpuCondition::Resting => "Resting",
            GpuCondition::Unhealthy => "Unhealthy",
        },
        holder: gpu.holder.as_deref().map(|pod| objects.job_of(pod).unwrap_or_else(|| pod.to_owned())),
        watts: gpu.watts,
        limit_watts: gpu.holder.as_deref().and_then(limit),
        held_since: gpu.held_since.as_ref().map(|at| at.0),
        problems: gpu.problems.iter().map(problem).collect(),
    }
}

fn holders(status: &GpuNodeStatus, objects: &Objects) -> Vec<Holder> {
    let mut held: BTreeMap<&str, (u64, Option<i64>)> = BTreeMap::new();
    for gpu in &status.gpus {
        if let Some(pod) = gpu.holder.as_deref() {
            let entry = held.entry(pod).or_default();
            let watts = gpu.watts.map(i64::from);
            *entry = (entry.0 + 1, entry.1.zip(watts).map(|(sum, own)| sum + own).or(entry.1).or(watts));
        }
    }
    let of = |(pod, (gpus, watts)): (&str, (u64, Option<i64>))| Holder {
        pod: pod.to_owned(),
        job: objects.job_of(pod),
        gpus,
        watts,
    };
    held.into_iter().map(of).collect()
}

/// In a word or two what is wrong with a node, and whether nothing is.
fn health(node: &SlimGpuNode, status: &GpuNodeStatus, devices: &[GpuView]) -> (String, bool) {
    let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
    match ready {
        None => return ("AgentNotSeen".to_owned(), false),
        Some(ready) if ready.status != "True" => return (ready.reason.clone(), false),
        Some(_) => {}
    }
    let problem = |gpu: &&GpuView| gpu.problems.first().cloned();
    let broken: Vec<&GpuView> = devices.iter().filter(|gpu| gpu.state == "Unhealthy").collect();
    if !broken.is_empty() {
        let why = broken.iter().find_map(problem).map(|why| format!(": {why}")).unwrap_or_default();
        return (format!("{} of {} GPUs{why}", broken.len(), devices.len()), false);
    }
    if let Some(excluded) = &node.spec.excluded {
        return (excluded.reason.clone(), excluded.reason == "NotSelected");
    }
    let warnings: Vec<&GpuView> = devices.iter().filter(|gpu| !gpu.problems.is_empty()).collect();
    match warnings.iter().find_map(problem) {
        Some(why) => (format!("warning: {why}"), true),
        None => ("ok".to_owned(), true),
    }
}
