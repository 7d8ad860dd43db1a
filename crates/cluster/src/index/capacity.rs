//! Nodes that an autoscaler adds once they are asked for: what was asked for, what came of it, and the machines that plans count with.
//!
//! A node that may come is a machine that is off, as in [`machines`](super::machines): what a plan gives there is a wish. One that is there
//! is a machine that is on, and may go. Which of them are kept is the planner's rule for empty machines.
//!
//! What is remembered here can be lost: a new operator asks again, and the autoscaler has what it had.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use andreas_api::energy_policy::{Capacity as Kind, NodeTaint};
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
/// For how long nothing more is asked of a kind that gave nothing; twice as long each time, up to the second figure.
const PAUSE: [SignedDuration; 2] = [SignedDuration::from_mins(10), SignedDuration::from_hours(2)];
/// What the last plan does not need stays asked for this long: plans change their mind while nodes start, and a node that was asked for
/// anew would never be late.
const STAYS_ASKED: SignedDuration = SignedDuration::from_secs(60);
/// Starts that are remembered of a kind.
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
    kind: String,
    power: Arc<SlimNodePower>,
    /// The pod that stands for a node in the CapacityBuffer would find room on it, were it not for pods of ours.
    has_room: bool,
}

/// Nodes of one kind.
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
    /// Why nothing more is asked for: it could not be written, or would be of no use.
    problem: Option<String>,
    /// What is asked for could not be written.
    unwritten: Option<String>,
}

impl Pool {
    /// Takes note of the nodes that exist, with whether each can be used, and of those that do not come.
    fn see(&mut self, nodes: &BTreeMap<&str, (bool, &SlimNode)>, kind: &Kind, now: Timestamp) {
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
        let longest = SignedDuration::from_secs(kind.start_time.seconds().unwrap_or(0)) * GIVEN_UP_AFTER;
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
    fn may_come(&self, kind: &Kind) -> usize {
        let most = usize::try_from(kind.max_nodes).unwrap_or(0);
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
    /// The kind of a node that an autoscaler adds, there or not.
    pub fn capacity_kind(&self, node: &str) -> Option<&str> {
        self.capacity.machines.get(node).map(|machine| machine.kind.as_str())
    }

    /// The pod that stands for such a node in its CapacityBuffer finds room on it.
    pub fn has_room_for_capacity(&self, node: &str) -> bool {
        self.capacity.machines.get(node).is_some_and(|machine| machine.has_room)
    }

    /// Of which kinds no nodes are to be had, for people; empty: of none.
    pub fn missing_capacity(&self) -> String {
        let said = self.capacity.pools.iter().filter_map(|(kind, pool)| {
            if let Some(why) = &pool.problem {
                return Some(format!("{kind}: {why}"));
            }
            if let Some(why) = &pool.unwritten {
                return Some(format!("{kind}: its CapacityBuffer is not written: {why}"));
            }
            let (until, minutes) = pool.pause?;
            let until = until.strftime("%H:%M");
            Some(format!("{kind}: it gave no node within {minutes} min, and is asked again at {until} UTC"))
        });
        said.collect::<Vec<_>>().join("; ")
    }

    /// Takes note of what the autoscaler has done; before each plan.
    pub fn see_capacity(&mut self, now: Timestamp) {
        let kinds = self.policy().map(|policy| policy.spec.capacity.clone()).unwrap_or_default();
        self.capacity.machines.clear();
        self.capacity.pools.retain(|name, _| kinds.iter().any(|kind| kind.name == *name));
        for kind in &kinds {
            let mut pool = self.capacity.pools.remove(&kind.name).unwrap_or_default();
            let nodes = self.nodes_of(kind);
            pool.see(&nodes, kind, now);
            let policy = self.policy().map(|policy| policy.spec.clone()).unwrap_or_default();
            let machine = remembered(kind, policy.type_labels.first(), &pool.labels);
            let selected =
                policy.node_selector.iter().all(|(key, value)| machine.labels.get(key) == Some(value));
            pool.problem = (!selected).then(|| UNSELECTED.to_owned());
            pool.asked.truncate(pool.may_come(kind));
            let machines = self.make_machines(kind, (&pool, &nodes), &machine, now);
            self.capacity.pools.insert(kind.name.clone(), pool);
            self.capacity.machines.extend(machines);
        }
    }

    /// So many nodes of each kind are needed beside those that are there. Returns how many are asked for.
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

    /// Of which kinds what is asked for could not be written, with the reason; of others it was.
    pub fn note_unwritten(&mut self, unwritten: &BTreeMap<String, String>) {
        for (name, pool) in &mut self.capacity.pools {
            pool.unwritten = unwritten.get(name).cloned();
        }
    }

    /// Nodes of a kind, with whether each can be used. One that has only registered, or that an autoscaler is about to remove, cannot.
    fn nodes_of(&self, kind: &Kind) -> BTreeMap<&str, (bool, &SlimNode)> {
        let default = Default::default();
        let policy = self.policy().map_or(&default, |policy| &policy.spec);
        let gpus = u64::from(kind.gpus.unsigned_abs());
        let known = |taint: &SlimTaint| {
            let own = || kind.taints.iter().any(|own| own.key == taint.key && own.effect == taint.effect);
            taint.effect == "PreferNoSchedule" || taint.key == GPU_RESOURCE || own()
        };
        let usable = |node: &SlimNode| {
            policy::gpu_type(node, policy) == Some(kind.gpu_type.as_str())
                && ready(node)
                && offered(node).gpus >= gpus
                && !node.spec.unschedulable
                && node.metadata.deletion_timestamp.is_none()
                && node.spec.taints.iter().all(known)
        };
        let is_one = |name: &str, node: &SlimNode| {
            let labels = node.labels();
            kind.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
                && !self.capacity.machines.contains_key(name)
                && self.stored_node_power(name).is_none()
        };
        let nodes = self.nodes.iter().map(|(key, node)| (key.name.as_str(), &**node));
        let of_kind = nodes.filter(|(name, node)| is_one(name, node));
        of_kind.map(|(name, node)| (name, (usable(node), node))).collect()
    }

    fn make_machines(
        &self,
        kind: &Kind,
        (pool, nodes): (&Pool, &BTreeMap<&str, (bool, &SlimNode)>),
        remembered: &RememberedMachine,
        now: Timestamp,
    ) -> Vec<(String, PoolMachine)> {
        let machine = |name: String, state: PowerState, since: Option<Timestamp>, has_room: bool| {
            let wanted = if state == PowerState::Off { WantedPower::Off } else { WantedPower::On };
            let usual = || kind.start_time.seconds().and_then(|seconds| i32::try_from(seconds).ok());
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
            (name, PoolMachine { kind: kind.name.clone(), power, has_room })
        };
        let usable = nodes.iter().filter(|(_, (usable, _))| *usable);
        let there = usable.map(|(name, (_, node))| {
            let has_room = self.has_room(name, node, kind);
            machine((*name).to_owned(), PowerState::On, None, has_room)
        });
        let to_come = (0..pool.may_come(kind)).map(|i| {
            let since = pool.asked.get(i).copied();
            let state = if since.is_some() { PowerState::Starting } else { PowerState::Off };
            // No node has such a name.
            machine(format!("{}:{}", kind.name, i + 1), state, since, false)
        });
        there.chain(to_come).collect()
    }

    /// Whether pods of others leave room for all that a node of the kind has for pods.
    fn has_room(&self, name: &str, node: &SlimNode, kind: &Kind) -> bool {
        let all = kind.allocatable.iter().filter(|(resource, _)| *resource != "pods");
        let mut all: BTreeMap<String, Quantity> =
            all.map(|(resource, amount)| (resource.clone(), Quantity(amount.clone()))).collect();
        all.insert(GPU_RESOURCE.into(), Quantity(kind.gpus.to_string()));
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

/// What nodes of a kind will be, as far as is known: like the last one that came.
fn remembered(
    kind: &Kind,
    type_label: Option<&String>,
    seen: &BTreeMap<String, String>,
) -> RememberedMachine {
    let mut labels = BTreeMap::from([("kubernetes.io/os".to_owned(), "linux".to_owned())]);
    labels.extend(seen.clone());
    labels.remove("kubernetes.io/hostname");
    labels.extend(type_label.map(|label| (label.clone(), kind.gpu_type.clone())));
    labels.extend(kind.labels.clone());
    labels.extend(kind.node_selector.clone());
    let mut allocatable = kind.allocatable.clone();
    allocatable.insert(GPU_RESOURCE.into(), kind.gpus.to_string());
    RememberedMachine {
        labels,
        taints: kind.taints.iter().map(taint).collect(),
        allocatable,
        gpus: kind.gpus,
        ..RememberedMachine::default()
    }
}
