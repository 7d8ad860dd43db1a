//! A pod's use of its node, and a node's capacity.

use std::collections::BTreeMap;
use std::sync::Arc;

use andreas_api::names::GPU_RESOURCE;
use andreas_api::quantity::{thousandths, units};
use andreas_api::slim::{SlimContainer, SlimContainerStatus, SlimPodSpec, SlimPodStatus, SlimPort};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Use of a node by pods, or its capacity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Whole GPUs.
    pub gpus: u64,
    /// CPU, thousandths of a core.
    pub cpu_milli: u64,
    /// Memory, bytes.
    pub memory: u64,
    /// Pods.
    pub pods: u64,
    /// Other resources by name (`ephemeral-storage`, `hugepages-2Mi`, `rdma/hca`), in whole units, and host
    /// ports ([`host_port`]). Zeros are left out.
    pub others: BTreeMap<Arc<str>, u64>,
}

/// A node's port as a resource with capacity 1. Addresses are not distinguished: a port used on one address
/// counts as used on all.
pub fn host_port(port: &SlimPort) -> Arc<str> {
    let protocol = if port.protocol.is_empty() { "TCP" } else { &port.protocol };
    format!("{HOST_PORT}{protocol}/{}", port.host_port).into()
}

/// Name prefix of host ports; no resource name can start with it.
pub const HOST_PORT: &str = "hostPort:";

/// 256 TiB of memory, 281 thousand million cores.
const MAX_AMOUNT: u64 = 1 << 48;

impl Amounts {
    /// From a map of resources by name (requests, or a node's allocatable).
    pub fn from_resources(resources: &BTreeMap<String, Quantity>) -> Self {
        resources.iter().fold(Self::default(), |amounts, (name, quantity)| amounts.with(name, quantity))
    }

    /// The same with another amount of one resource.
    fn with(mut self, name: &str, quantity: &Quantity) -> Self {
        match name {
            GPU_RESOURCE => self.gpus = units(quantity),
            "cpu" => self.cpu_milli = thousandths(quantity),
            "memory" => self.memory = units(quantity),
            "pods" => self.pods = units(quantity),
            name => {
                self.others.remove(name);
                let amount = units(quantity);
                if amount > 0 {
                    self.others.insert(name.into(), amount);
                }
            }
        }
        self
    }

    /// Each amount capped at 2^48, far above any node's, so that sums cannot overflow: a pod that no kubelet admits may
    /// request anything.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let own = [&mut self.gpus, &mut self.cpu_milli, &mut self.memory, &mut self.pods];
        for amount in own.into_iter().chain(self.others.values_mut()) {
            *amount = (*amount).min(MAX_AMOUNT);
        }
        self
    }

    fn has(&self, name: &str) -> bool {
        match name {
            "cpu" => self.cpu_milli > 0,
            "memory" => self.memory > 0,
            name => self.others.contains_key(name),
        }
    }

    fn zip(mut self, other: Self, f: fn(u64, u64) -> u64) -> Self {
        for (name, amount) in other.others {
            let mine = self.others.entry(name).or_default();
            *mine = f(*mine, amount);
        }
        self.others.retain(|_, amount| *amount > 0);
        Self {
            gpus: f(self.gpus, other.gpus),
            cpu_milli: f(self.cpu_milli, other.cpu_milli),
            memory: f(self.memory, other.memory),
            pods: f(self.pods, other.pods),
            others: self.others,
        }
    }

    /// The sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.zip(other, u64::saturating_add)
    }

    /// The difference, at least 0.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.zip(other, u64::saturating_sub)
    }

    /// The maximum of each resource.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.zip(other, u64::max)
    }

    /// One of `of` equal parts, rounded up.
    #[must_use]
    pub fn part(mut self, of: u64) -> Self {
        let of = of.max(1);
        self.others.values_mut().for_each(|amount| *amount = amount.div_ceil(of));
        Self {
            gpus: self.gpus.div_ceil(of),
            cpu_milli: self.cpu_milli.div_ceil(of),
            memory: self.memory.div_ceil(of),
            pods: self.pods.div_ceil(of),
            others: self.others,
        }
    }
}

/// A container's requests; a limit without a request counts as one, as in the API server's defaults.
fn container(container: &SlimContainer) -> Amounts {
    let limits = Amounts::from_resources(&container.resources.limits);
    let requests = container.resources.requests.iter();
    let amounts = requests.fold(limits, |amounts, (name, quantity)| amounts.with(name, quantity));
    Amounts { pods: 0, ..amounts }
}

/// Resources that a pod may request at pod level (KEP-2837).
pub fn of_whole_pods(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

/// The maximum of two: the use while running (containers and native sidecars), and the use of any init
/// container with the sidecars started before it (KEP-753).
pub fn at_most<T: Clone>(
    spec: &SlimPodSpec,
    of: impl Fn(&SlimContainer) -> T,
    none: T,
    plus: fn(T, T) -> T,
    max: fn(T, T) -> T,
) -> T {
    let (mut sidecars, mut initial) = (none.clone(), none);
    for init in &spec.init_containers {
        if init.restart_policy.as_deref() == Some("Always") {
            sidecars = plus(sidecars, of(init));
            initial = max(initial, sidecars.clone());
        } else {
            initial = max(initial, plus(sidecars.clone(), of(init)));
        }
    }
    max(spec.containers.iter().map(of).fold(sidecars, plus), initial)
}

/// A pod's use of its node, as the scheduler counts it: [`at_most`] of its containers or its pod-level
/// requests, plus overhead and host ports.
pub fn pod(spec: &SlimPodSpec) -> Amounts {
    let mut total = at_most(spec, container, Amounts::default(), Amounts::plus, Amounts::max);
    if let Some(whole) = &spec.resources {
        // The API server completes requests from the containers if they have any, else from the limit.
        for (name, limit) in whole.limits.iter().filter(|(name, _)| of_whole_pods(name)) {
            if !total.has(name) {
                total = total.with(name, limit);
            }
        }
        for (name, request) in whole.requests.iter().filter(|(name, _)| of_whole_pods(name)) {
            total = total.with(name, request);
        }
    }
    let mut total = total.plus(Amounts::from_resources(&spec.overhead));
    total.pods = 1;
    let sidecars = spec.init_containers.iter().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    for port in spec.containers.iter().chain(sidecars).flat_map(|c| &c.ports) {
        total.others.insert(host_port(port), 1);
    }
    total
}

/// A bound pod's use of its node. The scheduler counts the largest of what a container asks for, what its node has set aside for it and what
/// it has: they differ while its resize is pending.
pub fn bound_pod(spec: &SlimPodSpec, status: &SlimPodStatus) -> Amounts {
    let all = || status.container_statuses.iter().chain(&status.init_container_statuses);
    let counted = |name: &str| ["cpu", "memory"].contains(&name);
    let larger = |container: &SlimContainer| {
        let mut container = container.clone();
        let Some(state) = all().find(|state| state.name == container.name) else { return container };
        let has = state.resources.iter().flat_map(|resources| &resources.requests);
        for (name, amount) in has.chain(&state.allocated_resources).filter(|(name, _)| counted(name)) {
            let asked = container.resources.requests.entry(name.clone()).or_insert_with(|| amount.clone());
            if thousandths(amount) > thousandths(asked) {
                asked.clone_from(amount);
            }
        }
        container
    };
    let resized =
        |state: &SlimContainerStatus| state.resources.is_some() || !state.allocated_resources.is_empty();
    if !all().any(resized) {
        return pod(spec);
    }
    pod(&SlimPodSpec {
        containers: spec.containers.iter().map(larger).collect(),
        init_containers: spec.init_containers.iter().map(larger).collect(),
        ..spec.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resize_that_is_pending_counts_by_the_largest_figure() {
        let spec = SlimPodSpec { containers: vec![with("2", "1", false)], ..SlimPodSpec::default() };
        let of = |containers: serde_json::Value| {
            let status = serde_json::from_value(serde_json::json!({ "containerStatuses": containers }));
            bound_pod(&spec, &status.expect("a status")).cpu_milli
        };
        let state = |field: &str, value: serde_json::Value| serde_json::json!([{"name": "", field: value}]);
        assert_eq!(of(serde_json::json!([])), 2_000);
        assert_eq!(of(state("resources", serde_json::json!({"requests": {"cpu": "12"}}))), 12_000);
        assert_eq!(
            of(state("allocatedResources", serde_json::json!({"cpu": "3", "nvidia.com/gpu": "8"}))),
            3_000
        );
        assert_eq!(of(state("resources", serde_json::json!({"requests": {"cpu": "1"}}))), 2_000);
    }
    use andreas_api::slim::SlimResources;

    fn with(cpu: &str, gpus: &str, always: bool) -> SlimContainer {
        let requests =
            [("cpu", cpu), (GPU_RESOURCE, gpus)].map(|(k, v)| (k.to_owned(), Quantity(v.to_owned())));
        let resources = SlimResources { requests: BTreeMap::from(requests), ..SlimResources::default() };
        let restart_policy = always.then(|| "Always".to_owned());
        SlimContainer { restart_policy, resources, ..SlimContainer::default() }
    }

    #[test]
    fn a_pod_takes_the_larger_of_starting_and_running() {
        let spec = SlimPodSpec {
            containers: vec![with("2", "4", false), with("500m", "0", false)],
            init_containers: vec![with("1", "0", true), with("4", "0", false)],
            ..SlimPodSpec::default()
        };
        // Running: 2 + 0.5 + sidecar 1 = 3.5; starting: sidecar 1 + 4 = 5.
        assert_eq!(pod(&spec), Amounts { gpus: 4, cpu_milli: 5_000, pods: 1, ..Amounts::default() });
    }

    #[test]
    fn a_limit_alone_is_a_request() {
        let mut only = SlimContainer::default();
        only.resources.limits = BTreeMap::from([(GPU_RESOURCE.to_owned(), Quantity("2".into()))]);
        let spec = SlimPodSpec { containers: vec![only], ..SlimPodSpec::default() };
        assert_eq!(pod(&spec).gpus, 2);
    }

    #[test]
    fn what_is_neither_cpu_nor_memory_counts_too_and_a_whole_pods_request_goes_first() {
        let spec: SlimPodSpec = serde_json::from_value(serde_json::json!({
            "containers": [
                {"name": "a", "resources": {"requests": {"cpu": "2", "ephemeral-storage": "10Gi"}, "limits": {"rdma/hca": "1", "ephemeral-storage": "20Gi"}},
                 "ports": [{"containerPort": 80}, {"containerPort": 1, "hostPort": 9_400}]},
                {"name": "b", "resources": {"requests": {"cpu": "1"}}}],
            "initContainers": [
                {"name": "s", "restartPolicy": "Always", "ports": [{"hostPort": 53, "protocol": "UDP"}], "resources": {"requests": {"rdma/hca": "1"}}},
                {"name": "i", "ports": [{"hostPort": 1}], "resources": {"requests": {"ephemeral-storage": "15Gi"}}}],
            "resources": {"requests": {"cpu": "8"}, "limits": {"cpu": "16", "memory": "4Gi", "hugepages-2Mi": "1Gi"}},
        }))
        .expect("a spec");
        let others = [
            ("ephemeral-storage", 15 << 30),
            ("rdma/hca", 2),
            ("hugepages-2Mi", 1 << 30),
            ("hostPort:TCP/9400", 1),
            ("hostPort:UDP/53", 1),
        ];
        let others = others.map(|(name, amount)| (Arc::from(name), amount)).into();
        assert_eq!(pod(&spec), Amounts { gpus: 0, cpu_milli: 8_000, memory: 4 << 30, pods: 1, others });
        assert_eq!(spec.containers[0].ports.len(), 1, "ports that are not the node's are not kept");
    }
}
