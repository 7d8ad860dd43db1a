//! A job in an answer, and the queue of a namespace.

use std::sync::Arc;

use andreas_api::slim::SlimTrainingJob;
use andreas_api::training_job::GpuRequest;
use andreas_api::{Phase, TrainingJobStatus};
use andreas_core::JobId;
use andreas_forecast::{JobForecast, Quantiles};
use andreas_planner::{Decision, Plan};
use andreas_query::{Ahead, CostParts, Expected, Interval, MAX_QUEUE, Queue, QueuedJob};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::view::{View, visible};
use crate::instants::deadline;
use crate::predict::sampled::timestamp;
use crate::snapshot::job_id;

/// Names of the jobs directly ahead, in a queue of many jobs.
const NEAREST: usize = 3;

/// Money as millionths, rounded.
pub fn micros(money: andreas_core::Money) -> i64 {
    (money.0 * 1e6).round().clamp(-9e18, 9e18) as i64
}

fn instant(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

fn interval(quantiles: Quantiles) -> Option<Interval> {
    let at = |time| timestamp(time).map(Time);
    Some(Interval { p10: at(quantiles.p10)?, p50: at(quantiles.p50)?, p90: at(quantiles.p90) })
}

/// A probability as whole percent.
pub fn percent(probability: f64) -> i32 {
    (probability.clamp(0.0, 1.0) * 100.0).round() as i32
}

/// What is expected of a job; `None` if half of the futures never end it.
pub fn expected(job: &JobForecast, has_deadline: bool) -> Option<Expected> {
    let (gpu_type, gpus) = job.configuration()?;
    Some(Expected {
        start: interval(job.start)?,
        finish: interval(job.finish)?,
        on_time_percent: has_deadline.then(|| percent(job.on_time)),
        gpu_type: gpu_type.as_str().to_owned(),
        gpus,
        cost: CostParts {
            energy_micros: micros(job.energy_cost),
            lateness_micros: micros(job.lateness_cost),
            turnaround_micros: micros(job.turnaround_cost),
        },
    })
}

/// The possible totals as text: `4`, or `1-8`.
pub fn range(gpus: &GpuRequest) -> String {
    let (min, max) = (gpus.min, gpus.max_total());
    if min == max { min.to_string() } else { format!("{min}-{max}") }
}

/// Reason and sentence of a wait, by the plan, else by the status.
fn why(plan: &Plan, id: &JobId, status: &TrainingJobStatus) -> (Option<String>, Option<String>) {
    if !matches!(status.phase, Phase::Pending) {
        return (status.reason.clone(), None);
    }
    match plan.jobs.get(id).map(|job_plan| &job_plan.decision) {
        Some(Decision::Wait { reason, message, .. }) => {
            (Some(reason.as_str().to_owned()), Some(message.clone()))
        }
        _ => (status.reason.clone(), None),
    }
}

/// A job as the reader of its namespace sees it. `ahead`: the waiting jobs before it.
pub fn queued(
    view: &View,
    job: &SlimTrainingJob,
    position: Option<usize>,
    ahead: Option<Ahead>,
) -> QueuedJob {
    let key = andreas_runtime::watch::ObjectKey::of(job);
    let id = job_id(&key);
    let unwritten = TrainingJobStatus::default();
    let status = job.status.as_ref().unwrap_or(&unwritten);
    let due = deadline(&job.spec, job.metadata.creation_timestamp.as_ref());
    let allocation = status.allocation.as_ref();
    let (reason, message) = why(&view.latest.plan, &id, status);
    let waits = status.phase == Phase::Pending;
    QueuedJob {
        name: key.name,
        phase: status.phase,
        position: position.filter(|_| waits).and_then(|n| u32::try_from(n + 1).ok()),
        ahead: ahead.filter(|_| waits),
        reason,
        message,
        weight: job.spec.weight,
        gpus: allocation.map_or_else(|| range(&job.spec.gpus), |held| held.gpus.to_string()),
        gpu_type: allocation.map(|held| held.gpu_type.clone()),
        created: job.metadata.creation_timestamp.clone().unwrap_or_else(|| Time(view.at())),
        expected: view.forecast.job(&id).and_then(|found| expected(found, due.is_some())),
        deadline: due,
    }
}

/// The queue of a namespace.
pub fn queue(view: &View, namespace: &str, jobs: &[Arc<SlimTrainingJob>]) -> Queue {
    // Jobs of the namespace before each place, in one pass.
    let mut own_before: Vec<&JobId> = Vec::new();
    let mut ahead: std::collections::HashMap<&JobId, Ahead> = std::collections::HashMap::new();
    for (place, id) in view.order().iter().enumerate() {
        let Some((of, _)) = id.as_str().split_once('/') else { continue };
        if of != namespace {
            continue;
        }
        let nearest = own_before.iter().rev().take(NEAREST).copied();
        let mut shown = visible(nearest, namespace, NEAREST);
        shown.own = u32::try_from(own_before.len()).unwrap_or(u32::MAX);
        shown.others = u32::try_from(place - own_before.len()).unwrap_or(u32::MAX);
        ahead.insert(id, shown);
        own_before.push(id);
    }
    let open = |job: &&Arc<SlimTrainingJob>| !job.status.as_ref().is_some_and(|s| s.phase.is_terminal());
    let mut rows: Vec<(usize, usize, QueuedJob)> = jobs
        .iter()
        .filter(open)
        .map(|job| {
            let id = job_id(&andreas_runtime::watch::ObjectKey::of(job.as_ref()));
            let place = view.position(&id);
            let row = queued(view, job, place, ahead.get(&id).cloned());
            let group = match row.phase {
                Phase::Running => 0,
                Phase::Starting => 1,
                Phase::Stopping => 2,
                Phase::Suspended => 4,
                _ => 3,
            };
            (group, place.unwrap_or(usize::MAX), row)
        })
        .collect();
    rows.sort_by(|a, b| {
        (a.0, a.1)
            .cmp(&(b.0, b.1))
            .then_with(|| a.2.created.0.cmp(&b.2.created.0))
            .then_with(|| a.2.name.cmp(&b.2.name))
    });
    Queue {
        namespace: namespace.to_owned(),
        at: instant(view.at()),
        waiting: u32::try_from(view.order().len()).unwrap_or(u32::MAX),
        jobs: rows.into_iter().take(MAX_QUEUE).map(|(_, _, row)| row).collect(),
    }
}
