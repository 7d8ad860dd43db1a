//! When to plan, and delivery of decisions.
//!
//! **In**: the index's signal, a slow tick, ends of backoffs, edges named by the last plan. **Out**:
//! decisions in the ledger, forecasts, which machines are wanted on, metrics.
//!
//! A plan uses one snapshot of index and ledger. From the snapshot until its delivery, an older plan's
//! decisions grant nothing ([`Ledger::revoke_grants`](crate::ledger::Ledger::revoke_grants)), so two plans never grant
//! the same GPU. The next plan waits until steps have read this one's decisions.
//!
//! | file | what |
//! |---|---|
//! | [`decision`] | a plan's decision for one job, in the lifecycle's types |
//! | [`figures`] | the figures of a plan for the metrics |
//! | [`guards`] | power limits of runs that nobody has measured |
//! | [`last`] | the last plan with its input, for `/snapshot` and the query API |
//! | [`sleep`](mod@sleep) | which machines are wanted on |
//!
//! **Never here**: writes, but of nodes that are asked for of an autoscaler; the executor, which this loop meets in the ledger only.

mod decision;
mod figures;
mod guards;
pub mod last;
mod sleep;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use andreas_api::Reason;
use andreas_api::slim::{SlimNode, SlimTrainingJob};
use andreas_cluster::energy::inventory::largest_node;
use andreas_cluster::index::{ClusterIndex, Signals, WaitingPod, gpu_memory, whole_gpus};
use andreas_lifecycle::{DecisionFor, Planned, Settings};
use andreas_model::Time;
use andreas_planner::{IntendedChange, Options, Plan, Prices, Snapshot, SnapshotError};
use andreas_runtime::clock;
use andreas_runtime::health::Heartbeat;
use andreas_runtime::watch::ObjectKey;
use futures::FutureExt as _;
use jiff::Timestamp;
use tokio::time::{self, Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::ledger::Ledger;
use crate::objects::capacity::Buffers;
use crate::predict::Tables;
use crate::predict::forecast::Waiting;
use crate::predict::learner::Learner;
use crate::predict::sampled::Forecasts;
use crate::shared::Shared;
use crate::snapshot::{self, Built, Caches, Expected, job_key};
use decision::{host_watts, planned_of};
use guards::Guards;
use last::{Latest, LatestPlan};
use sleep::Sleep;

/// Timing of plans.
#[derive(Clone, Copy, Debug)]
pub struct PlanCadence {
    /// How long a plan for new jobs waits for more of them, while others run.
    pub settle: Duration,
    /// Interval of plans without any event.
    pub every: Duration,
}

/// A plan is made after this time without a further event.
const QUIET: Duration = Duration::from_millis(100);
/// Maximum delay of a plan after the first of several events.
const WITHIN: Duration = Duration::from_secs(1);
/// How long a plan waits until steps have read the previous plan's decisions.
const DELIVERED_WITHIN: Duration = Duration::from_secs(3);
/// Minimum delay of a plan requested only by a job's expected end, s.
const EXPECTED_NOT_BEFORE: f64 = 5.0;
/// Seconds until the next plan while a run is overdue. Its expected end is at least as far away as it is overdue: waiting for
/// that would double the time between plans, and jobs that wait for its GPUs would become late unnoticed.
const OVERDUE_WITHIN: f64 = 10.0;
/// How long a plan waits until fewer or more nodes are asked for.
const WRITTEN_WITHIN: Duration = Duration::from_secs(5);
/// A plan that takes longer is logged.
const SLOW: Duration = Duration::from_secs(2);
/// How long the first plan waits until every job has been stepped once.
const FIRST_WITHIN: Duration = Duration::from_secs(10);

/// Plans until `shutdown`.
pub async fn run(
    shared: Arc<Shared>,
    (options, mut buffers): (Options, Buffers),
    learner: Learner,
    pace: PlanCadence,
    heartbeat: Heartbeat,
    (latest, sampled): (LatestPlan, Forecasts),
    shutdown: CancellationToken,
) {
    let signals = shared.index.lock().signals();
    let empty = || Caches::new(Tables::learning(learner.clone()));
    let mut caches = empty();
    // The last plan's prices and intended changes.
    let mut left = FromLastPlan::default();
    let mut machines = Sleep::new(clock::now());
    let mut wake: Option<Instant> = None;
    let mut number: u64 = 0;
    wait_until(&shared, FIRST_WITHIN, |index, ledger| {
        index.jobs().iter().all(|(key, _)| ledger.get(key).is_some_and(|memory| memory.claim().is_some()))
    })
    .await;
    loop {
        heartbeat.beat();
        learner.log_slow_fit();
        let tick = Instant::now() + pace.every;
        let until = wake.map_or(tick, |wake| wake.min(tick));
        tokio::select! {
            () = events(&signals, pace.settle, || is_idle(&shared.index.lock())) => {}
            () = sleep_until(until) => {}
            () = shutdown.cancelled() => return,
        }
        wait_until(&shared, DELIVERED_WITHIN, |_, ledger| ledger.is_delivered()).await;
        number += 1;
        // What has asked for a plan until here is in this one.
        signals.soon.notified().now_or_never();
        // Everything logged before this line is in the plan.
        tracing::debug!(plan = number, "takes a snapshot");
        let (index, ledger, waiting) = copy_state(&shared);
        let with = std::mem::replace(&mut caches, empty());
        let (last, wanted) = (std::mem::take(&mut left), options.clone());
        let work = move || {
            let at = clock::now();
            let (with, built, planned) = make(&index, &ledger, with, (last, at), &wanted);
            (with, built, planned, (index, ledger, at))
        };
        let Ok((with, built, planned, (index, ledger, at))) = tokio::task::spawn_blocking(work).await else {
            // Snapshot and planner are pure and total; a panic is a bug that a restart does not fix.
            shared.metrics.planning.errors.inc();
            tracing::error!("planning failed");
            time::sleep(Duration::from_secs(5)).await;
            continue;
        };
        caches = with;
        match planned {
            Ok((plan, took)) => {
                if plan.bound_invalid {
                    tracing::warn!(plan = number, "the bound of the plan is above its cost");
                }
                shared.metrics.planning.seconds.observe(took.as_secs_f64());
                let (jobs, seconds) = (built.snapshot.jobs.len(), took.as_secs_f64());
                tracing::debug!(plan = number, jobs, seconds, trials = plan.trials, gap = ?plan.gap, "planned");
                if took > SLOW {
                    tracing::warn!(
                        jobs,
                        seconds,
                        trials = plan.trials,
                        "a plan took long: fewer --trials make it faster"
                    );
                }
                let wanted = machines.after(&index, (&built.snapshot, &plan), &waiting, at);
                let next = wanted.next.map(from_now);
                want(&shared, &mut buffers, wanted).await;
                // After fewer nodes are asked for: a pod that takes one of them must not be followed by another node.
                wake = deliver(&shared, &built, &plan, number, &sampled);
                wake = wake.into_iter().chain(next).min();
                left = FromLastPlan { prices: plan.prices.clone(), intended: plan.intended.clone() };
                latest.keep(Latest {
                    at,
                    index,
                    ledger,
                    snapshot: built.snapshot,
                    options: options.clone(),
                    plan,
                    draws: built.draws,
                });
            }
            Err(error) => {
                shared.metrics.planning.errors.inc();
                tracing::error!(%error, "the snapshot cannot be planned");
                time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Makes known what is wanted of machines and of autoscalers.
async fn want(shared: &Shared, buffers: &mut Buffers, wanted: sleep::Wanted) {
    shared.metrics.saved(wanted.saved.0);
    let now = clock::now();
    let more = wanted.capacity.iter().map(|(pool, asked)| (pool.clone(), asked.more)).collect();
    let asked = shared.index.lock().ask_capacity(&more, now);
    let replicas = |(pool, asked): (String, usize)| {
        let of_kind = wanted.capacity.get(&pool).copied().unwrap_or_default();
        (pool, of_kind.replicas(asked))
    };
    let all: BTreeMap<String, usize> = asked.into_iter().map(replicas).collect();
    let policy = shared.index.lock().policy().cloned();
    let written = timeout(WRITTEN_WITHIN, buffers.write(&shared.writer, policy.as_deref(), &all)).await;
    let late = || all.keys().map(|pool| (pool.clone(), "the API server is slow".to_owned())).collect();
    shared.index.lock().note_unwritten(&written.unwrap_or_else(|_| late()));
    let mut known = shared.wanted_power.lock();
    if *known != wanted.power {
        *known = wanted.power;
        shared.index.lock().signals().power.notify_one();
    }
}

/// What a plan hands to the next one; all of it can be lost.
#[derive(Default)]
pub struct FromLastPlan {
    prices: Option<Prices>,
    intended: Vec<IntendedChange>,
}

/// Maximum jobs excluded from one snapshot because of invalid values.
const MAX_INVALID_JOBS: usize = 64;

/// Builds a snapshot and plan.
pub fn make(
    index: &ClusterIndex,
    ledger: &Ledger,
    mut caches: Caches,
    (last, now): (FromLastPlan, Timestamp),
    options: &Options,
) -> (Caches, Built, Result<(Plan, Duration), SnapshotError>) {
    let mut built = snapshot::build(index, ledger, &mut caches, last.prices, now);
    built.snapshot.intended = last.intended;
    let started = Instant::now();
    let plan = match plan_valid(&mut built.snapshot, options) {
        Ok(plan) => plan,
        Err(error) => return (caches, built, Err(error)),
    };
    let took = started.elapsed();
    (caches, built, Ok((plan, took)))
}

/// Plans a snapshot. A job with invalid values is taken out of it and named; it must not block the others.
///
/// # Errors
/// If the planner refuses the snapshot for another reason.
pub fn plan_valid(snapshot: &mut Snapshot, options: &Options) -> Result<Plan, SnapshotError> {
    let mut invalid = 0;
    loop {
        let error = match andreas_planner::plan(snapshot, options) {
            Ok(plan) => return Ok(plan),
            Err(error) => error,
        };
        let jobs = &mut snapshot.jobs;
        let named = jobs.iter().position(|job| error.field.starts_with(&format!("jobs[{}]", job.id)));
        match named.filter(|_| invalid < MAX_INVALID_JOBS) {
            Some(at) => {
                tracing::error!(job = %jobs[at].id, %error, "left out of the plan");
                jobs.remove(at);
                invalid += 1;
            }
            None => return Err(error),
        }
    }
}

/// Waits for events that call for a plan, and for more that the same plan can answer. The first job of an idle cluster waits for no
/// others.
async fn events(signals: &Signals, settle: Duration, idle: impl Fn() -> bool) {
    tokio::select! {
        () = signals.plan.notified() => debounce(&signals.plan).await,
        () = signals.soon.notified() => {
            if idle() {
                debounce(&signals.soon).await;
            } else if timeout(settle, signals.plan.notified()).await.is_ok() {
                debounce(&signals.plan).await;
            }
        }
    }
}

/// Whether no job holds GPUs.
fn is_idle(index: &ClusterIndex) -> bool {
    let holds = |job: &SlimTrainingJob| job.status.as_ref().is_some_and(|status| status.allocation.is_some());
    !index.jobs().iter().any(|(_, job)| holds(job))
}

async fn debounce(signal: &tokio::sync::Notify) {
    let end = Instant::now() + WITHIN;
    loop {
        let quiet = Instant::now() + QUIET;
        if timeout(quiet.min(end).duration_since(Instant::now()), signal.notified()).await.is_err()
            || Instant::now() >= end
        {
            return;
        }
    }
}

/// Waits until a condition holds, with a time-out: a late plan is better than none.
async fn wait_until(shared: &Shared, within: Duration, holds: impl Fn(&ClusterIndex, &Ledger) -> bool) {
    let signals = shared.index.lock().signals();
    let end = Instant::now() + within;
    loop {
        {
            let index = shared.index.lock();
            if holds(&index, &shared.ledger.lock()) {
                return;
            }
        }
        if timeout_at(end, signals.stepped.notified()).await.is_err() {
            return;
        }
    }
}

/// A consistent copy of index and ledger, so that nothing waits for the plan. Grants of the last plan are
/// void from here on.
fn copy_state(shared: &Shared) -> (ClusterIndex, Ledger, Vec<WaitingPod>) {
    let mut index = shared.index.lock();
    index.see_capacity(clock::now());
    let mut ledger = shared.ledger.lock();
    ledger.revoke_grants(|key, planned| {
        let status = index.jobs().get(key).and_then(|job| job.status.as_ref());
        let Some(held) = status.and_then(|status| status.allocation.as_ref()) else { return false };
        planned.runs_on(&held.nodes, held.gpus_per_worker)
    });
    let copies = (index.for_plan(), ledger.clone(), index.waiting_pods());
    drop(ledger);
    drop(index);
    update_settings(shared, &copies.0);
    copies
}

/// Jobs without a status per additional second before a job reports that it is unplanned; then the maximum of
/// that wait, s.
const UNREPORTED_PER_SECOND: usize = 50;
const MAX_UNREPORTED: usize = 30;

/// Other figures from the snapshot: the largest node's size, and the delays of status texts.
fn update_settings(shared: &Shared, index: &ClusterIndex) {
    let largest = largest_node(index);
    // With many waiting jobs each plan changes all texts, so they are written less often.
    let quiet = 60.max(i64::try_from(index.jobs().len() / 20).unwrap_or(i64::MAX)).min(3_600);
    let unreported = index.jobs().iter().filter(|(_, job)| job.status.is_none()).count();
    let first_plan =
        i64::try_from((3 + unreported / UNREPORTED_PER_SECOND).min(MAX_UNREPORTED)).unwrap_or(i64::MAX);
    let mut settings = shared.settings.lock();
    let new = Settings {
        // While no node offers GPUs, keep the last size: device plug-ins restart.
        largest_node_gpus: largest.or(settings.largest_node_gpus),
        text_interval_seconds: quiet,
        first_plan_seconds: first_plan,
        ..(**settings).clone()
    };
    if **settings != new {
        *settings = Arc::new(new);
    }
}

/// Delivers a plan and returns the latest time of the next one.
fn deliver(shared: &Shared, built: &Built, plan: &Plan, number: u64, sampled: &Forecasts) -> Option<Instant> {
    shared.metrics.planned(figures::figures(plan));
    let mut index = shared.index.lock();
    let mut ledger = shared.ledger.lock();
    let mut changed = record(&index, &mut ledger, built, plan);
    for key in &changed {
        let decision = ledger.get(key).and_then(|memory| memory.plan().decision.as_ref()).map(|d| &d.planned);
        tracing::debug!(plan = number, job = %key, ?decision, "decided");
    }
    forecasts(&index, &mut ledger, plan, built, sampled, &mut changed);
    for key in changed {
        index.mark(key);
    }
    next_plan_at(built, plan)
}

/// Which nodes are left out where a job says how much memory its GPUs need: theirs may have it.
fn memory_unknown(index: &ClusterIndex) -> Option<String> {
    let unlabelled = |node: &SlimNode| whole_gpus(node) > 0 && gpu_memory(node) == 0;
    let count = index.nodes().iter().filter(|(_, node)| unlabelled(node)).count();
    let words = "GPU nodes do not say their GPUs' memory (label nvidia.com/gpu.memory), which spec.gpus.memoryGiB needs";
    (count > 0).then(|| format!("{count} {words}"))
}

/// Records a plan's decisions in the ledger. Returns the jobs whose decision changed.
pub fn record(index: &ClusterIndex, ledger: &mut Ledger, built: &Built, plan: &Plan) -> Vec<ObjectKey> {
    let jobs: BTreeMap<_, _> = built.snapshot.jobs.iter().map(|job| (&job.id, job)).collect();
    let nodes: BTreeMap<_, _> = built.snapshot.nodes.iter().map(|node| (&node.name, node)).collect();
    let at = Timestamp::from_second(built.snapshot.now.0 as i64).unwrap_or_default();
    let (of_memory, missing) = (memory_unknown(index), index.missing_capacity());
    let mut guards = Guards::new(index, built, plan);
    let mut changed = Vec::new();
    for (id, job_plan) in &plan.jobs {
        let (Some(key), Some(job)) = (job_key(id), jobs.get(id)) else { continue };
        let Some(basis) = built.basis.get(&key) else { continue };
        let asks_memory = index.jobs().get(&key).is_some_and(|job| job.spec.gpus.memory_gib.is_some());
        let notes = [built.excluded.as_ref(), of_memory.as_ref().filter(|_| asks_memory)];
        let notes = notes.into_iter().flatten().cloned().collect::<Vec<_>>().join("; ");
        let notes = Some(notes.as_str()).filter(|notes| !notes.is_empty());
        let Some(planned) = planned_of(job_plan, job, (notes, &missing)) else { continue };
        let about = (index, &job.state);
        let Some(planned) = sleep::wish(&job_plan.decision, planned, about, &nodes, at) else { continue };
        let planned = guards.guarded(planned, &key, job);
        let after = job_plan.after.iter().filter_map(|id| holder(index, ledger, job_key(id)?)).collect();
        if let Some(memory) = ledger.get_mut(&key, &basis.uid) {
            // Beside the decision: a new reading of a host makes no new decision.
            memory.set_host_watts(host_watts(&job_plan.decision, &nodes));
        }
        if ledger.decide(&key, &basis.uid, DecisionFor { basis: basis.decisions, planned }, after) {
            changed.push(key);
        }
    }
    for (key, basis, place) in &built.queued {
        let planned = Planned::Wait { reason: Reason::QueueFull, message: place.message() };
        let decision = DecisionFor { basis: basis.decisions, planned };
        if ledger.decide(key, &basis.uid, decision, Vec::new()) {
            changed.push(key.clone());
        }
    }
    changed
}

/// A job with the attempt in which it holds its GPUs, by the status being written, else by the last observed one;
/// `None`: it has left since the plan's snapshot.
fn holder(index: &ClusterIndex, ledger: &Ledger, job: ObjectKey) -> Option<(ObjectKey, i64)> {
    let attempt = ledger.status(index, &job)?.allocation.as_ref()?.attempt;
    Some((job, attempt))
}

/// Latest time of the next plan: an edge of tariff or budget, the end of a backoff, or the planner's next
/// expected event. The end of a job is itself an event. One that is overdue must not cause plans without a
/// pause.
fn next_plan_at(built: &Built, plan: &Plan) -> Option<Instant> {
    let now = clock::now().as_millisecond() as f64 / 1_000.0;
    let snapshot = &built.snapshot;
    let budget = snapshot.budget.as_ref().and_then(|budget| budget.watts.next_edge(snapshot.now));
    let exact = [snapshot.tariff.next_edge(snapshot.now), budget].into_iter().flatten().map(|at| at.0);
    let back_off = built.not_before.map(|at| at.as_millisecond() as f64 / 1_000.0);
    let expected = plan.next_event.map(|at| at.0.max(now + EXPECTED_NOT_BEFORE));
    let overdue =
        built.expected.values().any(|expected| expected.outlook.overdue).then_some(now + OVERDUE_WITHIN);
    let first = exact
        .chain(back_off)
        .chain(expected)
        .chain(overdue)
        .filter(|at| at.is_finite())
        .min_by(f64::total_cmp)?;
    Some(from_now(Time(first)))
}

/// When that is, an hour from now at most.
fn from_now(at: Time) -> Instant {
    let now = clock::now().as_millisecond() as f64 / 1_000.0;
    Instant::now() + Duration::from_secs_f64((at.0 - now).clamp(0.1, 3_600.0))
}

/// Stores every job's predictions for its next steps.
fn forecasts(
    index: &ClusterIndex,
    ledger: &mut Ledger,
    plan: &Plan,
    built: &Built,
    sampled: &Forecasts,
    changed: &mut Vec<ObjectKey>,
) {
    let now = clock::now();
    let sampled = sampled.fresh(now);
    for (key, Expected { table, outlook }) in &built.expected {
        let Some(job) = index.jobs().get(key) else { continue };
        let Some(memory) = ledger.get_mut(key, job.metadata.uid.as_deref().unwrap_or_default()) else {
            continue;
        };
        let id = snapshot::job_id(key);
        let waiting = Waiting {
            on_time: plan.jobs.get(&id).map(|job_plan| job_plan.on_time),
            sampled: sampled.as_ref().and_then(|sampled| sampled.job(&id)),
        };
        memory.set_predictions(Arc::clone(table), *outlook, waiting);
        let Some(seen) = memory.outlook(job, now) else { continue };
        let new = memory.forecast(job, &seen, now);
        let written = job.status.as_ref().and_then(|status| status.prediction.as_ref());
        // A first forecast or another risk class is worth a step, which decides on the write.
        if written.is_none_or(|written| written.risk != new.risk || written.source != new.source) {
            changed.push(key.clone());
        }
    }
}

#[cfg(test)]
mod tests;
