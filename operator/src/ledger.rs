//! What this process remembers of each job between steps: claims, outcomes, the plan's word, forecasts.
//!
//! **In**: what steps, plans and writes came to. **Out**: the parts of [`Observed`](crate::lifecycle::Observed) that no
//! object holds, and the claims that the next snapshot is made from.
//!
//! **Must never be here**: anything that cannot be lost. A restart begins with an empty ledger; steps then wait longer,
//! never less.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use andreas_api::TrainingJobStatus;
use andreas_api::training_job::Allocation;
use andreas_runtime::clock;
use andreas_runtime::watch::ObjectKey;
use jiff::{SignedDuration, Timestamp};

use crate::backoff::Backoffs;
use crate::forecast::Outlook;
use crate::lifecycle::{Claim, Creation, DecisionFor, Planned, Sight, Sights, Verdict};
use crate::measured::PendingEnergy;
use crate::snapshot::tables::Table;

/// How often jobs may ask for a plan because they are not as the plan thought, all together and each.
const ASK_EVERY: SignedDuration = SignedDuration::from_secs(2);
const SAME_ASKS_EVERY: SignedDuration = SignedDuration::from_secs(10);

/// What is remembered of one job.
#[derive(Clone, Debug)]
pub struct JobMemory {
    /// UID of the job that is remembered; a new job of the name starts afresh.
    pub uid: String,
    /// What the job holds, by the last step; none before the first.
    pub claim: Option<Claim>,
    /// A status that is being written: true already for plans.
    pub pending: Option<TrainingJobStatus>,
    /// What making the pods came to.
    pub creation: Creation,
    /// What the last dry run came to.
    pub verdict: Option<Verdict>,
    /// When the rules of its namespace last changed.
    pub rules_changed: Option<Timestamp>,
    /// The plan's word.
    pub decision: Option<DecisionFor>,
    /// Where a stop that is under way leads: kept for the job until it starts there, or the plan says otherwise.
    pub target: Option<NextPlacement>,
    /// `target` is of a step that is being made from a decision: a look at this instant must see it.
    pub taking: bool,
    /// Jobs, with their attempt then, that must have left before this one's pods are made.
    pub after: Vec<(ObjectKey, i64)>,
    /// Predictions for it, from the last plan.
    pub table: Option<Arc<Table>>,
    /// Probability of being on time if it waits now, by the last plan.
    pub on_time: Option<f64>,
    /// When it is expected to start, if it waits, by the last plan.
    pub starts: Option<Timestamp>,
    /// How far and how fast it was when the last plan was made.
    pub planned: Option<Outlook>,
    /// When it last asked for a plan because it is not as the plan thought.
    pub asked: Option<Timestamp>,
    /// When the last step first saw the facts that time-outs count from, on a clock that nobody sets.
    pub sights: BTreeMap<Sight, Instant>,
    /// When the status was last written by us.
    pub last_write: Timestamp,
    /// When a report last moved the progress.
    pub last_progress: Option<Timestamp>,
    /// Until when reports may not have got through.
    pub reports_lost: Option<Timestamp>,
    /// What agents have not told yet of an attempt that has ended.
    pub pending_energy: Option<PendingEnergy>,
    /// Failures in a row of carrying a step out.
    pub failures: u32,
}

/// Where a job goes on once it has stopped.
#[derive(Clone, Debug, PartialEq)]
pub struct NextPlacement {
    /// GPU type.
    pub gpu_type: String,
    /// Nodes in order of the members' index.
    pub nodes: Vec<String>,
    /// GPUs of each worker.
    pub gpus_per_worker: i32,
    /// Power limit of each GPU, W.
    pub limit_watts: Option<i32>,
    /// When it was decided.
    pub since: Timestamp,
}

impl NextPlacement {
    fn of(verdict: &Planned, now: Timestamp) -> Option<Self> {
        let Planned::Run { gpu_type, nodes, gpus_per_worker, limit_watts, .. } = verdict else { return None };
        Some(Self {
            gpu_type: gpu_type.clone(),
            nodes: nodes.clone(),
            gpus_per_worker: *gpus_per_worker,
            limit_watts: *limit_watts,
            since: now,
        })
    }
}

impl JobMemory {
    /// First sights as instants of the clock that shows `now` at present.
    pub fn sights(&self, now: Timestamp) -> Sights {
        let ago = |seen: &Instant| SignedDuration::try_from(seen.elapsed()).unwrap_or(SignedDuration::ZERO);
        self.sights
            .iter()
            .map(|(sight, seen)| (sight.clone(), now.saturating_sub(ago(seen)).unwrap_or(now)))
            .collect()
    }

    /// A step has found that these facts hold, and no others.
    pub fn saw(&mut self, holding: BTreeSet<Sight>) {
        self.sights.retain(|sight, _| holding.contains(sight));
        for sight in holding {
            self.sights.entry(sight).or_insert_with(Instant::now);
        }
    }

    /// A step is about to be made from `decision`: what it gives counts as given from here on, also before its status is
    /// on its way.
    pub fn take(&mut self, decision: Option<&DecisionFor>, now: Timestamp) {
        let waits = matches!(self.claim, Some(Claim::Waiting { .. }));
        if waits && self.target.is_none() {
            self.target = decision.and_then(|decision| NextPlacement::of(&decision.verdict, now));
            self.taking = self.target.is_some();
        }
    }

    /// The step is over; what it did not take is free again.
    pub fn taken(&mut self) {
        if std::mem::take(&mut self.taking) && matches!(self.claim, Some(Claim::Waiting { .. })) {
            self.target = None;
        }
    }

    /// Keeps in mind where a move leads: the step that asks for the stop is the last one that sees the decision. `held` is
    /// what the job has; a decision to go on there leads nowhere else.
    pub fn keep_target(&mut self, claim: &Claim, held: Option<&Allocation>, now: Timestamp) {
        match claim {
            Claim::Stopping { goes_on: true, .. } => {
                if self.target.is_none() {
                    let verdict = self.decision.as_ref().map(|decision| &decision.verdict);
                    let elsewhere = verdict.filter(|verdict| {
                        held.is_none_or(|held| !verdict.runs_on(&held.nodes, held.gpus_per_worker))
                    });
                    self.target = elsewhere.and_then(|verdict| NextPlacement::of(verdict, now));
                }
            }
            Claim::Waiting { .. } => {}
            Claim::Stopping { .. } | Claim::Nothing | Claim::Starting { .. } | Claim::Running { .. } => {
                self.target = None;
            }
        }
    }
}

/// All jobs' memories.
#[derive(Clone, Debug)]
pub struct Ledger {
    started: Timestamp,
    /// When a job last asked for a plan because it is not as the plan thought.
    asked: Option<Timestamp>,
    jobs: BTreeMap<ObjectKey, JobMemory>,
    /// Decisions that were handed over and not looked at yet.
    handed: BTreeSet<ObjectKey>,
    /// Namespaces whose pods the API server does not make.
    pub backoffs: Backoffs,
    /// Jobs that wait for others to leave; some that did once may be among them.
    following: BTreeSet<ObjectKey>,
}

impl Ledger {
    /// An empty ledger of a process that started then.
    pub fn new(started: Timestamp) -> Self {
        Self {
            started,
            asked: None,
            jobs: BTreeMap::new(),
            handed: BTreeSet::new(),
            backoffs: Backoffs::default(),
            following: BTreeSet::new(),
        }
    }

    /// The memory of a job, made where there is none or it is of another UID.
    pub fn entry(&mut self, key: &ObjectKey, uid: &str) -> &mut JobMemory {
        let fresh = || JobMemory {
            uid: uid.to_owned(),
            claim: None,
            pending: None,
            creation: Creation::default(),
            verdict: None,
            rules_changed: None,
            decision: None,
            target: None,
            taking: false,
            after: Vec::new(),
            table: None,
            on_time: None,
            starts: None,
            planned: None,
            asked: None,
            sights: BTreeMap::new(),
            last_write: self.started,
            last_progress: None,
            reports_lost: None,
            pending_energy: None,
            failures: 0,
        };
        let memory = self.jobs.entry(key.clone()).or_insert_with(fresh);
        if memory.uid != uid {
            *memory = fresh();
        }
        memory
    }

    /// What is remembered of a job.
    pub fn get(&self, key: &ObjectKey) -> Option<&JobMemory> {
        self.jobs.get(key)
    }

    /// As [`Ledger::get`], to change; only of that UID.
    pub fn get_mut(&mut self, key: &ObjectKey, uid: &str) -> Option<&mut JobMemory> {
        self.jobs.get_mut(key).filter(|memory| memory.uid == uid)
    }

    /// All memories.
    pub fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &JobMemory)> {
        self.jobs.iter()
    }

    /// The job is no more.
    pub fn forget(&mut self, key: &ObjectKey) {
        self.jobs.remove(key);
        self.handed.remove(key);
        self.following.remove(key);
    }

    /// The rules of a namespace changed: what was refused there is tried again.
    pub fn forget_refusals(&mut self, namespace: &str, now: Timestamp) {
        for (_, memory) in self.jobs.iter_mut().filter(|(key, _)| key.namespace == namespace) {
            memory.rules_changed = Some(now);
            if memory.verdict.as_ref().is_some_and(|verdict| verdict.refusal.is_some()) {
                memory.verdict = None;
            }
        }
    }

    /// Jobs that wait for this one to leave.
    pub fn waiting_for(&self, key: &ObjectKey) -> Vec<ObjectKey> {
        let waits = |job: &&ObjectKey| {
            self.jobs.get(job).is_some_and(|memory| memory.after.iter().any(|(other, _)| other == key))
        };
        self.following.iter().filter(waits).cloned().collect()
    }

    /// The run is not as its plan thought: may it ask for another one now? A job asks at most once in ten seconds, all of them
    /// together once in two; any plan that is made meanwhile knows of all of them.
    ///
    /// # Errors
    /// When it may ask, if no plan was made by then.
    pub fn may_ask(&mut self, key: &ObjectKey, uid: &str, now: Timestamp) -> Result<(), Timestamp> {
        let free = |asked: Option<Timestamp>, pause: SignedDuration| {
            // A clock that was set back silences nobody.
            let free = asked.filter(|asked| *asked <= now)?.checked_add(pause).ok()?;
            (free > now).then_some(free)
        };
        let Some(memory) = self.jobs.get_mut(key).filter(|memory| memory.uid == uid) else {
            // Nobody could say later when it asked last.
            return Err(now.checked_add(SAME_ASKS_EVERY).unwrap_or(Timestamp::MAX));
        };
        if let Some(free) = free(self.asked, ASK_EVERY).max(free(memory.asked, SAME_ASKS_EVERY)) {
            return Err(free);
        }
        (self.asked, memory.asked) = (Some(now), Some(now));
        Ok(())
    }

    /// A step has looked at the job's decision.
    pub fn looked_at(&mut self, key: &ObjectKey) {
        self.handed.remove(key);
    }

    /// Decisions that no step has looked at yet.
    pub fn handed(&self) -> usize {
        self.handed.len()
    }

    /// Takes back what an older plan gives: a new plan is being made from how things are now. What only waits, stops or
    /// goes on stays; it takes nothing from anybody.
    pub fn withhold(&mut self, goes_on: impl Fn(&ObjectKey, &Planned) -> bool) {
        for (key, memory) in &mut self.jobs {
            let gives = memory.decision.as_ref().is_some_and(|decision| {
                matches!(decision.verdict, Planned::Run { .. }) && !goes_on(key, &decision.verdict)
            });
            if gives {
                memory.decision = None;
            }
        }
        self.handed.clear();
    }

    /// Hands a plan's word over. `true`: it is another than before.
    pub fn decide(&mut self, key: &ObjectKey, decision: DecisionFor, after: Vec<(ObjectKey, i64)>) -> bool {
        let Some(memory) = self.jobs.get_mut(key) else { return false };
        let now = clock::now();
        let waits = matches!(memory.claim, Some(Claim::Waiting { .. }));
        let new_order = memory.after != after;
        if after.is_empty() {
            self.following.remove(key);
        } else {
            self.following.insert(key.clone());
        }
        memory.after = after;
        if memory.decision.as_ref() == Some(&decision) && !new_order {
            return false;
        }
        // A plan that has another idea, or none, ends the commitment.
        let kept = |target: &NextPlacement| decision.verdict.runs_on(&target.nodes, target.gpus_per_worker);
        let stopped = matches!(memory.claim, Some(Claim::Stopping { .. } | Claim::Waiting { .. }));
        if stopped && !memory.target.as_ref().is_some_and(kept) {
            memory.target = None;
        }
        if waits && !memory.after.is_empty() && memory.target.is_none() {
            memory.target = NextPlacement::of(&decision.verdict, now);
        }
        memory.decision = Some(decision);
        self.handed.insert(key.clone());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use andreas_api::Reason;

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: "team".into(), name: name.into() }
    }

    fn run(node: &str) -> DecisionFor {
        let verdict = Planned::Run {
            gpu_type: "A".into(),
            nodes: vec![node.into()],
            gpus_per_worker: 1,
            limit_watts: None,
            watts: 100,
        };
        DecisionFor { basis: 0, verdict }
    }

    #[test]
    fn a_job_made_anew_under_its_name_is_not_remembered() {
        let mut ledger = Ledger::new(Timestamp::UNIX_EPOCH);
        ledger.entry(&key("a"), "1").claim = Some(Claim::Nothing);
        assert!(ledger.entry(&key("a"), "2").claim.is_none());
        assert!(ledger.get_mut(&key("a"), "1").is_none());
    }

    #[test]
    fn what_a_step_is_about_to_take_counts_as_taken_until_it_is_over() {
        let mut ledger = Ledger::new(Timestamp::UNIX_EPOCH);
        let memory = ledger.entry(&key("a"), "1");
        memory.claim = Some(Claim::Waiting { not_before: None });
        memory.take(Some(&run("n1")), Timestamp::UNIX_EPOCH);
        assert_eq!(memory.target.as_ref().map(|target| target.nodes.clone()), Some(vec!["n1".to_owned()]));
        // The step found that it could not take it.
        memory.taken();
        assert_eq!(memory.target, None);
    }

    #[test]
    fn a_gang_on_the_same_nodes_in_another_order_goes_nowhere_else_and_keeps_where_it_goes() {
        let on = |nodes: [&str; 2]| {
            let mut decision = run("");
            if let Planned::Run { nodes: placed, .. } = &mut decision.verdict {
                *placed = nodes.map(str::to_owned).into();
            }
            decision
        };
        let held: Allocation = serde_json::from_value(serde_json::json!({
            "attempt": 1, "generation": 1, "gpuType": "A", "gpus": 2, "gpusPerWorker": 1, "nodes": ["n1", "n2"],
            "placement": "n1,n2", "since": "2026-01-01T00:00:00Z", "watts": 0,
        }))
        .expect("an allocation");
        let mut ledger = Ledger::new(Timestamp::UNIX_EPOCH);
        let memory = ledger.entry(&key("a"), "1");
        let stopping = Claim::Stopping { gone_by: None, goes_on: true };
        memory.decision = Some(on(["n2", "n1"]));
        memory.keep_target(&stopping, Some(&held), Timestamp::UNIX_EPOCH);
        assert_eq!(memory.target, None, "it is there");
        memory.decision = Some(on(["n3", "n4"]));
        memory.keep_target(&stopping, Some(&held), Timestamp::UNIX_EPOCH);
        memory.claim = Some(stopping);
        let goes_to = |ledger: &Ledger| ledger.get(&key("a")).and_then(|m| m.target.clone()).map(|t| t.nodes);
        let there = Some(vec!["n3".to_owned(), "n4".to_owned()]);
        assert_eq!(goes_to(&ledger), there);
        ledger.decide(&key("a"), on(["n4", "n3"]), Vec::new());
        assert_eq!(goes_to(&ledger), there, "the same place");
        ledger.decide(&key("a"), on(["n4", "n5"]), Vec::new());
        assert_eq!(goes_to(&ledger), None);
    }

    #[test]
    fn a_storm_of_runs_that_are_not_as_planned_makes_no_storm_of_plans() {
        let mut ledger = Ledger::new(Timestamp::UNIX_EPOCH);
        for name in ["a", "b"] {
            ledger.entry(&key(name), "1");
        }
        let at = |second| Timestamp::from_second(second).expect("a time");
        let mut asks = |name: &str, second| ledger.may_ask(&key(name), "1", at(second));
        assert_eq!(asks("a", 100), Ok(()), "at once");
        assert_eq!(
            (asks("b", 101), asks("b", 102)),
            (Err(at(102)), Ok(())),
            "all together once in two seconds"
        );
        assert_eq!(
            (asks("a", 103), asks("a", 110)),
            (Err(at(110)), Ok(())),
            "each once in ten, and then it does"
        );
        assert_eq!(asks("b", 50), Ok(()), "a clock that was set back silences nobody");
        assert_eq!(asks("nobody", 200), Err(at(210)));
    }

    #[test]
    fn while_a_plan_is_made_an_older_one_gives_nothing_away() {
        let mut ledger = Ledger::new(Timestamp::UNIX_EPOCH);
        for name in ["gets", "goes-on", "waits"] {
            ledger.entry(&key(name), "1");
        }
        let wait = Planned::Wait { reason: Reason::WaitingForCapacity, message: String::new() };
        assert!(ledger.decide(&key("gets"), run("n1"), Vec::new()));
        assert!(ledger.decide(&key("goes-on"), run("n2"), Vec::new()));
        assert!(ledger.decide(&key("waits"), DecisionFor { basis: 0, verdict: wait }, Vec::new()));
        assert_eq!(ledger.handed(), 3);
        ledger.looked_at(&key("waits"));
        ledger.withhold(|key, _| key.name == "goes-on");
        let left: Vec<_> =
            ledger.iter().filter(|(_, m)| m.decision.is_some()).map(|(k, _)| k.name.as_str()).collect();
        assert_eq!(left, ["goes-on", "waits"]);
        assert_eq!(ledger.handed(), 0);
        assert!(!ledger.decide(&key("goes-on"), run("n2"), Vec::new()), "the same word again is no news");
    }
}
