//! One step of one job: observe, decide, write the status, act.

use std::sync::Arc;
use std::time::Duration;

use andreas_api::names::LABEL_ATTEMPT;
use andreas_api::slim::{SlimNode, SlimPod, SlimTrainingJob};
use andreas_api::training_job::Allocation;
use andreas_api::training_profile::Observation;
use andreas_api::{Outcome, Phase, TrainingJobStatus};
use andreas_cluster::index::{ClusterIndex, number};
use andreas_lifecycle::{Claim, ProfileUpdate, Step};
use andreas_runtime::clock;
use andreas_runtime::watch::ObjectKey;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::observe::JobInput;
use super::outcomes::uid;
use super::rate_limits::Edit;
use super::requeue::{Requeue, back_off, earlier};
use super::{Executor, actions, dry_runs, kubelet_events};
use crate::ledger::Ledger;
use crate::shared::Shared;
use crate::writes::{Refusal, WriteError, patch};

/// Consecutive conflicts of a job's status writes after which three of four no longer name the version of the object.
const CONFLICTS_UNTIL_OPERATIONS: u32 = 2;

/// Makes and carries out one step of a job.
pub async fn step(executor: &Arc<Executor>, key: &ObjectKey) -> Requeue {
    let shared = &executor.shared;
    if let Some(wait) = executor.rate_limits.delay(key, unobserved_edit(shared, key)) {
        // Plans do not wait for a job that backs off.
        let last = shared.ledger.lock().mark_delivered(key);
        if last {
            shared.index.lock().signals().stepped.notify_one();
        }
        return Requeue::After(wait);
    }
    if let Err(again) = read_unanswered(shared, key).await {
        return again;
    }
    let Some(seen) = read_input(executor, key) else { return Requeue::OnEvent };
    let job = Arc::clone(&seen.job);
    let again = step_from(executor, key, seen).await;
    if let Some(memory) = shared.ledger.lock().get_mut(key, uid(&job)) {
        memory.release_unused();
    }
    again
}

async fn step_from(executor: &Arc<Executor>, key: &ObjectKey, mut seen: JobInput) -> Requeue {
    let shared = &executor.shared;
    let next_request = request_plan(shared, key, &seen);
    seen = ask_kubelets(shared, key, seen).await;
    let mut step = seen.step();
    shared.metrics.steps.reconciles.inc();
    if blames_user(&seen.job, &step.status) && read_nodes(shared, &seen.job).await {
        let Some(again) = read_input(executor, key) else { return Requeue::OnEvent };
        seen = ask_kubelets(shared, key, again).await;
        step = seen.step();
    }

    if let Some(memory) = shared.ledger.lock().get_mut(key, uid(&seen.job)) {
        memory.record_facts(std::mem::take(&mut step.facts));
    }
    let changed = difference(seen.job.status.as_ref(), &step.status);
    let notices = changed.is_some();
    let written = match changed {
        None => Ok(()),
        Some(changes) => write_status(executor, key, &seen.job, &step, changes).await,
    };
    if let Err(again) = written {
        if seen.job.metadata.deletion_timestamp.is_some() {
            // Its pods end even if its status cannot be written.
            store_claim(shared, key, &seen.job, step.claim.clone());
            let _ = actions::carry_out(executor, key, &seen.job, step.actions).await;
        }
        return again;
    }
    store_claim(shared, key, &seen.job, step.claim.clone());
    reconcile_energy(executor, key, &seen, &step);
    forget_judged(shared, key, &step.status);
    for note in step.events.iter().filter(|_| executor.rate_limits.may_publish(key, uid(&seen.job))) {
        executor.events.publish(&seen.job, note);
    }
    if notices {
        publish_notices(executor, key, &seen.job, &step.status);
    }
    let room = step.has_room_for();
    if !step.learned.is_empty() {
        let table = shared.ledger.lock().get(key).and_then(|memory| memory.plan().predictions.table.clone());
        if let Some(table) = table {
            shared.metrics.learned(&table, &step.learned);
        }
        executor.profile_updates.add(seen.profile_key(), step.learned);
    }
    if let Some(generation) = room
        && let Some(memory) = shared.ledger.lock().get_mut(key, uid(&seen.job))
    {
        memory.creation().record_room(generation, clock::now());
    }
    match actions::carry_out(executor, key, &seen.job, step.actions).await {
        Ok(()) => {
            if let Some(memory) = shared.ledger.lock().get_mut(key, uid(&seen.job)) {
                memory.carried_out();
            }
            step.next.into_iter().chain(next_request).min().map_or(Requeue::OnEvent, Requeue::At)
        }
        Err(again) => earlier(again, step.next),
    }
}

/// Adds what kubelets say of pods that ended or do not start, where that decides the step.
async fn ask_kubelets(shared: &Shared, key: &ObjectKey, seen: JobInput) -> JobInput {
    let asked = seen.questions();
    if asked.is_empty() {
        return seen;
    }
    let answers = kubelet_events::read(shared.writer.client(), &key.namespace, asked).await;
    if let Some(why) = answers.values().find_map(|answer| answer.as_ref().err()) {
        tracing::warn!(job = %key, why = why.message, "events of its pods could not be read");
    }
    seen.with_events(answers)
}

/// Events about what the written status shows, as far as the namespace's rate allows them.
fn publish_notices(executor: &Executor, key: &ObjectKey, job: &SlimTrainingJob, written: &TrainingJobStatus) {
    let notes = {
        let mut ledger = executor.shared.ledger.lock();
        let Some(memory) = ledger.get_mut(key, uid(job)) else { return };
        memory.announce(job.status.as_ref(), written, clock::now())
    };
    for note in notes.iter().filter(|_| executor.rate_limits.may_notify(&key.namespace)) {
        executor.events.publish(job, note);
    }
}

/// A change of the `spec` since the last step; a new job is no edit.
fn unobserved_edit(shared: &Shared, key: &ObjectKey) -> Option<Edit> {
    let index = shared.index.lock();
    // A job that is being deleted never waits.
    let job = index.jobs().get(key).filter(|job| job.metadata.deletion_timestamp.is_none())?;
    let seen = job.status.as_ref()?.observed_generation?;
    let generation = job.metadata.generation.filter(|generation| *generation != seen)?;
    Some(Edit { generation, holds_gpus: held(job).is_some() })
}

/// Requests a new plan if the run deviates from the last one. Returns the requeue time if a request is not
/// allowed yet.
fn request_plan(shared: &Shared, key: &ObjectKey, seen: &JobInput) -> Option<Timestamp> {
    let (planned, found) = seen.off_plan()?;
    if let Err(then) = shared.ledger.lock().may_request_plan(key, uid(&seen.job), clock::now()) {
        return Some(then);
    }
    let (planned_s, seen_s) = (planned.epoch.median, found.epoch.median);
    tracing::info!(job = %key, planned_s, seen_s, "an epoch takes another time than planned with: plans again");
    shared.metrics.steps.deviations.inc();
    shared.index.lock().replan_soon();
    None
}

/// Records the energy that agents still have to report for an attempt ended by this step. Adds late reports
/// to the job's profile.
fn reconcile_energy(executor: &Executor, key: &ObjectKey, seen: &JobInput, step: &Step) {
    let shared = &executor.shared;
    let mut index = shared.index.lock();
    let pending_energy = seen.pending_energy(&index, step);
    let mut ledger = shared.ledger.lock();
    let Some(memory) = ledger.get_mut(key, uid(&seen.job)) else { return };
    if let Some(late) = seen.late()
        && let Some(paid) = memory.take_pending_energy(late.attempt)
    {
        let seen_draw = paid.observation.map(|run| Observation { watts: late.watts, ..run });
        if let (Some(table), Some(run)) = (&memory.plan().predictions.table, &seen_draw) {
            shared.metrics.metered(table, run);
        }
        let update = seen_draw.map(ProfileUpdate::Observation);
        executor.profile_updates.add(seen.profile_key(), update.into_iter().collect());
        index.await_energy_report(key, std::iter::empty());
    }
    if let Some(pending_energy) = pending_energy {
        index.await_energy_report(key, pending_energy.members.iter().map(|member| member.pod.clone()));
        memory.await_energy(pending_energy);
        // Agents may have reported since the input was read.
        index.mark(key.clone());
    }
}

/// The job's current input; `None` if it does not exist, and its state is dropped.
fn read_input(executor: &Executor, key: &ObjectKey) -> Option<JobInput> {
    let shared = &executor.shared;
    let index = shared.index.lock();
    let mut ledger = shared.ledger.lock();
    let settings = Arc::clone(&shared.settings.lock());
    let reports = executor.reports.lock();
    let remembered = |uid: &str| {
        let memory = ledger.entry(key, uid);
        memory.record_reports(reports.get(uid).copied(), executor.rejected_reports.last_possible_loss(uid));
        memory.infer_dry_run(|| dry_runs::of_live_worker(&index, key, &settings, clock::now()));
        memory.clone()
    };
    let Some(seen) = JobInput::gather(&index, remembered, key, Arc::clone(&settings), clock::now()) else {
        ledger.forget(key);
        executor.rate_limits.forget(key);
        return None;
    };
    if ledger.mark_delivered(key) {
        index.signals().stepped.notify_one();
    }
    let seen = seen.held_back(&index, &ledger);
    if let Some(memory) = ledger.get_mut(key, uid(&seen.job)) {
        memory.reserve(seen.decision(), clock::now());
    }
    Some(seen)
}

/// The step counts a failure of the user's program.
fn blames_user(job: &SlimTrainingJob, new: &TrainingJobStatus) -> bool {
    let failures = |status: &TrainingJobStatus| {
        let stop = status.stop.as_ref().and_then(|stop| stop.outcome) == Some(Outcome::UserFailure);
        (status.user_failures, stop)
    };
    failures(new) != job.status.as_ref().map(failures).unwrap_or_default()
        && (new.user_failures > 0 || failures(new).1)
}

/// Reads the job's nodes live. A rebooted node reports its pods and itself separately, and watches deliver
/// the two in any order. `true`: a node had changed.
async fn read_nodes(shared: &Shared, job: &SlimTrainingJob) -> bool {
    let nodes = held(job).map(|allocation| allocation.nodes.clone()).unwrap_or_default();
    let reads = nodes.into_iter().map(|name| async move {
        let key = ObjectKey { namespace: String::new(), name };
        match shared.writer.get::<SlimNode>(&key).await {
            Ok(Some(node)) => shared.index.lock().wrote_node(node),
            Ok(None) | Err(_) => false,
        }
    });
    futures::future::join_all(reads).await.into_iter().any(|new| new)
}

fn held(job: &SlimTrainingJob) -> Option<&Allocation> {
    job.status.as_ref().and_then(|status| status.allocation.as_ref())
}

/// The changed part of the status. `progress` belongs to the replica that receives the reports; only the end
/// of a run is written here.
fn difference(old: Option<&TrainingJobStatus>, new: &TrainingJobStatus) -> Option<Value> {
    // An unplanned job has an empty status: not worth a write.
    if old.is_none() && *new == TrainingJobStatus::default() {
        return None;
    }
    let mut changes = patch::diff(&old.map_or_else(|| Value::Object(Map::new()), json), &json(new))?;
    if let Some(fields) = changes.as_object_mut() {
        if new.phase != Phase::Succeeded {
            fields.remove("progress");
        }
        if fields.is_empty() {
            return None;
        }
    }
    Some(changes)
}

fn json(status: &TrainingJobStatus) -> Value {
    serde_json::to_value(status).unwrap_or_else(|_| Value::Object(Map::new()))
}

/// Writes the status and stores the response in the index. Plans see the new status while the write is in
/// flight.
async fn write_status(
    executor: &Executor,
    key: &ObjectKey,
    job: &SlimTrainingJob,
    step: &Step,
    changes: Value,
) -> Result<(), Requeue> {
    let shared = &executor.shared;
    let replan = {
        let mut ledger = shared.ledger.lock();
        let Some(memory) = ledger.get_mut(key, uid(job)) else { return Err(Requeue::Now) };
        memory.begin_write(step.status.clone());
        let before = memory.claim_by_step(step.claim.clone(), held(job), clock::now());
        before.map(|before| (before, step.claim.clone()))
    };
    // Whoever edits an object all the time would otherwise hold off what stops it.
    let conflicts = executor.rate_limits.conflicts(key);
    let by_operations = conflicts >= CONFLICTS_UNTIL_OPERATIONS && !conflicts.is_multiple_of(4);
    let old = job.status.as_ref().filter(|_| by_operations).map(json);
    let tested = old.is_some();
    let result = match old {
        Some(old) => {
            let operations = patch::status_operations(uid(job), &old, &json(&step.status), &changes);
            shared.writer.patch_job_status_by_operations(key, &operations).await
        }
        None => {
            let body = patch::status_body(uid(job), job.metadata.resource_version.as_deref(), changes);
            shared.writer.patch_status("status", key, &body).await
        }
    };
    match result {
        Ok(answer) => written(executor, key, job, step, answer, replan),
        Err(error) => {
            shared.metrics.steps.errors.inc();
            let conflict = matches!(error.refusal(), Refusal::Conflict | Refusal::NotFound)
                || tested && error.is_failed_test();
            let holds_gpus = held(job).is_some();
            let wait = if conflict { executor.rate_limits.conflict(key, holds_gpus) } else { Duration::ZERO };
            // Also after a conflict: a client that retries a write without an answer conflicts with itself.
            let live = if conflict || error.may_have_written() { read(shared, key).await } else { Ok(false) };
            if live.is_ok()
                && let Some(memory) = shared.ledger.lock().get_mut(key, uid(job))
            {
                memory.not_written(replan.map(|(before, _)| before));
            }
            let seen = |index: &ClusterIndex| {
                index.jobs().get(key).and_then(|live| live.metadata.resource_version.clone())
            };
            match live {
                Ok(true) if conflict => Err(if wait.is_zero() { Requeue::Now } else { Requeue::After(wait) }),
                // Its deletion will be seen.
                _ if conflict => Err(Requeue::After(wait.max(Duration::from_secs(1)))),
                Ok(true) if seen(&shared.index.lock()) != job.metadata.resource_version => Err(Requeue::Now),
                _ => {
                    tracing::warn!(job = %key, error = &error as &dyn std::error::Error, "status not written");
                    Err(back_off(shared, key, uid(job)))
                }
            }
        }
    }
}

/// Stores the response under the same lock that ends the pending write.
fn written(
    executor: &Executor,
    key: &ObjectKey,
    job: &SlimTrainingJob,
    step: &Step,
    answer: SlimTrainingJob,
    claims: Option<(Claim, Claim)>,
) -> Result<(), Requeue> {
    let shared = &executor.shared;
    let mut index = shared.index.lock();
    let mut ledger = shared.ledger.lock();
    let Some(memory) = ledger.get_mut(key, uid(job)) else { return Err(Requeue::Now) };
    memory.written(clock::now());
    let first_sampled = memory.plan().predictions.first_sampled;
    executor.rate_limits.written(key);
    if claims.as_ref().is_none_or(|(before, after)| differs(before, after)) {
        claim_changed(&mut index, &ledger, key, (claims.as_ref().map(|(before, _)| before), &step.claim));
    } else if is_edited(job, &step.status) && step.claim != Claim::Nothing {
        // No plan has a job that claims nothing, and an edit gives nothing to those that wait for the job.
        index.replan();
    }
    shared.metrics.wrote_status(job, &step.status);
    let was = job.status.as_ref().map(|status| status.phase).unwrap_or_default();
    if let Some(first) = first_sampled
        && step.status.phase == Phase::Succeeded
        && was != Phase::Succeeded
    {
        let end = step.status.completion_time.as_ref().map_or_else(clock::now, |at| at.0);
        shared.metrics.forecast_came_true(&first, end);
        ledger.forecast_came_true(&first, end);
    }
    if was != step.status.phase {
        let (to, reason) = (step.status.phase.as_str(), step.status.reason.as_deref().unwrap_or_default());
        tracing::info!(job = %key, from = was.as_str(), to, reason, "phase");
    }
    index.wrote_job(answer);
    Ok(())
}

/// Stores the API server's state of a job in the index. `false`: it does not exist.
async fn read(shared: &Shared, key: &ObjectKey) -> Result<bool, WriteError> {
    let before = shared.index.lock().jobs().version(key);
    let Some(job) = shared.writer.get::<SlimTrainingJob>(key).await? else { return Ok(false) };
    let mut index = shared.index.lock();
    if !index.read_job(job, before) {
        tracing::error!(job = %key, "the API server is in an older state than before: starting afresh");
        index.signals().rewound.notify_one();
    }
    Ok(true)
}

/// After a lost response, the status may or may not be written. It stays pending until the job has been read,
/// so no plan reassigns its GPUs or moves the job.
async fn read_unanswered(shared: &Shared, key: &ObjectKey) -> Result<(), Requeue> {
    let unanswered =
        |ledger: &Ledger| ledger.get(key).filter(|m| m.pending().is_some()).map(|m| m.uid().to_owned());
    let Some(uid) = unanswered(&shared.ledger.lock()) else { return Ok(()) };
    if read(shared, key).await.is_err() {
        return Err(back_off(shared, key, &uid));
    }
    if let Some(memory) = shared.ledger.lock().get_mut(key, &uid) {
        memory.end_write();
    }
    Ok(())
}

/// Whether the step is the first one that has read an edit of the `spec`. A new job has generation 1.
fn is_edited(job: &SlimTrainingJob, new: &TrainingJobStatus) -> bool {
    let observed = job.status.as_ref().and_then(|status| status.observed_generation).unwrap_or(1);
    !new.phase.is_terminal() && new.observed_generation.is_some_and(|generation| generation != observed)
}

/// Whether plans depend on the difference of two claims.
fn differs(before: &Claim, after: &Claim) -> bool {
    match (before, after) {
        (Claim::Stopping { goes_on: a, .. }, Claim::Stopping { goes_on: b, .. }) => a != b,
        (a, b) => a != b,
    }
}

/// Stores the claim. If plans depend on the change, requests a new plan and requeues the jobs that wait for
/// this one.
fn store_claim(shared: &Shared, key: &ObjectKey, job: &SlimTrainingJob, claim: Claim) {
    let mut index = shared.index.lock();
    let mut ledger = shared.ledger.lock();
    let Some(memory) = ledger.get_mut(key, uid(job)) else { return };
    let before = memory.claim_by_step(claim.clone(), held(job), clock::now());
    if before.as_ref().is_none_or(|before| differs(before, &claim)) {
        claim_changed(&mut index, &ledger, key, (before.as_ref(), &claim));
    }
}

/// The job's claim changed: requests a plan and requeues jobs that may wait for it.
fn claim_changed(
    index: &mut ClusterIndex,
    ledger: &Ledger,
    key: &ObjectKey,
    (before, after): (Option<&Claim>, &Claim),
) {
    // A new job comes alone or with others, and a start goes as planned.
    match (before, after) {
        (None | Some(Claim::Nothing), Claim::Waiting { .. })
        | (_, Claim::Starting { .. } | Claim::Running { .. }) => index.replan_soon(),
        _ => index.replan(),
    }
    for waits in ledger.waiting_for(key) {
        index.mark(waits);
    }
}

/// Drops deleted pods once their attempt has its record.
fn forget_judged(shared: &Shared, key: &ObjectKey, status: &TrainingJobStatus) {
    let mut index = shared.index.lock();
    if index.deleted(key).is_empty() {
        return;
    }
    let terminal = matches!(status.phase, Phase::Succeeded | Phase::Failed);
    index.forget_deleted(key, |deleted| {
        let attempt = number(&deleted.last.metadata, LABEL_ATTEMPT);
        !terminal && !status.history.iter().any(|record| Some(record.attempt) == attempt)
    });
}

/// Reads pods known only from our own creation: a watch that began after their end would never show them.
pub(super) async fn confirm_pods(shared: &Arc<Shared>, age: Duration) {
    let unconfirmed = shared.index.lock().unconfirmed_pods(age);
    for key in unconfirmed.into_iter().take(16) {
        match shared.writer.get::<SlimPod>(&key).await {
            Ok(Some(pod)) => shared.index.lock().confirm_pod(pod),
            Ok(None) => shared.index.lock().pod_not_found(&key),
            Err(error) => tracing::debug!(pod = %key, %error, "could not be read"),
        }
    }
}
