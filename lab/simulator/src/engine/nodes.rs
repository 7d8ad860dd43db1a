//! Which nodes are up, starting up, asleep or failed.

use std::collections::BTreeMap;

use andreas_model::{GpuType, Joules, NodeName, Seconds, Time, Watts};
use andreas_planner::node_sleep::{self, NodeUse, RecentDemand, SleepNode};
use andreas_planner::{IntendedChange, Node, NodePower, NodeSleep};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use super::TOGETHER;
use super::fault::SimulationError;
use crate::scenario::Scenario;

/// A wake-up that failed this often succeeds.
const MAX_FAILED_WAKES: u32 = 3;

/// Whether nodes without a job go to sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Sleep {
    /// All nodes stay on: stock practice.
    #[default]
    Never,
    /// By [`node_sleep::decide`]; a job on a sleeping node waits for it.
    Rule,
    /// Afterwards, with the gaps between jobs known: nodes sleep wherever that saves and are always awake in time.
    Oracle,
}

/// Failures and repairs of the nodes.
#[derive(Debug)]
struct Outages {
    /// In order: (time, node, whether it fails).
    events: Vec<(Time, usize, bool)>,
    next: usize,
    /// Number of active failures of each node.
    active: Vec<u32>,
}

impl Outages {
    fn new(scenario: &Scenario, index: &BTreeMap<NodeName, usize>) -> Result<Self, SimulationError> {
        let mut events = Vec::new();
        for failure in &scenario.failures {
            let Some(&node) = index.get(&failure.node) else {
                return Err(SimulationError::NoSuchNode(failure.node.clone()));
            };
            events.push((failure.at, node, true));
            events.push((failure.at + failure.duration, node, false));
        }
        // A failure comes before its repair, also where it lasts no time.
        events.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(b.2.cmp(&a.2)));
        Ok(Self { events, next: 0, active: vec![0; scenario.nodes.len()] })
    }

    /// The next failure or repair until now: the node, and whether it fails.
    fn apply_next(&mut self, now: Time) -> Option<(usize, bool)> {
        let (_, node, fails) = *self.events.get(self.next).filter(|(at, ..)| at.0 <= now.0 + TOGETHER)?;
        self.next += 1;
        let count = &mut self.active[node];
        *count = if fails { *count + 1 } else { count.saturating_sub(1) };
        Some((node, fails))
    }
}

/// The nodes' states over time.
#[derive(Debug)]
pub(super) struct NodeStates {
    index: BTreeMap<NodeName, usize>,
    mode: Sleep,
    outages: Outages,
    power: Vec<NodePower>,
    /// Wake-ups that the meter has not counted yet.
    woken: usize,
    /// Since when a node that is on has no job.
    empty_since: Vec<Option<Time>>,
    classes: Vec<String>,
    /// Draw that sleeping saves, by node.
    saved: Vec<Watts>,
    demand: RecentDemand,
    /// Starts that the last plan expects later on nodes that are off.
    deferred: Vec<IntendedChange>,
    /// When the next node may sleep.
    due: Option<Time>,
    rng: ChaCha8Rng,
}

/// Joules of one sleep and wake of a node.
fn wake_energy(scenario: &Scenario, node: &Node) -> Joules {
    Joules(scenario.sleep.wake_j + node.host_busy.0.max(node.host_idle.0) * scenario.sleep.wake_s)
}

impl NodeStates {
    pub fn new(scenario: &Scenario, mode: Sleep, seed: u64) -> Result<Self, SimulationError> {
        let index = scenario.nodes.iter().enumerate().map(|(i, n)| (n.name.clone(), i)).collect();
        let idle =
            |kind: &GpuType| scenario.gpu_types.iter().find(|t| t.name == *kind).map_or(0.0, |t| t.idle.0);
        let count = scenario.nodes.len();
        let start = scenario.jobs.first().map_or(Time::ZERO, |job| job.submit);
        Ok(Self {
            outages: Outages::new(scenario, &index)?,
            index,
            mode,
            power: vec![NodePower::On; count],
            woken: 0,
            empty_since: vec![Some(start); count],
            classes: scenario.nodes.iter().map(|n| format!("{}/{}", n.gpu_type, n.gpus)).collect(),
            saved: scenario
                .nodes
                .iter()
                .map(|n| n.host_idle + Watts(idle(&n.gpu_type) * f64::from(n.free_gpus.0)))
                .collect(),
            demand: RecentDemand::default(),
            deferred: Vec::new(),
            due: None,
            rng: ChaCha8Rng::seed_from_u64(seed ^ 0x5EE9),
        })
    }

    /// Indices in the scenario of the nodes with these names; `None` if one is unknown.
    pub fn nodes_named(&self, names: &[NodeName]) -> Option<Vec<usize>> {
        names.iter().map(|name| self.index.get(name).copied()).collect()
    }

    /// Whether a failure of the node is active.
    pub fn is_down(&self, node: usize) -> bool {
        self.outages.active[node] > 0
    }

    /// Whether a node is on, starts up or sleeps.
    pub fn power(&self, node: usize) -> NodePower {
        self.power[node]
    }

    /// Number of wake-ups since the last call.
    pub fn take_woken(&mut self) -> usize {
        std::mem::take(&mut self.woken)
    }

    /// Applies failures and repairs until now. Returns the nodes that have failed, and whether any changed.
    pub fn apply_outages(&mut self, now: Time) -> (Vec<usize>, bool) {
        let (mut failed, mut changed) = (Vec::new(), false);
        while let Some((node, fails)) = self.outages.apply_next(now) {
            changed = true;
            if fails {
                failed.push(node);
                self.power[node] = NodePower::On;
            }
        }
        (failed, changed)
    }

    /// Ends wake-ups that are over, and notes which nodes have become empty or busy.
    pub fn advance(&mut self, used: &[u32], now: Time) {
        for (i, used) in used.iter().enumerate() {
            if let NodePower::Waking { until } = self.power[i]
                && until.0 <= now.0 + TOGETHER
            {
                self.power[i] = NodePower::On;
            }
            let empty = *used == 0 && !self.is_down(i) && self.power[i] == NodePower::On;
            self.empty_since[i] = empty.then(|| self.empty_since[i].unwrap_or(now));
        }
    }

    /// Sends nodes to sleep and wakes others, by the rule. Returns how many went to sleep.
    pub fn sleep_and_wake(&mut self, scenario: &Scenario, now: Time) -> usize {
        self.due = None;
        if self.mode != Sleep::Rule {
            return 0;
        }
        let state = |i: usize| match (self.power[i], self.empty_since[i]) {
            (NodePower::Asleep, _) => NodeUse::Asleep,
            (NodePower::Waking { .. }, _) => NodeUse::Waking,
            (NodePower::On, Some(since)) => NodeUse::Empty { since },
            (NodePower::On, None) => NodeUse::Busy,
        };
        let numbered = scenario.nodes.iter().enumerate();
        let nodes: Vec<SleepNode<'_>> = numbered
            .map(|(i, node)| SleepNode {
                class: self.classes[i].as_str(),
                gpu_type: node.gpu_type.as_str(),
                gpus: node.gpus.0.max(1),
                state: state(i),
                saved: self.saved[i],
                wake: wake_energy(scenario, node),
                start: Seconds(scenario.sleep.wake_s),
            })
            .collect();
        let coming = self.demand.coming(&scenario.sleep.rule, now);
        let decision = node_sleep::decide(&nodes, (&coming, &self.deferred), &scenario.sleep.rule, now);
        drop(nodes);
        self.due = decision.next;
        let slept = decision.sleep.len();
        for i in decision.sleep {
            self.power[i] = NodePower::Asleep;
            self.empty_since[i] = None;
        }
        for i in decision.wake {
            self.wake(scenario, i, now);
        }
        slept
    }

    /// Time from which a node can run a job that is placed there now; wakes it if it is asleep.
    pub fn wake(&mut self, scenario: &Scenario, node: usize, now: Time) -> Time {
        match self.power[node] {
            NodePower::On => now,
            NodePower::Waking { until } => until,
            NodePower::Asleep => {
                let fails = |rng: &mut ChaCha8Rng| rng.random::<f64>() < scenario.sleep.wake_fails;
                let tries = 1 + (0..MAX_FAILED_WAKES).take_while(|_| fails(&mut self.rng)).count();
                let until = now + Seconds(scenario.sleep.wake_s * tries as f64);
                self.power[node] = NodePower::Waking { until };
                self.woken += 1;
                until
            }
        }
    }

    /// Nodes for these starts are to be on by then.
    pub fn expect(&mut self, deferred: Vec<IntendedChange>) {
        self.deferred = deferred;
    }

    /// Remembers the demand of a job that was given GPUs.
    pub fn started(&mut self, scenario: &Scenario, nodes: &[usize], gpus: u32, now: Time) {
        if self.mode == Sleep::Rule {
            for node in nodes {
                self.demand.started(&self.classes[*node], gpus, &scenario.sleep.rule, now);
            }
        }
    }

    /// The usable nodes for the planner.
    pub fn planned(&self, scenario: &Scenario) -> Vec<Node> {
        let of = |(i, node): (usize, &Node)| {
            let sleep = (self.mode != Sleep::Never).then(|| NodeSleep {
                state: self.power[i],
                wake: Seconds(scenario.sleep.wake_s),
                wake_energy: wake_energy(scenario, node),
            });
            Node { sleep, ..node.clone() }
        };
        scenario.nodes.iter().enumerate().filter(|(i, _)| !self.is_down(*i)).map(of).collect()
    }

    /// The next failure or repair.
    pub fn next_outage(&self) -> Option<Time> {
        self.outages.events.get(self.outages.next).map(|outage| outage.0)
    }

    /// The next end of a wake-up, or instant at which a node may sleep. No decision is due then.
    pub fn next_change(&self) -> Option<Time> {
        let wakes = self.power.iter().filter_map(|power| match power {
            NodePower::Waking { until } => Some(*until),
            _ => None,
        });
        wakes.chain(self.due).reduce(|a, b| if b < a { b } else { a })
    }
}
