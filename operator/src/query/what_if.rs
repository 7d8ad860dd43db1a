//! The effect of a change: the changed snapshot is planned and sampled with the draws of the present one.

use std::collections::HashSet;

use andreas_api::query::{
    Affected, Can, CanRequest, NEVER_SECONDS, OthersAffected, QueuedJob, WhatIf, WhatIfRequest,
};
use andreas_api::slim::SlimTrainingJob;
use andreas_api::{Phase, key_of};
use andreas_cluster::energy::weight::bounded_weight;
use andreas_cluster::instants::{after, deadline};
use andreas_forecast::{Forecast, sample};
use andreas_model::JobId;
use andreas_planner::{Plan, Snapshot, plan};
use andreas_runtime::watch::ObjectKey;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::QueryError;
use super::hypothetical::{self, Hypothetical};
use super::jobs::{expected, micros, range};
use super::view::{View, options, options_of_question, order, visible};
use crate::predict::forecast::percent;
use crate::snapshot::job_id;

/// A shift of less is not reported.
const MIN_SHIFT: f64 = 60.0;

/// A changed snapshot with its plan and forecast.
pub struct Changed {
    /// The snapshot.
    pub snapshot: Snapshot,
    /// Its plan.
    pub plan: Plan,
    /// Its futures, with the draws of the view's.
    pub forecast: Forecast,
}

impl Changed {
    /// Plans and samples a changed snapshot.
    ///
    /// # Errors
    /// [`QueryError::Refused`].
    pub fn new(view: &View, snapshot: Snapshot) -> Result<Self, QueryError> {
        let with = options_of_question(&view.latest.options, snapshot.jobs.len());
        let plan = plan(&snapshot, &with)?;
        let mut forecast = sample(&snapshot, &plan, &options(&with), &view.settings)?;
        forecast.correct(view.latest.ledger.calibration());
        Ok(Self { snapshot, plan, forecast })
    }
}

/// The currency of the policy in force.
pub fn currency(view: &View) -> String {
    let policy = view.latest.index.policy();
    policy.map_or_else(
        || andreas_api::EnergyPolicySpec::default().currency,
        |policy| policy.spec.currency.clone(),
    )
}

/// A job that does not exist, as an answer.
fn outcome(view: &View, changed: &Changed, job: &SlimTrainingJob) -> QueuedJob {
    let key = key_of(job);
    let id = job_id(&key);
    let order = order(&changed.snapshot, &changed.plan, &changed.forecast);
    let place = order.iter().position(|other| *other == id);
    let decision = changed.plan.jobs.get(&id).map(|job_plan| &job_plan.decision);
    let (reason, message) = match decision {
        Some(andreas_planner::Decision::Wait { reason, message, .. }) => {
            (Some(reason.as_str().to_owned()), Some(message.clone()))
        }
        _ => (None, None),
    };
    let due = deadline(&job.spec, job.metadata.creation_timestamp.as_ref());
    QueuedJob {
        position: place.and_then(|n| u32::try_from(n + 1).ok()),
        ahead: place.map(|n| visible(&order[..n], &key.namespace, andreas_api::query::MAX_NAMES)),
        phase: job.status.as_ref().map_or(Phase::Pending, |status| status.phase),
        reason,
        message,
        weight: bounded_weight(&view.latest.index, &key.namespace, job.spec.weight),
        gpus: range(&job.spec.gpus),
        gpu_type: decision.and_then(|d| d.placement()).map(|place| place.gpu_type.as_str().to_owned()),
        created: job.metadata.creation_timestamp.clone().unwrap_or_else(|| Time(view.instant())),
        expected: changed.forecast.job(&id).and_then(|found| expected(found, due.is_some())),
        deadline: due,
        name: key.name,
    }
}

/// A job of the namespace.
fn existing<'a>(view: &'a View, namespace: &str, name: &str) -> Result<&'a SlimTrainingJob, QueryError> {
    let key = ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() };
    let job = view.latest.index.jobs().get(&key);
    job.map(AsRef::as_ref).ok_or_else(|| QueryError::NoSuchJob(name.to_owned()))
}

/// Answers a what-if question, from the instant of `view` on.
///
/// # Errors
/// [`QueryError`]
pub fn what_if(
    view: &View,
    hypothetical: &Hypothetical,
    namespace: &str,
    asked: &WhatIfRequest,
) -> Result<WhatIf, QueryError> {
    if asked.is_empty() {
        return Err(QueryError::invalid(
            "job",
            "changed, nodes, budgetWatts and without are all absent: nothing would change",
        ));
    }
    let posted = match &asked.job {
        Some(job) => Some(hypothetical.posted(namespace, job, view.instant())?),
        None => None,
    };
    let other = match &asked.changed {
        Some(_) if posted.is_some() => {
            return Err(QueryError::invalid("changed", "and job exclude each other"));
        }
        Some(asked) => Some(hypothetical::changed(existing(view, namespace, &asked.name)?, asked)?),
        None => None,
    };
    let job = posted.as_ref().or(other.as_ref());
    let mut snapshot = match job {
        Some(job) => hypothetical.with_job(view, job.clone())?,
        None => view.snapshot().clone(),
    };
    if let Some(name) = &asked.without {
        let removed = job_id(&key_of(existing(view, namespace, name)?));
        snapshot.jobs.retain(|job| job.id != removed);
    }
    hypothetical::add_nodes(&mut snapshot, &asked.nodes)?;
    if let Some(watts) = asked.budget_watts {
        if !(1..=1_000_000_000).contains(&watts) {
            return Err(QueryError::invalid("budgetWatts", "is not from 1 to 1000000000"));
        }
        hypothetical::set_budget(&view.latest, &mut snapshot, watts as f64);
    }
    let changed = Changed::new(view, snapshot)?;
    let posted_id = posted.as_ref().map(|job| job_id(&key_of(job)));
    let (affected, own, others, cost) = compare(view, &changed, namespace, posted_id.as_ref());
    Ok(WhatIf {
        namespace: namespace.to_owned(),
        at: Time(view.instant()),
        job: job.map(|job| outcome(view, &changed, job)),
        before: other.as_ref().and_then(|job| {
            let id = job_id(&key_of(job));
            let had_deadline = view.snapshot().jobs.iter().any(|job| job.id == id && job.deadline.is_some());
            expected(view.forecast.job(&id)?, had_deadline)
        }),
        affected,
        own,
        others,
        added_cost_micros: cost,
        currency: currency(view),
    })
}

/// Jobs whose median end moves, and the additional cost for all jobs but the posted one.
fn compare(
    view: &View,
    changed: &Changed,
    namespace: &str,
    posted: Option<&JobId>,
) -> (Vec<Affected>, u32, OthersAffected, i64) {
    let (mut affected, mut others, mut later, mut cost) = (Vec::new(), OthersAffected::default(), 0.0, 0.0);
    let due: HashSet<&JobId> =
        view.snapshot().jobs.iter().filter(|job| job.deadline.is_some()).map(|job| &job.id).collect();
    for (id, before) in &view.forecast.jobs {
        let Some(now) = changed.forecast.job(id).filter(|_| posted != Some(id)) else { continue };
        cost += now.cost().0 - before.cost().0;
        let (old, new) = (before.sampled_finish.p50, now.sampled_finish.p50);
        let shift = match (old.is_finite(), new.is_finite()) {
            (true, true) => (new - old).0,
            (true, false) => f64::INFINITY,
            (false, true) => f64::NEG_INFINITY,
            (false, false) => 0.0,
        };
        if shift.abs() < MIN_SHIFT {
            continue;
        }
        let seconds = shift.clamp(-(NEVER_SECONDS as f64), NEVER_SECONDS as f64) as i64;
        match id.as_str().split_once('/') {
            Some((of, name)) if of == namespace => {
                let due = due.contains(id);
                affected.push(Affected {
                    name: name.to_owned(),
                    later_seconds: seconds,
                    on_time_before_percent: due.then(|| percent(before.on_time)),
                    on_time_percent: due.then(|| percent(now.on_time)),
                });
            }
            // An infinite shift has no place in a mean.
            _ if shift == f64::INFINITY => others.never += 1,
            _ if shift > 0.0 => {
                others.later += 1;
                later += shift;
            }
            _ => others.sooner += 1,
        }
    }
    if others.later > 0 {
        others.mean_later_seconds = (later / f64::from(others.later) / 60.0).round() as i64 * 60;
    }
    affected
        .sort_by(|a, b| b.later_seconds.abs().cmp(&a.later_seconds.abs()).then_with(|| a.name.cmp(&b.name)));
    let own = u32::try_from(affected.len()).unwrap_or(u32::MAX);
    affected.truncate(andreas_api::query::MAX_NAMES);
    (affected, own, others, micros(andreas_model::Money(cost)))
}

/// Answers whether a job submitted at the instant of `view` would be on time.
///
/// # Errors
/// [`QueryError`]
pub fn can(
    view: &View,
    hypothetical: &Hypothetical,
    namespace: &str,
    asked: &CanRequest,
) -> Result<Can, QueryError> {
    let mut job = hypothetical.posted(namespace, &asked.job, view.instant())?;
    match (&asked.deadline, &asked.deadline_after) {
        (Some(_), Some(_)) => {
            return Err(QueryError::invalid("deadline", "and deadlineAfter exclude each other"));
        }
        (Some(deadline), None) => {
            (job.spec.deadline, job.spec.deadline_after) = (Some(deadline.clone()), None)
        }
        (None, Some(text)) => {
            let seconds = text.seconds().filter(|seconds| *seconds > 0);
            let seconds = seconds
                .ok_or_else(|| QueryError::invalid("deadlineAfter", "is not a duration such as 36h"))?;
            (job.spec.deadline, job.spec.deadline_after) = (Some(Time(after(view.instant(), seconds))), None);
        }
        (None, None) => {}
    }
    let changed = Changed::new(view, hypothetical.with_job(view, job.clone())?)?;
    let shown = outcome(view, &changed, &job);
    Ok(Can {
        namespace: namespace.to_owned(),
        deadline: shown.deadline.clone(),
        on_time_percent: shown
            .deadline
            .as_ref()
            .map(|_| shown.expected.as_ref().and_then(|e| e.on_time_percent).unwrap_or(0)),
        job: shown,
        currency: currency(view),
    })
}
