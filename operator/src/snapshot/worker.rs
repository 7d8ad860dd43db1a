//! A worker's use of its node and its namespace's quotas, from the pod built from the template.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use andreas_api::names::{GPU_RESOURCE, is_extended_resource};
use andreas_api::quantity::thousandths;
use andreas_api::slim::{
    SlimAffinity, SlimClaimName, SlimContainer, SlimNodeAffinity, SlimPodSpec, SlimPort, SlimResources,
    SlimTrainingJob, SlimVolume,
};
use andreas_api::training_job::ResourcesPer;
use andreas_cluster::index::ClusterIndex;
use andreas_cluster::index::amounts::{self, Amounts};
use andreas_lifecycle::{Admitted, Settings, pods};
use andreas_planner::{Resources, Worker};
use andreas_runtime::watch::ObjectKey;
use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements, Volume};

use super::quota;

/// SHA-256 of JSON: what jobs say may be long, and is kept for each.
pub type Digest = [u8; 32];

/// The digest of a value; that of nothing if it does not serialize.
pub fn digest(value: &impl serde::Serialize) -> Digest {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    // Writing to a digest does not fail.
    drop(serde_json::to_writer(Digested(&mut context), value));
    context.finish().as_ref().try_into().unwrap_or_default()
}

struct Digested<'a>(&'a mut ring::digest::Context);

impl std::io::Write for Digested<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Maximum GPUs of a worker for which needs are computed.
const MAX_GPUS: i32 = 16;

/// A job's worker, from its template, which never changes.
///
/// Needs grow with the worker's GPUs (`resourcesPer: Gpu`) for containers but not for init containers. So
/// they are the larger of two straight lines. The planner uses one line: the chord from one GPU to the
/// maximum. It is never below the needs, and exact at both ends and wherever init containers do not matter.
/// Devices that several GPUs share are not linear: a worker needs its GPUs' part, rounded up.
#[derive(Debug)]
pub struct WorkerSpecs {
    /// Equal for workers that the same nodes admit, but for their volumes.
    pub demands: Digest,
    few: SlimPodSpec,
    many: SlimPodSpec,
    /// GPUs of `many` beyond one.
    more: u64,
    fixed: Resources,
    per_gpu: Resources,
    /// Devices by name that several GPUs share, thousandths per GPU.
    shares: BTreeMap<Arc<str>, u64>,
}

impl WorkerSpecs {
    /// The worker of a job.
    pub fn from_job(job: &SlimTrainingJob) -> Self {
        let most = job.spec.gpus.max_total().clamp(2, MAX_GPUS);
        let spec = |gpus| pods::unplaced_worker(job, 1, gpus, &Settings::default()).spec.unwrap_or_default();
        let (few, many) = (slim(&spec(1)), slim(&spec(most)));
        let more = u64::try_from(most - 1).unwrap_or(1);
        let shares = shares(job);
        let first = amounts::pod(&few);
        let mut each = amounts::pod(&many).minus(first.clone()).part(more);
        each.others.retain(|name, _| !shares.contains_key(name));
        let shared = shares.iter().map(|(name, share)| (Arc::clone(name), of_one_gpu(*share)));
        let shared = Amounts { others: shared.collect(), ..Amounts::default() };
        let fixed = first.minus(each.clone()).minus(shared);
        Self {
            demands: demands(&few),
            few: without_places(few),
            many: without_places(many),
            more,
            fixed: resources(fixed),
            per_gpu: resources(each),
            shares,
        }
    }
}

/// Devices of which a GPU has a part, thousandths of one. Several containers with parts of the same device get whole
/// ones each: such a device keeps the line.
fn shares(job: &SlimTrainingJob) -> BTreeMap<Arc<str>, u64> {
    let mut shares: BTreeMap<Arc<str>, u64> = BTreeMap::new();
    if job.spec.resources_per != ResourcesPer::Gpu {
        return shares;
    }
    let containers = job.spec.template.spec.iter().flat_map(|spec| &spec.containers);
    for resources in containers.filter_map(|container| container.resources.as_ref()) {
        // The API server takes no other request than the limit, and completes a missing one.
        let asked: BTreeMap<_, _> = resources.limits.iter().chain(&resources.requests).flatten().collect();
        for (name, quantity) in asked {
            if name != GPU_RESOURCE && is_extended_resource(name) {
                let share = shares.entry(Arc::from(name.as_str()));
                share.and_modify(|share| *share = 0).or_insert_with(|| thousandths(quantity));
            }
        }
    }
    shares.retain(|_, share| *share % 1_000 > 0);
    shares
}

/// Whole devices of a worker with one GPU.
fn of_one_gpu(share: u64) -> u64 {
    share.div_ceil(1_000)
}

fn resources(amounts: Amounts) -> Resources {
    Resources {
        cpu_milli: Some(amounts.cpu_milli),
        memory_bytes: Some(amounts.memory),
        pods: None,
        others: amounts.others,
    }
}

/// The digest of what decides which nodes admit a pod.
pub fn demands(spec: &SlimPodSpec) -> Digest {
    digest(&(&spec.node_selector, spec.required_nodes(), &spec.tolerations))
}

/// A pod's quantities alone: what users may say of nodes is long.
fn without_places(spec: SlimPodSpec) -> SlimPodSpec {
    let (node_selector, tolerations, claims) = Default::default();
    SlimPodSpec { node_selector, affinity: None, tolerations, claims, ..spec }
}

/// A pod's spec without the node that each of ours is pinned to.
pub fn unpinned(mut spec: SlimPodSpec) -> SlimPodSpec {
    let affinity = spec.affinity.as_mut().and_then(|affinity| affinity.node_affinity.as_mut());
    if let Some(of) = affinity
        && let Some(required) = &mut of.required
    {
        let mut any = false;
        for term in &mut required.node_selector_terms {
            if let Some(fields) = &mut term.match_fields {
                fields.retain(|field| field.key != "metadata.name");
            }
            term.match_fields.take_if(|fields| fields.is_empty());
            let none = |all: &Option<Vec<_>>| all.as_ref().is_none_or(Vec::is_empty);
            any |= none(&term.match_fields) && none(&term.match_expressions);
        }
        if any {
            of.required = None;
        }
    }
    spec
}

/// A worker after admission, if it requests more of its node or a quota than `sent`, or other nodes.
pub fn admitted(sent: Option<&PodSpec>, kept: SlimPodSpec) -> Option<Arc<Admitted>> {
    let sent = sent.map(slim).unwrap_or_default();
    let limits = |spec: &SlimPodSpec| {
        let limits =
            |r: &SlimResources| SlimResources { requests: r.limits.clone(), ..SlimResources::default() };
        let of = |c: &SlimContainer| SlimContainer { resources: limits(&c.resources), ..c.clone() };
        amounts::pod(&SlimPodSpec {
            containers: spec.containers.iter().map(of).collect(),
            init_containers: spec.init_containers.iter().map(of).collect(),
            resources: spec.resources.as_ref().map(limits),
            ..spec.clone()
        })
    };
    let same = amounts::pod(&sent) == amounts::pod(&kept)
        && limits(&sent) == limits(&kept)
        && sent.priority_class_name == kept.priority_class_name
        && (&sent.node_selector, sent.required_nodes(), &sent.tolerations, &sent.claims)
            == (&kept.node_selector, kept.required_nodes(), &kept.tolerations, &kept.claims);
    (!same).then(|| {
        let added = sent.required_nodes() != kept.required_nodes();
        let affinity = kept.affinity.clone().filter(|_| added);
        // The class decides which quotas count a worker, not how much more it asks for.
        let sent = of_class(without_places(sent), &kept);
        Arc::new(Admitted { sent, kept: SlimPodSpec { affinity, ..kept } })
    })
}

/// A worker with the PriorityClass that admission gives it.
fn of_class(spec: SlimPodSpec, kept: &SlimPodSpec) -> SlimPodSpec {
    SlimPodSpec { priority_class_name: kept.priority_class_name.clone(), ..spec }
}

/// A worker's use, with what admission adds to it. The addition is the same for every number of GPUs:
/// defaults and injected containers do not depend on them.
pub(super) fn worker(
    index: &ClusterIndex,
    key: &ObjectKey,
    specs: &WorkerSpecs,
    admitted: Option<&Admitted>,
) -> Worker {
    let quotas = quota::of_namespace(index, &key.namespace);
    let takes = |spec: &SlimPodSpec| match admitted {
        Some(admitted) if !quotas.is_empty() => {
            quota::pod_takes(&quotas, &of_class(spec.clone(), &admitted.kept))
        }
        _ => quota::pod_takes(&quotas, spec),
    };
    let (first, last) = (takes(&specs.few), takes(&specs.many));
    let of = |amounts: &quota::Amounts, key: &Arc<str>| amounts.get(key).copied().unwrap_or(0);
    let some = |(_, amount): &(Arc<str>, u64)| *amount > 0;
    // Keys are `<quota>/requests.<device>`.
    let share = |key: &Arc<str>| {
        let device = key.split_once('/').and_then(|(_, resource)| resource.strip_prefix("requests."));
        device.and_then(|device| specs.shares.get(device)).copied().unwrap_or(0)
    };
    let quota_shares: quota::Amounts =
        first.keys().map(|key| (Arc::clone(key), share(key))).filter(some).collect();
    let quota_per_gpu: quota::Amounts = last
        .iter()
        .filter(|(key, _)| share(key) == 0)
        .map(|(key, amount)| {
            (Arc::clone(key), amount.saturating_sub(of(&first, key)).div_ceil(specs.more.max(1)))
        })
        .filter(some)
        .collect();
    let mut quota_fixed: quota::Amounts = first
        .iter()
        .map(|(key, amount)| {
            let counted = of(&quota_per_gpu, key).saturating_add(of_one_gpu(share(key)));
            (Arc::clone(key), amount.saturating_sub(counted))
        })
        .filter(some)
        .collect();
    let mut fixed = specs.fixed.clone();
    if let Some(Admitted { sent, kept }) = admitted {
        let more = amounts::pod(kept).minus(amounts::pod(sent));
        add(&mut fixed, more);
        for (key, more) in quota::more(&quotas, sent, kept) {
            *quota_fixed.entry(key).or_default() += more;
        }
    }
    Worker {
        fixed,
        per_gpu: specs.per_gpu.clone(),
        quota_fixed,
        quota_per_gpu,
        quota_per_gang: quota::gang_takes(&quotas),
        shares: specs.shares.clone(),
        quota_shares,
    }
}

/// Whether the quotas of a namespace, as last seen, have room for these pods.
pub fn quotas_have_room<'a>(
    index: &ClusterIndex,
    namespace: &str,
    pods: impl Iterator<Item = &'a PodSpec>,
    admitted: Option<&Admitted>,
) -> bool {
    let quotas = quota::of_namespace(index, namespace);
    let mut needed = quota::Amounts::new();
    for pod in pods {
        let sent = slim(pod);
        let sent = match admitted {
            Some(admitted) => of_class(sent, &admitted.kept),
            None => sent,
        };
        let takes = quota::pod_takes(&quotas, &sent);
        let more = admitted.map(|admitted| quota::more(&quotas, &admitted.sent, &admitted.kept));
        for (key, amount) in takes.into_iter().chain(more.into_iter().flatten()) {
            let sum = needed.entry(key).or_default();
            *sum = sum.saturating_add(amount);
        }
    }
    let mut left = quotas.iter().flat_map(|quota| quota::left(quota, &quota::Amounts::new()));
    left.all(|(key, left)| needed.get(&key).is_none_or(|needed| *needed <= left))
}

fn add(to: &mut Resources, more: Amounts) {
    let sum = |old: Option<u64>, more: u64| Some(old.unwrap_or(0).saturating_add(more));
    to.cpu_milli = sum(to.cpu_milli, more.cpu_milli);
    to.memory_bytes = sum(to.memory_bytes, more.memory);
    for (name, amount) in more.others {
        let old = to.others.entry(name).or_default();
        *old = old.saturating_add(amount);
    }
}

/// A pod's spec reduced to its quantities, completed as by the API server, and to what decides where it may be.
pub fn slim(spec: &PodSpec) -> SlimPodSpec {
    let resources = |r: &ResourceRequirements| SlimResources {
        requests: r.requests.clone().unwrap_or_default(),
        limits: r.limits.clone().unwrap_or_default(),
    };
    // With host network every container port is a host port.
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
        priority_class_name: spec.priority_class_name.clone(),
        containers: spec.containers.iter().map(container).collect(),
        init_containers: spec.init_containers.iter().flatten().map(container).collect(),
        resources: spec.resources.as_ref().map(resources),
        overhead: spec.overhead.clone().unwrap_or_default(),
        node_selector: spec.node_selector.clone().unwrap_or_default(),
        affinity: spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref()).map(|of| {
            let required = of.required_during_scheduling_ignored_during_execution.clone();
            SlimAffinity { node_affinity: Some(SlimNodeAffinity { required }) }
        }),
        tolerations: spec.tolerations.clone().unwrap_or_default(),
        claims: spec.volumes.iter().flatten().filter_map(claim).collect(),
        ..SlimPodSpec::default()
    }
}

fn claim(volume: &Volume) -> Option<SlimVolume> {
    let claim_name = volume.persistent_volume_claim.as_ref()?.claim_name.clone();
    Some(SlimVolume { persistent_volume_claim: Some(SlimClaimName { claim_name }) })
}

/// Names of the resources and host ports that a worker uses besides GPUs, CPU, memory and pods.
pub(super) fn names(worker: &Worker) -> BTreeSet<&Arc<str>> {
    let others = worker.fixed.others.keys().chain(worker.per_gpu.others.keys());
    others.chain(worker.shares.keys()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use andreas_api::slim::SlimQuota;
    use andreas_runtime::watch::Index;
    use serde_json::{Value, json};

    fn spec<T: serde::de::DeserializeOwned>(requests: &Value, sidecar: bool) -> T {
        let container =
            |name: &str, requests: &Value| json!({"name": name, "resources": {"requests": requests}});
        let mut all = vec![container("train", requests)];
        if sidecar {
            all.push(container("proxy", &json!({"cpu": "500m", "memory": "256Mi", "rdma/hca": "1"})));
        }
        serde_json::from_value(json!({ "containers": all })).expect("a spec")
    }

    #[test]
    fn what_admission_adds_is_taken_from_the_node_and_from_quotas() {
        let sent: PodSpec = spec(&json!({"cpu": "4"}), false);
        assert_eq!(
            admitted(Some(&sent), spec(&json!({"cpu": "4000m"}), false)),
            None,
            "the same, otherwise said"
        );
        // A LimitRange adds a default request, and a webhook another container.
        let kept = spec(&json!({"cpu": "4", "memory": "2Gi"}), true);
        let admitted = admitted(Some(&sent), kept).expect("it asks for more");
        let job: SlimTrainingJob =
            serde_json::from_value(json!({"metadata": {"name": "a", "namespace": "team"},
            "spec": {"gpus": {"max": 4}, "template": {"spec": serde_json::to_value(&sent).expect("JSON")}}}))
            .expect("a job");
        let mut index = ClusterIndex::new();
        let hard = json!({"requests.cpu": "100", "requests.memory": "100Gi"});
        let quota: SlimQuota = serde_json::from_value(json!({
            "metadata": {"name": "q", "namespace": "team", "resourceVersion": "1"}, "status": {"hard": hard, "used": {}}}))
        .expect("a quota");
        index.apply(quota);
        let key = ObjectKey { namespace: "team".into(), name: "a".into() };
        let specs = WorkerSpecs::from_job(&job);
        let (plain, more) =
            (worker(&index, &key, &specs, None), worker(&index, &key, &specs, Some(&admitted)));
        assert_eq!((plain.fixed.cpu_milli, more.fixed.cpu_milli), (Some(4_000), Some(4_500)));
        let memory = (2 << 30) + (256 << 20);
        assert_eq!((plain.fixed.memory_bytes, more.fixed.memory_bytes), (Some(0), Some(memory)));
        assert_eq!(more.fixed.others.get("rdma/hca"), Some(&1));
        assert_eq!(more.quota_fixed.get("q/requests.cpu"), Some(&4_500));
        assert_eq!(more.quota_fixed.get("q/requests.memory"), Some(&memory));
    }

    #[test]
    fn a_worker_counts_in_the_quotas_of_the_class_that_admission_gives_it() {
        let with = |class: &str| {
            json!({"priorityClassName": class, "containers": [{"name": "train",
            "resources": {"requests": {"nvidia.com/gpu": "8"}, "limits": {"nvidia.com/gpu": "8"}}}]})
        };
        let read = |class: &str| serde_json::from_value(with(class)).expect("a spec");
        let sent: PodSpec = serde_json::from_value(with("andreas-training")).expect("a spec");
        assert_eq!(admitted(Some(&sent), read("andreas-training")), None);
        let admitted = admitted(Some(&sent), read("team-low")).expect("another class");
        let job: SlimTrainingJob =
            serde_json::from_value(json!({"metadata": {"name": "a", "namespace": "team"},
            "spec": {"gpus": {"max": 8}, "template": {"spec": {"containers": [{"name": "train"}]}}}}))
            .expect("a job");
        let mut index = ClusterIndex::new();
        for class in ["andreas-training", "team-low"] {
            let scope = json!({"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": [class]}]});
            let quota: SlimQuota = serde_json::from_value(json!({
                "metadata": {"name": class, "namespace": "team", "resourceVersion": "1"}, "spec": {"scopeSelector": scope},
                "status": {"hard": {"requests.nvidia.com/gpu": "8"}, "used": {}}}))
            .expect("a quota");
            index.apply(quota);
        }
        let key = ObjectKey { namespace: "team".into(), name: "a".into() };
        let specs = WorkerSpecs::from_job(&job);
        for (admitted, class) in [(None, "andreas-training"), (Some(&*admitted), "team-low")] {
            let worker = worker(&index, &key, &specs, admitted);
            let expected = (Arc::from(format!("{class}/requests.nvidia.com/gpu")), 1);
            assert_eq!(worker.quota_per_gpu, [expected].into());
            assert!(worker.quota_fixed.is_empty());
        }
    }
}
