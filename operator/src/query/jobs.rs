//! A job in an answer, and the queue of a namespace.

use std::sync::Arc;

use andreas_api::query::{Ahead, CostParts, Expected, Interval, MAX_QUEUE, Queue, QueuedJob};
use andreas_api::slim::SlimTrainingJob;
use andreas_api::training_job::GpuRequest;
use andreas_api::{Phase, TrainingJobStatus, key_of};
use andreas_cluster::energy::weight::bounded_weight;
use andreas_cluster::instants::deadline;
use andreas_forecast::{JobForecast, Quantiles};
use andreas_model::JobId;
use andreas_planner::{Decision, Plan};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::view::{View, visible};
use crate::predict::forecast::percent;
use crate::predict::sampled::timestamp;
use crate::snapshot::job_id;

/// Names of the jobs directly ahead, in a queue of many jobs.
const NEAREST: usize = 3;

/// Money as millionths, rounded.
pub fn micros(money: andreas_model::Money) -> i64 {
    (money.0 * 1e6).round().clamp(-9e18, 9e18) as i64
}

fn instant(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

fn interval(quantiles: Quantiles) -> Option<Interval> {
    let at = |time| timestamp(time).map(Time);
    Some(Interval { p10: at(quantiles.p10)?, p50: at(quantiles.p50)?, p90: at(quantiles.p90) })
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
            energy_cost_micros: micros(job.energy_cost),
            lateness_cost_micros: micros(job.lateness_cost),
            turnaround_cost_micros: micros(job.turnaround_cost),
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

/// What lies ahead, at `now`, by a forecast that may be older: no job ends in the past, and no waiting one starts there.
fn ahead_of(now: Timestamp, waits: bool, mut expected: Expected) -> Expected {
    let starts = if waits { Some(&mut expected.start) } else { None };
    for interval in starts.into_iter().chain([&mut expected.finish]) {
        for at in [&mut interval.p10, &mut interval.p50].into_iter().chain(&mut interval.p90) {
            at.0 = at.0.max(now);
        }
    }
    expected
}

/// A run that has begun since the forecast began when it did, and not when it was expected to.
fn begun(mut expected: Expected, status: &TrainingJobStatus) -> Expected {
    let allocation = status.allocation.as_ref().filter(|_| status.phase == Phase::Running);
    if let Some(at) = allocation.and_then(|held| held.running_time.as_ref()) {
        expected.start = Interval { p10: at.clone(), p50: at.clone(), p90: Some(at.clone()) };
    }
    expected
}

/// A job as the reader of its namespace sees it. `ahead`: the waiting jobs before it.
pub fn queued(
    view: &View,
    job: &SlimTrainingJob,
    position: Option<usize>,
    ahead: Option<Ahead>,
    now: Timestamp,
) -> QueuedJob {
    let key = key_of(job);
    let id = job_id(&key);
    let unwritten = TrainingJobStatus::default();
    let status = job.status.as_ref().unwrap_or(&unwritten);
    let due = deadline(&job.spec, job.metadata.creation_timestamp.as_ref());
    let allocation = status.allocation.as_ref();
    let weight = bounded_weight(&view.latest.index, &key.namespace, job.spec.weight);
    let (reason, message) = why(&view.latest.plan, &id, status);
    let waits = status.phase == Phase::Pending;
    QueuedJob {
        name: key.name,
        phase: status.phase,
        position: position.filter(|_| waits).and_then(|n| u32::try_from(n + 1).ok()),
        ahead: ahead.filter(|_| waits),
        reason,
        message,
        weight,
        gpus: allocation.map_or_else(|| range(&job.spec.gpus), |held| held.gpus.to_string()),
        gpu_type: allocation.map(|held| held.gpu_type.clone()),
        created: job.metadata.creation_timestamp.clone().unwrap_or_else(|| Time(view.instant())),
        expected: view
            .forecast
            .job(&id)
            .and_then(|found| expected(found, due.is_some()))
            .map(|found| begun(ahead_of(instant(now).0, waits, found), status)),
        deadline: due,
    }
}

/// Rank of a phase in a queue: jobs with GPUs come first, then waiting ones, then suspended ones.
fn queue_rank(phase: Phase) -> u8 {
    match phase {
        Phase::Running => 0,
        Phase::Starting => 1,
        Phase::Stopping => 2,
        Phase::Suspended => 4,
        _ => 3,
    }
}

/// The queue of a namespace at `now`, its first `limit` jobs.
pub fn queue(
    view: &View,
    namespace: &str,
    jobs: &[Arc<SlimTrainingJob>],
    limit: usize,
    now: Timestamp,
) -> Queue {
    let phase = |job: &SlimTrainingJob| job.status.as_ref().map(|status| status.phase).unwrap_or_default();
    let mut open: Vec<(u8, usize, &Arc<SlimTrainingJob>)> = jobs
        .iter()
        .filter(|job| !phase(job).is_terminal())
        .map(|job| {
            let id = job_id(&key_of(job.as_ref()));
            (queue_rank(phase(job)), view.position(&id).unwrap_or(usize::MAX), job)
        })
        .collect();
    let made =
        |job: &SlimTrainingJob| job.metadata.creation_timestamp.as_ref().map_or(view.instant(), |at| at.0);
    open.sort_by(|a, b| {
        (a.0, a.1)
            .cmp(&(b.0, b.1))
            .then_with(|| made(a.2).cmp(&made(b.2)))
            .then_with(|| a.2.metadata.name.cmp(&b.2.metadata.name))
    });
    let total = open.len();
    open.truncate(limit.min(MAX_QUEUE));
    let own: Vec<(usize, &JobId)> = view
        .order()
        .iter()
        .enumerate()
        .filter(|(_, id)| id.as_str().split_once('/').is_some_and(|(of, _)| of == namespace))
        .collect();
    let ahead = |place: usize| {
        let before = own.partition_point(|(own, _)| *own < place);
        let nearest = own[..before].iter().rev().take(NEAREST).map(|(_, id)| *id);
        let mut shown = visible(nearest, namespace, NEAREST);
        shown.own = u32::try_from(before).unwrap_or(u32::MAX);
        shown.others = u32::try_from(place - before).unwrap_or(u32::MAX);
        shown
    };
    let rows = open.into_iter().map(|(_, place, job)| {
        let place = (place != usize::MAX).then_some(place);
        queued(view, job, place, place.map(ahead), now)
    });
    Queue {
        namespace: namespace.to_owned(),
        at: instant(view.instant()),
        waiting: u32::try_from(view.order().len()).unwrap_or(u32::MAX),
        open: u32::try_from(total).unwrap_or(u32::MAX),
        jobs: rows.collect(),
    }
}
