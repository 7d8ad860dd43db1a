//! Carries out the actions of a step.

use std::sync::Arc;
use std::time::Duration;

use andreas_api::names::LABEL_ATTEMPT;
use andreas_api::slim::{SlimPod, SlimTrainingJob};
use andreas_api::{Reason, TrainingJob};
use andreas_cluster::index::{number, owner};
use andreas_lifecycle::pods::unplaced_worker;
use andreas_lifecycle::{Action, Admitted, CreationOutcome, DeleteReason, DryRunResult};
use andreas_runtime::clock;
use andreas_runtime::watch::ObjectKey;
use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use serde_json::json;

use super::Executor;
use super::adopted;
use super::dry_runs::DryRunLookup;
use super::outcomes::{failed, job_generation, not_made, refused, report, uid};
use super::requeue::Requeue;
use crate::ledger::backoff::Cause;
use crate::objects::nodes;
use crate::shared::Shared;
use crate::snapshot::worker;
use crate::writes::{Refusal, WriteError};

/// Carries out actions in order and stops at the first that must be retried.
///
/// # Errors
/// When to requeue the job.
pub async fn carry_out(
    executor: &Arc<Executor>,
    key: &ObjectKey,
    job: &SlimTrainingJob,
    actions: Vec<Action>,
) -> Result<(), Requeue> {
    // What is only remembered must not be lost with a call that fails: it is asked for once.
    let (remembered, sent): (Vec<Action>, Vec<Action>) = actions
        .into_iter()
        .partition(|action| matches!(action, Action::BackOff { .. } | Action::ForgetDryRuns));
    for action in remembered {
        one(executor, key, job, action).await?;
    }
    // A gang's deletes and wakes go out together; creations keep their order.
    let (at_once, in_order): (Vec<Action>, Vec<Action>) = sent.into_iter().partition(|action| {
        matches!(action, Action::DeletePod { .. } | Action::Wake { .. } | Action::Place { .. })
    });
    for result in join_all(at_once.into_iter().map(|action| one(executor, key, job, action))).await {
        result?;
    }
    for action in in_order {
        one(executor, key, job, action).await?;
    }
    Ok(())
}

async fn one(
    executor: &Arc<Executor>,
    key: &ObjectKey,
    job: &SlimTrainingJob,
    action: Action,
) -> Result<(), Requeue> {
    let shared = &executor.shared;
    match action {
        Action::CreateService(service) => create_service(shared, key, job, &service).await,
        Action::CreatePods { generation, pods } => create_pods(shared, key, job, generation, pods).await,
        Action::DeletePod { name, uid, grace, why } => {
            let pod = ObjectKey { namespace: key.namespace.clone(), name };
            delete_pod(shared, key, job, &pod, &uid, grace, why).await
        }
        Action::Release { attempt, nodes, gpus } => {
            adopted::release(shared, key, job, attempt, (&nodes, gpus)).await
        }
        Action::Hold => adopted::hold(shared, key, job).await,
        Action::Place { name, uid, node } => {
            let pod = ObjectKey { namespace: key.namespace.clone(), name };
            adopted::place(shared, key, job, &pod, &uid, &node).await
        }
        Action::Wake { node, value } => wake(shared, key, job, &node, value).await,
        Action::DryRun { gpus, pod, smaller } => dry_run(executor, key, job, gpus, &pod, &smaller).await,
        Action::ForgetDryRuns => {
            executor.dry_runs.forget(&key.namespace);
            Ok(())
        }
        Action::BackOff { message } => {
            back_off_namespace(shared, Cause::Binding, &key.namespace, &message);
            Ok(())
        }
        Action::DeleteJob { uid, version } => {
            let deleted = shared.writer.delete::<TrainingJob>(key, &uid, version, None).await;
            deleted.map(|_| ()).or_else(|error| failed(shared, key, job, "delete job", &error))
        }
    }
}

/// A dry run or creation got no verdict, or bindings are refused: the namespace's jobs back off.
fn back_off_namespace(shared: &Shared, cause: Cause, namespace: &str, message: &str) {
    let mut index = shared.index.lock();
    if shared.ledger.lock().pods_not_created(cause, namespace, message) {
        tracing::warn!(
            namespace,
            reason = message,
            ?cause,
            "the API server does not make or bind pods of this namespace"
        );
        index.mark_namespace(namespace);
    }
}

/// It got a verdict: ends the namespace's backoff.
fn end_backoff(shared: &Shared, cause: Cause, namespace: &str) {
    let mut index = shared.index.lock();
    if shared.ledger.lock().pods_judged(cause, namespace) {
        index.mark_namespace(namespace);
    }
}

async fn create_service(
    shared: &Arc<Shared>,
    key: &ObjectKey,
    job: &SlimTrainingJob,
    service: &Service,
) -> Result<(), Requeue> {
    let generation = job_generation(shared, key);
    let is_there = |known: bool| {
        if let Some(memory) = shared.ledger.lock().get_mut(key, uid(job)) {
            memory.record_service(known);
        }
    };
    match shared.writer.ensure_service(&key.namespace, service).await {
        Ok(found) => {
            let owners = found.metadata.owner_references.as_deref().unwrap_or_default();
            let own = owners.iter().any(|owner| owner.uid == uid(job));
            is_there(own);
            if own {
                return Ok(());
            }
            let name = format!("Service {}", found.metadata.name.unwrap_or_default());
            report(shared, key, job, generation, CreationOutcome::NameInUse { name });
            Err(Requeue::Now)
        }
        Err(error) => {
            if error.refusal().for_user().is_some() {
                is_there(false);
            }
            refused(shared, key, job, generation, "create service", &error)
        }
    }
}

enum PodCreation {
    /// Created by this call.
    Now(Box<SlimPod>),
    /// Existed already and is ours.
    Before,
    /// Belongs to another owner.
    Foreign(String),
    /// Refused, with a message for the user.
    Refused(Reason, String),
    /// Failed; may be retried.
    Failed(WriteError),
}

/// The quota controller gives back what ended pods used some moments after their end. Longer than this is its verdict:
/// the API server says so in its words.
const QUOTA_SETTLES: SignedDuration = SignedDuration::from_secs(15);
const QUOTA_POLL: Duration = Duration::from_millis(250);

/// Whether the namespace's quotas, as last seen, have no room for the pods yet.
fn awaits_quota(
    shared: &Shared,
    key: &ObjectKey,
    job: &SlimTrainingJob,
    generation: i64,
    pods: &[Pod],
) -> bool {
    let index = shared.index.lock();
    let mut ledger = shared.ledger.lock();
    let Some(memory) = ledger.get_mut(key, uid(job)) else { return false };
    let settled = |since: Timestamp| clock::now().duration_since(since) > QUOTA_SETTLES;
    if memory.creation().room_since(generation).is_none_or(settled) {
        return false;
    }
    let admitted = memory.admission().dry_run.as_ref().and_then(|dry_run| dry_run.admitted.as_deref());
    let is_missing = |pod: &&Pod| {
        let pod = ObjectKey { namespace: key.namespace.clone(), name: pod.name_any() };
        index.pods().get(&pod).is_none()
    };
    let missing = pods.iter().filter(is_missing).filter_map(|pod| pod.spec.as_ref());
    !worker::quotas_have_room(&index, &key.namespace, missing, admitted)
}

/// Creates all pods of a gang at once. If one is refused, deletes the created ones.
async fn create_pods(
    shared: &Arc<Shared>,
    key: &ObjectKey,
    job: &SlimTrainingJob,
    generation: i64,
    pods: Vec<Pod>,
) -> Result<(), Requeue> {
    if awaits_quota(shared, key, job, generation, &pods) {
        return Err(Requeue::After(QUOTA_POLL));
    }
    let results = join_all(pods.iter().map(|pod| create_pod(shared, key, job, pod))).await;
    let mut made = Vec::new();
    let mut refusal = None;
    let mut later = None;
    for result in results {
        match result {
            PodCreation::Now(pod) => made.push(pod),
            PodCreation::Before => {}
            PodCreation::Foreign(name) => refusal = Some(CreationOutcome::NameInUse { name }),
            PodCreation::Refused(reason, message) => {
                refusal = Some(CreationOutcome::Refused { reason, message })
            }
            PodCreation::Failed(error) => later = Some(error),
        }
    }
    if let Some(outcome) = refusal {
        // Never leave a partial gang: delete the created pods at once. Failed deletes are repeated by the
        // next step.
        let undo = made.iter().map(|pod| {
            let pod_key = ObjectKey { namespace: key.namespace.clone(), name: pod.name_any() };
            async move { delete_live(shared, &pod_key, &pod.uid().unwrap_or_default(), None).await }
        });
        for result in join_all(undo).await {
            if let Err(error) = result {
                tracing::warn!(job = %key, error = &error as &dyn std::error::Error, "a pod of half a gang was not deleted");
            }
        }
        report(shared, key, job, generation, outcome);
        return Err(Requeue::Now);
    }
    if let Some(error) = later {
        return not_made(shared, key, job, generation, "create pods", &error);
    }
    end_backoff(shared, Cause::Creation, &key.namespace);
    report(shared, key, job, generation, CreationOutcome::Made);
    Ok(())
}

async fn create_pod(shared: &Arc<Shared>, key: &ObjectKey, job: &SlimTrainingJob, pod: &Pod) -> PodCreation {
    let error = match shared.writer.create::<Pod, SlimPod>("pod", Some(&key.namespace), pod, false).await {
        Ok(answer) => {
            shared.index.lock().wrote_pod(answer.clone());
            return PodCreation::Now(Box::new(answer));
        }
        Err(error) => error,
    };
    let refusal = error.refusal();
    if refusal != Refusal::Exists {
        return refusal
            .for_user()
            .map_or(PodCreation::Failed(error), |(reason, message)| PodCreation::Refused(reason, message));
    }
    let pod_key = ObjectKey { namespace: key.namespace.clone(), name: pod.name_any() };
    match shared.writer.get::<SlimPod>(&pod_key).await {
        Ok(Some(found)) => {
            let attempt = pod.labels().get(LABEL_ATTEMPT).and_then(|text| text.parse::<i64>().ok());
            let ours = owner(&found.metadata).is_some_and(|(_, owner)| owner == uid(job))
                && number(&found.metadata, LABEL_ATTEMPT) == attempt;
            shared.index.lock().wrote_pod(found);
            if ours { PodCreation::Before } else { PodCreation::Foreign(pod_key.name) }
        }
        Ok(None) => PodCreation::Failed(error),
        Err(get) => PodCreation::Failed(get.into()),
    }
}

async fn delete_pod(
    shared: &Arc<Shared>,
    key: &ObjectKey,
    job: &SlimTrainingJob,
    pod: &ObjectKey,
    pod_uid: &str,
    grace: Option<i64>,
    why: DeleteReason,
) -> Result<(), Requeue> {
    let known_ended = shared.index.lock().pods().get(pod).is_some_and(|pod| pod.has_ended());
    let live = match shared.writer.get::<SlimPod>(pod).await {
        Ok(live) => live,
        Err(error) => return failed(shared, key, job, "read before delete", &error.into()),
    };
    let Some(live) = live.filter(|live| live.metadata.uid.as_deref() == Some(pod_uid)) else {
        let mut index = shared.index.lock();
        if index.pods().get(pod).is_some_and(|held| held.metadata.uid.as_deref() == Some(pod_uid)) {
            index.pod_not_found(pod);
        }
        return Ok(());
    };
    let newly_ended = live.has_ended() && !known_ended;
    let going = live.metadata.deletion_timestamp.is_some();
    let shorter =
        grace.is_some_and(|grace| live.metadata.deletion_grace_period_seconds.is_none_or(|now| grace < now));
    shared.index.lock().wrote_pod(live);
    if newly_ended && why != DeleteReason::History {
        // It ended meanwhile: step the job from the new state.
        return Err(Requeue::Now);
    }
    if going && !shorter {
        return Ok(());
    }
    match delete_live(shared, pod, pod_uid, grace.and_then(|grace| u32::try_from(grace).ok())).await {
        Ok(()) => Ok(()),
        Err(error) => failed(shared, key, job, "delete pod", &error),
    }
}

async fn delete_live(
    shared: &Arc<Shared>,
    pod: &ObjectKey,
    uid: &str,
    grace: Option<u32>,
) -> Result<(), WriteError> {
    shared.writer.delete::<Pod>(pod, uid, None, grace).await?;
    // Read the remaining state (a grace period, or nothing) at once instead of waiting for the watch.
    match shared.writer.get::<SlimPod>(pod).await {
        Ok(Some(left)) => shared.index.lock().wrote_pod(left),
        Ok(None) => shared.index.lock().pod_not_found(pod),
        Err(error) => tracing::debug!(%pod, %error, "not read after its deletion"),
    }
    Ok(())
}

async fn wake(
    shared: &Arc<Shared>,
    key: &ObjectKey,
    job: &SlimTrainingJob,
    node: &str,
    value: i64,
) -> Result<(), Requeue> {
    let gpu_node = ObjectKey { namespace: String::new(), name: node.to_owned() };
    if shared.index.lock().gpu_nodes().get(&gpu_node).is_some_and(|held| held.spec.wake_generation >= value) {
        return Ok(());
    }
    // With the guard of what is to start: it is in force before its pods are there.
    let limits = nodes::limits_of(&shared.index.lock(), node);
    let spec = json!({ "wakeGeneration": value, "limits": limits });
    match shared.writer.patch("wake", &gpu_node, &json!({ "spec": spec })).await {
        Ok(answer) => {
            shared.index.lock().wrote_gpu_node(answer);
            Ok(())
        }
        Err(error) => failed(shared, key, job, "wake", &error),
    }
}

async fn dry_run(
    executor: &Arc<Executor>,
    key: &ObjectKey,
    job: &SlimTrainingJob,
    gpus: i32,
    pod: &Pod,
    smaller: &[i32],
) -> Result<(), Requeue> {
    let shared = &executor.shared;
    let before = shared.ledger.lock().get(key).and_then(|memory| memory.admission().dry_run.clone());
    let refused_before = before.as_ref().is_some_and(|run| run.refusal.is_some() || run.smaller.is_some());
    let admitted_before = before.and_then(|run| run.admitted);
    if refused_before {
        executor.rate_limits.admit_dry_run(&key.namespace).map_err(Requeue::After)?;
    }
    let (answer, smaller) = match try_worker(executor, key, job, gpus, pod).await {
        Ok(Err((Reason::TemplateRejected, words))) => {
            let found = largest_accepted(executor, key, job, smaller).await;
            found.map_or((Ok(Err((Reason::TemplateRejected, words.clone()))), None), |(gpus, answer)| {
                (Ok(answer), Some((gpus, words)))
            })
        }
        answer => (answer, None),
    };
    let (refusal, admitted) = match answer {
        Ok(Ok(admitted)) => (None, admitted),
        Ok(Err(refusal)) => (Some(refusal), None),
        // A pod of that name exists, so the template was accepted before; its creation will tell.
        Err(error) if matches!(error.refusal(), Refusal::Exists) => (None, admitted_before),
        Err(error) => {
            if matches!(error.refusal(), Refusal::Busy(_)) {
                back_off_namespace(shared, Cause::DryRun, &key.namespace, &error.message());
            }
            return failed(shared, key, job, "dry run", &error);
        }
    };
    end_backoff(shared, Cause::DryRun, &key.namespace);
    let more = admitted.is_some();
    if let Some(memory) = shared.ledger.lock().get_mut(key, uid(job)) {
        memory.record_dry_run(DryRunResult { gpus, smaller, at: clock::now(), refusal, admitted });
    }
    let mut index = shared.index.lock();
    index.mark(key.clone());
    if more {
        index.replan();
    }
    Ok(())
}

/// Dry-runs a worker of the job with so many GPUs, unless an equal one was accepted just now.
async fn try_worker(
    executor: &Executor,
    key: &ObjectKey,
    job: &SlimTrainingJob,
    gpus: i32,
    pod: &Pod,
) -> Result<Answer, WriteError> {
    let shared = &executor.shared;
    let accepted = |answer: &Answer| answer.clone().ok();
    match executor.dry_runs.find(job, gpus, try_pod(shared, key, pod), accepted).await {
        DryRunLookup::Accepted(admitted) => Ok(Ok(admitted)),
        DryRunLookup::Tried(answer) => answer,
        DryRunLookup::Refused => try_pod(shared, key, pod).await,
    }
}

/// The largest of these workers, largest first, whose template is accepted, and the answer. Which sizes a policy refuses is a matter of
/// a maximum. `None`: not even the smallest, or there is no answer.
async fn largest_accepted(
    executor: &Executor,
    key: &ObjectKey,
    job: &SlimTrainingJob,
    sizes: &[i32],
) -> Option<(i32, Answer)> {
    let settings = Arc::clone(&executor.shared.settings.lock());
    let attempt = job.status.as_ref().map_or(0, |status| status.attempts).saturating_add(1);
    let ask = async |gpus: i32| {
        executor.rate_limits.count_dry_run(&key.namespace);
        let pod = unplaced_worker(job, attempt, gpus, &settings);
        let answer = try_worker(executor, key, job, gpus, &pod).await.ok()?;
        // Quota comes last in admission: all else was accepted.
        (!matches!(answer, Err((Reason::TemplateRejected, _)))).then_some((gpus, answer))
    };
    let (smallest, rest) = sizes.split_last()?;
    let mut accepted = ask(*smallest).await?;
    let (mut refused, mut from) = (0, rest.len());
    while refused < from {
        let middle = refused + (from - refused) / 2;
        match ask(rest[middle]).await {
            Some(larger) => (accepted, from) = (larger, middle),
            None => refused = middle + 1,
        }
    }
    Some(accepted)
}

/// The worker after admission if it requests more, or the API server's refusal.
type Answer = Result<Option<Arc<Admitted>>, (Reason, String)>;

/// Dry-runs a pod; an error is no verdict.
async fn try_pod(shared: &Shared, key: &ObjectKey, pod: &Pod) -> Result<Answer, WriteError> {
    match shared.writer.create::<Pod, SlimPod>("dry_run", Some(&key.namespace), pod, true).await {
        Ok(kept) => Ok(Ok(worker::admitted(pod.spec.as_ref(), kept.spec))),
        Err(error) => error.refusal().for_user().map(Err).ok_or(error),
    }
}
