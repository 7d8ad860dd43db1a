//! Pods that disappeared without having ended. After a forced delete, their containers run on until the grace
//! period is over.
//!
//! The API server and the scheduler release such a pod's resources at once. Here they stay in use
//!
//! - for its grace period, or
//! - until its node's agent, asked after the deletion (`GpuNode.spec.holdersGeneration`,
//!   `status.observedHoldersGeneration`), no longer reports it as a holder, and beyond the grace period as long as the agent does.
//!
//! A holder without a known object, for example after an operator start, is handled the same way. The agent
//! is asked again, and holders that it still reports count as in use. No other machine's clock is read.
//!
//! **Never here**: I/O, decisions; a loop of the leader asks the agents.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use andreas_api::GpuNodeStatus;
use andreas_api::slim::SlimPod;

use super::Amounts;

/// An agent reports the end of a holder within this time.
const REPORT: Duration = Duration::from_secs(60);
/// Interval for asking about a pod that still holds GPUs.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// An agent without an answer for this long is dead.
const AGENT_TIMEOUT: Duration = Duration::from_secs(90);
/// Maximum entries per node: its maximum number of GPUs.
const MAX_ENTRIES_PER_NODE: usize = 64;

/// A pod that disappeared.
#[derive(Clone, Debug, Default)]
pub struct VanishedPod {
    /// `namespace/name`.
    pub pod: String,
    /// Its UID; empty if no object was ever seen.
    pub uid: String,
    /// Its last observed state if it was ours.
    pub ours: Option<Arc<SlimPod>>,
    /// Its use of the node.
    pub amounts: Amounts,
    /// Maximum remaining run time of its containers.
    pub grace: Duration,
    /// The last `holdersGeneration` of its node by then: an answer to a later request is newer than the deletion.
    pub request: i64,
}

/// A pod that is in use without an object.
#[derive(Clone, Debug)]
pub struct Vanished {
    /// Which one.
    pub of: VanishedPod,
    counts_until: Instant,
    /// GPUs that the agent has reported since under its name, and when.
    held: Option<(u64, Instant)>,
    /// No object of this name was ever seen.
    unknown: bool,
    /// The API server must be asked whether it has ended.
    unconfirmed: bool,
}

impl Vanished {
    /// Its current use of the node; `None` if it does not count.
    pub fn takes(&self, now: Instant) -> Option<Amounts> {
        match self.held {
            Some((gpus, _)) => Some(Amounts { gpus, ..self.of.amounts.clone() }),
            None => (now < self.counts_until).then(|| self.of.amounts.clone()),
        }
    }

    fn over(&self, now: Instant) -> bool {
        let last = match self.held {
            Some((_, answered)) => (answered + AGENT_TIMEOUT).max(self.counts_until),
            None => self.counts_until + if self.unknown { REPORT } else { Duration::ZERO },
        };
        now >= last
    }
}

/// All such pods, by node.
#[derive(Clone, Debug, Default)]
pub struct VanishedPods {
    by_node: BTreeMap<String, Vec<Vanished>>,
    /// Recently ended pods: agents report the end a moment later.
    ended: BTreeMap<(String, String), Instant>,
}

impl VanishedPods {
    /// A pod was deleted and its end was not observed.
    pub fn deleted(&mut self, node: &str, pod: VanishedPod, now: Instant) {
        if pod.amounts.gpus == 0 {
            return;
        }
        let entries = self.by_node.entry(node.to_owned()).or_default();
        entries.retain(|entry| entry.of.pod != pod.pod);
        if entries.len() >= MAX_ENTRIES_PER_NODE {
            entries.remove(0);
        }
        entries.push(Vanished {
            counts_until: now.checked_add(pod.grace).unwrap_or(now),
            held: None,
            unknown: false,
            unconfirmed: pod.ours.is_none(),
            of: pod,
        });
    }

    /// A pod has ended or was never bound: it holds nothing, even if its agent still reports it for a moment.
    pub fn ended(&mut self, node: &str, pod: &str, now: Instant) -> bool {
        self.ended.retain(|_, at| now.saturating_duration_since(*at) < REPORT);
        self.ended.insert((node.to_owned(), pod.to_owned()), now);
        self.remove(node, |entry| entry.of.pod == pod)
    }

    /// Whether a pod without an object ended within the time in which its node's agent reports that.
    pub fn just_ended(&self, node: &str, pod: &str, now: Instant) -> bool {
        let at = self.ended.get(&(node.to_owned(), pod.to_owned()));
        at.is_some_and(|at| now.saturating_duration_since(*at) < REPORT)
    }

    /// A pod of that name exists: its GPUs are no unknown holder's.
    pub fn appeared(&mut self, pod: &str) {
        for entries in self.by_node.values_mut() {
            entries.retain(|entry| !entry.unknown || entry.of.pod != pod);
        }
    }

    /// The node was deleted or rebooted: a pod without an object never restarts.
    pub fn node_died(&mut self, node: &str) -> bool {
        self.by_node.remove(node).is_some()
    }

    fn remove(&mut self, node: &str, which: impl Fn(&Vanished) -> bool) -> bool {
        let Some(entries) = self.by_node.get_mut(node) else { return false };
        let before = entries.len();
        entries.retain(|entry| !which(entry));
        let removed = entries.len() < before;
        if entries.is_empty() {
            self.by_node.remove(node);
        }
        removed
    }

    /// A node's agent has reported. `present` says by pod name whether an object is known; `request` is the last
    /// one that its agent was sent. `true`: the use changed.
    pub fn reported(
        &mut self,
        node: &str,
        status: &GpuNodeStatus,
        request: i64,
        present: impl Fn(&str) -> bool,
        now: Instant,
    ) -> bool {
        let mut held: BTreeMap<&str, u64> = BTreeMap::new();
        for holder in status.gpus.iter().filter_map(|gpu| gpu.holder.as_deref()) {
            // Agents of an earlier version report UIDs.
            if holder.contains('/') {
                *held.entry(holder).or_default() += 1;
            }
        }
        let mut changed = false;
        for entry in self.by_node.get_mut(node).into_iter().flatten() {
            let again = !entry.unknown && present(&entry.of.pod);
            // A pod recreated under its name: the owner of the GPUs is ambiguous.
            if status.observed_holders_generation > entry.of.request && !again {
                let gpus = held.get(entry.of.pod.as_str()).copied().unwrap_or(0);
                changed |= entry.held.map(|(gpus, _)| gpus) != Some(gpus);
                entry.held = Some((gpus, now));
                entry.of.request = status.observed_holders_generation;
            }
        }
        changed |= self.remove(node, |entry| matches!(entry.held, Some((0, _))));
        self.ended.retain(|_, at| now.saturating_duration_since(*at) < REPORT);
        for (pod, gpus) in held {
            let known = self.on(node).any(|entry| entry.of.pod == pod)
                || present(pod)
                || self.just_ended(node, pod, now);
            let entries = self.by_node.get(node).map_or(0, Vec::len);
            if known || entries >= MAX_ENTRIES_PER_NODE {
                continue;
            }
            self.by_node.entry(node.to_owned()).or_default().push(Vanished {
                of: VanishedPod {
                    pod: pod.to_owned(),
                    amounts: Amounts { gpus, ..Amounts::default() },
                    request,
                    ..VanishedPod::default()
                },
                counts_until: now,
                held: None,
                unknown: true,
                unconfirmed: false,
            });
        }
        changed
    }

    /// The entries of a node, whether they count or not.
    pub fn on(&self, node: &str) -> impl Iterator<Item = &Vanished> {
        self.by_node.get(node).into_iter().flatten()
    }

    /// Drops expired entries and returns their nodes. On an unreachable node the grace period begins when its
    /// kubelet is back.
    pub fn expire(&mut self, cut_off: impl Fn(&str) -> bool, now: Instant) -> Vec<String> {
        let mut changed = Vec::new();
        for node in self.by_node.keys().cloned().collect::<Vec<_>>() {
            if cut_off(&node) {
                for entry in self.by_node.get_mut(&node).into_iter().flatten() {
                    entry.counts_until = now.checked_add(entry.of.grace).unwrap_or(now);
                }
            }
            if self.remove(&node, |entry| entry.over(now)) {
                changed.push(node);
            }
        }
        changed
    }

    /// Nodes whose agents must be asked, with the minimum number. `last` gives the last request that each
    /// was sent.
    pub fn requests(&self, last: impl Fn(&str) -> Option<i64>, now: Instant) -> Vec<(String, i64)> {
        let mut requests = Vec::new();
        for (node, entries) in &self.by_node {
            let Some(asked) = last(node) else { continue };
            let open = entries.iter().filter(|entry| match entry.held {
                None => true,
                Some((_, at)) => now.saturating_duration_since(at) >= ASK_AGAIN,
            });
            let newest = open.map(|entry| entry.of.request).max();
            requests
                .extend(newest.filter(|newest| asked <= *newest).map(|newest| (node.clone(), newest + 1)));
        }
        requests
    }

    /// Foreign pods that may have ended or been deleted, by node, name and UID; each is returned once.
    pub fn take_unconfirmed(&mut self) -> Vec<(String, String, String)> {
        let mut unconfirmed = Vec::new();
        for (node, entries) in &mut self.by_node {
            for entry in entries.iter_mut().filter(|entry| entry.unconfirmed) {
                entry.unconfirmed = false;
                unconfirmed.push((node.clone(), entry.of.pod.clone(), entry.of.uid.clone()));
            }
        }
        unconfirmed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn four() -> Amounts {
        Amounts { gpus: 4, ..Amounts::default() }
    }

    fn gone(grace: u64, request: i64) -> VanishedPod {
        let grace = Duration::from_secs(grace);
        VanishedPod { pod: "team/x".into(), uid: "u".into(), ours: None, amounts: four(), grace, request }
    }

    fn status(observed: i64, holders: &[&str]) -> GpuNodeStatus {
        let gpus: Vec<_> = holders
            .iter()
            .enumerate()
            .map(|(i, holder)| json!({"uuid": format!("GPU-{i}"), "state": "Held", "holder": holder}))
            .collect();
        serde_json::from_value(json!({"observedHoldersGeneration": observed, "gpus": gpus}))
            .expect("a status")
    }

    fn in_use(all: &VanishedPods, now: Instant) -> u64 {
        all.on("n").filter_map(|entry| entry.takes(now)).map(|amounts| amounts.gpus).sum()
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn without_an_agent_a_pod_deleted_by_force_is_in_use_for_its_grace() {
        let start = Instant::now();
        let mut all = VanishedPods::default();
        all.deleted("n", gone(60, 0), start);
        assert_eq!(in_use(&all, after(start, 59)), 4);
        assert_eq!(in_use(&all, after(start, 60)), 0);
        assert_eq!(all.expire(|_| false, after(start, 60)), ["n"]);
        assert_eq!(all.on("n").count(), 0);
    }

    #[test]
    fn a_report_that_is_older_than_the_deletion_frees_nothing() {
        let start = Instant::now();
        let mut all = VanishedPods::default();
        all.deleted("n", gone(60, 7), start);
        // The agent answered request 7 before; its report is rewritten for another reason.
        assert!(!all.reported("n", &status(7, &[]), 7, |_| false, after(start, 1)));
        assert_eq!(in_use(&all, after(start, 1)), 4);
        assert_eq!(all.requests(|_| Some(7), after(start, 1)), [("n".to_owned(), 8)]);
        assert!(all.requests(|_| Some(8), after(start, 1)).is_empty(), "asked once");
        assert!(all.reported("n", &status(8, &[]), 8, |_| false, after(start, 2)));
        assert_eq!(in_use(&all, after(start, 2)), 0);
    }

    #[test]
    fn what_the_agent_still_reports_is_in_use_beyond_the_grace_while_the_agent_lives() {
        let start = Instant::now();
        let mut all = VanishedPods::default();
        all.deleted("n", gone(5, 0), start);
        all.reported("n", &status(1, &["team/x", "team/x"]), 1, |_| false, after(start, 1));
        // Asked again ten seconds after each answer.
        assert!(all.requests(|_| Some(1), after(start, 4)).is_empty());
        assert_eq!(in_use(&all, after(start, 20)), 2);
        assert_eq!(all.requests(|_| Some(1), after(start, 11)), [("n".to_owned(), 2)]);
        all.reported("n", &status(2, &["team/x", "team/x"]), 2, |_| false, after(start, 21));
        assert!(all.expire(|_| false, after(start, 100)).is_empty());
        // A silent agent does not hold resources forever.
        assert_eq!(all.expire(|_| false, after(start, 111)), ["n"]);
    }

    #[test]
    fn a_holder_without_any_object_counts_once_its_agent_has_said_so_again() {
        let start = Instant::now();
        let mut all = VanishedPods::default();
        // The report may be years old.
        all.reported("n", &status(3, &["team/x"]), 3, |_| false, start);
        assert_eq!(in_use(&all, start), 0);
        assert_eq!(all.requests(|_| Some(3), start), [("n".to_owned(), 4)]);
        all.reported("n", &status(4, &["team/x"]), 4, |_| false, after(start, 1));
        assert_eq!(in_use(&all, after(start, 1)), 1);
        // A pod of that name is seen after all.
        all.appeared("team/x");
        assert_eq!(in_use(&all, after(start, 2)), 0);
    }

    #[test]
    fn pods_that_are_there_or_ended_a_moment_ago_are_no_unknown_holders() {
        let start = Instant::now();
        let mut all = VanishedPods::default();
        all.ended("n", "team/over", start);
        all.reported("n", &status(0, &["team/over", "team/there"]), 0, |pod| pod == "team/there", start);
        assert_eq!(all.on("n").count(), 0);
        assert!(all.requests(|_| Some(0), start).is_empty());
    }

    #[test]
    fn grace_on_a_node_that_is_cut_off_begins_when_it_is_back() {
        let start = Instant::now();
        let mut all = VanishedPods::default();
        all.deleted("n", gone(30, 0), start);
        assert!(all.expire(|_| true, after(start, 1_000)).is_empty());
        assert_eq!(in_use(&all, after(start, 1_029)), 4);
        assert!(all.node_died("n"), "booted again: nothing starts it");
        assert_eq!(in_use(&all, after(start, 1_001)), 0);
    }
}
