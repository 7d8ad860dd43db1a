//! What a worker takes of its node and of its namespace's quotas, from the pod that the template becomes.

use std::collections::BTreeMap;
use std::sync::Arc;

use andreas_api::slim::{SlimContainer, SlimPodSpec, SlimPort, SlimResources, SlimTrainingJob};
use andreas_planner::{Resources, Worker};
use andreas_runtime::watch::ObjectKey;
use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};

use super::quota;
use crate::index::ClusterIndex;
use crate::index::quantity::{self, Amounts};
use crate::lifecycle::{Settings, pods};

/// Most GPUs of a worker that its needs are looked up for.
const MOST_GPUS: i32 = 16;

/// A job's worker, from its template, which never changes.
///
/// Needs grow with the worker's GPUs (`resourcesPer: Gpu`) for containers and not for init containers, so they are the
/// larger of two straight lines. The planner knows one line: the chord from one GPU to the most that is allowed, which is
/// never below them, and exact at both ends and wherever init containers do not matter.
#[derive(Debug)]
pub struct WorkerSpecs {
    /// Where a worker with one GPU may run, and the claims that it mounts; nothing else of it is kept.
    pub one: PodSpec,
    /// Equal for workers that the same nodes admit.
    pub demands: String,
    few: SlimPodSpec,
    many: SlimPodSpec,
    /// GPUs of `many` beyond one.
    more: u64,
    fixed: Resources,
    per_gpu: Resources,
}

impl WorkerSpecs {
    /// Of a job.
    pub fn of(job: &SlimTrainingJob) -> Self {
        let most = job.spec.gpus.most().clamp(2, MOST_GPUS);
        let spec = |gpus| pods::unplaced_worker(job, 1, gpus, &Settings::default()).spec.unwrap_or_default();
        let (one, many) = (spec(1), slim(&spec(most)));
        let few = slim(&one);
        let one = places(one);
        let more = u64::try_from(most - 1).unwrap_or(1);
        let first = quantity::pod(&few);
        let each = quantity::pod(&many).minus(first.clone()).part(more);
        let fixed = first.minus(each.clone());
        let demands = serde_json::to_string(&(&one.node_selector, &one.affinity, &one.tolerations));
        Self {
            demands: demands.unwrap_or_default(),
            one,
            few,
            many,
            more,
            fixed: resources(fixed),
            per_gpu: resources(each),
        }
    }
}

/// What says where a pod may run, without the rest: containers and environment would be most of what is kept of a job.
fn places(spec: PodSpec) -> PodSpec {
    let volumes =
        spec.volumes.into_iter().flatten().filter(|volume| volume.persistent_volume_claim.is_some());
    let volumes: Vec<_> = volumes.collect();
    PodSpec {
        node_selector: spec.node_selector,
        affinity: spec.affinity,
        tolerations: spec.tolerations,
        volumes: (!volumes.is_empty()).then_some(volumes),
        ..PodSpec::default()
    }
}

fn resources(amounts: Amounts) -> Resources {
    Resources {
        cpu_milli: Some(amounts.cpu_milli),
        memory_bytes: Some(amounts.memory),
        pods: None,
        others: amounts.others,
    }
}

/// What a worker takes.
pub(super) fn worker(index: &ClusterIndex, key: &ObjectKey, specs: &WorkerSpecs) -> Worker {
    let quotas: Vec<_> = index
        .quotas
        .iter()
        .filter(|(k, _)| k.namespace == key.namespace)
        .map(|(_, quota)| quota.as_ref())
        .collect();
    let (first, last) = (quota::pod_takes(&quotas, &specs.few), quota::pod_takes(&quotas, &specs.many));
    let of = |amounts: &quota::Amounts, key: &Arc<str>| amounts.get(key).copied().unwrap_or(0);
    let some = |(_, amount): &(Arc<str>, u64)| *amount > 0;
    let quota_per_gpu: quota::Amounts = last
        .iter()
        .map(|(key, amount)| {
            (Arc::clone(key), amount.saturating_sub(of(&first, key)).div_ceil(specs.more.max(1)))
        })
        .filter(some)
        .collect();
    let quota_fixed: quota::Amounts = first
        .iter()
        .map(|(key, amount)| (Arc::clone(key), amount.saturating_sub(of(&quota_per_gpu, key))))
        .filter(some)
        .collect();
    Worker {
        fixed: specs.fixed.clone(),
        per_gpu: specs.per_gpu.clone(),
        quota_fixed,
        quota_per_gpu,
        quota_per_gang: quota::gang_takes(&quotas),
    }
}

/// A pod's spec as far as quantities are read from it, as the API server would complete it.
fn slim(spec: &PodSpec) -> SlimPodSpec {
    let resources = |r: &ResourceRequirements| SlimResources {
        requests: r.requests.clone().unwrap_or_default(),
        limits: r.limits.clone().unwrap_or_default(),
    };
    // With the node's own network every port of a container is one of the node.
    let on_host = spec.host_network == Some(true);
    let ports = |container: &Container| -> Vec<SlimPort> {
        let ports = container.ports.iter().flatten().map(|port| SlimPort {
            host_port: port.host_port.filter(|p| *p > 0).unwrap_or(if on_host {
                port.container_port
            } else {
                0
            }),
            protocol: port.protocol.clone().unwrap_or_default(),
        });
        ports.filter(|port| port.host_port > 0).collect()
    };
    let container = |container: &Container| SlimContainer {
        name: container.name.clone(),
        restart_policy: container.restart_policy.clone(),
        resources: container.resources.as_ref().map(resources).unwrap_or_default(),
        ports: ports(container),
    };
    SlimPodSpec {
        containers: spec.containers.iter().map(container).collect(),
        init_containers: spec.init_containers.iter().flatten().map(container).collect(),
        resources: spec.resources.as_ref().map(resources),
        overhead: spec.overhead.clone().unwrap_or_default(),
        ..SlimPodSpec::default()
    }
}

/// Names of everything that workers take beside GPUs, CPU, memory and pods.
pub(super) fn names<'a>(workers: impl Iterator<Item = &'a Worker>) -> std::collections::BTreeSet<Arc<str>> {
    let of = |resources: &'a Resources| -> &'a BTreeMap<Arc<str>, u64> { &resources.others };
    workers.flat_map(|w| of(&w.fixed).keys().chain(of(&w.per_gpu).keys())).cloned().collect()
}
