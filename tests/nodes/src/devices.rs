//! A node's resources: which pod holds which GPU, and whether another pod fits. Pure.
//!
//! Admission follows the kubelet: first the sums of requests against allocatable (`OutOf<resource>`), then the device
//! manager (`UnexpectedAdmissionError`).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Container;
use serde::{Deserialize, Serialize};

use crate::objects::PodView;
use crate::quantity;

/// Name of the extended resource.
pub const GPU_RESOURCE: &str = "nvidia.com/gpu";

/// One GPU of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// `GPU-...`, the same for the life of the node.
    pub uuid: String,
    /// UID of the pod that holds it.
    pub holder: Option<String>,
}

/// Why a kubelet refuses a pod: it goes to phase Failed with these words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// `OutOfcpu`, `UnexpectedAdmissionError`, `NodeAffinity`...
    pub reason: String,
    /// For people.
    pub message: String,
}

/// A pod that was refused because others hold the GPUs that it asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedForGpus {
    /// Its UID.
    pub pod_uid: String,
    /// UIDs of the pods that held GPUs of the node then.
    pub holders: Vec<String>,
}

/// Refusals that are remembered.
const MAX_REFUSED: usize = 1_000;

/// What a pod asks of its node.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Demand {
    pub gpus: usize,
    /// Cores.
    pub cpu: f64,
    /// Bytes.
    pub memory: f64,
}

impl Demand {
    /// Sum of the containers, at least the largest init container; sidecars count as containers (KEP-753).
    pub fn of(pod: &PodView) -> Self {
        let (mut sum, mut largest) = (Self::default(), Self::default());
        for init in &pod.spec.init_containers {
            let one = Self::of_container(init);
            if init.restart_policy.as_deref() == Some("Always") {
                sum = sum.plus(&one);
                largest = largest.at_least(&sum);
            } else {
                largest = largest.at_least(&sum.plus(&one));
            }
        }
        let containers = pod.spec.containers.iter().map(Self::of_container);
        containers.fold(sum, |sum, one| sum.plus(&one)).at_least(&largest)
    }

    pub fn of_container(container: &Container) -> Self {
        let resources = container.resources.clone().unwrap_or_default();
        let (requests, limits) =
            (resources.requests.unwrap_or_default(), resources.limits.unwrap_or_default());
        let of = |name: &str| {
            let found = requests.get(name).or_else(|| limits.get(name));
            found.and_then(|found| quantity(&found.0)).unwrap_or(0.0)
        };
        Self { gpus: of(GPU_RESOURCE) as usize, cpu: of("cpu"), memory: of("memory") }
    }

    fn plus(&self, other: &Self) -> Self {
        Self { gpus: self.gpus + other.gpus, cpu: self.cpu + other.cpu, memory: self.memory + other.memory }
    }

    fn at_least(&self, other: &Self) -> Self {
        Self {
            gpus: self.gpus.max(other.gpus),
            cpu: self.cpu.max(other.cpu),
            memory: self.memory.max(other.memory),
        }
    }
}

/// The GPUs of one of a pod's containers: in order for the main ones, from the start for an init container, which is over
/// before those begin.
pub(crate) fn gpus_of_container(pod: &PodView, gpus: &[String], container: &Container) -> Vec<String> {
    let wanted = Demand::of_container(container).gpus;
    let mains = &pod.spec.containers;
    let before = mains.iter().take_while(|one| one.name != container.name);
    let is_main = mains.iter().any(|one| one.name == container.name);
    let skip = if is_main { before.map(|one| Demand::of_container(one).gpus).sum() } else { 0 };
    gpus.iter().skip(skip).take(wanted).cloned().collect()
}

/// The resources of one node and who holds them.
#[derive(Debug, Clone)]
pub(crate) struct Devices {
    gpus: Vec<Gpu>,
    cpu: f64,
    memory: f64,
    pods: usize,
    held: BTreeMap<String, Demand>,
    refused: Vec<RefusedForGpus>,
}

impl Devices {
    pub fn new(node: &str, gpus: usize, cpu: f64, memory: f64, pods: usize) -> Self {
        let gpus = (0..gpus).map(|index| Gpu { uuid: gpu_uuid(node, index), holder: None }).collect();
        Self { gpus, cpu, memory, pods, held: BTreeMap::new(), refused: Vec::new() }
    }

    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// Pods that were refused for want of GPUs, the latest last.
    pub fn refused(&self) -> &[RefusedForGpus] {
        &self.refused
    }

    /// Takes what the pod asks for and says which GPUs it got; lowest index first.
    pub fn admit(&mut self, pod_uid: &str, demand: &Demand) -> Result<Vec<String>, Refusal> {
        let of_pod = |gpu: &&Gpu| gpu.holder.as_deref() == Some(pod_uid);
        if self.held.contains_key(pod_uid) {
            return Ok(self.gpus.iter().filter(of_pod).map(|gpu| gpu.uuid.clone()).collect());
        }
        let used = self.held.values().fold(Demand::default(), |sum, one| sum.plus(one));
        let out_of = |resource: &str, requested: f64, used: f64, capacity: f64| Refusal {
            reason: format!("OutOf{resource}"),
            message: format!(
                "Pod was rejected: Node didn't have enough resource: {resource}, requested: {requested}, used: \
                 {used}, capacity: {capacity}"
            ),
        };
        if self.held.len() >= self.pods {
            return Err(out_of("pods", 1.0, self.held.len() as f64, self.pods as f64));
        }
        if used.cpu + demand.cpu > self.cpu + 1e-9 {
            return Err(out_of("cpu", demand.cpu * 1000.0, used.cpu * 1000.0, self.cpu * 1000.0));
        }
        if used.memory + demand.memory > self.memory {
            return Err(out_of("memory", demand.memory, used.memory, self.memory));
        }
        if used.gpus + demand.gpus > self.gpus.len() {
            self.note_refusal(pod_uid);
            return Err(out_of(GPU_RESOURCE, demand.gpus as f64, used.gpus as f64, self.gpus.len() as f64));
        }
        let free: Vec<usize> = (0..self.gpus.len()).filter(|&i| self.gpus[i].holder.is_none()).collect();
        self.held.insert(pod_uid.to_owned(), demand.clone());
        let mut uuids = Vec::with_capacity(demand.gpus);
        for &index in free.iter().take(demand.gpus) {
            self.gpus[index].holder = Some(pod_uid.to_owned());
            uuids.push(self.gpus[index].uuid.clone());
        }
        Ok(uuids)
    }

    fn note_refusal(&mut self, pod_uid: &str) {
        let holders: BTreeSet<String> = self.gpus.iter().filter_map(|gpu| gpu.holder.clone()).collect();
        if self.refused.len() >= MAX_REFUSED {
            self.refused.remove(0);
        }
        self.refused
            .push(RefusedForGpus { pod_uid: pod_uid.to_owned(), holders: holders.into_iter().collect() });
    }

    /// The pod has ended.
    pub fn release(&mut self, pod_uid: &str) {
        self.held.remove(pod_uid);
        for gpu in &mut self.gpus {
            if gpu.holder.as_deref() == Some(pod_uid) {
                gpu.holder = None;
            }
        }
    }

    /// A GPU by UUID or index.
    pub fn find(&self, gpu: &str) -> Option<Gpu> {
        let index: Option<usize> = gpu.parse().ok();
        let mut gpus = self.gpus.iter().enumerate();
        gpus.find(|(i, one)| one.uuid == gpu || Some(*i) == index).map(|(_, one)| one.clone())
    }
}

/// A UUID that depends on node and index only.
fn gpu_uuid(node: &str, index: usize) -> String {
    format!("GPU-{}", uuid(&[node, "gpu", &index.to_string()]))
}

/// A UUID-shaped digest (two rounds of 64-bit FNV-1a): identity, not security.
pub(crate) fn uuid(parts: &[&str]) -> String {
    let digest = |seed: u64| {
        let bytes = parts.iter().flat_map(|part| part.bytes().chain([0]));
        bytes.fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    };
    let (a, b) = (digest(0xcbf2_9ce4_8422_2325), digest(0x9e37_79b9_7f4a_7c15));
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        a >> 32,
        (a >> 16) & 0xffff,
        a & 0xfff,
        0x8000 | ((b >> 48) & 0x3fff),
        b & 0xffff_ffff_ffff
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Devices {
        Devices::new("a100-0", 4, 8.0, 64e9, 10)
    }

    fn gpus(count: usize) -> Demand {
        Demand { gpus: count, cpu: 1.0, memory: 1e9 }
    }

    #[test]
    fn no_gpu_is_given_twice_and_the_sum_is_never_exceeded() {
        let mut node = node();
        let first = node.admit("one", &gpus(2)).unwrap();
        let second = node.admit("two", &gpus(2)).unwrap();
        assert!(first.iter().all(|uuid| !second.contains(uuid)));
        assert_eq!(node.admit("one", &gpus(2)).unwrap(), first, "asked again, the same GPUs");
        assert_eq!(node.admit("three", &gpus(1)).unwrap_err().reason, "OutOfnvidia.com/gpu");
        let refused = RefusedForGpus { pod_uid: "three".into(), holders: vec!["one".into(), "two".into()] };
        assert_eq!(node.refused(), [refused]);
        node.release("one");
        assert_eq!(node.admit("three", &gpus(1)).unwrap(), first[..1]);
    }

    #[test]
    fn cpu_memory_and_pod_slots_count_too() {
        let mut node = node();
        let refused = |demand: Demand, node: &mut Devices| node.admit("x", &demand).unwrap_err().reason;
        assert_eq!(refused(Demand { gpus: 0, cpu: 8.5, memory: 0.0 }, &mut node), "OutOfcpu");
        assert_eq!(refused(Demand { gpus: 0, cpu: 1.0, memory: 65e9 }, &mut node), "OutOfmemory");
        (0..10).for_each(|i| drop(node.admit(&i.to_string(), &Demand::default()).unwrap()));
        assert_eq!(refused(Demand::default(), &mut node), "OutOfpods");
    }
}
