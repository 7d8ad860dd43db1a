//! What decided about a job, and what would help it.

use std::sync::Arc;

use andreas_api::key_of;
use andreas_api::names::{
    ANNOTATION_DEADLINE, ANNOTATION_DEADLINE_AFTER, ANNOTATION_GPU_TYPES, ANNOTATION_WEIGHT,
};
use andreas_api::query::{
    Candidate, Change, ChangeKind, CostParts, Decided, Explanation, MAX_NAMES, MAX_TRIED, NotTried,
    Obstacle as InTheWay, QueuedJob,
};
use andreas_api::slim::SlimTrainingJob;
use andreas_api::training_job::{GpuRequest, SAFE_PERCENT};
use andreas_cluster::energy::weight::bounded_weight;
use andreas_model::JobId;
use andreas_planner::{Considered, Decision, Obstacle, WaitReason, consider};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::QueryError;
use super::hypothetical::{self, Hypothetical};
use super::jobs::{expected, micros, queued};
use super::view::{View, visible};
use super::what_if::{Changed, currency};
use crate::predict::forecast::percent;
use crate::predict::sampled::timestamp;
use crate::snapshot::job_id;

/// Maximum configurations in an answer.
const MAX_CANDIDATES: usize = 64;
/// Changes in an answer.
const MAX_CHANGES: usize = 3;
/// A start that is sooner by less is no help, s.
const MIN_SOONER: i64 = 60;
/// A probability of being on time that is higher by less is no help, percent.
const MIN_MORE: i32 = 10;

fn candidate(c: &Considered, has_deadline: bool) -> Candidate {
    Candidate {
        gpu_type: c.gpu_type.as_str().to_owned(),
        gpus: c.gpus.0,
        nodes: c.nodes,
        limit_watts: c.limit.map(|watts| watts.0.round() as u32),
        seconds: c.time.0.round() as i64,
        watts: c.power.0.round() as u32,
        cost: CostParts {
            energy_cost_micros: micros(c.energy),
            lateness_cost_micros: micros(c.lateness),
            turnaround_cost_micros: micros(c.turnaround),
        },
        on_time_percent: has_deadline.then(|| percent(c.on_time)),
        obstacle: c.obstacle.map(|obstacle| match obstacle {
            Obstacle::Nodes => InTheWay::Nodes,
            Obstacle::Quota => InTheWay::Quota,
            Obstacle::Power => InTheWay::Power,
        }),
        current: c.planned,
    }
}

fn decided(view: &View, id: &JobId, namespace: &str) -> Option<Decided> {
    let latest = &view.latest;
    let at = Time(latest.at);
    let method = latest.plan.method.to_string();
    Some(match &latest.plan.jobs.get(id)?.decision {
        Decision::Run(_) => {
            Decided { at, method, decision: "Run".to_owned(), reason: None, message: None, in_the_way: None }
        }
        Decision::Wait { reason, blockers, message } => Decided {
            at,
            method,
            decision: "Wait".to_owned(),
            reason: Some(reason.as_str().to_owned()),
            message: Some(message.clone()),
            in_the_way: (!blockers.is_empty()).then(|| visible(blockers, namespace, MAX_NAMES)),
        },
    })
}

/// The cheapest configurations, and that of the plan in any case.
pub(super) fn listed(considered: &[Considered]) -> impl Iterator<Item = &Considered> {
    let beyond = considered.iter().skip(MAX_CANDIDATES).find(|c| c.planned);
    considered.iter().take(MAX_CANDIDATES - usize::from(beyond.is_some())).chain(beyond)
}

/// Explains a job at `now`. Changes are tried one after another while `goes_on` is true: `always`, or only if the plan has
/// at most [`MAX_TRIED`] jobs.
///
/// # Errors
/// [`QueryError`]
pub fn explain(
    view: &View,
    hypothetical: &Hypothetical,
    job: &Arc<SlimTrainingJob>,
    now: Timestamp,
    always: bool,
    goes_on: &dyn Fn() -> bool,
) -> Result<Explanation, QueryError> {
    let key = key_of(job.as_ref());
    let id = job_id(&key);
    let place = view.position(&id);
    let ahead = place.map(|place| visible(view.order()[..place].iter().rev(), &key.namespace, MAX_NAMES));
    let shown = queued(view, job, place, ahead, now);
    let considered = consider(view.snapshot(), &view.latest.plan, &id)?;
    let has_deadline = shown.deadline.is_some();
    let helps = Help { view, hypothetical, job, shown: &shown, considered: &considered };
    let (mut changes, not_tried) = helps.changes(always, goes_on);
    changes.sort_by(|a, b| a.added_cost_micros.cmp(&b.added_cost_micros).then(a.kind.cmp(&b.kind)));
    changes.truncate(MAX_CHANGES);
    Ok(Explanation {
        namespace: key.namespace.clone(),
        decided: decided(view, &id, &key.namespace),
        candidates: listed(&considered).map(|c| candidate(c, has_deadline)).collect(),
        changes,
        not_tried,
        currency: currency(view),
        job: shown,
    })
}

/// A change to try: its kind, its text, and the merge patch of the job's spec.
pub(super) type Try = (ChangeKind, String, Value);

struct Help<'a> {
    view: &'a View,
    hypothetical: &'a Hypothetical,
    job: &'a Arc<SlimTrainingJob>,
    shown: &'a QueuedJob,
    considered: &'a [Considered],
}

impl Help<'_> {
    fn id(&self) -> JobId {
        job_id(&key_of(self.job.as_ref()))
    }

    /// All changes that help, and why not all were tried.
    fn changes(&self, always: bool, goes_on: &dyn Fn() -> bool) -> (Vec<Change>, Option<NotTried>) {
        let mut found: Vec<Change> = self.later_deadline().into_iter().collect();
        let needed = self.shown.position.is_some()
            || self
                .shown
                .expected
                .as_ref()
                .is_some_and(|e| e.on_time_percent.is_some_and(|p| p < SAFE_PERCENT));
        let not_tried = if !self.view.latest.plan.jobs.contains_key(&self.id()) {
            Some(NotTried::NotPlanned)
        } else if !needed {
            Some(NotTried::NotNeeded)
        } else if !always && self.view.snapshot().jobs.len() > MAX_TRIED {
            Some(NotTried::ManyJobs)
        } else {
            self.try_while(&mut found, goes_on)
        };
        (found, not_tried)
    }

    /// Tries changes while that is true.
    fn try_while(&self, found: &mut Vec<Change>, goes_on: &dyn Fn() -> bool) -> Option<NotTried> {
        for change in to_try(self.view, self.job) {
            if !goes_on() {
                return Some(NotTried::OutOfTime);
            }
            found.extend(self.spec(change));
        }
        if !goes_on() {
            return Some(NotTried::OutOfTime);
        }
        found.extend(self.budget());
        None
    }

    /// How a change is made: for an adopted job by an annotation of its workload, otherwise by the patch. The fields of a TrainingJob
    /// that stands for a workload follow the annotations: the operator undoes other changes of them.
    fn made_by(&self, text: String, annotation: &str, patch: Value) -> (String, Option<Value>) {
        match &self.job.spec.adopts {
            Some(adopts) => {
                (format!("{text} (annotation {annotation} of {} {})", adopts.kind, adopts.name), None)
            }
            None => (text, Some(patch)),
        }
    }

    /// A deadline that is met with [`SAFE_PERCENT`].
    fn later_deadline(&self) -> Option<Change> {
        let id = self.id();
        let forecast = self.view.forecast.job(&id)?;
        self.shown.deadline.as_ref()?;
        let p90 = timestamp(forecast.finish.p90).filter(|_| percent(forecast.on_time) < SAFE_PERCENT)?;
        // To the next whole minute.
        let at = jiff::Timestamp::from_second((p90.as_second() / 60 + 1) * 60).ok()?;
        let mut then = expected(forecast, true)?;
        then.on_time_percent = Some(percent(forecast.on_time_by(andreas_model::Time(at.as_second() as f64))));
        then.cost.lateness_cost_micros = 0;
        // A workload with both annotations is refused.
        let instead = match (&self.job.spec.adopts, &self.job.spec.deadline_after) {
            (Some(_), Some(_)) => format!(" instead of {ANNOTATION_DEADLINE_AFTER}"),
            _ => String::new(),
        };
        let (text, patch) = self.made_by(
            format!("deadline {at}{instead}"),
            ANNOTATION_DEADLINE,
            json!({"spec": {"deadline": at, "deadlineAfter": null}}),
        );
        Some(Change {
            kind: ChangeKind::Deadline,
            text,
            patch,
            sooner_seconds: 0,
            added_cost_micros: -micros(forecast.lateness_cost),
            expected: then,
        })
    }

    /// Tries a change of the spec.
    fn spec(&self, (kind, text, patch): Try) -> Option<Change> {
        let mut job = self.job.as_ref().clone();
        let mut spec = serde_json::to_value(&job.spec).ok()?;
        merge(&mut spec, &patch);
        job.spec = serde_json::from_value(spec).ok()?;
        let snapshot = self.hypothetical.with_job(self.view, job).ok()?;
        let annotation = if kind == ChangeKind::Types { ANNOTATION_GPU_TYPES } else { ANNOTATION_WEIGHT };
        let (text, patch) = self.made_by(text, annotation, json!({"spec": patch}));
        self.judge(kind, text, patch, snapshot)
    }

    /// A power budget that lets it start.
    fn budget(&self) -> Option<Change> {
        let latest = &self.view.latest;
        latest.plan.allowed_power?;
        let waits = matches!(
            latest.plan.jobs.get(&self.id()).map(|p| &p.decision),
            Some(Decision::Wait { reason: WaitReason::PowerBudget | WaitReason::BudgetInfeasible, .. })
        );
        let cheapest =
            self.considered.iter().find(|c| c.obstacle == Some(Obstacle::Power)).filter(|_| waits)?;
        let mut snapshot = self.view.snapshot().clone();
        // Plans leave the margin free. To the next 100 W.
        let part = snapshot.budget.as_ref().map_or(1.0, |budget| 1.0 - budget.margin);
        let watts = (cheapest.budgeted_with.0 / part / 100.0).ceil() * 100.0;
        hypothetical::set_budget(latest, &mut snapshot, watts);
        self.judge(ChangeKind::Budget, format!("a power budget of {:.1} kW", watts / 1e3), None, snapshot)
    }

    /// The effect of a change, if it helps.
    fn judge(
        &self,
        kind: ChangeKind,
        text: String,
        patch: Option<Value>,
        snapshot: andreas_planner::Snapshot,
    ) -> Option<Change> {
        let id = self.id();
        let changed = Changed::new(self.view, snapshot).ok()?;
        let new = changed.forecast.job(&id)?;
        let has_deadline = self.shown.deadline.is_some();
        let then = expected(new, has_deadline)?;
        let old = self.view.forecast.job(&id);
        let sooner = match old.map(|old| old.start.p50).filter(|start| start.is_finite()) {
            Some(start) => (start - new.start.p50).0 as i64,
            None => i64::from(u32::MAX),
        };
        let before = self.shown.expected.as_ref().and_then(|e| e.on_time_percent).unwrap_or(0);
        let more = then.on_time_percent.map_or(0, |percent| percent - before);
        let cost: f64 = self
            .view
            .forecast
            .jobs
            .iter()
            .filter_map(|(id, before)| Some(changed.forecast.job(id)?.cost().0 - before.cost().0))
            .sum();
        (sooner >= MIN_SOONER || more >= MIN_MORE).then(|| Change {
            kind,
            text,
            patch,
            expected: then,
            sooner_seconds: sooner,
            added_cost_micros: micros(andreas_model::Money(cost)),
        })
    }
}

/// Changes of the job's spec.
pub(super) fn to_try(view: &View, job: &SlimTrainingJob) -> Vec<Try> {
    let spec = &job.spec;
    let gpus = &spec.gpus;
    let mut all = Vec::new();
    if !gpus.types.is_empty() {
        let mut types: Vec<&str> = view.snapshot().gpu_types.iter().map(|t| t.name.as_str()).collect();
        types.retain(|name| !gpus.types.iter().any(|allowed| allowed == name));
        // This annotation is read once.
        let when = if spec.adopts.is_some() { " when it is adopted anew" } else { "" };
        for name in types.into_iter().take(3) {
            let more: Vec<&str> = gpus.types.iter().map(String::as_str).chain([name]).collect();
            let text = format!("also on {name}{when}");
            all.push((ChangeKind::Types, text, json!({"gpus": {"types": more}})));
        }
    }
    // The pods of a workload are its own: with another number of GPUs or nodes its plan would not fit them.
    if spec.adopts.is_none() {
        all.extend(sizes(&spec.gpus));
    }
    let namespace = key_of(job).namespace;
    let weight = bounded_weight(&view.latest.index, &namespace, (spec.weight * 4).min(1_000));
    if weight > spec.weight {
        all.push((
            ChangeKind::Weight,
            format!("weight {weight} instead of {}", spec.weight),
            json!({"weight": weight}),
        ));
    }
    all
}

/// Other numbers of GPUs and nodes.
pub(super) fn sizes(gpus: &GpuRequest) -> Vec<Try> {
    let mut all = Vec::new();
    if gpus.min > 1 {
        let min = gpus.min / 2;
        // The maximum stays what it was, also where it was not given.
        let patch = json!({"gpus": {"min": min, "max": gpus.max_total(), "counts": []}});
        all.push((ChangeKind::Minimum, format!("from {min} GPUs on instead of {}", gpus.min), patch));
    }
    if gpus.max_total() < 2_048 {
        let max = gpus.max_total() * 2;
        all.push((
            ChangeKind::Maximum,
            format!("up to {max} GPUs"),
            json!({"gpus": {"max": max, "counts": []}}),
        ));
    }
    // Every node gives at least one GPU.
    let nodes = (gpus.max_nodes * 2).min(gpus.max_total());
    if nodes > gpus.max_nodes && gpus.max_nodes < 256 {
        all.push((
            ChangeKind::Nodes,
            format!("over up to {nodes} nodes"),
            json!({"gpus": {"maxNodes": nodes}}),
        ));
    }
    all
}

/// A JSON merge patch (RFC 7396).
pub(super) fn merge(target: &mut Value, patch: &Value) {
    let (Value::Object(target), Value::Object(patch)) = (&mut *target, patch) else {
        *target = patch.clone();
        return;
    };
    for (name, value) in patch {
        if value.is_null() {
            target.remove(name);
        } else {
            merge(target.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}
