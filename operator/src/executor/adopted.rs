//! Jobs of other kinds: released on their nodes, stopped, their gated pods let onto nodes.
//!
//! Each object is read live and written as a whole with its version: fields that we do not know are kept, and nobody's edit is lost.

use std::sync::Arc;

use andreas_api::names::{ANNOTATION_ADOPTED_ATTEMPT as FORMER, GATE_NODE, LABEL_HOSTNAME};
use andreas_api::slim::{SlimPod, SlimTrainingJob};
use andreas_api::training_job::AdoptedJob;
use andreas_cluster::index::adopted_job;
use andreas_runtime::watch::ObjectKey;
use andreas_workloads::adopt::release::Leftover;
use andreas_workloads::adopt::{
    Directives, Kind, Workload, groups, hold as stop, release as start, write_directives,
};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::children;
use super::outcomes::{failed, job_generation, refused, uid};
use super::requeue::Requeue;
use crate::shared::Shared;
use crate::writes::{Refusal, WriteError};

/// Starts the workload on these nodes.
pub(super) async fn release(
    shared: &Arc<Shared>,
    key: &ObjectKey,
    job: &SlimTrainingJob,
    attempt: i64,
    (nodes, gpus): (&[String], i32),
) -> Result<(), Requeue> {
    let Some((kind, adopts)) = adopted_job(job) else { return Ok(()) };
    let generation = job_generation(shared, key);
    match try_release(shared, key, job, (kind, adopts), attempt, (nodes, gpus)).await {
        Ok(()) => Ok(()),
        // Edited meanwhile, or not there any more: the next step sees it.
        Err(error) if matches!(error.refusal(), Refusal::Conflict | Refusal::NotFound) => {
            failed(shared, key, job, "release the adopted job", &error)
        }
        Err(error) => refused(shared, key, job, generation, "release the adopted job", &error),
    }
}

async fn try_release(
    shared: &Arc<Shared>,
    key: &ObjectKey,
    job: &SlimTrainingJob,
    (kind, adopts): (Kind, &AdoptedJob),
    attempt: i64,
    (nodes, gpus): (&[String], i32),
) -> Result<(), WriteError> {
    let Some(mut object) = read(shared, kind, key, adopts).await? else { return Ok(()) };
    if !kind.is_suspended(&object) {
        // Released before, and the answer was lost, or started by somebody else.
        note(shared, kind, &object);
        return Ok(());
    }
    let hostname = match nodes {
        [node] => Some(hostname(shared, node)),
        _ => None,
    };
    // Its pods on several nodes get their node one by one; that of an earlier attempt on one node must be gone.
    let several = hostname.is_none();
    let pods = adopts.gpus_per_pod.map(|_| i64::from(adopts.pods_on(gpus)));
    let directives = Directives { job: key.name.clone(), uid: uid(job).to_owned(), attempt, hostname, pods };
    let holder = kind.template_kind();
    let job_set = ObjectKey { namespace: key.namespace.clone(), name: adopts.name.clone() };
    if holder == kind {
        let found = groups(kind, &object);
        write_directives(&mut object, &found, &directives);
        if several && kind == Kind::JobSet && object["metadata"]["annotations"][FORMER].is_string() {
            object = shared.writer.replace(&kind.url(&key.namespace), &adopts.name, &object).await?;
            children::remake(&shared.writer, &job_set, &adopts.uid, Leftover::Node).await?;
        }
    } else {
        let url = holder.url(&key.namespace);
        let templates = children::templates(&shared.writer, holder, &job_set, &adopts.uid).await?;
        let Some(mut templates) = templates else { return Ok(()) };
        let found = groups(holder, &templates);
        write_directives(&mut templates, &found, &directives);
        let former = object["metadata"]["annotations"][FORMER].is_string();
        shared.writer.replace(&url, &adopts.name, &templates).await?;
        if several && former {
            let uid = templates["metadata"]["uid"].as_str().unwrap_or_default();
            children::remake(&shared.writer, &job_set, uid, Leftover::Node).await?;
        }
    }
    start(kind, &mut object, attempt);
    let answer = shared.writer.replace(&kind.url(&key.namespace), &adopts.name, &object).await?;
    note(shared, kind, &answer);
    Ok(())
}

/// Stops the workload.
pub(super) async fn hold(
    shared: &Arc<Shared>,
    key: &ObjectKey,
    job: &SlimTrainingJob,
) -> Result<(), Requeue> {
    let Some((kind, adopts)) = adopted_job(job) else { return Ok(()) };
    let stopped = async {
        let Some(mut object) = read(shared, kind, key, adopts).await? else { return Ok(()) };
        if kind.is_suspended(&object) {
            note(shared, kind, &object);
            return Ok(());
        }
        stop(kind, &mut object);
        let answer = shared.writer.replace(&kind.url(&key.namespace), &adopts.name, &object).await?;
        note(shared, kind, &answer);
        Ok::<(), WriteError>(())
    };
    stopped.await.or_else(|error| failed(shared, key, job, "stop the adopted job", &error))
}

/// The workload's object, if it is still the one that was adopted and asks for it.
async fn read(
    shared: &Arc<Shared>,
    kind: Kind,
    key: &ObjectKey,
    adopts: &AdoptedJob,
) -> Result<Option<Value>, WriteError> {
    let object = shared.writer.get_object(&kind.url(&key.namespace), &adopts.name).await?;
    Ok(object.filter(|object| {
        object["metadata"]["uid"] == adopts.uid.as_str()
            && Workload::from_object(kind, object).is_some_and(|workload| workload.wants_adoption())
    }))
}

fn note(shared: &Arc<Shared>, kind: Kind, object: &Value) {
    if let Some(workload) = Workload::from_object(kind, object) {
        shared.index.lock().wrote_workload(workload);
    }
}

/// Lets a gated pod onto its node.
pub(super) async fn place(
    shared: &Arc<Shared>,
    key: &ObjectKey,
    job: &SlimTrainingJob,
    pod: &ObjectKey,
    pod_uid: &str,
    node: &str,
) -> Result<(), Requeue> {
    let placed = async {
        let url = <SlimPod as kube::Resource>::url_path(&(), Some(&pod.namespace));
        let live = shared.writer.get_object(&url, &pod.name).await?;
        let Some(live) = live.filter(|live| live["metadata"]["uid"] == pod_uid) else { return Ok(()) };
        let body = json!({
            "metadata": {
                "uid": pod_uid,
                "resourceVersion": live["metadata"]["resourceVersion"],
                "annotations": {GATE_NODE: node},
            },
            "spec": {
                "schedulingGates": without_our_gate(&live),
                "nodeSelector": {LABEL_HOSTNAME: hostname(shared, node)},
            },
        });
        let answer: SlimPod = shared.writer.patch("adopted", pod, &body).await?;
        shared.index.lock().wrote_pod(answer);
        Ok::<(), WriteError>(())
    };
    placed.await.or_else(|error| failed(shared, key, job, "place a pod of the adopted job", &error))
}

/// A node's label for its host name; its name where it has none.
fn hostname(shared: &Shared, node: &str) -> String {
    let key = ObjectKey { namespace: String::new(), name: node.to_owned() };
    let index = shared.index.lock();
    let label = index.nodes().get(&key).and_then(|node| node.labels().get(LABEL_HOSTNAME).cloned());
    label.unwrap_or_else(|| node.to_owned())
}

/// The scheduling gates of a pod without ours; null if there are no others.
pub fn without_our_gate(pod: &Value) -> Value {
    let gates = pod["spec"]["schedulingGates"].as_array().into_iter().flatten();
    let rest: Vec<Value> = gates.filter(|gate| gate["name"] != GATE_NODE).cloned().collect();
    if rest.is_empty() { Value::Null } else { rest.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_gate_is_lifted() {
        let pod = |gates: Value| without_our_gate(&json!({"spec": {"schedulingGates": gates}}));
        assert_eq!(pod(json!([{"name": GATE_NODE}])), Value::Null);
        let other = json!({"name": "example.org/wait"});
        assert_eq!(pod(json!([{"name": GATE_NODE}, other])), json!([other]));
    }
}
