//! Which machines are wanted on, after each plan.
//!
//! **In**: the plan and its input, where machines are. **Out**: what is wanted of each that may be switched off, and what a job waits for
//! that was given one which is off. The rule for empty machines is the planner's ([`node_sleep`]), the same as in the simulator.
//!
//! What is remembered here can be lost: a new operator lets nothing go off before it has seen the demand of some time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use andreas_api::energy_policy::SleepMode;
use andreas_api::node_power::{PowerMode, PowerState, WantedPower};
use andreas_api::slim::SlimNodePower;
use andreas_api::{EnergyPolicySpec, Reason};
use andreas_cluster::index::machines::{Machine, start_time};
use andreas_cluster::index::{ClusterIndex, WaitingPod};
use andreas_cluster::policy::boards;
use andreas_lifecycle::Planned;
use andreas_model::{JobId, Joules, NodeName, ObjectKey, Seconds, Time, Watts};
use andreas_planner::node_sleep::{NodeUse, RecentDemand, SleepNode, SleepRule, decide};
use andreas_planner::{Decision, JobState, Node, NodePower, Placement, Plan, Snapshot};
use jiff::Timestamp;

/// So many times `idleAfter` the demand must have been seen before a machine goes off.
const SEEN_FOR: f64 = 6.0;

/// What is wanted of machines.
#[derive(Debug, Default, PartialEq)]
pub struct Wanted {
    /// By node.
    pub power: BTreeMap<String, WantedPower>,
    /// What machines that were off have saved since the last call, or with `Observe` those that would have been; less what a start
    /// costs.
    pub saved: Joules,
    /// Nodes to be asked for of each pool that an autoscaler adds.
    pub capacity: BTreeMap<String, AskedNodes>,
    /// When to look again, if nothing happens.
    pub next: Option<Time>,
}

/// Nodes of a pool that an autoscaler adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AskedNodes {
    /// Those that are not there.
    pub more: usize,
    /// Those that are there and empty.
    pub empty: usize,
    /// Of these, those that stay.
    pub kept: usize,
}

impl AskedNodes {
    /// How many pods that fill a node there shall be room for, if so many nodes are asked for. While some are to come, all that are empty
    /// count: they would be taken for those.
    pub fn replicas(&self, asked: usize) -> usize {
        asked + if asked > 0 { self.empty } else { self.kept }
    }
}

/// What is remembered from plan to plan.
#[derive(Debug)]
pub struct Sleep {
    began: Time,
    last: Time,
    /// Since when each machine that is on is empty.
    empty: BTreeMap<String, Time>,
    demand: RecentDemand,
    /// Waiting jobs to which the last plan gave GPUs: they are counted once.
    given: BTreeSet<JobId>,
}

/// A machine that may be switched off, and the node of the plan that it is.
struct Sleeper<'a> {
    name: &'a str,
    power: &'a SlimNodePower,
    machine: Machine,
    /// The pool of nodes that an autoscaler adds which it is one of.
    pool: Option<&'a str>,
    class: String,
    node: &'a Node,
    /// Draw that is saved while it is off.
    saved: Watts,
    wake: Joules,
}

impl Sleeper<'_> {
    /// Time that it must be off to have saved what its start costs.
    fn pays_after(&self) -> Seconds {
        Seconds(if self.saved.0 > 0.0 { self.wake.0 / self.saved.0 } else { f64::INFINITY })
    }

    fn is_off(&self) -> bool {
        matches!(self.machine, Machine::Off | Machine::GoingOff)
    }
}

fn time(at: Timestamp) -> Time {
    Time(at.as_millisecond() as f64 / 1_000.0)
}

impl Sleep {
    /// Nothing is known yet.
    pub fn new(now: Timestamp) -> Self {
        let now = time(now);
        Self {
            began: now,
            last: now,
            empty: BTreeMap::new(),
            demand: RecentDemand::default(),
            given: BTreeSet::new(),
        }
    }

    /// What is wanted after a plan; `waiting` are pods of others for which the scheduler finds no GPUs.
    pub fn after(
        &mut self,
        index: &ClusterIndex,
        (snapshot, plan): (&Snapshot, &Plan),
        waiting: &[WaitingPod],
        at: Timestamp,
    ) -> Wanted {
        if !index.has_machines() {
            return Wanted::default();
        }
        let (now, default) = (time(at), EnergyPolicySpec::default());
        let policy = index.policy().map_or(&default, |policy| &policy.spec);
        let rule = rule(policy);
        let sleepers = sleepers(index, snapshot, policy, at);
        let (used, waited_for) = self.note_use(index, &sleepers, (snapshot, plan), now);
        self.note_demand(&sleepers, (snapshot, plan), &rule, now);

        let mut wanted = Wanted::default();
        let uses: Vec<NodeUse> = sleepers.iter().map(|one| self.use_of(one, &used)).collect();
        let nodes: Vec<SleepNode<'_>> = sleepers
            .iter()
            .zip(&uses)
            .map(|(one, state)| SleepNode {
                class: &one.class,
                gpu_type: one.node.gpu_type.as_str(),
                gpus: one.node.gpus.0.max(1),
                state: *state,
                saved: one.saved,
                wake: one.wake,
                start: Seconds(start_time(one.power).as_secs_f64()),
            })
            .collect();
        let mut coming = self.demand.coming(&rule, now);
        for (class, gpus) in kept_ready(policy, &sleepers) {
            *coming.entry(class).or_default() += gpus;
        }
        let mut decision = decide(&nodes, (&coming, &plan.deferred), &rule, now);
        let warm = self.warm(&rule);
        if now < warm {
            // An autoscaler would take it away in any case.
            decision.sleep.retain(|i| sleepers[*i].pool.is_some());
            decision.next = decision.next.into_iter().chain([warm]).reduce(Time::min);
        }
        wanted.next = decision.next;
        let sleep: BTreeSet<usize> = decision.sleep.into_iter().collect();
        wanted.saved = self.saved(policy.node_sleep.mode, (&sleepers, &uses), (&sleep, &rule), now);
        self.last = now;

        let mut started = decision.wake;
        started.extend(of_others(waiting, &sleepers));
        let started = affordable(started, &sleepers, (snapshot, plan));
        wanted.power = unplanned(index, policy, at);
        wanted.capacity = asked_nodes(index, (&sleepers, &uses), (&started, &sleep, &waited_for));
        for (i, one) in sleepers.iter().enumerate().filter(|(_, one)| one.pool.is_none()) {
            let on = policy.node_sleep.mode != SleepMode::On
                || used.contains(one.name)
                || started.contains(&i)
                || !(sleep.contains(&i) || one.is_off());
            wanted.power.insert(one.name.to_owned(), if on { WantedPower::On } else { WantedPower::Off });
        }
        wanted
    }

    /// From when on machines go off.
    fn warm(&self, rule: &SleepRule) -> Time {
        self.began + Seconds(rule.idle_s * SEEN_FOR)
    }

    /// Notes which machines are empty. Returns those that jobs or pods of others have, or that the plan gives; and of these those where
    /// nobody is yet, and the job waits for others of its nodes.
    fn note_use(
        &mut self,
        index: &ClusterIndex,
        sleepers: &[Sleeper<'_>],
        (snapshot, plan): (&Snapshot, &Plan),
        now: Time,
    ) -> (BTreeSet<String>, BTreeSet<String>) {
        let nodes: BTreeMap<_, _> = snapshot.nodes.iter().map(|node| (&node.name, node)).collect();
        let given = plan.jobs.values().filter_map(|job| job.decision.placement());
        let (given, waiting): (Vec<_>, Vec<_>) =
            given.partition(|placement| not_on(placement, &nodes).is_empty());
        let held = snapshot.jobs.iter().filter_map(|job| match &job.state {
            JobState::Waiting => None,
            JobState::Starting { target: held, .. }
            | JobState::Running { placement: held, .. }
            | JobState::Stopping { holds: held, .. } => Some(held),
        });
        let names = |placement: &Placement| -> Vec<String> {
            placement.nodes.iter().map(|node| node.as_str().to_owned()).collect()
        };
        let mut used: BTreeSet<String> = given.into_iter().chain(held).flat_map(names).collect();
        let holds =
            |name: &str| index.pods_on(name).any(|pod| !pod.has_ended()) || index.foreign_use(name).gpus > 0;
        used.extend(sleepers.iter().filter(|one| holds(one.name)).map(|one| one.name.to_owned()));
        let mut waited_for: BTreeSet<String> = waiting.into_iter().flat_map(names).collect();
        waited_for.retain(|name| !used.contains(name));
        used.extend(waited_for.iter().cloned());
        let empty = sleepers.iter().filter(|one| one.machine == Machine::On && !used.contains(one.name));
        self.empty = empty
            .map(|one| (one.name.to_owned(), self.empty.get(one.name).copied().unwrap_or(now)))
            .collect();
        (used, waited_for)
    }

    /// Counts the GPUs that waiting jobs were given.
    fn note_demand(
        &mut self,
        sleepers: &[Sleeper<'_>],
        (snapshot, plan): (&Snapshot, &Plan),
        rule: &SleepRule,
        now: Time,
    ) {
        let classes: BTreeMap<&str, &str> =
            sleepers.iter().map(|one| (one.name, one.class.as_str())).collect();
        // Windows without demand count from the first plan on.
        for class in classes.values() {
            self.demand.started(class, 0, rule, now);
        }
        let mut given = BTreeSet::new();
        for job in snapshot.jobs.iter().filter(|job| matches!(job.state, JobState::Waiting)) {
            let Some(placement) = plan.jobs.get(&job.id).and_then(|plan| plan.decision.placement()) else {
                continue;
            };
            given.insert(job.id.clone());
            if self.given.contains(&job.id) {
                continue;
            }
            for class in placement.nodes.iter().filter_map(|node| classes.get(node.as_str())) {
                self.demand.started(class, placement.gpus_per_node.0, rule, now);
            }
        }
        self.given = given;
    }

    fn use_of(&self, one: &Sleeper<'_>, used: &BTreeSet<String>) -> NodeUse {
        match one.machine {
            // What is no longer needed is no longer asked for.
            Machine::Starting { .. } if one.pool.is_some() && !used.contains(one.name) => NodeUse::Asleep,
            Machine::Off | Machine::GoingOff if used.contains(one.name) => NodeUse::Waking,
            Machine::Off | Machine::GoingOff => NodeUse::Asleep,
            Machine::Starting { .. } => NodeUse::Waking,
            Machine::On => {
                self.empty.get(one.name).map_or(NodeUse::Busy, |since| NodeUse::Empty { since: *since })
            }
        }
    }

    /// Joules saved since the last call.
    fn saved(
        &self,
        mode: SleepMode,
        (sleepers, uses): (&[Sleeper<'_>], &[NodeUse]),
        (sleep, rule): (&BTreeSet<usize>, &SleepRule),
        now: Time,
    ) -> Joules {
        let off_since = |i: usize| match (mode, uses[i]) {
            _ if sleepers[i].pool.is_some() => None,
            (SleepMode::On, _) if sleepers[i].machine == Machine::Off => {
                sleepers[i].power.status.as_ref()?.since.as_ref().map(|since| time(since.0))
            }
            (SleepMode::Observe, NodeUse::Empty { since }) if sleep.contains(&i) => {
                let due = since + Seconds(sleepers[i].pays_after().0.max(rule.idle_s));
                Some(due.max(self.warm(rule)))
            }
            _ => None,
        };
        let saves = (0..sleepers.len()).filter_map(|i| {
            let from = (off_since(i)? + sleepers[i].pays_after()).0.max(self.last.0);
            Some(sleepers[i].saved.0 * (now.0 - from).max(0.0))
        });
        Joules(saves.sum())
    }
}

/// Machines that are wanted on whatever the plan says: all, where none may be off, and those that are off and of no use to a plan, so that
/// their node is there to be seen. One that is on and in no plan stays as it is: it may be on its way off.
fn unplanned(
    index: &ClusterIndex,
    policy: &EnergyPolicySpec,
    now: Timestamp,
) -> BTreeMap<String, WantedPower> {
    let on = |(key, power): (&ObjectKey, &Arc<SlimNodePower>)| {
        let off = matches!(index.machine(&key.name, now), Some(Machine::Off));
        let wanted = policy.node_sleep.mode != SleepMode::On || off;
        (power.spec.mode == PowerMode::Auto && wanted).then(|| (key.name.clone(), WantedPower::On))
    };
    index.node_powers().iter().filter_map(on).collect()
}

fn rule(policy: &EnergyPolicySpec) -> SleepRule {
    let idle_s = policy.seconds(|policy| &policy.node_sleep.idle_after).max(1) as f64;
    SleepRule { idle_s, horizon_s: idle_s, buffer: 0, ..SleepRule::default() }
}

fn sleepers<'a>(
    index: &'a ClusterIndex,
    snapshot: &'a Snapshot,
    policy: &EnergyPolicySpec,
    now: Timestamp,
) -> Vec<Sleeper<'a>> {
    let idle: BTreeMap<_, _> = snapshot.gpu_types.iter().map(|info| (&info.name, info.idle.0)).collect();
    let of = |node: &'a Node| {
        let name = node.name.as_str();
        let power = index.node_power(name).filter(|power| power.spec.mode == PowerMode::Auto)?;
        let (machine, pool) = (index.machine(name, now)?, index.node_pool(name));
        let gpus = idle.get(&node.gpu_type).copied().unwrap_or(0.0) * f64::from(node.gpus.0);
        let off = boards::board(node.gpu_type.as_str(), policy).off.0;
        let busy = node.host_busy.0.max(node.host_idle.0);
        Some(Sleeper {
            name,
            power,
            machine,
            pool,
            class: pool.map_or_else(|| format!("{}/{}", node.gpu_type, node.gpus.0), str::to_owned),
            node,
            saved: Watts((node.host_idle.0 + gpus - off).max(0.0)),
            wake: Joules(busy * start_time(power).as_secs_f64()),
        })
    };
    snapshot.nodes.iter().filter_map(of).collect()
}

/// GPUs of nodes that the administrator keeps ready, by class.
fn kept_ready<'s>(policy: &EnergyPolicySpec, sleepers: &'s [Sleeper<'_>]) -> BTreeMap<&'s str, f64> {
    // A pool of an autoscaler has a least size of its own.
    let ready = |one: &'s Sleeper<'_>| {
        if one.pool.is_some() {
            return None;
        }
        let mut all = policy.node_sleep.ready_nodes.iter();
        let of_type = all.find(|ready| ready.gpu_type == one.node.gpu_type.as_str())?;
        Some((one.class.as_str(), f64::from(of_type.nodes.max(0)) * f64::from(one.node.gpus.0)))
    };
    sleepers.iter().filter_map(ready).collect()
}

/// Machines that pods of others need, for which the scheduler found no GPUs: as many of each class that has the labels they ask for as
/// hold them all, less those that start already.
fn of_others(waiting: &[WaitingPod], sleepers: &[Sleeper<'_>]) -> Vec<usize> {
    let mut asked: BTreeMap<&str, (u64, Vec<usize>)> = BTreeMap::new();
    for pod in waiting {
        let mut classes = BTreeSet::new();
        // An autoscaler sees such pods itself.
        let off = |one: &Sleeper<'_>| one.machine != Machine::On && one.pool.is_none();
        for (i, one) in sleepers.iter().enumerate().filter(|(_, one)| off(one)) {
            let status = one.power.status.as_ref();
            let labels = status.and_then(|status| status.machine.as_ref()).map(|machine| &machine.labels);
            let has =
                |(key, value): (&String, &String)| labels.and_then(|labels| labels.get(key)) == Some(value);
            if u64::from(one.node.gpus.0) >= pod.gpus && pod.node_selector.iter().all(has) {
                let (gpus, machines) = asked.entry(&one.class).or_default();
                if classes.insert(one.class.as_str()) {
                    *gpus = gpus.saturating_add(pod.gpus);
                }
                machines.push(i);
            }
        }
    }
    let mut chosen = Vec::new();
    for (gpus, mut machines) in asked.into_values() {
        machines.sort_unstable();
        machines.dedup();
        let size = machines.first().map_or(1, |i| u64::from(sleepers[*i].node.gpus.0.max(1)));
        let (off, starting): (Vec<usize>, Vec<usize>) =
            machines.into_iter().partition(|i| sleepers[*i].is_off());
        let needed = usize::try_from(gpus.div_ceil(size)).unwrap_or(usize::MAX);
        chosen.extend(off.into_iter().take(needed.saturating_sub(starting.len())));
    }
    chosen
}

/// Of machines to be started for no job that the plan starts, those for which the power budget has room.
fn affordable(
    mut wake: Vec<usize>,
    sleepers: &[Sleeper<'_>],
    (snapshot, plan): (&Snapshot, &Plan),
) -> BTreeSet<usize> {
    wake.sort_unstable();
    wake.dedup();
    let scope = snapshot.budget.as_ref().map_or(1.0, |budget| budget.scope_factor);
    let mut left = plan.allowed_power.map_or(f64::INFINITY, |allowed| allowed.0 - plan.budgeted_power.0);
    let room = |i: &usize| {
        let one = &sleepers[*i];
        let watts = (one.node.host_busy.0.max(one.node.host_idle.0) + one.saved.0) * scope;
        let fits = watts <= left;
        left -= if fits { watts } else { 0.0 };
        fits
    };
    wake.into_iter().filter(room).collect()
}

/// Nodes to be asked for. Those that are there and empty count as far as they have room for the pod that stands for one.
fn asked_nodes(
    index: &ClusterIndex,
    (sleepers, uses): (&[Sleeper<'_>], &[NodeUse]),
    (started, sleep, waited_for): (&BTreeSet<usize>, &BTreeSet<usize>, &BTreeSet<String>),
) -> BTreeMap<String, AskedNodes> {
    let mut asked: BTreeMap<String, AskedNodes> = BTreeMap::new();
    for (i, one) in sleepers.iter().enumerate() {
        let Some(pool) = one.pool else { continue };
        let asked = asked.entry(pool.to_owned()).or_default();
        match uses[i] {
            NodeUse::Waking => asked.more += 1,
            NodeUse::Asleep => asked.more += usize::from(started.contains(&i)),
            _ if !index.has_room_for_capacity(one.name) => {}
            NodeUse::Empty { .. } => {
                asked.empty += 1;
                asked.kept += usize::from(!sleep.contains(&i));
            }
            // Its job has no pods there before all of its nodes are on.
            NodeUse::Busy if waited_for.contains(one.name) => {
                asked.empty += 1;
                asked.kept += 1;
            }
            NodeUse::Busy => {}
        }
    }
    asked
}

/// Nodes of a placement that are not on.
fn not_on<'p>(placement: &'p Placement, nodes: &BTreeMap<&NodeName, &Node>) -> Vec<&'p str> {
    let is_on = |node: &Node| node.sleep.is_none_or(|sleep| sleep.state == NodePower::On);
    let off = placement.nodes.iter().filter(|name| nodes.get(name).is_some_and(|node| !is_on(node)));
    off.map(|name| name.as_str()).collect()
}

/// What becomes of a decision for machines that are not on: a waiting job waits for them, and one that runs stays where it is until
/// they are on (`None`: nothing is decided for it). A decision for nodes that are on is `planned`.
pub fn wish(
    decision: &Decision,
    planned: Planned,
    (index, state): (&ClusterIndex, &JobState),
    nodes: &BTreeMap<&NodeName, &Node>,
    now: Timestamp,
) -> Option<Planned> {
    let off = decision.placement().map(|placement| not_on(placement, nodes)).unwrap_or_default();
    let Some(first) = off.first() else { return Some(planned) };
    if !matches!(state, JobState::Waiting) && !matches!(state, JobState::Stopping { .. }) {
        return None;
    }
    let started = off.iter().filter_map(|name| match index.machine(name, now) {
        Some(Machine::Starting { until }) => Some((until, *name)),
        _ => None,
    });
    let others = match off.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let (called, is_off) = match index.node_pool(first) {
        Some(pool) => (format!("a node of {pool}"), "is asked for"),
        None => ((*first).to_owned(), "is off and starts"),
    };
    let message = match started.max() {
        Some((until, name)) if started_for(index, name) => {
            let called = index.node_pool(name).map_or(name, |_| called.as_str());
            let until = until.strftime("%H:%M");
            format!("{called}{others} starts, expected at {until} UTC")
        }
        _ => {
            let takes = index.node_power(first).map_or(0, |power| start_time(power).as_secs().div_ceil(60));
            format!("{called}{others} {is_off}, which takes about {} min", takes.max(1))
        }
    };
    let missing = index.node_pool(first).map(|_| index.missing_capacity()).unwrap_or_default();
    let message = if missing.is_empty() { message } else { format!("{message}; {missing}") };
    Some(Planned::Wait { reason: Reason::NodeStarting, message })
}

/// Whether the machine has been asked to start: from then on the expected end stands.
fn started_for(index: &ClusterIndex, name: &str) -> bool {
    let status = index.node_power(name).and_then(|power| power.status.as_ref());
    status.is_some_and(|status| status.state == PowerState::Starting)
}

#[cfg(test)]
mod tests;
