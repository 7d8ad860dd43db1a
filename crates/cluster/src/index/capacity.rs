//! Nodes that an autoscaler adds once they are asked for: what was asked for, what came of it, and the machines that plans count with.
//!
//! A node that may come is a machine that is off, as in [`machines`](super::machines): what a plan gives there is a wish. One that is there
//! is a machine that is on, and may go. Which of them are kept is the planner's rule for empty machines.
//!
//! What is remembered here can be lost: a new operator asks again, and the autoscaler has what it had.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use andreas_api::energy_policy::{NodePool, NodeTaint};
use andreas_api::names::GPU_RESOURCE;
use andreas_api::node_power::{
    NodePowerSpec, NodePowerStatus, PowerState, RememberedMachine, RememberedTaint, WantedPower, boot_seconds,
};
use andreas_api::slim::{SlimNode, SlimNodePower, SlimTaint};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use kube::api::ObjectMeta;

use super::ClusterIndex;
use super::amounts::Amounts;
use super::nodes::{offered, ready};
use crate::policy;

/// A node that is not there after so many times the time of a start is not to be had; at least after the second figure.
const GIVEN_UP_AFTER: i32 = 3;
const GIVEN_UP_AT_LEAST: SignedDuration = SignedDuration::from_mins(1);
/// For how long nothing more is asked of a pool that gave nothing; twice as long each time, up to the second figure.
const PAUSE: [SignedDuration; 2] = [SignedDuration::from_mins(10), SignedDuration::from_hours(2)];
/// What the last plan does not need stays asked for this long: plans change their mind while nodes start, and a node that was asked for
/// anew would never be late.
const STAYS_ASKED: SignedDuration = SignedDuration::from_secs(60);
/// Starts that are remembered of a pool.
const STARTS: usize = 20;

/// What is known of nodes that may be added.
#[derive(Clone, Default)]
pub(super) struct Capacity {
    pools: BTreeMap<String, Pool>,
    /// Those that can be used and those that may come, by name.
    machines: BTreeMap<String, PoolMachine>,
}

#[derive(Clone)]
struct PoolMachine {
    pool: String,
    power: Arc<SlimNodePower>,
    /// The pod that stands for a node in the CapacityBuffer would find room on it, were it not for pods of ours.
    has_room: bool,
}

/// A pool of nodes.
#[derive(Clone, Default)]
struct Pool {
    /// When each node was asked for that is not there yet, the oldest first.
    asked: Vec<Timestamp>,
    /// Since when plans need fewer of them.
    needs_fewer: Option<Timestamp>,
    /// Nodes that exist and could be used at some time.
    there: BTreeSet<String>,
    /// Labels of the last one that came.
    labels: BTreeMap<String, String>,
    /// How long starts took, s, the newest last.
    starts: Vec<i32>,
    /// Times in a row that nothing came.
    failures: u32,
    /// Until when nothing is asked for, since nothing came within so many minutes.
    pause: Option<(Timestamp, i64)>,
    /// Why its nodes would be of no use: none are asked for.
    problem: Option<String>,
    /// Why what is asked for could not be written.
    unwritten: Option<String>,
}

impl Pool {
    /// Takes note of the nodes that exist, with whether each can be used, and of those that do not come.
    fn see(&mut self, nodes: &BTreeMap<&str, (bool, &SlimNode)>, node_pool: &NodePool, now: Timestamp) {
        self.there.retain(|name| nodes.contains_key(name.as_str()));
        for (name, (_, node)) in nodes.iter().filter(|(_, (usable, _))| *usable) {
            // One that is back after a silence did not come because it was asked for.
            if !self.there.insert((*name).to_owned()) {
                continue;
            }
            self.labels.clone_from(node.labels());
            if self.asked.is_empty() {
                continue;
            }
            let took = now.duration_since(self.asked.remove(0)).as_secs();
            self.starts.push(i32::try_from(took).unwrap_or(i32::MAX).max(1));
            if self.asked.is_empty() {
                self.failures = 0;
            }
        }
        let over = self.starts.len().saturating_sub(STARTS);
        self.starts.drain(..over);
        let longest = SignedDuration::from_secs(node_pool.start_time.seconds().unwrap_or(0)) * GIVEN_UP_AFTER;
        let longest = longest.max(GIVEN_UP_AT_LEAST);
        if self.asked.first().is_some_and(|since| now.duration_since(*since) > longest) {
            let pause = PAUSE[0] * (1 << self.failures.min(4));
            self.failures += 1;
            self.pause = Some((now + pause.min(PAUSE[1]), (longest.as_secs() + 59) / 60));
        }
        self.pause = self.pause.filter(|(until, _)| *until > now);
    }

    /// So many are needed that are not there.
    fn ask(&mut self, count: usize, now: Timestamp) {
        if count >= self.asked.len() {
            self.needs_fewer = None;
            self.asked.resize(count, now);
        } else if now.duration_since(*self.needs_fewer.get_or_insert(now)) >= STAYS_ASKED {
            self.needs_fewer = None;
            self.asked.truncate(count);
        }
    }

    /// How many more there may be.
    fn may_come(&self, node_pool: &NodePool) -> usize {
        let most = usize::try_from(node_pool.max_nodes).unwrap_or(0);
        if self.pause.is_some() || self.problem.is_some() {
            return 0;
        }
        let left = most.saturating_sub(self.there.len());
        // What was asked for before stays so.
        if self.unwritten.is_some() { left.min(self.asked.len()) } else { left }
    }
}

impl Capacity {
    /// The machine of this name.
    pub(super) fn machine(&self, node: &str) -> Option<&Arc<SlimNodePower>> {
        self.machines.get(node).map(|machine| &machine.power)
    }

    /// All machines, by name.
    pub(super) fn machines(&self) -> impl Iterator<Item = (&str, &Arc<SlimNodePower>)> {
        self.machines.iter().map(|(name, machine)| (name.as_str(), &machine.power))
    }
}

impl ClusterIndex {
    /// The pool of a node that an autoscaler adds, there or not.
    pub fn node_pool(&self, node: &str) -> Option<&str> {
        self.capacity.machines.get(node).map(|machine| machine.pool.as_str())
    }

    /// The pod that stands for such a node in its CapacityBuffer finds room on it.
    pub fn has_room_for_capacity(&self, node: &str) -> bool {
        self.capacity.machines.get(node).is_some_and(|machine| machine.has_room)
    }

    /// Of which pools no nodes are to be had, for people; empty: of none.
    pub fn missing_capacity(&self) -> String {
        let said = self.capacity.pools.iter().filter_map(|(name, pool)| {
            if let Some(why) = &pool.problem {
                return Some(format!("{name}: {why}"));
            }
            if let Some(why) = &pool.unwritten {
                return Some(format!("{name}: its CapacityBuffer is not written: {why}"));
            }
            let (until, minutes) = pool.pause?;
            let until = until.strftime("%H:%M");
            Some(format!("{name}: it gave no node within {minutes} min, and is asked again at {until} UTC"))
        });
        said.collect::<Vec<_>>().join("; ")
    }

    /// Takes note of what the autoscaler has done; before each plan.
    pub fn see_capacity(&mut self, now: Timestamp) {
        let policy = self.policy().map(|policy| policy.spec.clone()).unwrap_or_default();
        let node_pools = &policy.capacity;
        self.capacity.machines.clear();
        self.capacity.pools.retain(|name, _| node_pools.iter().any(|node_pool| node_pool.name == *name));
        for node_pool in node_pools {
            let mut pool = self.capacity.pools.remove(&node_pool.name).unwrap_or_default();
            let nodes = self.nodes_of(node_pool);
            pool.see(&nodes, node_pool, now);
            let machine = remembered(node_pool, policy.type_labels.first(), &pool.labels);
            let selected =
                policy.node_selector.iter().all(|(key, value)| machine.labels.get(key) == Some(value));
            pool.problem = (!selected).then(|| UNSELECTED.to_owned());
            pool.asked.truncate(pool.may_come(node_pool));
            let machines = self.make_machines(node_pool, (&pool, &nodes), &machine, now);
            self.capacity.pools.insert(node_pool.name.clone(), pool);
            self.capacity.machines.extend(machines);
        }
    }

    /// So many nodes of each pool are needed beside those that are there. Returns how many are asked for.
    pub fn ask_capacity(
        &mut self,
        needed: &BTreeMap<String, usize>,
        now: Timestamp,
    ) -> BTreeMap<String, usize> {
        for (name, pool) in &mut self.capacity.pools {
            pool.ask(needed.get(name).copied().unwrap_or(0), now);
        }
        self.see_capacity(now);
        self.capacity.pools.iter().map(|(name, pool)| (name.clone(), pool.asked.len())).collect()
    }

    /// Of which pools what is asked for could not be written, with the reason; of others it was.
    pub fn note_unwritten(&mut self, unwritten: &BTreeMap<String, String>) {
        for (name, pool) in &mut self.capacity.pools {
            pool.unwritten = unwritten.get(name).cloned();
        }
    }

    /// Nodes of a node_pool, with whether each can be used. One that has only registered, or that an autoscaler is about to remove, cannot.
    fn nodes_of(&self, node_pool: &NodePool) -> BTreeMap<&str, (bool, &SlimNode)> {
        let default = Default::default();
        let policy = self.policy().map_or(&default, |policy| &policy.spec);
        let gpus = u64::from(node_pool.gpus.unsigned_abs());
        let known = |taint: &SlimTaint| {
            let own =
                || node_pool.taints.iter().any(|own| own.key == taint.key && own.effect == taint.effect);
            taint.effect == "PreferNoSchedule" || taint.key == GPU_RESOURCE || own()
        };
        let usable = |node: &SlimNode| {
            policy::gpu_type(node, policy) == Some(node_pool.gpu_type.as_str())
                && ready(node)
                && offered(node).gpus >= gpus
                && !node.spec.unschedulable
                && node.metadata.deletion_timestamp.is_none()
                && node.spec.taints.iter().all(known)
        };
        let is_one = |name: &str, node: &SlimNode| {
            let labels = node.labels();
            node_pool.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
                && !self.capacity.machines.contains_key(name)
                && self.stored_node_power(name).is_none()
        };
        let nodes = self.nodes.iter().map(|(key, node)| (key.name.as_str(), &**node));
        let of_pool = nodes.filter(|(name, node)| is_one(name, node));
        of_pool.map(|(name, node)| (name, (usable(node), node))).collect()
    }

    fn make_machines(
        &self,
        node_pool: &NodePool,
        (pool, nodes): (&Pool, &BTreeMap<&str, (bool, &SlimNode)>),
        remembered: &RememberedMachine,
        now: Timestamp,
    ) -> Vec<(String, PoolMachine)> {
        let machine = |name: String, state: PowerState, since: Option<Timestamp>, has_room: bool| {
            let wanted = if state == PowerState::Off { WantedPower::Off } else { WantedPower::On };
            let usual = || node_pool.start_time.seconds().and_then(|seconds| i32::try_from(seconds).ok());
            let status = NodePowerStatus {
                state,
                since: since.map(Time),
                read_time: Some(Time(now)),
                boot_seconds: boot_seconds(&pool.starts).or_else(usual),
                machine: Some(remembered.clone()),
                ..NodePowerStatus::default()
            };
            let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
            let spec = NodePowerSpec { wanted, ..NodePowerSpec::default() };
            let power = Arc::new(SlimNodePower { metadata, spec, status: Some(status) });
            (name, PoolMachine { pool: node_pool.name.clone(), power, has_room })
        };
        let usable = nodes.iter().filter(|(_, (usable, _))| *usable);
        let there = usable.map(|(name, (_, node))| {
            let has_room = self.has_room(name, node, node_pool);
            machine((*name).to_owned(), PowerState::On, None, has_room)
        });
        let to_come = (0..pool.may_come(node_pool)).map(|i| {
            let since = pool.asked.get(i).copied();
            let state = if since.is_some() { PowerState::Starting } else { PowerState::Off };
            // No node has such a name.
            machine(format!("{}:{}", node_pool.name, i + 1), state, since, false)
        });
        there.chain(to_come).collect()
    }

    /// Whether pods of others leave room for all that a node of the pool has for pods.
    fn has_room(&self, name: &str, node: &SlimNode, node_pool: &NodePool) -> bool {
        let all = node_pool.allocatable.iter().filter(|(resource, _)| *resource != "pods");
        let mut all: BTreeMap<String, Quantity> =
            all.map(|(resource, amount)| (resource.clone(), Quantity(amount.clone()))).collect();
        all.insert(GPU_RESOURCE.into(), Quantity(node_pool.gpus.to_string()));
        let needed = Amounts::from_resources(&all).bounded();
        let free = offered(node).minus(self.foreign_use(name));
        needed.gpus <= free.gpus
            && needed.cpu_milli <= free.cpu_milli
            && needed.memory <= free.memory
            && needed
                .others
                .iter()
                .all(|(name, amount)| free.others.get(name).is_some_and(|has| has >= amount))
    }
}

/// Nodes of a pool that no plan would use.
const UNSELECTED: &str = "its nodes lack labels that spec.nodeSelector asks for: name them in its labels";

fn taint(taint: &NodeTaint) -> RememberedTaint {
    let NodeTaint { key, value, effect } = taint.clone();
    RememberedTaint { key, value, effect }
}

/// What nodes of a pool will be, as far as is known: like the last one that came.
fn remembered(
    node_pool: &NodePool,
    type_label: Option<&String>,
    seen: &BTreeMap<String, String>,
) -> RememberedMachine {
    let mut labels = BTreeMap::from([("kubernetes.io/os".to_owned(), "linux".to_owned())]);
    labels.extend(seen.clone());
    labels.remove("kubernetes.io/hostname");
    labels.extend(type_label.map(|label| (label.clone(), node_pool.gpu_type.clone())));
    labels.extend(node_pool.labels.clone());
    labels.extend(node_pool.node_selector.clone());
    let mut allocatable = node_pool.allocatable.clone();
    allocatable.insert(GPU_RESOURCE.into(), node_pool.gpus.to_string());
    RememberedMachine {
        labels,
        taints: node_pool.taints.iter().map(taint).collect(),
        allocatable,
        gpus: node_pool.gpus,
        ..RememberedMachine::default()
    }
}
