//! TrainingJobs that stand for adopted jobs of other kinds: made, changed and removed with them.
//!
//! **In**: the index (workloads, their pods and TrainingJobs). **Out**: TrainingJobs with `spec.adopts`, owned by their workload;
//! events about workloads that cannot be adopted; pods without our gate whose workload was given back.
//!
//! | file | what |
//! |---|---|
//! | [`todo`] | what must be done, from the index (pure) |
//! | this one | doing it, and telling the owners what was refused |
//!
//! **Never here**: when a workload runs (lifecycle), or how it is released (executor).

pub mod todo;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use andreas_api::names::{ANNOTATION_ADOPTED_ATTEMPT, ANNOTATION_FOUND};
use andreas_api::slim::{SlimPod, SlimTrainingJob};
use andreas_api::{Reason, TrainingJob, key_of};
use andreas_cluster::index::{adopted_job, owner};
use andreas_lifecycle::EventNote;
use andreas_runtime::watch::ObjectKey;
use andreas_workloads::adopt::release::Leftover;
use andreas_workloads::adopt::{Kind, Workload, mirror};
use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::executor::adopted::without_our_gate;
use crate::executor::children;
use crate::executor::events::Events;
use crate::shared::Shared;
use crate::writes::{Refusal, WriteError};
use todo::Todo;

/// Interval of checking although nothing changed: what was refused may be accepted now.
const EVERY: Duration = Duration::from_secs(30);
/// A refused workload is tried again after this time.
const TRY_AGAIN: Duration = Duration::from_secs(60);

/// A workload that was refused.
struct Refused {
    version: Option<String>,
    message: String,
    at: Instant,
}

/// Maintains them until `shutdown`.
pub async fn run(shared: Arc<Shared>, events: Events, shutdown: CancellationToken) {
    let mut refused: BTreeMap<String, Refused> = BTreeMap::new();
    let signals = shared.index.lock().signals();
    loop {
        let all = {
            let index = shared.index.lock();
            refused.retain(|uid, _| index.workloads().get(uid).is_some());
            todo::all(&index)
        };
        for one in all {
            if shutdown.is_cancelled() {
                return;
            }
            done(&shared, &events, &mut refused, one).await;
        }
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            () = signals.adoption.notified() => {}
            () = shutdown.cancelled() => return,
        }
    }
}

async fn done(shared: &Shared, events: &Events, refused: &mut BTreeMap<String, Refused>, todo: Todo) {
    let (result, workload) = match todo {
        Todo::Make(workload) => {
            let uid = workload.metadata.uid.clone().unwrap_or_default();
            let waits = refused.get(&uid).is_some_and(|before| {
                before.version == workload.metadata.resource_version && before.at.elapsed() < TRY_AGAIN
            });
            if waits {
                return;
            }
            (make(shared, &workload).await, workload)
        }
        Todo::Stop(workload) => (stop(shared, &workload).await.map_err(Failure::from_error), workload),
        Todo::Refuse(workload, message) => (Err(Failure::Owner(Reason::NotAdopted, message)), workload),
        Todo::Change(job, workload, body) => {
            let changed = shared.writer.patch("adopted", &job, &body).await;
            let changed = changed.map(|answer| shared.index.lock().wrote_job(answer));
            (changed.map_err(Failure::from_error), workload)
        }
        Todo::Remove(job) => {
            if let Err(error) = remove(shared, &job).await {
                tracing::warn!(%error, job = job.metadata.name, "not given back, tried again");
            }
            return;
        }
        Todo::Ungate(pod) => {
            if let Err(error) = ungate(shared, &pod).await {
                tracing::warn!(%error, pod = pod.metadata.name, "its gate was not lifted, tried again");
            }
            return;
        }
    };
    let uid = workload.metadata.uid.clone().unwrap_or_default();
    let (reason, message) = match result {
        Ok(()) => {
            refused.remove(&uid);
            return;
        }
        Err(Failure::Later(error)) => {
            return tracing::warn!(error = &error as &dyn std::error::Error, "not adopted, tried again");
        }
        Err(Failure::Owner(reason, message)) => (reason, message),
    };
    let version = workload.metadata.resource_version.clone();
    let known = refused.get(&uid).is_some_and(|before| before.message == message);
    refused.insert(uid, Refused { version, message: message.clone(), at: Instant::now() });
    if !known {
        let message = format!("not planned by ANDREAS: {message}");
        events.publish_about(reference(&workload), &EventNote { warning: true, reason, message });
    }
}

/// Why something was not done.
enum Failure {
    /// The owner of the workload must see to it.
    Owner(Reason, String),
    /// The API server gave no verdict.
    Later(WriteError),
}

impl Failure {
    fn from_error(error: WriteError) -> Self {
        match error.refusal().for_user() {
            Some((_, message)) => Self::Owner(Reason::NotAdopted, message),
            None => Self::Later(error),
        }
    }
}

async fn make(shared: &Shared, workload: &Workload) -> Result<(), Failure> {
    let (kind, meta) = (workload.kind, &workload.metadata);
    let (namespace, name) =
        (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
    let later = |error: kube::Error| Failure::Later(error.into());
    let read = shared.writer.get_object(&kind.url(namespace), name).await;
    let Some(mut object) = read.map_err(later)? else { return Ok(()) };
    let Some(mut workload) = Workload::from_object(kind, &object)
        .filter(|live| live.metadata.uid == meta.uid && live.wants_adoption())
    else {
        return Ok(());
    };
    if workload.suspended && was_released(&object) {
        // Its label was removed while it ran, and set again. The attempt and the nodes of then are not those of the new TrainingJob.
        let key =
            ObjectKey { namespace: namespace.to_owned(), name: andreas_workloads::adopt::name(&workload) };
        let known = shared.writer.get::<SlimTrainingJob>(&key).await;
        if known.map_err(later)?.is_some() {
            return Ok(()); // The watch shows it soon.
        }
        object = restored(shared, kind, namespace, name, object).await.map_err(Failure::from_error)?;
        let Some(as_it_was) = Workload::from_object(kind, &object) else { return Ok(()) };
        workload = as_it_was;
        shared.index.lock().wrote_workload(workload.clone());
    }
    let holder = kind.template_kind();
    let templates = if holder == kind {
        Some(object.clone())
    } else {
        let own = ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() };
        let uid = meta.uid.as_deref().unwrap_or_default();
        children::templates(&shared.writer, holder, &own, uid).await.map_err(later)?
    };
    let Some(templates) = templates else {
        let words = format!("its {} is not there yet, or is not its own", holder.name());
        return Err(Failure::Owner(Reason::NotAdopted, words));
    };
    let refusal = |words: String| Failure::Owner(Reason::NotAdopted, words);
    let made = mirror(&workload, &object, &templates).map_err(|error| refusal(error.to_string()))?;
    let made: TrainingJob = serde_json::from_value(made).map_err(|error| refusal(error.to_string()))?;
    let result =
        shared.writer.create::<TrainingJob, SlimTrainingJob>("adopt", Some(namespace), &made, false).await;
    match result {
        Ok(answer) => {
            shared.index.lock().wrote_job(answer);
            Ok(())
        }
        // The watch shows it soon, ours or another.
        Err(error) if error.refusal() == Refusal::Exists => Ok(()),
        Err(error) => Err(Failure::from_error(error)),
    }
}

/// Suspends a workload that runs without its TrainingJob: whoever deleted that meant to end the run. It is planned anew.
async fn stop(shared: &Shared, workload: &Workload) -> Result<(), WriteError> {
    let (kind, meta) = (workload.kind, &workload.metadata);
    let namespace = meta.namespace.clone().unwrap_or_default();
    let key = ObjectKey { namespace: namespace.clone(), name: andreas_workloads::adopt::name(workload) };
    if shared.writer.get::<SlimTrainingJob>(&key).await?.is_some() {
        return Ok(()); // The watch shows it soon.
    }
    let (url, name) = (kind.url(&namespace), meta.name.as_deref().unwrap_or_default());
    let Some(mut object) = shared.writer.get_object(&url, name).await? else { return Ok(()) };
    let live = Workload::from_object(kind, &object).filter(|live| {
        live.metadata.uid == meta.uid && live.wants_adoption() && live.attempt().is_some() && !live.suspended
    });
    if live.is_some() {
        andreas_workloads::adopt::hold(kind, &mut object);
        object = shared.writer.replace(&url, name, &object).await?;
        if let Some(stopped) = Workload::from_object(kind, &object) {
            shared.index.lock().wrote_workload(stopped);
        }
    }
    Ok(())
}

/// Gives a workload back: its templates become what they were if it is suspended, and its TrainingJob goes.
async fn remove(shared: &Shared, job: &SlimTrainingJob) -> Result<(), WriteError> {
    let Some((kind, adopts)) = adopted_job(job) else { return Ok(()) };
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    let url = kind.url(namespace);
    let object = shared.writer.get_object(&url, &adopts.name).await?;
    if let Some(mut object) = object.filter(|object| object["metadata"]["uid"] == adopts.uid.as_str()) {
        if Workload::from_object(kind, &object).is_some_and(|workload| workload.wants_adoption()) {
            return Ok(());
        }
        if kind.is_suspended(&object) {
            restored(shared, kind, namespace, &adopts.name, object).await?;
        } else if let Some(annotations) = object["metadata"]["annotations"].as_object_mut()
            && annotations.remove(ANNOTATION_ADOPTED_ATTEMPT).is_some()
        {
            // It runs on, and is nobody's run of ours if it gets the label again.
            shared.writer.replace(&url, &adopts.name, &object).await?;
        }
    }
    let key = key_of(job);
    let uid = job.metadata.uid.as_deref().unwrap_or_default();
    shared.writer.delete::<TrainingJob>(&key, uid, None, None).await.map(drop)
}

/// An earlier TrainingJob of the workload released it.
fn was_released(object: &Value) -> bool {
    let annotations = &object["metadata"]["annotations"];
    [ANNOTATION_ADOPTED_ATTEMPT, ANNOTATION_FOUND].iter().any(|name| !annotations[*name].is_null())
}

/// Makes the templates of a suspended workload what they were before its first release. Returns the workload as it is then.
async fn restored(
    shared: &Shared,
    kind: Kind,
    namespace: &str,
    name: &str,
    mut object: Value,
) -> Result<Value, WriteError> {
    let holder = kind.template_kind();
    // A JobSet whose Jobs say what we told it.
    let mut job_set: Option<String> = None;
    let uid_of = |object: &Value| object["metadata"]["uid"].as_str().map(str::to_owned);
    if holder != kind {
        let url = holder.url(namespace);
        let own = ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() };
        let uid = uid_of(&object).unwrap_or_default();
        if let Some(mut templates) = children::templates(&shared.writer, holder, &own, &uid).await? {
            job_set = uid_of(&templates);
            if andreas_workloads::adopt::restore(&mut templates) {
                shared.writer.replace(&url, name, &templates).await?;
            }
        }
    }
    if kind == Kind::JobSet {
        job_set = uid_of(&object);
    }
    if andreas_workloads::adopt::restore(&mut object) {
        object = shared.writer.replace(&kind.url(namespace), name, &object).await?;
    }
    if let Some(uid) = job_set {
        let of = ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() };
        children::remake(&shared.writer, &of, &uid, Leftover::Any).await?;
    }
    Ok(object)
}

/// Lifts the gate of a pod that no plan gives a node any more: the scheduler places it.
async fn ungate(shared: &Shared, pod: &SlimPod) -> Result<(), WriteError> {
    let Some((mirror, mirror_uid)) = owner(&pod.metadata) else { return Ok(()) };
    // The watch may be behind.
    let live = shared.writer.get::<SlimTrainingJob>(&mirror).await?;
    if live.is_some_and(|live| live.metadata.uid.as_deref() == Some(mirror_uid)) {
        return Ok(());
    }
    let key = key_of(pod);
    let url = <SlimPod as kube::Resource>::url_path(&(), Some(&key.namespace));
    let live = shared.writer.get_object(&url, &key.name).await?;
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let Some(live) = live.filter(|live| live["metadata"]["uid"] == uid) else { return Ok(()) };
    let body = json!({
        "metadata": {"uid": uid, "resourceVersion": live["metadata"]["resourceVersion"]},
        "spec": {"schedulingGates": without_our_gate(&live)},
    });
    let answer: SlimPod = shared.writer.patch("adopted", &key, &body).await?;
    shared.index.lock().wrote_pod(answer);
    Ok(())
}

fn reference(workload: &Workload) -> ObjectReference {
    let meta = &workload.metadata;
    ObjectReference {
        api_version: Some(workload.kind.api_version()),
        kind: Some(workload.kind.name().to_owned()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_with_what_a_release_wrote_was_released() {
        let of = |annotations: Value| was_released(&json!({"metadata": {"annotations": annotations}}));
        assert!(of(json!({"andreas.dev/adopted-attempt": "3"})) && of(json!({"andreas.dev/found": "{}"})));
        assert!(!of(json!({"andreas.dev/weight": "3"})) && !of(Value::Null));
    }
}
