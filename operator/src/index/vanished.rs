//! Pods that went without having ended: deleted by force, their containers go on until their grace is over.
//!
//! The API server and the scheduler take what such a pod held for free at once. Here it stays in use
//!
//! - for its grace period, or
//! - until its node's agent, asked after the deletion (`GpuNode.spec.look`, `status.looked`), no longer reports it as a holder,
//!   and beyond its grace as long as the agent does.
//!
//! A holder of which no object is known, after a start of the operator for example, is taken in the same way: the agent is asked
//! again, and what it then still reports is in use. No clock of another machine is read.
//!
//! **Must never be here**: I/O, decisions; what is asked is asked by [`crate::nodes`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use andreas_api::GpuNodeStatus;
use andreas_api::slim::SlimPod;

use super::Amounts;

/// An agent reports the end of a holder within this time.
const REPORT: Duration = Duration::from_secs(60);
/// A holder that outlives its grace is asked for again after this time.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// An agent that has not answered for so long has died.
const SILENT_AGENT: Duration = Duration::from_secs(90);
/// Most entries of a node: as many as it may have GPUs.
const MOST: usize = 64;

/// A pod that is in use without an object.
#[derive(Clone, Debug)]
pub struct Vanished {
    /// `namespace/name`.
    pub pod: String,
    /// Its UID; empty where no object was ever seen.
    uid: String,
    /// The last that was seen of it, where it was ours.
    pub ours: Option<Arc<SlimPod>>,
    amounts: Amounts,
    grace: Duration,
    counts_until: Instant,
    /// An answer to a question with a higher number is newer than the deletion.
    look: i64,
    /// GPUs that the agent has reported since under its name, and when.
    held: Option<(u64, Instant)>,
    /// No object of this name was ever seen.
    unknown: bool,
    /// The API server is to be asked whether it has ended.
    doubtful: bool,
}

impl Vanished {
    /// What it takes of its node now; nothing where it does not count.
    pub fn takes(&self, now: Instant) -> Option<Amounts> {
        match self.held {
            Some((gpus, _)) => Some(Amounts { gpus, ..self.amounts.clone() }),
            None => (now < self.counts_until).then(|| self.amounts.clone()),
        }
    }

    fn over(&self, now: Instant) -> bool {
        let last = match self.held {
            Some((_, answered)) => (answered + SILENT_AGENT).max(self.counts_until),
            None => self.counts_until + if self.unknown { REPORT } else { Duration::ZERO },
        };
        now >= last
    }
}

/// A pod that went.
#[derive(Clone, Debug, Default)]
pub struct VanishedPod {
    /// `namespace/name`.
    pub pod: String,
    /// Its UID.
    pub uid: String,
    /// The last that was seen of it, where it was ours.
    pub ours: Option<Arc<SlimPod>>,
    /// What it took of its node.
    pub amounts: Amounts,
    /// How long its containers may go on.
    pub grace: Duration,
    /// With which number its node's agent was last asked.
    pub look: i64,
}

/// All of them, by node.
#[derive(Clone, Debug, Default)]
pub struct AllVanished {
    by_node: BTreeMap<String, Vec<Vanished>>,
    /// Pods that ended of late: agents report that a moment later.
    ended: BTreeMap<(String, String), Instant>,
}

impl AllVanished {
    /// A pod was deleted without having been seen to end.
    pub fn went(&mut self, node: &str, went: VanishedPod, now: Instant) {
        let VanishedPod { pod, uid, ours, amounts, grace, look } = went;
        if amounts.gpus == 0 {
            return;
        }
        let doubtful = ours.is_none();
        let entries = self.by_node.entry(node.to_owned()).or_default();
        entries.retain(|entry| entry.pod != pod);
        if entries.len() >= MOST {
            entries.remove(0);
        }
        let counts_until = now.checked_add(grace).unwrap_or(now);
        let held = None;
        let entry =
            Vanished { pod, uid, ours, amounts, grace, counts_until, look, held, unknown: false, doubtful };
        entries.push(entry);
    }

    /// A pod has ended, or was never bound: it holds nothing, whatever its agent still reports for a moment.
    pub fn ended(&mut self, node: &str, pod: &str, now: Instant) -> bool {
        self.ended.retain(|_, at| now.saturating_duration_since(*at) < REPORT);
        self.ended.insert((node.to_owned(), pod.to_owned()), now);
        self.remove(node, |entry| entry.pod == pod)
    }

    /// A pod of that name is there: nobody unknown holds GPUs under it.
    pub fn appeared(&mut self, pod: &str) {
        for entries in self.by_node.values_mut() {
            entries.retain(|entry| !entry.unknown || entry.pod != pod);
        }
    }

    /// The node is no more, or was booted again: nothing starts a pod without an object.
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

    /// The agent of a node has reported. `present` says of a pod's name whether an object of it is known; `look` is what the agent was
    /// last asked with. `true`: what is in use changed.
    pub fn reported(
        &mut self,
        node: &str,
        status: &GpuNodeStatus,
        look: i64,
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
            let again = !entry.unknown && present(&entry.pod);
            // A pod made again under its name: whose the GPUs are cannot be told.
            if status.looked > entry.look && !again {
                let gpus = held.get(entry.pod.as_str()).copied().unwrap_or(0);
                changed |= entry.held.map(|(gpus, _)| gpus) != Some(gpus);
                entry.held = Some((gpus, now));
                entry.look = status.looked;
            }
        }
        changed |= self.remove(node, |entry| matches!(entry.held, Some((0, _))));
        self.ended.retain(|_, at| now.saturating_duration_since(*at) < REPORT);
        for (pod, gpus) in held {
            let known = self.on(node).any(|entry| entry.pod == pod)
                || present(pod)
                || self.ended.contains_key(&(node.to_owned(), pod.to_owned()));
            let entries = self.by_node.get(node).map_or(0, Vec::len);
            if known || entries >= MOST {
                continue;
            }
            self.by_node.entry(node.to_owned()).or_default().push(Vanished {
                pod: pod.to_owned(),
                uid: String::new(),
                ours: None,
                amounts: Amounts { gpus, ..Amounts::default() },
                grace: Duration::ZERO,
                counts_until: now,
                look,
                held: None,
                unknown: true,
                doubtful: false,
            });
        }
        changed
    }

    /// Those of a node, whether they count or not.
    pub fn on(&self, node: &str) -> impl Iterator<Item = &Vanished> {
        self.by_node.get(node).into_iter().flatten()
    }

    /// Forgets what is over; the nodes on which something was. On a node that is cut off grace begins when its kubelet is back.
    pub fn expire(&mut self, cut_off: impl Fn(&str) -> bool, now: Instant) -> Vec<String> {
        let mut changed = Vec::new();
        for node in self.by_node.keys().cloned().collect::<Vec<_>>() {
            if cut_off(&node) {
                for entry in self.by_node.get_mut(&node).into_iter().flatten() {
                    entry.counts_until = now.checked_add(entry.grace).unwrap_or(now);
                }
            }
            if self.remove(&node, |entry| entry.over(now)) {
                changed.push(node);
            }
        }
        changed
    }

    /// Nodes whose agents are to be asked, with the least number to ask with. `look` is what each was last asked with.
    pub fn questions(&self, look: impl Fn(&str) -> Option<i64>, now: Instant) -> Vec<(String, i64)> {
        let mut questions = Vec::new();
        for (node, entries) in &self.by_node {
            let Some(asked) = look(node) else { continue };
            let open = entries.iter().filter(|entry| match entry.held {
                None => true,
                Some((_, at)) => now >= entry.counts_until && now.saturating_duration_since(at) >= ASK_AGAIN,
            });
            let newest = open.map(|entry| entry.look).max();
            questions
                .extend(newest.filter(|newest| asked <= *newest).map(|newest| (node.clone(), newest + 1)));
        }
        questions
    }

    /// Pods of others of which it is not known whether they ended or were deleted, by node, name and UID; each is told once.
    pub fn take_doubtful(&mut self) -> Vec<(String, String, String)> {
        let mut doubtful = Vec::new();
        for (node, entries) in &mut self.by_node {
            for entry in entries.iter_mut().filter(|entry| entry.doubtful) {
                entry.doubtful = false;
                doubtful.push((node.clone(), entry.pod.clone(), entry.uid.clone()));
            }
        }
        doubtful
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn four() -> Amounts {
        Amounts { gpus: 4, ..Amounts::default() }
    }

    fn gone(grace: u64, look: i64) -> VanishedPod {
        let grace = Duration::from_secs(grace);
        VanishedPod { pod: "team/x".into(), uid: "u".into(), ours: None, amounts: four(), grace, look }
    }

    fn status(looked: i64, holders: &[&str]) -> GpuNodeStatus {
        let gpus: Vec<_> = holders
            .iter()
            .enumerate()
            .map(|(i, holder)| json!({"uuid": format!("GPU-{i}"), "state": "Held", "holder": holder}))
            .collect();
        serde_json::from_value(json!({"awake": 0, "looked": looked, "gpus": gpus})).expect("a status")
    }

    fn in_use(all: &AllVanished, now: Instant) -> u64 {
        all.on("n").filter_map(|entry| entry.takes(now)).map(|amounts| amounts.gpus).sum()
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn without_an_agent_a_pod_deleted_by_force_is_in_use_for_its_grace() {
        let start = Instant::now();
        let mut all = AllVanished::default();
        all.went("n", gone(60, 0), start);
        assert_eq!(in_use(&all, after(start, 59)), 4);
        assert_eq!(in_use(&all, after(start, 60)), 0);
        assert_eq!(all.expire(|_| false, after(start, 60)), ["n"]);
        assert_eq!(all.on("n").count(), 0);
    }

    #[test]
    fn a_report_that_is_older_than_the_deletion_frees_nothing() {
        let start = Instant::now();
        let mut all = AllVanished::default();
        all.went("n", gone(60, 7), start);
        // The agent had answered the question 7 before; its report is written again for another reason.
        assert!(!all.reported("n", &status(7, &[]), 7, |_| false, after(start, 1)));
        assert_eq!(in_use(&all, after(start, 1)), 4);
        assert_eq!(all.questions(|_| Some(7), after(start, 1)), [("n".to_owned(), 8)]);
        assert!(all.questions(|_| Some(8), after(start, 1)).is_empty(), "asked once");
        assert!(all.reported("n", &status(8, &[]), 8, |_| false, after(start, 2)));
        assert_eq!(in_use(&all, after(start, 2)), 0);
    }

    #[test]
    fn what_the_agent_still_reports_is_in_use_beyond_the_grace_while_the_agent_lives() {
        let start = Instant::now();
        let mut all = AllVanished::default();
        all.went("n", gone(5, 0), start);
        all.reported("n", &status(1, &["team/x", "team/x"]), 1, |_| false, after(start, 1));
        assert_eq!(in_use(&all, after(start, 20)), 2);
        assert_eq!(all.questions(|_| Some(1), after(start, 20)), [("n".to_owned(), 2)]);
        all.reported("n", &status(2, &["team/x", "team/x"]), 2, |_| false, after(start, 21));
        assert!(all.expire(|_| false, after(start, 100)).is_empty());
        // An agent that does not answer any more proves nothing for ever.
        assert_eq!(all.expire(|_| false, after(start, 111)), ["n"]);
    }

    #[test]
    fn a_holder_without_any_object_counts_once_its_agent_has_said_so_again() {
        let start = Instant::now();
        let mut all = AllVanished::default();
        // The report may be years old.
        all.reported("n", &status(3, &["team/x"]), 3, |_| false, start);
        assert_eq!(in_use(&all, start), 0);
        assert_eq!(all.questions(|_| Some(3), start), [("n".to_owned(), 4)]);
        all.reported("n", &status(4, &["team/x"]), 4, |_| false, after(start, 1));
        assert_eq!(in_use(&all, after(start, 1)), 1);
        // A pod of that name is seen after all.
        all.appeared("team/x");
        assert_eq!(in_use(&all, after(start, 2)), 0);
    }

    #[test]
    fn pods_that_are_there_or_ended_a_moment_ago_are_no_unknown_holders() {
        let start = Instant::now();
        let mut all = AllVanished::default();
        all.ended("n", "team/over", start);
        all.reported("n", &status(0, &["team/over", "team/there"]), 0, |pod| pod == "team/there", start);
        assert_eq!(all.on("n").count(), 0);
        assert!(all.questions(|_| Some(0), start).is_empty());
    }

    #[test]
    fn grace_on_a_node_that_is_cut_off_begins_when_it_is_back() {
        let start = Instant::now();
        let mut all = AllVanished::default();
        all.went("n", gone(30, 0), start);
        assert!(all.expire(|_| true, after(start, 1_000)).is_empty());
        assert_eq!(in_use(&all, after(start, 1_029)), 4);
        assert!(all.node_died("n"), "booted again: nothing starts it");
        assert_eq!(in_use(&all, after(start, 1_001)), 0);
    }
}
