//! The TrainingJob that stands for a workload.

use std::collections::BTreeSet;

use andreas_api::names::{ANNOTATION_USER, GROUP, LABEL_PROFILE, MAX_JOB_NAME, VERSION};
use serde_json::{Map, Value, json};

use crate::adopt::AdoptError;
use crate::adopt::groups::{Group, groups};
use crate::adopt::kind::Kind;
use crate::adopt::workload::Workload;
use crate::convert::{MAX_GPUS, MAX_NODES, Request, Totals, may_follow, per_gpu};

/// Label by which Kueue manages an object.
const KUEUE: &str = "kueue.x-k8s.io/queue-name";
/// Values of `spec.managedBy` that mean the kind's own controller.
const OWN_CONTROLLERS: [&str; 5] = [
    "kubernetes.io/job-controller",
    "jobset.sigs.k8s.io/jobset-controller",
    "trainer.kubeflow.org/trainjob-controller",
    "kubeflow.org/training-operator",
    "ray.io/kuberay-operator",
];
/// Characters of the UID in a name that was changed.
const UID_PART: usize = 5;

/// Name of the mirror: kind and name of the workload; with a part of its UID where that is no name of a TrainingJob.
pub fn name(workload: &Workload) -> String {
    let own = workload.metadata.name.as_deref().unwrap_or_default();
    let wanted = format!("{}-{own}", workload.kind.name().to_lowercase());
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if wanted.len() <= MAX_JOB_NAME && wanted.chars().all(allowed) && !wanted.ends_with('-') {
        return wanted;
    }
    let uid = workload.metadata.uid.as_deref().unwrap_or_default();
    let part: String = uid.chars().filter(char::is_ascii_alphanumeric).take(UID_PART).collect();
    let room = MAX_JOB_NAME - UID_PART - 1;
    let kept: String = wanted.chars().map(|c| if allowed(c) { c } else { '-' }).take(room).collect();
    format!("{}-{}", kept.trim_end_matches('-'), part.to_ascii_lowercase())
}

/// The mirror of a workload. `object` is the workload; `templates` is the object that holds its pod templates, the same one for
/// most kinds ([`crate::adopt::Kind::template_kind`]).
///
/// # Errors
/// Why it is not adopted.
pub fn mirror(workload: &Workload, object: &Value, templates: &Value) -> Result<Value, AdoptError> {
    may_be_adopted(workload, object)?;
    let request = workload.request()?;
    let kind = workload.kind;
    let found = groups(kind.template_kind(), templates);
    let mut size = Size::from_groups(&found)?;
    may_run_together(&templates["spec"], &found)?;
    let draft = crate::convert::object(templates, &[])?.map(|made| made.job).unwrap_or_default();
    let mut spec = Map::new();
    let mut gpus = json!({"min": size.gpus});
    if let Some(totals) = &request.gpus {
        may_follow(kind.name(), &templates["spec"])?;
        gpus = size.follow(totals)?;
    }
    if size.nodes > 1 {
        gpus["maxNodes"] = size.nodes.into();
    }
    let mut types = request.types.clone();
    if types.is_empty() {
        let drafted = draft["spec"]["gpus"]["types"].as_array().into_iter().flatten();
        types.extend(drafted.filter_map(Value::as_str).map(Into::into));
    }
    if !types.is_empty() {
        gpus["types"] = types.into();
    }
    spec.insert("gpus".into(), gpus);
    let mut template = draft["spec"]["template"].clone();
    if size.pods > 1 || size.elastic {
        // The pods of one node are planned as one worker.
        spec.insert("resourcesPer".into(), "Gpu".into());
        if draft["spec"]["resourcesPer"] != "Gpu" {
            per_gpu(&mut template, size.gpus_per_pod);
        }
    }
    spec.insert("template".into(), template);
    if let Some(container) = draft["spec"]["container"].as_str() {
        spec.insert("container".into(), container.into());
    }
    spec.extend(request.mutable);
    spec.extend(request.fixed);
    let meta = &workload.metadata;
    let (own, uid) = (meta.name.clone().unwrap_or_default(), meta.uid.clone().unwrap_or_default());
    let mut adopts = json!({
        "apiVersion": kind.api_version(), "kind": kind.name(), "name": own, "uid": uid, "pods": size.pods,
    });
    if size.elastic {
        adopts["gpusPerPod"] = size.gpus_per_pod.into();
    }
    spec.insert("adopts".into(), adopts);
    let mut metadata = json!({
        "name": name(workload),
        "namespace": meta.namespace,
        "ownerReferences": [{
            "apiVersion": kind.api_version(), "kind": kind.name(), "name": own, "uid": uid, "controller": true,
        }],
    });
    if let Some(profile) = meta.labels.as_ref().and_then(|labels| labels.get(LABEL_PROFILE)) {
        metadata["labels"] = json!({ LABEL_PROFILE: profile });
    }
    if let Some(user) = workload.annotation(ANNOTATION_USER) {
        metadata["annotations"] = json!({ ANNOTATION_USER: user });
    }
    Ok(json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "TrainingJob", "metadata": metadata, "spec": spec,
    }))
}

/// All parts with GPUs get them at once, and keep them until the last one ends: one that starts when another has ended would wait for
/// GPUs that it holds.
fn may_run_together(spec: &Value, groups: &[Group]) -> Result<(), AdoptError> {
    let jobs = spec["replicatedJobs"].as_array().map(Vec::as_slice).unwrap_or_default();
    let prefix = |index: usize| format!("/spec/replicatedJobs/{index}/");
    let has_gpus = |index: usize| groups.iter().any(|group| group.template.starts_with(&prefix(index)));
    for (index, job) in jobs.iter().enumerate().filter(|(index, _)| has_gpus(*index)) {
        let (mut visited, mut pending) = (BTreeSet::from([index]), vec![index]);
        while let Some(next) = pending.pop() {
            for after in jobs[next]["dependsOn"].as_array().into_iter().flatten() {
                let Some(first) = jobs.iter().position(|other| other["name"] == after["name"]) else {
                    continue;
                };
                if has_gpus(first) && after["status"] != "Ready" {
                    return Err(AdoptError::Gpus(format!(
                        "part {} starts when part {} has ended, and both ask for GPUs: make them two workloads",
                        job["name"], jobs[first]["name"]
                    )));
                }
                if visited.insert(first) {
                    pending.push(first);
                }
            }
        }
    }
    Ok(())
}

fn may_be_adopted(workload: &Workload, object: &Value) -> Result<(), AdoptError> {
    if workload.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(KUEUE)) {
        let words = format!("Kueue starts it (label {KUEUE}): remove one of the two labels");
        return Err(AdoptError::ManagedByOther(words));
    }
    let manager = object.pointer("/spec/managedBy").or(object.pointer("/spec/runPolicy/managedBy"));
    if let Some(other) = manager.and_then(Value::as_str).filter(|name| !OWN_CONTROLLERS.contains(name)) {
        return Err(AdoptError::ManagedByOther(format!("managedBy gives it to {other}")));
    }
    if let Some(owner) = workload.controller() {
        let group = owner.api_version.split('/').next().unwrap_or_default();
        let words = match Kind::parse(&owner.kind).filter(|kind| kind.group() == group) {
            Some(_) => "label that instead".to_owned(),
            None => {
                let kinds = Kind::ALL.map(Kind::name).join(", ");
                format!("only these kinds can be labelled, and only if nothing else makes them: {kinds}")
            }
        };
        let (kind, name) = (&owner.kind, &owner.name);
        return Err(AdoptError::ManagedByOther(format!("{kind} {name} made it and starts it: {words}")));
    }
    Ok(())
}

/// How much a workload asks for.
struct Size {
    gpus: i64,
    pods: i64,
    gpus_per_pod: i64,
    nodes: i64,
    /// The number of pods follows the plan.
    elastic: bool,
}

impl Size {
    fn from_groups(groups: &[Group]) -> Result<Self, AdoptError> {
        let Some(first) = groups.first() else {
            return Err(AdoptError::Gpus("its pods ask for no GPUs (nvidia.com/gpu)".into()));
        };
        let pods: i64 = groups.iter().fold(0, |sum, group| sum.saturating_add(group.pods));
        let gpus = groups
            .iter()
            .fold(0, |sum: i64, group| sum.saturating_add(group.pods.saturating_mul(group.gpus)));
        if gpus > MAX_GPUS {
            return Err(AdoptError::Gpus(format!("it asks for {gpus} GPUs, the most is {MAX_GPUS}")));
        }
        // Every node of a plan gives the same number of GPUs: pods of different sizes stay on one node.
        let alike = groups.iter().all(|group| group.gpus == first.gpus);
        let nodes = if alike { pods.min(MAX_NODES) } else { 1 };
        Ok(Self { gpus, pods, gpus_per_pod: first.gpus, nodes, elastic: false })
    }

    /// Lets the number of pods follow the plan. Returns `spec.gpus`.
    fn follow(&mut self, totals: &Totals) -> Result<Value, AdoptError> {
        let (most, gpus) = totals.gpus(self.gpus_per_pod)?;
        (self.gpus, self.pods, self.elastic) = (most, most / self.gpus_per_pod, true);
        self.nodes = self.pods.min(MAX_NODES);
        Ok(gpus.into())
    }
}

/// Fields of a mirror that change with the annotations of its workload: those of the request, and `null` for those no longer given.
pub fn changes(request: &Request) -> Value {
    let mut fields: Map<String, Value> = ["deadline", "deadlineAfter", "weight", "preemption"]
        .into_iter()
        .map(|name| (name.to_owned(), Value::Null))
        .collect();
    fields.extend(request.mutable.clone());
    fields.into()
}
