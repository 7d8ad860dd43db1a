//! Slim views of objects that only the operator watches, and what foreign pods use of each node.

use std::collections::BTreeMap;

use andreas_api::slim::{SlimPodCondition, SlimPodSpec, SlimPodStatus, metadata, own_metadata};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::ObjectMeta;
use serde::Deserialize;

use super::ClusterIndex;
use super::amounts::{self, Amounts};

/// Maximum other resources (not GPUs, CPU, memory and pods) kept per pod.
const MAX_OTHERS: usize = 256;

/// A foreign pod: its node and its use there. Ended ones are not watched. Containers are summed while
/// parsing, because a pod may be as large as the API server's limit.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Read")]
pub struct ForeignPod {
    /// Name and versions.
    pub metadata: ObjectMeta,
    /// Node and requests; `None` if it is not bound.
    pub takes: Option<(String, Amounts)>,
    /// Its grace period, s, if given.
    pub grace: Option<i64>,
    /// What it waits for; `None` if it is bound, asks for no GPUs or has not been refused by the scheduler.
    pub waits: Option<WaitingPod>,
}

/// A foreign pod for which the scheduler finds no node with GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingPod {
    /// GPUs that it asks for, > 0.
    pub gpus: u64,
    /// Labels that its node must have.
    pub node_selector: BTreeMap<String, String>,
}

/// As parsed.
#[derive(Deserialize)]
struct Read {
    #[serde(deserialize_with = "own_metadata")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: SlimPodSpec,
    #[serde(default)]
    status: SlimPodStatus,
}

impl From<Read> for ForeignPod {
    fn from(read: Read) -> Self {
        let grace = read.spec.termination_grace_period_seconds;
        let waits = waits(&read.spec, &read.status);
        Self { metadata: read.metadata, takes: takes(read.spec, &read.status), grace, waits }
    }
}

fn waits(spec: &SlimPodSpec, status: &SlimPodStatus) -> Option<WaitingPod> {
    let refused = |c: &SlimPodCondition| {
        c.type_ == "PodScheduled" && c.status == "False" && c.reason == "Unschedulable"
    };
    if spec.node_name.is_some() || !status.conditions.iter().any(refused) {
        return None;
    }
    let gpus = amounts::pod(spec).bounded().gpus;
    (gpus > 0).then(|| WaitingPod { gpus, node_selector: spec.node_selector.clone() })
}

fn takes(mut spec: SlimPodSpec, status: &SlimPodStatus) -> Option<(String, Amounts)> {
    let node = spec.node_name.take()?;
    let mut amounts = amounts::bound_pod(&spec, status).bounded();
    while amounts.others.len() > MAX_OTHERS {
        amounts.others.pop_last();
    }
    Some((node, amounts))
}

/// A namespace: its labels and annotations (pod security, maximum weight).
#[derive(Clone, Debug, Deserialize)]
pub struct SlimNamespace {
    /// Name, versions, labels, annotations.
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
}

/// A pod that has waited for longer than this is nobody's demand: it may be asking for what no machine has.
const WAITS_AT_MOST: SignedDuration = SignedDuration::from_hours(1);

impl ClusterIndex {
    /// Foreign pods made in the last hour for which the scheduler finds no GPUs.
    pub fn waiting_pods(&self) -> Vec<WaitingPod> {
        let now = (self.clock.0)();
        let young = |pod: &ForeignPod| {
            let made = pod.metadata.creation_timestamp.as_ref();
            made.is_some_and(|made| now.duration_since(made.0) < WAITS_AT_MOST)
        };
        let waiting = self.by_node.foreign.iter().filter(|(_, pod)| young(pod));
        waiting.filter_map(|(_, pod)| pod.waits.clone()).collect()
    }

    /// A foreign pod, by its name in GpuNodes, takes this of a node.
    pub(super) fn add_use(&mut self, node: &str, pod: String, amounts: Amounts) {
        let gpus = amounts.gpus;
        let entry = self.by_node.foreign_use.entry(node.to_owned()).or_default();
        *entry = std::mem::take(entry).plus(amounts);
        if gpus > 0 {
            self.by_node.agents.foreign_took(node, pod, gpus);
            self.replan();
        }
    }

    /// A foreign pod takes this no more.
    pub(super) fn drop_use(&mut self, node: &str, pod: &str, amounts: Amounts) {
        let gpus = amounts.gpus;
        if let Some(entry) = self.by_node.foreign_use.get_mut(node) {
            *entry = std::mem::take(entry).minus(amounts);
            if *entry == Amounts::default() {
                self.by_node.foreign_use.remove(node);
            }
        }
        if gpus > 0 {
            self.by_node.agents.foreign_left(node, pod);
            self.mark_jobs_on(node);
            self.replan();
        }
    }
}

andreas_api::resource_like!(ForeignPod, Pod);
andreas_api::resource_like!(SlimNamespace, Namespace);
