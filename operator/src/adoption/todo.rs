//! What must be done about adopted jobs of other kinds, from the index.

use std::sync::Arc;

use andreas_adopt::{Kind, Workload};
use andreas_api::slim::SlimTrainingJob;
use andreas_api::training_job::AdoptedJob;
use andreas_runtime::watch::ObjectKey;
use serde_json::{Value, json};

use crate::index::ClusterIndex;

/// One thing to do.
#[derive(Debug)]
pub enum Todo {
    /// Make the TrainingJob of a workload.
    Make(Arc<Workload>),
    /// Tell a workload's owner why it is not adopted.
    Refuse(Arc<Workload>, String),
    /// Patch the TrainingJob of a workload: its annotations changed.
    Change(ObjectKey, Arc<Workload>, Value),
    /// Give the workload of a TrainingJob back.
    Remove(Arc<SlimTrainingJob>),
}

/// The workload of a job.
pub fn adopted(job: &SlimTrainingJob) -> Option<(Kind, &AdoptedJob)> {
    let adopts = job.spec.adopts.as_ref()?;
    Some((Kind::parse(&adopts.kind)?, adopts))
}

/// All that must be done.
pub fn all(index: &ClusterIndex) -> Vec<Todo> {
    let workloads = index.workloads.iter().filter(|workload| workload.asks());
    let mut all: Vec<Todo> = workloads.filter_map(|workload| of_workload(index, workload)).collect();
    let gone = |job: &&Arc<SlimTrainingJob>| {
        adopted(job).is_some_and(|(kind, adopts)| {
            let asks = index.workloads.get(&adopts.uid).is_some_and(|workload| workload.asks());
            index.workloads.is_listed(kind) && !asks && job.metadata.deletion_timestamp.is_none()
        })
    };
    let jobs = index.jobs.iter().map(|(_, job)| job);
    all.extend(jobs.filter(gone).map(|job| Todo::Remove(Arc::clone(job))));
    all
}

fn of_workload(index: &ClusterIndex, workload: &Arc<Workload>) -> Option<Todo> {
    if workload.end.is_some() || workload.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let namespace = workload.metadata.namespace.clone().unwrap_or_default();
    let key = ObjectKey { namespace, name: andreas_adopt::name(workload) };
    let Some(job) = index.jobs.get(&key) else {
        return Some(match workload.suspended {
            true => Todo::Make(Arc::clone(workload)),
            false => Todo::Refuse(
                Arc::clone(workload),
                "it runs already; it is planned when it is suspended".to_owned(),
            ),
        });
    };
    let uid = workload.metadata.uid.as_deref();
    match &job.spec.adopts {
        Some(adopts) if Some(adopts.uid.as_str()) == uid => {}
        // Of an earlier workload of that name: the garbage collector removes it.
        Some(_) => return None,
        None => {
            let words = format!("a TrainingJob of the name {} exists", key.name);
            return Some(Todo::Refuse(Arc::clone(workload), words));
        }
    }
    match workload.request() {
        Err(error) => Some(Todo::Refuse(Arc::clone(workload), error.to_string())),
        Ok(request) => {
            let mut changes = andreas_adopt::mirror::changes(&request);
            let spec = serde_json::to_value(&job.spec).ok()?;
            let fields = changes.as_object_mut()?;
            if fields["weight"].is_null() {
                fields.insert("weight".to_owned(), 10.into());
            }
            if fields["preemption"].is_null() {
                fields.insert("preemption".to_owned(), "Allowed".into());
            }
            fields.retain(|name, value| spec.get(name).unwrap_or(&Value::Null) != value);
            (!fields.is_empty()).then(|| {
                let body = json!({"metadata": {"uid": job.metadata.uid}, "spec": changes});
                Todo::Change(key, Arc::clone(workload), body)
            })
        }
    }
}
