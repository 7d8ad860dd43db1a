//! Per-job memory of this process between steps: claims, outcomes, decisions, forecasts.
//!
//! Here the two loops meet: planning writes decisions, and the executor claims and outcomes. Both read the
//! other's part; neither calls the other.
//!
//! **In**: results of steps, plans and writes. **Out**: the parts of [`Observed`](andreas_lifecycle::Observed)
//! that no object holds, and the claims for the next snapshot.
//!
//! | file | what |
//! |---|---|
//! | [`memory`] | one job |
//! | [`backoff`] | namespaces whose pods the API server does not create |
//!
//! **Never here**: state that must survive. A restart begins with an empty ledger; steps then wait longer,
//! never less.

pub mod backoff;
pub mod memory;

use std::collections::{BTreeMap, BTreeSet};

use andreas_api::TrainingJobStatus;
use andreas_cluster::index::ClusterIndex;
use andreas_forecast::Calibration;
use andreas_lifecycle::{Backoff, DecisionFor, Planned};
use andreas_model::Time;
use andreas_runtime::clock;
use andreas_runtime::watch::ObjectKey;
use jiff::{SignedDuration, Timestamp};

use crate::predict::sampled::Sampled;
use backoff::{Backoffs, Cause};
pub use memory::{JobMemory, NextPlacement, Predictions};

/// Minimum time between plan requests because of deviating runs: of all jobs together and of each.
const REQUEST_EVERY: SignedDuration = SignedDuration::from_secs(2);
const SAME_JOB_EVERY: SignedDuration = SignedDuration::from_secs(10);

/// The memories of all jobs.
#[derive(Clone, Debug)]
pub struct Ledger {
    started: Timestamp,
    /// When any job last requested a plan because it deviated.
    plan_requested: Option<Timestamp>,
    jobs: BTreeMap<ObjectKey, JobMemory>,
    /// Decisions that no step has used yet.
    undelivered: BTreeSet<ObjectKey>,
    /// Namespaces whose pods the API server does not create.
    backoffs: Backoffs,
    /// Jobs that wait for others to end; may contain jobs that no longer do.
    following: BTreeSet<ObjectKey>,
    /// What became of first forecasts. Empty after a restart.
    calibration: Calibration,
}

impl Ledger {
    /// An empty ledger of a process that started then.
    pub fn new(started: Timestamp) -> Self {
        Self {
            started,
            plan_requested: None,
            jobs: BTreeMap::new(),
            undelivered: BTreeSet::new(),
            backoffs: Backoffs::default(),
            following: BTreeSet::new(),
            calibration: Calibration::default(),
        }
    }

    /// The memory of a job; created if absent or of another UID.
    pub fn entry(&mut self, key: &ObjectKey, uid: &str) -> &mut JobMemory {
        let fresh = || JobMemory::new(uid, self.started);
        let memory = self.jobs.entry(key.clone()).or_insert_with(fresh);
        if memory.uid() != uid {
            *memory = fresh();
        }
        memory
    }

    /// The memory of a job.
    pub fn get(&self, key: &ObjectKey) -> Option<&JobMemory> {
        self.jobs.get(key)
    }

    /// [`Ledger::get`], mutable; only for that UID.
    pub fn get_mut(&mut self, key: &ObjectKey, uid: &str) -> Option<&mut JobMemory> {
        self.jobs.get_mut(key).filter(|memory| memory.uid() == uid)
    }

    /// A job's status: the one being written, else the last observed one.
    pub fn status<'a>(&'a self, index: &'a ClusterIndex, key: &ObjectKey) -> Option<&'a TrainingJobStatus> {
        let pending = self.get(key).and_then(|memory| memory.pending());
        pending.or_else(|| index.jobs().get(key)?.status.as_ref())
    }

    /// All memories.
    pub fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &JobMemory)> {
        self.jobs.iter()
    }

    /// A namespace's current backoff.
    pub fn backoff(&self, namespace: &str) -> Option<Backoff> {
        self.backoffs.get(namespace)
    }

    /// The API server gave no verdict on pods of this namespace: [`Backoffs::failed`].
    pub fn pods_not_created(&mut self, cause: Cause, namespace: &str, message: &str) -> bool {
        self.backoffs.failed(cause, namespace, message, clock::now())
    }

    /// It gave one: [`Backoffs::done`].
    pub fn pods_judged(&mut self, cause: Cause, namespace: &str) -> bool {
        self.backoffs.done(cause, namespace)
    }

    /// A job with this first forecast ended then.
    pub fn forecast_came_true(&mut self, first: &Sampled, end: Timestamp) {
        let (finish, sampled_at) = first.uncorrected;
        self.calibration.add(&finish, sampled_at, Time(end.as_millisecond() as f64 / 1_000.0));
    }

    /// What became of first forecasts.
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// The job was deleted.
    pub fn forget(&mut self, key: &ObjectKey) {
        self.jobs.remove(key);
        self.undelivered.remove(key);
        self.following.remove(key);
    }

    /// The rules of a namespace changed: refused requests are retried.
    pub fn forget_refusals(&mut self, namespace: &str, now: Timestamp) {
        for (_, memory) in self.jobs.iter_mut().filter(|(key, _)| key.namespace == namespace) {
            memory.rules_changed(now);
        }
    }

    /// Jobs that wait for this one to end.
    pub fn waiting_for(&self, key: &ObjectKey) -> Vec<ObjectKey> {
        let waits = |job: &&ObjectKey| {
            self.jobs.get(job).is_some_and(|memory| memory.plan().after.iter().any(|(other, _)| other == key))
        };
        self.following.iter().filter(waits).cloned().collect()
    }

    /// Whether a deviating run may request a plan now. A job may do so at most once in ten seconds, all
    /// together once in two. Any plan made meanwhile covers all of them.
    ///
    /// # Errors
    /// When it may ask, if no plan is made before.
    pub fn may_request_plan(&mut self, key: &ObjectKey, uid: &str, now: Timestamp) -> Result<(), Timestamp> {
        let free = |last: Option<Timestamp>, pause: SignedDuration| {
            // A clock that was set back blocks no request.
            let free = last.filter(|last| *last <= now)?.checked_add(pause).ok()?;
            (free > now).then_some(free)
        };
        let Some(memory) = self.jobs.get_mut(key).filter(|memory| memory.uid() == uid) else {
            // Without a memory the time of the request cannot be stored.
            return Err(now.checked_add(SAME_JOB_EVERY).unwrap_or(Timestamp::MAX));
        };
        if let Some(free) =
            free(self.plan_requested, REQUEST_EVERY).max(free(memory.plan().requested, SAME_JOB_EVERY))
        {
            return Err(free);
        }
        self.plan_requested = Some(now);
        memory.plan_requested(now);
        Ok(())
    }

    /// A step has read the job's decision. `true`: it was the last of them.
    pub fn mark_delivered(&mut self, key: &ObjectKey) -> bool {
        self.undelivered.remove(key) && self.undelivered.is_empty()
    }

    /// Whether steps have read every decision.
    pub fn is_delivered(&self) -> bool {
        self.undelivered.is_empty()
    }

    /// Withdraws the grants of an older plan while a new one is made. Decisions to wait, stop or continue
    /// stay: they take nothing.
    pub fn revoke_grants(&mut self, goes_on: impl Fn(&ObjectKey, &Planned) -> bool) {
        for (key, memory) in &mut self.jobs {
            let gives = memory.plan().decision.as_ref().is_some_and(|decision| {
                matches!(decision.planned, Planned::Run { .. }) && !goes_on(key, &decision.planned)
            });
            if gives {
                memory.drop_decision();
            }
        }
        self.undelivered.clear();
    }

    /// Stores a plan's decision for the job with this UID. `true`: it changed.
    pub fn decide(
        &mut self,
        key: &ObjectKey,
        uid: &str,
        decision: DecisionFor,
        after: Vec<(ObjectKey, i64)>,
    ) -> bool {
        // A job may be made anew under its name while the plan is made.
        let Some(memory) = self.jobs.get_mut(key).filter(|memory| memory.uid() == uid) else { return false };
        if after.is_empty() {
            self.following.remove(key);
        } else {
            self.following.insert(key.clone());
        }
        let changed = memory.decide(decision, after, clock::now());
        if changed {
            self.undelivered.insert(key.clone());
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use andreas_api::Reason;
    use andreas_api::training_job::Allocation;
    use andreas_lifecycle::Claim;

    use crate::testing::key;

    fn run(node: &str) -> DecisionFor {
        let planned = Planned::Run {
            gpu_type: "A".into(),
            nodes: vec![node.into()],
            gpus_per_worker: 1,
            limit_watts: None,
            watts: 100,
            guard: andreas_lifecycle::Guard::default(),
        };
        DecisionFor { basis: 0, planned }
    }

    #[test]
    fn a_job_made_anew_under_its_name_is_not_remembered() {
        let mut ledger = Ledger::new(Timestamp::UNIX_EPOCH);
        ledger.entry(&key("a"), "1").set_claim(Claim::Nothing);
        assert!(ledger.entry(&key("a"), "2").claim().is_none());
        assert!(ledger.get_mut(&key("a"), "1").is_none());
        // A plan made before gives it nothing: it may ask for other nodes.
        assert!(!ledger.decide(&key("a"), "1", run("n1"), vec![(key("b"), 1)]));
        assert!(ledger.get(&key("a")).is_some_and(|memory| memory.plan().decision.is_none()));
        assert!(ledger.is_delivered() && ledger.waiting_for(&key("b")).is_empty());
        assert!(ledger.decide(&key("a"), "2", run("n1"), Vec::new()), "its own is carried out");
    }

    #[test]
    fn what_a_step_is_about_to_take_counts_as_taken_until_it_is_over() {
        let mut ledger = Ledger::new(Timestamp::UNIX_EPOCH);
        let memory = ledger.entry(&key("a"), "1");
        memory.set_claim(Claim::Waiting { not_before: None });
        memory.reserve(Some(&run("n1")), Timestamp::UNIX_EPOCH);
        assert_eq!(memory.target().map(|target| target.nodes.clone()), Some(vec!["n1".to_owned()]));
        // The step could not use it.
        memory.release_unused();
        assert_eq!(memory.target(), None);
    }

    #[test]
    fn a_gang_on_the_same_nodes_in_another_order_goes_nowhere_else_and_keeps_where_it_goes() {
        let on = |nodes: [&str; 2]| {
            let mut decision = run("");
            if let Planned::Run { nodes: placed, .. } = &mut decision.planned {
                *placed = nodes.map(str::to_owned).into();
            }
            decision
        };
        let held: Allocation = serde_json::from_value(serde_json::json!({
            "attempt": 1, "generation": 1, "gpuType": "A", "gpus": 2, "gpusPerWorker": 1, "nodes": ["n1", "n2"],
            "since": "2026-01-01T00:00:00Z", "watts": 0,
        }))
        .expect("an allocation");
        let mut ledger = Ledger::new(Timestamp::UNIX_EPOCH);
        let memory = ledger.entry(&key("a"), "1");
        let stopping = Claim::Stopping { gone_by: None, goes_on: true };
        memory.decide(on(["n2", "n1"]), Vec::new(), Timestamp::UNIX_EPOCH);
        memory.keep_target(&stopping, Some(&held), Timestamp::UNIX_EPOCH);
        assert_eq!(memory.target(), None, "it is there");
        memory.decide(on(["n3", "n4"]), Vec::new(), Timestamp::UNIX_EPOCH);
        memory.keep_target(&stopping, Some(&held), Timestamp::UNIX_EPOCH);
        memory.set_claim(stopping);
        let goes_to =
            |ledger: &Ledger| ledger.get(&key("a")).and_then(|m| m.target().cloned()).map(|t| t.nodes);
        let there = Some(vec!["n3".to_owned(), "n4".to_owned()]);
        assert_eq!(goes_to(&ledger), there);
        ledger.decide(&key("a"), "1", on(["n4", "n3"]), Vec::new());
        assert_eq!(goes_to(&ledger), there, "the same place");
        ledger.decide(&key("a"), "1", on(["n4", "n5"]), Vec::new());
        assert_eq!(goes_to(&ledger), None);
    }

    #[test]
    fn a_storm_of_runs_that_are_not_as_planned_makes_no_storm_of_plans() {
        let mut ledger = Ledger::new(Timestamp::UNIX_EPOCH);
        for name in ["a", "b"] {
            ledger.entry(&key(name), "1");
        }
        let at = |second| Timestamp::from_second(second).expect("a time");
        let mut asks = |name: &str, second| ledger.may_request_plan(&key(name), "1", at(second));
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
        assert!(ledger.decide(&key("gets"), "1", run("n1"), Vec::new()));
        assert!(ledger.decide(&key("goes-on"), "1", run("n2"), Vec::new()));
        assert!(ledger.decide(&key("waits"), "1", DecisionFor { basis: 0, planned: wait }, Vec::new()));
        assert!(!ledger.is_delivered() && !ledger.mark_delivered(&key("waits")));
        ledger.revoke_grants(|key, _| key.name == "goes-on");
        let left: Vec<_> = ledger
            .iter()
            .filter(|(_, m)| m.plan().decision.is_some())
            .map(|(k, _)| k.name.as_str())
            .collect();
        assert_eq!(left, ["goes-on", "waits"]);
        assert!(ledger.is_delivered());
        assert!(!ledger.decide(&key("goes-on"), "1", run("n2"), Vec::new()), "the same again is no news");
    }
}
