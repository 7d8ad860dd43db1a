//! When empty nodes go to sleep, and which are woken ahead of demand.
//!
//! **In**: the nodes of each class with their state, the demand to come, the starts that a plan expects later, the instant. **Out**:
//! the nodes to send to sleep and to wake. A pure function, for a simulator and an operator alike. A job that is placed on a sleeping node
//! wakes it; that is the plan's decision, not this rule's.
//!
//! The rule is that of ski rental: a node sleeps once it has been empty for as long as its wake-up costs in idle
//! draw. It never costs more than twice as much as knowing the future. A class keeps some nodes awake: a buffer, and
//! what the demand to come needs (as in Helios' CES, SC 2021).

use std::collections::BTreeMap;

use andreas_model::{Joules, Seconds, Time, Watts};
use serde::{Deserialize, Serialize};

use crate::snapshot::IntendedChange;

/// A node for a start that is expected later is woken so much before it must begin to start up.
const AHEAD: Seconds = Seconds(30.0);

/// Settings of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SleepRule {
    /// Least time that a node is empty before it sleeps, seconds.
    pub idle_s: f64,
    /// Empty nodes of each class that stay awake besides the demand to come.
    pub buffer: u32,
    /// How far ahead the demand is met, seconds.
    pub horizon_s: f64,
    /// Share of the past windows of that length whose demand is met without a wake-up.
    pub quantile: f64,
}

impl Default for SleepRule {
    fn default() -> Self {
        Self { idle_s: 600.0, buffer: 0, horizon_s: 600.0, quantile: 0.9 }
    }
}

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NodeUse {
    /// It has jobs, or must not sleep for another reason.
    Busy,
    /// It is on and has no job since then.
    Empty {
        /// Since when.
        since: Time,
    },
    /// It starts up, for a job or ahead of demand.
    Waking,
    /// It sleeps.
    Asleep,
}

/// A node as the rule sees it.
#[derive(Clone, Debug)]
pub struct SleepNode<'a> {
    /// Nodes of a class replace each other: same GPU type, same number of GPUs.
    pub class: &'a str,
    /// Its GPU type.
    pub gpu_type: &'a str,
    /// Its GPUs, > 0.
    pub gpus: u32,
    /// What it does.
    pub state: NodeUse,
    /// Draw that sleeping saves: its host and its idle GPUs.
    pub saved: Watts,
    /// Energy of one sleep and wake.
    pub wake: Joules,
    /// How long it takes to start up.
    pub start: Seconds,
}

/// What the rule wants.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SleepDecision {
    /// Indices of nodes to send to sleep.
    pub sleep: Vec<usize>,
    /// Indices of nodes to wake.
    pub wake: Vec<usize>,
    /// When to apply the rule again, if nothing else happens: when a node that stays on now is due, or when the
    /// demand for which nodes are kept on may be past.
    pub next: Option<Time>,
}

/// Time that a node is empty before it sleeps.
fn break_even(node: &SleepNode<'_>, rule: &SleepRule) -> Seconds {
    let even = if node.saved.0 > 0.0 { node.wake.0 / node.saved.0 } else { f64::INFINITY };
    Seconds(even.max(rule.idle_s))
}

/// Applies the rule. `coming` gives GPUs that will be asked for within the horizon, by class; none where unknown. `deferred` are starts
/// that the plan expects later on nodes that are off ([`Plan::deferred`](crate::Plan::deferred)): these are on by then.
pub fn decide(
    nodes: &[SleepNode<'_>],
    (coming, deferred): (&BTreeMap<&str, f64>, &[IntendedChange]),
    rule: &SleepRule,
    now: Time,
) -> SleepDecision {
    let mut decision = SleepDecision::default();
    let mut apply_again = |at: Time| {
        if at.0.is_finite() {
            decision.next = Some(decision.next.map_or(at, |next| if at < next { at } else { next }));
        }
    };
    let mut classes: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (i, node) in nodes.iter().enumerate() {
        classes.entry(node.class).or_default().push(i);
    }
    for (class, of_class) in classes {
        let gpus = of_class.first().map_or(1, |i| nodes[*i].gpus.max(1));
        let demand = coming.get(class).copied().unwrap_or(0.0).max(0.0) / f64::from(gpus);
        let kept = (demand.ceil() as usize).saturating_add(rule.buffer as usize);
        let mut empty: Vec<(Time, usize)> = of_class
            .iter()
            .filter_map(|i| match nodes[*i].state {
                NodeUse::Empty { since } => Some((since, *i)),
                _ => None,
            })
            .collect();
        // The ones that became empty last stay on.
        empty.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        for (since, i) in empty.iter().skip(kept) {
            let due = *since + break_even(&nodes[*i], rule);
            if due <= now {
                decision.sleep.push(*i);
            } else {
                apply_again(due);
            }
        }
        // The demand is that of past windows, so it changes with the next window at the latest.
        let buffer = rule.buffer as usize;
        let mut kept_for_demand = empty.iter().take(kept).skip(buffer);
        if kept_for_demand.any(|(since, i)| (*since + break_even(&nodes[*i], rule)).0.is_finite()) {
            apply_again(now + Seconds(rule.horizon_s.max(1.0)));
        }
        let ready = empty.len() + of_class.iter().filter(|i| nodes[**i].state == NodeUse::Waking).count();
        let asleep = of_class.iter().filter(|i| nodes[**i].state == NodeUse::Asleep);
        decision.wake.extend(asleep.take(kept.saturating_sub(ready)).copied());
    }
    let mut taken = vec![false; nodes.len()];
    for start in deferred {
        let fits = |i: &usize| {
            let node = &nodes[*i];
            node.gpu_type == start.gpu_type.as_str() && node.gpus >= start.gpus_per_node.0 && !taken[*i]
        };
        // One that is empty or on its way serves as well.
        let (asleep, awake): (Vec<usize>, Vec<usize>) = (0..nodes.len())
            .filter(|i| fits(i) && nodes[*i].state != NodeUse::Busy)
            .partition(|i| nodes[*i].state == NodeUse::Asleep && !decision.wake.contains(i));
        let chosen: Vec<usize> = awake.into_iter().chain(asleep).take(start.nodes as usize).collect();
        chosen.iter().for_each(|i| taken[*i] = true);
        let asleep = |i: &&usize| nodes[**i].state == NodeUse::Asleep;
        let Some(slowest) = chosen.iter().filter(asleep).map(|i| nodes[*i].start).reduce(Seconds::max) else {
            continue;
        };
        let due = start.at - slowest - AHEAD;
        if due <= now {
            decision.wake.extend(chosen.iter().filter(asleep));
        } else {
            decision.next = Some(decision.next.map_or(due, |next| next.min(due)));
        }
    }
    decision.wake.sort_unstable();
    decision.wake.dedup();
    decision
}

/// Demand of the recent past, by class: GPUs that waiting jobs were given, in windows of the horizon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecentDemand {
    /// By class: end of the present window, its sum, and the sums of past windows, the latest last.
    classes: BTreeMap<String, Windows>,
}

/// Sums of a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Windows {
    /// Number of the present window since time zero.
    number: i64,
    present: f64,
    past: std::collections::VecDeque<f64>,
}

/// Windows that are remembered: a day of ten minutes each.
const WINDOWS: usize = 144;
/// Classes that are remembered.
const MAX_CLASSES: usize = 4096;

impl RecentDemand {
    /// Counts GPUs given to a waiting job.
    pub fn started(&mut self, class: &str, gpus: u32, rule: &SleepRule, now: Time) {
        if self.classes.len() < MAX_CLASSES || self.classes.contains_key(class) {
            let windows = self.classes.entry(class.to_owned()).or_default();
            windows.advance(rule, now);
            windows.present += f64::from(gpus);
        }
    }

    /// GPUs by class that are asked for in at most the rule's quantile of the windows.
    pub fn coming(&mut self, rule: &SleepRule, now: Time) -> BTreeMap<&str, f64> {
        for windows in self.classes.values_mut() {
            windows.advance(rule, now);
        }
        self.classes
            .iter()
            .map(|(class, windows)| (class.as_str(), windows.quantile(rule.quantile)))
            .collect()
    }
}

impl Windows {
    fn advance(&mut self, rule: &SleepRule, now: Time) {
        let number = (now.0 / rule.horizon_s.max(1.0)).floor() as i64;
        if self.number == 0 && self.past.is_empty() && self.present == 0.0 {
            self.number = number;
        }
        let elapsed = usize::try_from(number.saturating_sub(self.number)).unwrap_or(0);
        if elapsed == 0 {
            return;
        }
        self.past.push_back(std::mem::take(&mut self.present));
        for _ in 1..elapsed.min(WINDOWS + 1) {
            self.past.push_back(0.0);
        }
        while self.past.len() > WINDOWS {
            self.past.pop_front();
        }
        self.number = number;
    }

    fn quantile(&self, share: f64) -> f64 {
        let mut sums: Vec<f64> = self.past.iter().copied().collect();
        sums.sort_by(f64::total_cmp);
        let rank = (share.clamp(0.0, 1.0) * sums.len() as f64).ceil() as usize;
        sums.get(rank.max(1) - 1).copied().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(state: NodeUse) -> SleepNode<'static> {
        let (saved, wake) = (Watts(1000.0), Joules(900_000.0));
        SleepNode { class: "A", gpu_type: "A", gpus: 8, state, saved, wake, start: Seconds(300.0) }
    }

    fn empty(since: f64) -> SleepNode<'static> {
        node(NodeUse::Empty { since: Time(since) })
    }

    #[test]
    fn a_node_sleeps_once_its_idle_draw_has_cost_a_wake_up() {
        let rule = SleepRule::default();
        let nodes = [empty(0.0), node(NodeUse::Busy)];
        let at = |now| decide(&nodes, (&BTreeMap::new(), &[]), &rule, Time(now));
        assert_eq!(at(899.0), SleepDecision { next: Some(Time(900.0)), ..SleepDecision::default() });
        assert_eq!(at(900.0).sleep, [0]);
    }

    #[test]
    fn the_buffer_and_the_demand_to_come_stay_awake() {
        let rule = SleepRule { buffer: 1, ..SleepRule::default() };
        let nodes = [empty(0.0), empty(10.0), empty(5.0), node(NodeUse::Asleep)];
        let sleeps = |gpus: f64| decide(&nodes, (&BTreeMap::from([("A", gpus)]), &[]), &rule, Time(1e6));
        // The one that became empty last is kept.
        assert_eq!(sleeps(0.0).sleep, [2, 0]);
        assert_eq!(sleeps(8.0).sleep, [0]);
        assert_eq!((sleeps(16.0).sleep, sleeps(16.0).wake), (vec![], vec![]));
        assert_eq!(sleeps(17.0).wake, [3]);
    }

    #[test]
    fn nodes_kept_awake_by_demand_are_looked_at_again_when_it_may_be_past() {
        let rule = SleepRule { buffer: 1, horizon_s: 300.0, ..SleepRule::default() };
        let nodes = [empty(0.0), empty(0.0)];
        let next = |gpus: f64| decide(&nodes, (&BTreeMap::from([("A", gpus)]), &[]), &rule, Time(1e6)).next;
        // One node is the buffer, the other one is for the demand.
        assert_eq!(next(8.0), Some(Time(1e6 + 300.0)));
        // The buffer alone waits for nothing, as nothing but another job ends it.
        assert_eq!(decide(&nodes[..1], (&BTreeMap::new(), &[]), &rule, Time(1e6)), SleepDecision::default());
        // A node that is due earlier comes first.
        let nodes = [empty(0.0), empty(0.0), empty(-600.0)];
        let decision = decide(&nodes, (&BTreeMap::from([("A", 8.0)]), &[]), &rule, Time(100.0));
        assert_eq!(decision.next, Some(Time(300.0)));
    }

    #[test]
    fn a_node_is_on_by_the_time_that_a_later_start_needs_it() {
        let nodes = [node(NodeUse::Asleep), node(NodeUse::Asleep), node(NodeUse::Asleep)];
        let start = |at: f64, nodes: u32, gpu_type: &str| IntendedChange {
            job: "team/a".into(),
            at: Time(at),
            gpu_type: gpu_type.into(),
            nodes,
            gpus_per_node: andreas_model::GpuCount(8),
        };
        let decision = |deferred: &[IntendedChange]| {
            decide(&nodes, (&BTreeMap::new(), deferred), &SleepRule::default(), Time(0.0))
        };
        // 300 s to start up, and 30 s more.
        let early = decision(&[start(3_600.0, 1, "A")]);
        assert_eq!((early.wake, early.next), (vec![], Some(Time(3_270.0))));
        assert_eq!(decision(&[start(330.0, 1, "A"), start(10.0, 1, "A")]).wake, [0, 1], "one each");
        assert_eq!(decision(&[start(330.0, 9, "A"), start(0.0, 1, "B")]).wake, [0, 1, 2]);
        // The one that is on its way is for it.
        let nodes = [node(NodeUse::Asleep), node(NodeUse::Waking)];
        let again =
            decide(&nodes, (&BTreeMap::new(), &[start(10.0, 1, "A")]), &SleepRule::default(), Time(0.0));
        assert_eq!(again, SleepDecision::default());
    }

    #[test]
    fn demand_is_that_of_most_windows_of_the_last_day() {
        let rule = SleepRule { horizon_s: 100.0, ..SleepRule::default() };
        let mut demand = RecentDemand::default();
        for window in 0..10 {
            demand.started(
                "A",
                if window == 3 { 64 } else { 8 },
                &rule,
                Time(f64::from(window) * 100.0 + 1.0),
            );
        }
        assert_eq!(demand.coming(&rule, Time(1001.0))["A"], 8.0);
        assert_eq!(demand.coming(&rule, Time(1e7))["A"], 0.0);
        assert_eq!(demand, serde_json::from_str(&serde_json::to_string(&demand).unwrap()).unwrap());
    }
}
