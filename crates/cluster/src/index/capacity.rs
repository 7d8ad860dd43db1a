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
use andreas_api::slim::{SlimNode, SlimNodePower};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use kube::api::ObjectMeta;

use super::ClusterIndex;
use super::nodes::{offered, ready};
use crate::policy;

/// A node that is not there after so many times the time of a start is not to be had.
const GIVEN_UP_AFTER: i32 = 3;
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
    /// Those that are there and those that may come, by name, with their kind.
    machines: BTreeMap<String, (String, Arc<SlimNodePower>)>,
}

/// Nodes of one kind.
#[derive(Clone, Default)]
struct Pool {
    /// When each node was asked for that is not there yet, the oldest first.
    asked: Vec<Timestamp>,
    /// Since when plans need fewer of them.
    needs_fewer: Option<Timestamp>,
    there: BTreeSet<String>,
    /// How long starts took, s, the newest last.
    starts: Vec<i32>,
    /// Times in a row that nothing came.
    failures: u32,
    /// Until when nothing is asked for, since nothing came within so many minutes.
    pause: Option<(Timestamp, i64)>,
    /// Why what is asked for could not be written.
    unwritten: Option<String>,
}

impl Pool {
    /// Takes note of the nodes that are there, and of those that do not come.
    fn see(&mut self, there: BTreeSet<String>, kind: &Kind, now: Timestamp) {
        for _ in there.difference(&self.there) {
            if self.asked.is_empty() {
                break;
            }
            let took = now.duration_since(self.asked.remove(0)).as_secs();
            self.starts.push(i32::try_from(took).unwrap_or(i32::MAX).max(1));
            (self.failures, self.pause) = (0, None);
        }
        let over = self.starts.len().saturating_sub(STARTS);
        self.starts.drain(..over);
        self.there = there;
        let longest = SignedDuration::from_secs(kind.start_time.seconds().unwrap_or(0)) * GIVEN_UP_AFTER;
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
        if self.pause.is_some() || self.unwritten.is_some() {
            0
        } else {
            most.saturating_sub(self.there.len())
        }
    }
}

impl Capacity {
    /// The machine of this name.
    pub(super) fn machine(&self, node: &str) -> Option<&Arc<SlimNodePower>> {
        self.machines.get(node).map(|(_, power)| power)
    }

    /// All machines, by name.
    pub(super) fn machines(&self) -> impl Iterator<Item = (&str, &Arc<SlimNodePower>)> {
        self.machines.iter().map(|(name, (_, power))| (name.as_str(), power))
    }
}

impl ClusterIndex {
    /// The kind of a node that an autoscaler adds, there or not.
    pub fn capacity_kind(&self, node: &str) -> Option<&str> {
        self.capacity.machines.get(node).map(|(kind, _)| kind.as_str())
    }

    /// Of which kinds no nodes are to be had, for people; empty: of none.
    pub fn missing_capacity(&self) -> String {
        let said = self.capacity.pools.iter().filter_map(|(kind, pool)| {
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
            let there = self.nodes_of(kind);
            let pool = self.capacity.pools.entry(kind.name.clone()).or_default();
            pool.see(there, kind, now);
            pool.asked.truncate(pool.may_come(kind));
            self.make_machines(kind, now);
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

    /// Nodes of a kind that can be used. One that has only registered is still to come.
    fn nodes_of(&self, kind: &Kind) -> BTreeSet<String> {
        let default = Default::default();
        let policy = self.policy().map_or(&default, |policy| &policy.spec);
        let gpus = u64::from(kind.gpus.unsigned_abs());
        let is_one = |node: &SlimNode| {
            let labels = node.labels();
            kind.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
                && policy::gpu_type(node, policy) == Some(kind.gpu_type.as_str())
                && ready(node)
                && offered(node).gpus >= gpus
        };
        let free = |name: &String| {
            !self.capacity.machines.contains_key(name) && self.stored_node_power(name).is_none()
        };
        let of_kind = self.nodes.iter().filter(|(key, node)| is_one(node) && free(&key.name));
        of_kind.map(|(key, _)| key.name.clone()).collect()
    }

    fn make_machines(&mut self, kind: &Kind, now: Timestamp) {
        let default = Default::default();
        let policy = self.policy().map_or(&default, |policy| &policy.spec);
        let remembered = remembered(kind, policy.type_labels.first(), &policy.node_selector);
        let Some(pool) = self.capacity.pools.get(&kind.name) else { return };
        let machine = |name: String, state: PowerState, since: Option<Timestamp>| {
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
            (name, (kind.name.clone(), Arc::new(SlimNodePower { metadata, spec, status: Some(status) })))
        };
        let there = pool.there.iter().map(|name| machine(name.clone(), PowerState::On, None));
        let to_come = (0..pool.may_come(kind)).map(|i| {
            let since = pool.asked.get(i).copied();
            let state = if since.is_some() { PowerState::Starting } else { PowerState::Off };
            // No node has such a name.
            machine(format!("{}:{}", kind.name, i + 1), state, since)
        });
        let machines: Vec<_> = there.chain(to_come).collect();
        self.capacity.machines.extend(machines);
    }
}

fn taint(taint: &NodeTaint) -> RememberedTaint {
    let NodeTaint { key, value, effect } = taint.clone();
    RememberedTaint { key, value, effect }
}

/// What nodes of a kind will be.
fn remembered(
    kind: &Kind,
    type_label: Option<&String>,
    selector: &BTreeMap<String, String>,
) -> RememberedMachine {
    let mut labels = selector.clone();
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
