//! Which nodes are planned, and their free resources.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use andreas_api::energy_policy::SleepMode;
use andreas_cluster::energy::draws::foreign_power;
use andreas_cluster::energy::{Exclusion, Inventory, Types, limits};
use andreas_cluster::index::amounts::HOST_PORT;
use andreas_cluster::index::machines::{self, Machine};
use andreas_cluster::index::{
    ClusterIndex, MOST_GPUS, agent_status, broken_gpus, gpu_memory, name_of, offered, usable, whole_gpus,
};
use andreas_cluster::policy::boards::Board;
use andreas_model::{GpuType, HostPower, Joules, Seconds, Time, Watts};
use andreas_planner::{Node, NodePower, NodeSleep, Resources, Worker};
use jiff::Timestamp;

use super::holders::Holders;
use super::{gpus, node_name, worker};

/// Maximum names of resources and host ports in a plan, besides GPUs, CPU, memory and pods: those that most workers ask for.
/// Of others the scheduler finds out.
const MAX_NAMES: usize = 128;

/// The nodes of a snapshot.
#[derive(Default)]
pub struct Cluster {
    /// Types of the nodes, with their number of GPUs.
    pub types: Types,
    /// Nodes in the snapshot, by name.
    pub nodes: BTreeMap<String, Node>,
    /// Their other resources (not GPUs, CPU, memory and pods): the capacity, and the use by pods that the
    /// planner does not account for.
    others: BTreeMap<String, [OtherResources; 2]>,
    /// Names of those that some node has.
    offered: BTreeSet<Arc<str>>,
    /// Those that may take new workers.
    pub usable: BTreeSet<String>,
    /// GPU nodes that are not planned, and why.
    pub excluded: Vec<(String, Exclusion)>,
}

/// Amounts of resources by name.
type OtherResources = BTreeMap<Arc<str>, u64>;

impl Cluster {
    /// Whether some node has a resource that workers ask for by name. A host port is on every node.
    pub fn offers(&self, name: &str) -> bool {
        name.starts_with(HOST_PORT) || self.offered.contains(name)
    }

    /// With every node limited to the resources and host ports that could keep some of these workers from it; what the node
    /// lacks of them is 0. Each name takes memory for every node, and tenants choose names: so one that no node offers has no
    /// place here, nor has a port for which nobody competes.
    #[must_use]
    pub fn limited<'a>(mut self, workers: impl Iterator<Item = &'a Worker>) -> Self {
        let mut asking: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
        for name in workers.flat_map(worker::names) {
            *asking.entry(name).or_default() += 1;
        }
        let taken: BTreeSet<&Arc<str>> = self.others.values().flat_map(|[_, taken]| taken.keys()).collect();
        let competes = |name: &Arc<str>, workers: usize| {
            !name.starts_with(HOST_PORT) || workers > 1 || taken.contains(name)
        };
        asking.retain(|name, workers| self.offers(name) && competes(name, *workers));
        let mut names: Vec<_> =
            asking.into_iter().map(|(name, workers)| (workers, Arc::clone(name))).collect();
        names.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        names.truncate(MAX_NAMES);
        for (name, node) in &mut self.nodes {
            let Some([has, taken]) = self.others.get(name) else { continue };
            let left = |resource: &Arc<str>| {
                let one = u64::from(resource.starts_with(HOST_PORT));
                let has = has.get(resource).copied().unwrap_or(one);
                has.saturating_sub(taken.get(resource).copied().unwrap_or(0))
            };
            node.free.others = names.iter().map(|(_, name)| (Arc::clone(name), left(name))).collect();
        }
        self
    }

    /// For the planner, sorted by name.
    pub fn planned(&self) -> Vec<Node> {
        self.nodes.values().cloned().collect()
    }
}

/// Collects the managed nodes and any others with jobs of ours; under a power budget also those that are closed to workers.
pub fn gather(index: &ClusterIndex, inventory: &Inventory<'_>, holders: &Holders, now: Timestamp) -> Cluster {
    let policy = inventory.policy();
    let mut cluster = Cluster::default();
    let mut powers: BTreeMap<&str, Board> = BTreeMap::new();
    let mut ranges: BTreeMap<GpuType, Option<(i32, i32)>> = BTreeMap::new();
    for (key, node) in index.nodes().iter() {
        let of_node = inventory.node_use(node);
        cluster.excluded.extend(of_node.exclusion().map(|why| (key.name.clone(), why)));
        let held = holders.gpus_on(&key.name);
        // A node keeps the type of its jobs' placement, whatever its labels say now, and takes no other types
        // meanwhile.
        let product = holders.type_on(&key.name).filter(|_| held > 0).or_else(|| inventory.gpu_type(node));
        let Some(product) = product else { continue };
        let open = of_node.planned() == Some(product) && usable(index, key, node);
        let serves = open || held > 0;
        // A closed node draws power from the budget all the same.
        if !serves && (inventory.powered(node).is_none() || !policy.power_budget.limits_power()) {
            continue;
        }
        let allocatable = offered(node);
        let ours: BTreeSet<String> = index
            .pods_on(&key.name)
            .filter(|pod| holders.accounts_for(pod))
            .map(|pod| name_of(&pod.metadata))
            .collect();
        let taken = index.taken(&key.name, |pod| holders.accounts_for(pod));
        cluster.offered.extend(allocatable.others.keys().cloned());
        cluster.others.insert(key.name.clone(), [allocatable.others.clone(), taken.others.clone()]);
        let accounted = |pod: &str| ours.contains(pod);
        let broken = broken_gpus(index, key, node, accounted);
        let others = taken.gpus;
        let mut free = allocatable.clone().minus(taken);
        free.gpus = free.gpus.saturating_sub(broken);
        // A node closed to new workers counts only as large as our jobs there.
        if !open {
            free.gpus = free.gpus.min(held);
        }
        let gpu_type = GpuType::new(product);
        let facts = cluster.types.entry(gpu_type.clone()).or_default();
        // A node where nothing starts or runs says nothing of what jobs get.
        if serves {
            facts.gpus += allocatable.gpus;
            facts.per_node = facts.per_node.max(allocatable.gpus);
            facts.memory_mib = facts.memory_mib.max(gpu_memory(node));
        }
        let agent = agent_status(index, key);
        let machine = index.machine(&key.name, now);
        // The agent of one that is off says nothing of limits, and will.
        let is_on = matches!(machine, None | Some(Machine::On));
        if serves && is_on && !limits::all_broken(agent) {
            let takes = limits::of_node(agent);
            ranges
                .entry(gpu_type.clone())
                .and_modify(|range: &mut Option<_>| {
                    *range = range.zip(takes).and_then(|(a, b)| limits::shared(a, b))
                })
                .or_insert(takes);
        }
        let power = *powers.entry(product).or_insert_with(|| inventory.board(product));
        // A node without `allocatable` GPUs while jobs run there counts as large as their GPUs.
        let size = allocatable.gpus.max(held);
        // What the device plug-in has taken out, or has not offered again yet, is there all the same.
        let there = whole_gpus(node).min(MOST_GPUS).max(size);
        let host = power.host(there);
        let mut foreign = foreign_power(index, key, node, &ours, power.max);
        let free_gpus = free.gpus.max(held).min(size);
        let rest = there - free_gpus;
        let others = others.min(rest);
        if there > size || rest > others {
            // GPUs that are closed to us, broken or not offered, and not in use by others.
            let used = foreign.map_or(others as f64 * power.max.0, |watts| watts.0);
            foreign = Some(Watts(used + (rest - others) as f64 * power.idle.0));
        }
        let planned = Node {
            name: node_name(&key.name),
            gpu_type,
            gpus: gpus(size),
            boards: gpus(there),
            free_gpus: gpus(free_gpus),
            host_idle: host.idle,
            host_busy: host.busy,
            sleep: machine.and_then(|machine| sleep(index, &key.name, machine, host, now)),
            foreign_power: foreign,
            gang_class: 0,
            free: Resources {
                cpu_milli: Some(free.cpu_milli),
                memory_bytes: Some(free.memory),
                pods: (allocatable.pods > 0).then_some(free.pods),
                others: BTreeMap::new(),
            },
        };
        cluster.nodes.insert(key.name.clone(), planned);
        if open {
            cluster.usable.insert(key.name.clone());
        }
    }
    for (gpu_type, range) in ranges {
        let range = limits::usable_range(gpu_type.as_str(), range, policy);
        if let Some(facts) = cluster.types.get_mut(&gpu_type) {
            (facts.limits, facts.levels) = (range, limits::levels(range, policy));
        }
    }
    cluster
}

/// Whether a machine may be off, for the plan: those that are on may be once the policy says so.
fn sleep(
    index: &ClusterIndex,
    node: &str,
    machine: Machine,
    host: HostPower,
    now: Timestamp,
) -> Option<NodeSleep> {
    let wake = Seconds(machines::start_time(index.node_power(node)?).as_secs_f64());
    let state = match machine {
        Machine::On => NodePower::On,
        Machine::Starting { until } => {
            NodePower::Waking { until: Time((until.as_second().max(now.as_second())) as f64) }
        }
        // It draws like one that starts, and any that is off is there earlier.
        Machine::GoingOff => NodePower::Waking { until: Time(now.as_second() as f64) + wake * 2.0 },
        Machine::Off => NodePower::Asleep,
    };
    let mode = index.policy().map(|policy| policy.spec.node_sleep.mode).unwrap_or_default();
    let goes = mode == SleepMode::On || index.node_pool(node).is_some();
    let wake_energy = Joules(host.busy.0.max(host.idle.0) * wake.0);
    (state != NodePower::On || goes).then_some(NodeSleep { state, wake, wake_energy })
}
