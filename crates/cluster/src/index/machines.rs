//! Machines with a NodePower: where each is, and the Node that one which is off was and will be.
//!
//! A plan counts with machines that are off as with nodes, and what it gives there is a wish: they are started, and the plan after that
//! decides anew. What nobody can start is no node: one whose power cannot be read, or while node-power is silent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use andreas_api::key_of;
use andreas_api::names::GPU_RESOURCE;
use andreas_api::node_power::{
    NodePowerStatus, PowerMode, PowerState, RememberedMachine, RememberedTaint, WantedPower,
};
use andreas_api::slim::{SlimNode, SlimNodePower, SlimNodeSpec, SlimNodeStatus, SlimPodCondition, SlimTaint};
use andreas_model::ObjectKey;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ObjectMeta;

use super::ClusterIndex;
use super::amounts::Amounts;
use super::nodes::ready;
use super::store::{Origin, Store};

/// Time of a start where none was seen yet: a server with eight GPUs tests its memory for minutes.
const UNSEEN_START: Duration = Duration::from_secs(300);
/// A start that takes longer than expected is expected to end after this time, again and again; no later than one that begins now.
const LATE_START: Duration = Duration::from_secs(30);
/// A machine that is wanted on is ahead of one that is not, if only by this: a job that waits for the one is not given the other.
const AHEAD: Duration = Duration::from_secs(1);
/// For this long a machine that is on still starts, where its Node is not seen ready or has taints that it did not have: those of a start
/// are taken away once its network and drivers are up.
const JUST_ON: SignedDuration = SignedDuration::from_secs(120);
/// node-power writes the time of its last reading each 5 minutes: after two that are missing it does not act.
const SILENT: Duration = Duration::from_secs(660);

/// Where a machine is that may be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// On.
    On,
    /// It is started, and expected to be ready then.
    Starting {
        /// Expected end of the start.
        until: Timestamp,
    },
    /// On its way off: it draws, and is ready again no earlier than after a start.
    GoingOff,
    /// Off.
    Off,
}

/// How long a start of the machine takes: the 90th percentile of those seen.
pub fn start_time(power: &SlimNodePower) -> Duration {
    let seen = power.status.as_ref().and_then(|status| status.boot_seconds);
    seen.map_or(UNSEEN_START, |seconds| Duration::from_secs(seconds.unsigned_abs().into()))
}

/// Where a machine is; `None`: nobody switches it, or nothing is known of it.
fn machine(power: &SlimNodePower, now: Timestamp) -> Option<Machine> {
    let status = power.status.as_ref().filter(|status| is_read(status, now))?;
    let known = status.machine.is_some();
    let whole = start_time(power);
    let within = |time: Duration| now + time.saturating_sub(AHEAD);
    match (status.state, power.spec.mode) {
        (PowerState::On, PowerMode::Auto) => Some(Machine::On),
        (PowerState::Starting, _) if known => {
            let begun = status.since.as_ref().map_or(now, |since| since.0);
            // `since` is written in whole seconds.
            let until = (begun + whole).min(within(whole));
            let late = within(LATE_START.min(whole));
            Some(Machine::Starting { until: if until > now { until } else { late } })
        }
        (PowerState::Off | PowerState::GoingOff, PowerMode::Auto | PowerMode::On) if known => {
            let wanted = power.spec.mode == PowerMode::On || power.spec.wanted == WantedPower::On;
            Some(match status.state {
                _ if wanted => Machine::Starting { until: within(whole) },
                PowerState::GoingOff => Machine::GoingOff,
                _ => Machine::Off,
            })
        }
        _ => None,
    }
}

/// Whether node-power reads the machine's power.
fn is_read(status: &NodePowerStatus, now: Timestamp) -> bool {
    let fresh = status.read_time.as_ref().is_some_and(|at| now.duration_since(at.0).unsigned_abs() < SILENT);
    fresh && !status.conditions.iter().any(|c| c.type_ == "Reachable" && c.status == "False")
}

/// Whether two states of a NodePower are equal for plans.
pub(super) fn same_machine(a: &SlimNodePower, b: &SlimNodePower) -> bool {
    let facts = |power: &SlimNodePower| {
        let status = power.status.clone().unwrap_or_default();
        let reachable = status.conditions.into_iter().find(|c| c.type_ == "Reachable").map(|c| c.status);
        (status.state, status.since, status.boot_seconds, status.machine, reachable)
    };
    a.spec == b.spec && facts(a) == facts(b)
}

/// The Node that a machine was.
fn node_of(name: &str, machine: &RememberedMachine) -> SlimNode {
    let amounts = |all: &BTreeMap<String, String>| -> BTreeMap<String, Quantity> {
        all.iter().map(|(resource, amount)| (resource.clone(), Quantity(amount.clone()))).collect()
    };
    let allocatable = amounts(&machine.allocatable);
    let mut capacity = allocatable.clone();
    capacity.retain(|resource, _| resource == GPU_RESOURCE);
    let taint = |taint: &RememberedTaint| SlimTaint {
        key: taint.key.clone(),
        value: taint.value.clone(),
        effect: taint.effect.clone(),
    };
    let ready =
        SlimPodCondition { type_: "Ready".into(), status: "True".into(), ..SlimPodCondition::default() };
    SlimNode {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            uid: Some(machine.node_uid.clone()),
            labels: Some(machine.labels.clone()),
            annotations: Some(machine.annotations.clone()),
            ..ObjectMeta::default()
        },
        spec: SlimNodeSpec {
            unschedulable: machine.cordoned,
            taints: machine.taints.iter().map(taint).collect(),
        },
        status: SlimNodeStatus {
            allocatable,
            capacity,
            conditions: vec![ready],
            ..SlimNodeStatus::default()
        },
    }
}

impl ClusterIndex {
    /// NodePowers by name.
    pub fn node_powers(&self) -> &Store<SlimNodePower> {
        &self.node_powers
    }

    /// The NodePower of a node, or of one that an autoscaler adds.
    pub fn node_power(&self, node: &str) -> Option<&Arc<SlimNodePower>> {
        self.stored_node_power(node).or_else(|| self.capacity.machine(node))
    }

    /// The NodePower of a node, as somebody made it.
    pub(super) fn stored_node_power(&self, node: &str) -> Option<&Arc<SlimNodePower>> {
        self.node_powers.get(&ObjectKey { namespace: String::new(), name: node.to_owned() })
    }

    /// Machines that may be off: those with a NodePower, and nodes that an autoscaler adds.
    fn machines(&self) -> impl Iterator<Item = (&str, &Arc<SlimNodePower>)> {
        let own = self.node_powers.iter().map(|(key, power)| (key.name.as_str(), power));
        own.chain(self.capacity.machines())
    }

    /// Whether any machine may be off.
    pub fn has_machines(&self) -> bool {
        self.machines().next().is_some()
    }

    /// Where the machine of a node is; `None`: nobody switches it.
    pub fn machine(&self, node: &str, now: Timestamp) -> Option<Machine> {
        machine(self.node_power(node)?, now)
    }

    /// Machines that start, with the Node that each was and will be: they draw, and are no ready Nodes yet.
    pub fn starting(&self) -> impl Iterator<Item = SlimNode> {
        self.machines().filter_map(|(name, power)| {
            let status = power.status.as_ref().filter(|status| status.state == PowerState::Starting)?;
            let is_ready = self.nodes.get(&key_of(&**power)).is_some_and(|node| ready(node));
            let remembered = status.machine.as_ref().filter(|_| !is_ready)?;
            Some(node_of(name, remembered))
        })
    }

    /// Puts the Nodes of machines that are off or on their way into this copy for a plan.
    pub(super) fn add_machines(&mut self, now: Timestamp) {
        if !self.has_machines() {
            return;
        }
        let early = |(key, power): (&ObjectKey, &Arc<SlimNodePower>)| {
            let status = power.status.as_ref().filter(|status| status.state == PowerState::On)?;
            let young = status.since.as_ref().is_some_and(|since| now.duration_since(since.0) < JUST_ON);
            let remembered = status.machine.as_ref()?;
            let is_up = self.nodes.get(key).is_some_and(|node| is_up(node, remembered));
            (young && !is_up).then(|| key.clone())
        };
        let early: Vec<ObjectKey> = self.node_powers.iter().filter_map(early).collect();
        for key in early {
            self.node_powers.change(&key, |power| {
                let begun = now - start_time(power) + AHEAD;
                if let Some(status) = &mut power.status {
                    (status.state, status.since) = (PowerState::Starting, Some(Time(begun)));
                }
            });
        }
        // They take their places whatever their versions.
        self.nodes.rewound();
        let machines: Vec<Arc<SlimNodePower>> = self.machines().map(|(_, power)| Arc::clone(power)).collect();
        for power in machines {
            if matches!(machine(&power, now), None | Some(Machine::On)) {
                continue;
            }
            let name = key_of(&*power).name;
            let Some(status) = &power.status else { continue };
            let Some(remembered) = &status.machine else { continue };
            self.nodes.apply(node_of(&name, remembered), Origin::Watched);
            // Until it goes off its own pods are there.
            if status.state != PowerState::GoingOff {
                let amounts = remembered.daemon_set_requests.iter();
                let amounts =
                    amounts.map(|(name, amount)| (name.clone(), Quantity(amount.clone()))).collect();
                let taken = Amounts::from_resources(&amounts).bounded();
                self.by_node.foreign_use.insert(name, taken);
            }
        }
    }
}

/// Whether a node takes pods as it did before.
fn is_up(node: &SlimNode, before: &RememberedMachine) -> bool {
    let known = |taint: &SlimTaint| {
        before.taints.iter().any(|old| old.key == taint.key && old.effect == taint.effect)
    };
    ready(node) && node.spec.taints.iter().all(|taint| taint.effect == "PreferNoSchedule" || known(taint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use andreas_model::Index;
    use serde_json::{Value, json};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).expect("a time")
    }

    fn power(spec: &Value, status: &Value) -> SlimNodePower {
        let metadata = json!({"name": "n1", "uid": "p1", "resourceVersion": "1"});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status}))
            .expect("a NodePower")
    }

    fn status(state: &str) -> Value {
        json!({"state": state, "since": at(0), "readTime": at(0), "power": "Off", "bootSeconds": 120, "machine": {
            "nodeUid": "u1", "labels": {"nvidia.com/gpu.product": "A100"}, "gpus": 8,
            "taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}],
            "allocatable": {"nvidia.com/gpu": "8", "cpu": "64", "memory": "512Gi", "pods": "110"},
            "daemonSetRequests": {"cpu": "1500m", "memory": "2Gi", "pods": "6"}}})
    }

    #[test]
    fn a_machine_is_where_node_power_says_and_nowhere_while_nobody_switches_it() {
        let off = json!({"wanted": "Off"});
        let seen = |spec: &Value, status: &Value, now: i64| machine(&power(spec, status), at(now));
        assert_eq!(seen(&off, &status("Off"), 10), Some(Machine::Off));
        assert_eq!(seen(&off, &status("GoingOff"), 10), Some(Machine::GoingOff));
        assert_eq!(seen(&json!({}), &status("On"), 10), Some(Machine::On));
        assert_eq!(seen(&json!({"mode": "On"}), &status("On"), 10), None, "it is never switched off");
        assert_eq!(seen(&json!({"mode": "Off"}), &status("Off"), 10), None, "it is kept off by hand");
        assert_eq!(seen(&off, &status("Quarantined"), 10), None);
        assert_eq!(seen(&off, &json!(null), 10), None, "node-power has not seen it");
        // What is wanted on will be on, started or not.
        let until = |second: i64| Some(Machine::Starting { until: at(second) });
        assert_eq!(seen(&json!({}), &status("Off"), 10), until(129));
        assert_eq!(seen(&off, &status("Starting"), 10), until(120));
        assert_eq!(seen(&off, &status("Starting"), 200), until(229), "a late start ends soon");
        // Nobody would start it.
        assert_eq!(seen(&off, &status("Off"), 660), None, "node-power is silent");
        let mut unreachable = status("Off");
        unreachable["conditions"] = json!([{"type": "Reachable", "status": "False", "reason": "Unreachable",
            "message": "", "lastTransitionTime": at(0)}]);
        assert_eq!(seen(&off, &unreachable, 10), None);
        let mut unseen = status("Off");
        unseen["bootSeconds"] = json!(null);
        assert_eq!(start_time(&power(&off, &unseen)), UNSEEN_START);
    }

    #[test]
    fn a_plan_counts_with_the_node_that_a_machine_will_be() {
        let mut index = ClusterIndex::with_clock(|| at(10));
        index.apply(power(&json!({"wanted": "Off"}), &status("Off")));
        assert!(index.nodes().iter().next().is_none(), "there is no such Node");
        let copy = index.for_plan();
        let (key, node) = copy.nodes().iter().next().expect("its Node of before");
        assert!(super::super::usable(&copy, key, node));
        assert_eq!(super::super::offered(node).gpus, 8);
        assert_eq!(node.spec.taints.len(), 1);
        let taken = copy.foreign_use("n1");
        assert_eq!((taken.cpu_milli, taken.memory, taken.pods), (1_500, 2 << 30, 6));
        // While it starts, the Node that has registered is not ready: the plan sees the one of before.
        let fresh = json!({"metadata": {"name": "n1", "uid": "u2", "resourceVersion": "900"}});
        index.apply(serde_json::from_value::<SlimNode>(fresh).expect("a Node"));
        let mut started = power(&json!({}), &status("Starting"));
        started.metadata.resource_version = Some("2".into());
        index.apply(started);
        let copy = index.for_plan();
        let node = copy.nodes().iter().next().expect("one").1;
        assert_eq!(super::super::offered(node).gpus, 8);
        assert_eq!(index.starting().count(), 1, "it draws, and its Node does not count before it is ready");
        // node-power has seen it ready, and the watch of Nodes has not.
        let mut on = power(&json!({}), &status("On"));
        on.metadata.resource_version = Some("3".into());
        index.apply(on);
        let copy = index.for_plan();
        assert_eq!(super::super::offered(copy.nodes().iter().next().expect("one").1).gpus, 8);
        assert!(matches!(copy.machine("n1", at(10)), Some(Machine::Starting { .. })));
        // It is ready, and has a taint of its start; then it has none but its own.
        let mut node = |version: &str, taints: Value| {
            let node = json!({"metadata": {"name": "n1", "uid": "u2", "resourceVersion": version}, "spec": {"taints": taints},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
            index.apply(serde_json::from_value::<SlimNode>(node).expect("a Node"));
            index.for_plan().machine("n1", at(10))
        };
        let own = json!({"key": "team", "value": "a", "effect": "NoSchedule"});
        let of_start = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
        assert!(matches!(node("901", json!([own, of_start])), Some(Machine::Starting { .. })));
        assert_eq!(node("902", json!([own])), Some(Machine::On));
        assert_eq!(index.starting().count(), 0, "its Node counts");
    }
}
