//! Memory of one job: claim, outcomes of actions, the plan's decision, predictions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use andreas_api::TrainingJobStatus;
use andreas_api::slim::SlimTrainingJob;
use andreas_api::training_job::{Allocation, Prediction};
use andreas_runtime::watch::ObjectKey;
use jiff::{SignedDuration, Timestamp};

use crate::energy::measured::PendingEnergy;
use crate::lifecycle::{
    Announced, Claim, Creation, DecisionFor, DryRunResult, FirstSeen, Planned, TimedFact,
};
use crate::predict::forecast::{self, Waiting};
use crate::predict::sampled::Sampled;
use crate::predict::{Outlook, Table};

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
    pub uid: String,
    /// The claim of the last step; `None` before the first.
    pub claim: Option<Claim>,
    /// A status that is being written; plans use it already.
    pub pending: Option<TrainingJobStatus>,
    /// The next placement during a stop. Kept for the job until it starts there or the plan changes it.
    pub target: Option<NextPlacement>,
    /// `target` belongs to a decision that a step in progress uses: a snapshot taken now must include it.
    pub reserving: bool,
    /// What planning wrote.
    pub plan: PlanForJob,
    /// What the API server answered.
    pub admission: Admission,
    /// When things were seen.
    pub seen: SeenTimes,
    /// Energy of an ended attempt that agents have not reported yet.
    pub pending_energy: Option<PendingEnergy>,
    /// Consecutive failures of carrying out a step.
    pub failures: u32,
    /// What its events have announced.
    pub announced: Announced,
}

impl JobMemory {
    /// Nothing is known of the job with this UID; this process started then.
    pub fn new(uid: &str, started: Timestamp) -> Self {
        Self {
            uid: uid.to_owned(),
            claim: None,
            pending: None,
            target: None,
            reserving: false,
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

    /// First-seen times as instants of the clock that now shows `now`.
    pub fn first_seen(&self, now: Timestamp) -> FirstSeen {
        let ago = |seen: &Instant| SignedDuration::try_from(seen.elapsed()).unwrap_or(SignedDuration::ZERO);
        self.seen
            .facts
            .iter()
            .map(|(fact, seen)| (fact.clone(), now.saturating_sub(ago(seen)).unwrap_or(now)))
            .collect()
    }

    /// The job's current forecast; `None` before its first plan and after its end.
    pub fn forecast(&self, job: &SlimTrainingJob, now: Timestamp) -> Option<Prediction> {
        let status = job.status.as_ref();
        if status.is_some_and(|status| status.phase.is_terminal()) {
            return None;
        }
        let Predictions { table, waiting, .. } = &self.plan.predictions;
        Some(forecast::prediction(job, status, table.as_ref()?, now, *waiting))
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
        let waits = matches!(self.claim, Some(Claim::Waiting { .. }));
        if waits && self.target.is_none() {
            self.target = decision.and_then(|decision| NextPlacement::from_planned(&decision.planned, now));
            self.reserving = self.target.is_some();
        }
    }

    /// The step is over: releases what it did not use.
    pub fn release_unused(&mut self) {
        if std::mem::take(&mut self.reserving) && matches!(self.claim, Some(Claim::Waiting { .. })) {
            self.target = None;
        }
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

/// The next placement of a job after its stop.
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
