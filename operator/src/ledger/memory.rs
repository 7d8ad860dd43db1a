//! Memory of one job: claim, outcomes of actions, the plan's decision, predictions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use andreas_api::TrainingJobStatus;
use andreas_api::slim::SlimTrainingJob;
use andreas_api::training_job::{Allocation, Prediction};
use andreas_cluster::energy::measured::PendingEnergy;
use andreas_lifecycle::{
    Announced, Claim, Creation, DecisionFor, DryRunResult, EventNote, FirstSeen, Planned, TimedFact,
};
use andreas_runtime::watch::ObjectKey;
use jiff::{SignedDuration, Timestamp};

use crate::predict::Table;
use crate::predict::forecast::{self, Waiting};
use crate::predict::outlook::{Outlook, outlook};
use crate::predict::sampled::Sampled;

/// Predictions of a job with the last plan.
#[derive(Clone, Debug, Default)]
pub struct Predictions {
    /// Time and power by configuration.
    pub table: Option<Arc<Table>>,
    /// Its outlook in that plan.
    pub outlook: Option<Outlook>,
    /// Its forecast if it waits.
    pub waiting: Waiting,
    /// The first sampled forecast, to be compared with its end.
    pub first_sampled: Option<Sampled>,
}

/// What planning wrote for a job.
#[derive(Clone, Debug, Default)]
pub struct PlanForJob {
    /// The plan's decision.
    pub decision: Option<DecisionFor>,
    /// The decided placement's share of its nodes' draw besides their GPUs, W.
    pub host_watts: i32,
    /// Jobs, with their attempts, that must end before this one's pods are created.
    pub after: Vec<(ObjectKey, i64)>,
    /// Predictions with the last plan.
    pub predictions: Predictions,
    /// When it last requested a plan because it deviated from the last one.
    pub requested: Option<Timestamp>,
}

/// What the API server answered to a job's pods.
#[derive(Clone, Debug, Default)]
pub struct Admission {
    /// The result of creating the pods.
    pub creation: Creation,
    /// Whether the Service of its gangs is there; `None`: this process has not asked for it.
    pub service: Option<bool>,
    /// The result of the last dry run.
    pub dry_run: Option<DryRunResult>,
    /// When the rules of its namespace last changed.
    pub rules_changed: Option<Timestamp>,
}

/// When things were seen of a job.
#[derive(Clone, Debug)]
pub struct SeenTimes {
    /// When the facts that time-outs count from were first seen, on the monotonic clock.
    pub facts: BTreeMap<TimedFact, Instant>,
    /// When we last wrote the status.
    pub last_write: Timestamp,
    /// When a report last moved the progress.
    pub last_progress: Option<Timestamp>,
    /// Reports up to this instant may be lost.
    pub reports_lost: Option<Timestamp>,
}

/// Memory of one job.
#[derive(Clone, Debug)]
pub struct JobMemory {
    /// The job's UID; a new job of the same name starts afresh.
    uid: String,
    /// The claim of the last step; `None` before the first.
    claim: Option<Claim>,
    /// A status that is being written; plans use it already.
    pending: Option<TrainingJobStatus>,
    /// The next placement during a stop of this job or of others that it waits for. Kept for the job until it starts
    /// there or the plan changes it.
    target: Option<NextPlacement>,
    /// A step in progress uses the decision to start at `target`: a snapshot taken now counts that as held.
    starting: Option<Reserved>,
    /// What planning wrote.
    plan: PlanForJob,
    /// What the API server answered.
    admission: Admission,
    /// When things were seen.
    seen: SeenTimes,
    /// Energy of an ended attempt that agents have not reported yet.
    pending_energy: Option<PendingEnergy>,
    /// Consecutive failures of carrying out a step.
    failures: u32,
    /// What its events have announced.
    announced: Announced,
}

impl JobMemory {
    /// Nothing is known of the job with this UID; this process started then.
    pub fn new(uid: &str, started: Timestamp) -> Self {
        Self {
            uid: uid.to_owned(),
            claim: None,
            pending: None,
            target: None,
            starting: None,
            plan: PlanForJob::default(),
            admission: Admission::default(),
            seen: SeenTimes {
                facts: BTreeMap::new(),
                last_write: started,
                last_progress: None,
                reports_lost: None,
            },
            pending_energy: None,
            failures: 0,
            announced: Announced::default(),
        }
    }

    /// The job's UID.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// The claim of the last step; `None` before the first.
    pub fn claim(&self) -> Option<&Claim> {
        self.claim.as_ref()
    }

    /// A status that is being written; plans use it already.
    pub fn pending(&self) -> Option<&TrainingJobStatus> {
        self.pending.as_ref()
    }

    /// The next placement during a stop.
    pub fn target(&self) -> Option<&NextPlacement> {
        self.target.as_ref()
    }

    /// Whether a step in progress starts the job at its target.
    pub fn is_starting(&self) -> bool {
        self.starting.is_some()
    }

    /// What planning wrote.
    pub fn plan(&self) -> &PlanForJob {
        &self.plan
    }

    /// What the API server answered.
    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    /// When things were seen.
    pub fn seen(&self) -> &SeenTimes {
        &self.seen
    }

    /// Energy of an ended attempt that agents have not reported yet.
    pub fn pending_energy(&self) -> Option<&PendingEnergy> {
        self.pending_energy.as_ref()
    }

    /// Whether the last attempt to carry out a step failed.
    pub fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// First-seen times as instants of the clock that now shows `now`.
    pub fn first_seen(&self, now: Timestamp) -> FirstSeen {
        let ago = |seen: &Instant| SignedDuration::try_from(seen.elapsed()).unwrap_or(SignedDuration::ZERO);
        self.seen
            .facts
            .iter()
            .map(|(fact, seen)| (fact.clone(), now.saturating_sub(ago(seen)).unwrap_or(now)))
            .collect()
    }

    /// What is seen of the job now; `None` before its first plan and after its end.
    pub fn outlook(&self, job: &SlimTrainingJob, now: Timestamp) -> Option<Outlook> {
        let status = job.status.as_ref();
        if status.is_some_and(|status| status.phase.is_terminal()) {
            return None;
        }
        Some(outlook(job, status, self.plan.predictions.table.as_ref()?, now))
    }

    /// The job's forecast by that outlook.
    pub fn forecast(&self, job: &SlimTrainingJob, outlook: &Outlook, now: Timestamp) -> Prediction {
        forecast::prediction(job, outlook, now, self.plan.predictions.waiting)
    }

    /// Records that exactly these facts hold.
    pub fn record_facts(&mut self, facts: BTreeSet<TimedFact>) {
        self.seen.facts.retain(|fact, _| facts.contains(fact));
        for fact in facts {
            self.seen.facts.entry(fact).or_insert_with(Instant::now);
        }
    }

    /// A step starts with `decision`: its GPUs count as allocated from now on, even before the status write.
    pub fn reserve(&mut self, decision: Option<&DecisionFor>, now: Timestamp) {
        let place = decision.and_then(|decision| NextPlacement::from_planned(&decision.planned, now));
        if let Some(place) = place.filter(|_| matches!(self.claim, Some(Claim::Waiting { .. }))) {
            self.starting = Some(if self.target.is_some() { Reserved::Before } else { Reserved::Now });
            self.target.get_or_insert(place);
        }
    }

    /// The step is over: releases what it reserved and did not use.
    pub fn release_unused(&mut self) {
        let waits = matches!(self.claim, Some(Claim::Waiting { .. }));
        if self.starting.take() == Some(Reserved::Now) && waits {
            self.target = None;
        }
    }

    /// The job's claim, not by a step. Returns the one before.
    pub fn set_claim(&mut self, claim: Claim) -> Option<Claim> {
        self.claim.replace(claim)
    }

    /// A step's claim, with the current allocation. Returns the claim before.
    pub fn claim_by_step(
        &mut self,
        claim: Claim,
        held: Option<&Allocation>,
        now: Timestamp,
    ) -> Option<Claim> {
        self.keep_target(&claim, held, now);
        self.claim.replace(claim)
    }

    /// This status is being written: plans use it from now on.
    pub fn begin_write(&mut self, status: TrainingJobStatus) {
        self.pending = Some(status);
    }

    /// The job was read after a write without an answer.
    pub fn end_write(&mut self) {
        self.pending = None;
    }

    /// The status was written.
    pub fn written(&mut self, now: Timestamp) {
        self.end_write();
        self.seen.last_write = now;
    }

    /// The status was not written: the claim is the one before again.
    pub fn not_written(&mut self, before: Option<Claim>) {
        self.end_write();
        self.claim = before;
    }

    /// A step was carried out.
    pub fn carried_out(&mut self) {
        self.failures = 0;
    }

    /// A step was not carried out. Returns how often in a row.
    pub fn not_carried_out(&mut self) -> u32 {
        self.failures = self.failures.saturating_add(1);
        self.failures
    }

    /// [`Announced::update`].
    pub fn announce(
        &mut self,
        before: Option<&TrainingJobStatus>,
        written: &TrainingJobStatus,
        now: Timestamp,
    ) -> Vec<EventNote> {
        self.announced.update(before, written, now)
    }

    /// When a report last moved the progress, if any, and until when reports may be lost.
    pub fn record_reports(&mut self, last_progress: Option<Timestamp>, lost: Option<Timestamp>) {
        self.seen.last_progress = last_progress.or(self.seen.last_progress);
        self.seen.reports_lost = lost;
    }

    /// Agents still have to report this energy.
    pub fn await_energy(&mut self, energy: PendingEnergy) {
        self.pending_energy = Some(energy);
    }

    /// Agents have reported the energy of this attempt.
    pub fn take_pending_energy(&mut self, attempt: i64) -> Option<PendingEnergy> {
        self.pending_energy.take_if(|energy| energy.attempt == attempt)
    }

    /// The result of creating the pods, to record in.
    pub fn creation(&mut self) -> &mut Creation {
        &mut self.admission.creation
    }

    /// Whether the Service of its gangs is there.
    pub fn record_service(&mut self, is_there: bool) {
        self.admission.service = Some(is_there);
    }

    /// The result of a dry run.
    pub fn record_dry_run(&mut self, result: DryRunResult) {
        self.admission.dry_run = Some(result);
    }

    /// The result of a dry run that is known otherwise, if none was made.
    pub fn infer_dry_run(&mut self, result: impl FnOnce() -> Option<DryRunResult>) {
        self.admission.dry_run = self.admission.dry_run.take().or_else(result);
    }

    /// The rules of its namespace changed: a refused dry run is made again.
    pub fn rules_changed(&mut self, now: Timestamp) {
        self.admission.rules_changed = Some(now);
        self.admission.dry_run.take_if(|dry_run| dry_run.refusal.is_some());
    }

    /// It requested a plan because it deviates from the last one.
    pub fn plan_requested(&mut self, now: Timestamp) {
        self.plan.requested = Some(now);
    }

    /// Drops the plan's decision.
    pub fn drop_decision(&mut self) {
        self.plan.decision = None;
    }

    /// The plan's decision, and the jobs that must end before its pods are created. `true`: it changed.
    pub fn decide(&mut self, decision: DecisionFor, after: Vec<(ObjectKey, i64)>, now: Timestamp) -> bool {
        let waits = matches!(self.claim, Some(Claim::Waiting { .. }));
        let new_order = self.plan.after != after;
        self.plan.after = after;
        if self.plan.decision.as_ref() == Some(&decision) && !new_order {
            return false;
        }
        // A plan with another placement, or none, ends the commitment.
        let kept = |target: &NextPlacement| decision.planned.runs_on(&target.nodes, target.gpus_per_worker);
        let stopped = matches!(self.claim, Some(Claim::Stopping { .. } | Claim::Waiting { .. }));
        if stopped && !self.target.as_ref().is_some_and(kept) {
            self.target = None;
        }
        if waits && !self.plan.after.is_empty() && self.target.is_none() {
            self.target = NextPlacement::from_planned(&decision.planned, now);
        }
        self.plan.decision = Some(decision);
        true
    }

    /// The decided placement's share of its nodes' draw besides their GPUs, W.
    pub fn set_host_watts(&mut self, watts: i32) {
        self.plan.host_watts = watts;
    }

    /// Predictions with the last plan. The first sampled forecast stays.
    pub fn set_predictions(&mut self, table: Arc<Table>, outlook: Outlook, waiting: Waiting) {
        self.plan.predictions = Predictions {
            table: Some(table),
            outlook: Some(outlook),
            waiting,
            first_sampled: self.plan.predictions.first_sampled.or(waiting.sampled),
        };
    }

    /// Records the next placement of a move: the step that requests the stop is the last one with the
    /// decision. `held` is the current allocation; a decision to stay there sets none.
    pub fn keep_target(&mut self, claim: &Claim, held: Option<&Allocation>, now: Timestamp) {
        match claim {
            Claim::Stopping { goes_on: true, .. } => {
                if self.target.is_none() {
                    let planned = self.plan.decision.as_ref().map(|decision| &decision.planned);
                    let elsewhere = planned.filter(|planned| {
                        held.is_none_or(|held| !planned.runs_on(&held.nodes, held.gpus_per_worker))
                    });
                    self.target = elsewhere.and_then(|planned| NextPlacement::from_planned(planned, now));
                }
            }
            Claim::Waiting { .. } => {}
            Claim::Stopping { .. } | Claim::Nothing | Claim::Starting { .. } | Claim::Running { .. } => {
                self.target = None;
            }
        }
    }
}

/// When the target of a step in progress was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reserved {
    /// By a plan or a stop before.
    Before,
    /// By the step.
    Now,
}

/// The next placement of a job after its stop, or after that of others.
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
    pub(super) fn from_planned(planned: &Planned, now: Timestamp) -> Option<Self> {
        let Planned::Run { gpu_type, nodes, gpus_per_worker, limit_watts, .. } = planned else { return None };
        Some(Self {
            gpu_type: gpu_type.clone(),
            nodes: nodes.clone(),
            gpus_per_worker: *gpus_per_worker,
            limit_watts: *limit_watts,
            since: now,
        })
    }
}
