//! The changes of a workload: released on nodes, stopped, restored.
//!
//! What changes is what `batch/v1` lets change in a suspended Job (KEP-2926), because JobSet and Trainer pass it on to Jobs: labels,
//! node selector, tolerations and scheduling gates of pod templates.

use andreas_api::names::{
    ANNOTATION_ADOPTED_ATTEMPT, ANNOTATION_FOUND, GATE_NODE, GPU_RESOURCE, LABEL_ADOPTED,
    LABEL_ADOPTED_ATTEMPT, LABEL_HOSTNAME as HOSTNAME, LABEL_JOB,
};
use serde_json::{Map, Value, json};

use crate::groups::Group;
use crate::kind::Kind;

/// What is restored of a template, below it.
const FOUND: [&str; 4] =
    ["/metadata/labels", "/spec/nodeSelector", "/spec/tolerations", "/spec/schedulingGates"];

/// Noted of a template without metadata, which gets some for our labels.
const NO_METADATA: &str = "/metadata";

/// What is restored of a Job whose number of pods followed the plan, below `spec`.
const SIZE: [&str; 2] = ["/parallelism", "/completions"];

/// What the pods of an attempt are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directives {
    /// Name of the TrainingJob that stands for the workload.
    pub job: String,
    /// Its UID.
    pub uid: String,
    /// The attempt.
    pub attempt: i64,
    /// Value of the label `kubernetes.io/hostname` of the only node. `None`: several nodes; the pods are gated and each gets its own.
    pub hostname: Option<String>,
    /// Number of pods of a Job, where it follows the plan.
    pub pods: Option<i64>,
}

/// Writes the directives into the templates of these groups; what was there before is noted in an annotation.
pub fn direct(object: &mut Value, groups: &[Group], directives: &Directives) {
    let found = fields_before_release(object, groups, directives.pods.is_some());
    if object["metadata"]["annotations"][ANNOTATION_FOUND].is_null() {
        *at(object, &["metadata", "annotations", ANNOTATION_FOUND]) = found.to_string().into();
    }
    if let Some(pods) = directives.pods {
        resize(object, pods);
    }
    for group in groups {
        let Some(template) = object.pointer_mut(&group.template) else { continue };
        let labels = [
            (LABEL_JOB, directives.job.clone()),
            (LABEL_ADOPTED, directives.uid.clone()),
            (LABEL_ADOPTED_ATTEMPT, directives.attempt.to_string()),
        ];
        for (label, value) in labels {
            *at(template, &["metadata", "labels", label]) = value.into();
        }
        match &directives.hostname {
            Some(hostname) => *at(template, &["spec", "nodeSelector", HOSTNAME]) = hostname.as_str().into(),
            None => {
                if let Some(selector) =
                    template.pointer_mut("/spec/nodeSelector").and_then(Value::as_object_mut)
                {
                    selector.remove(HOSTNAME);
                }
            }
        }
        let tolerations = list(template, "tolerations");
        let gpu = json!({"key": GPU_RESOURCE, "operator": "Exists"});
        if !tolerations.contains(&gpu) {
            tolerations.push(gpu);
        }
        let gates = list(template, "schedulingGates");
        gates.retain(|gate| gate["name"] != GATE_NODE);
        if directives.hostname.is_none() {
            gates.push(json!({"name": GATE_NODE}));
        }
        if gates.is_empty()
            && let Some(spec) = template.pointer_mut("/spec").and_then(Value::as_object_mut)
        {
            spec.remove("schedulingGates");
        }
    }
}

/// What a release left in the template of a Job that a JobSet made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftover {
    /// Any of it.
    Any,
    /// The only node of an attempt.
    Node,
}

impl Leftover {
    /// Whether a pod template has it.
    pub fn is_in(self, template: &Value) -> bool {
        let labels = &template["metadata"]["labels"];
        let ours = !labels[LABEL_ADOPTED].is_null();
        ours && (self == Self::Any || !template["spec"]["nodeSelector"][HOSTNAME].is_null())
    }
}

/// Gives a Job so many pods. An Indexed Job whose pods all run at once completes with as many.
fn resize(object: &mut Value, pods: i64) {
    let spec = at(object, &["spec"]);
    let at_once = spec["parallelism"].as_i64().unwrap_or(1);
    if spec["completions"].as_i64() == Some(at_once) {
        *at(spec, &["completions"]) = pods.into();
    }
    *at(spec, &["parallelism"]) = pods.into();
}

/// Starts a workload for an attempt. Its templates were [`direct`]ed before, or are with the same write.
pub fn release(kind: Kind, object: &mut Value, attempt: i64) {
    *at(object, &["metadata", "annotations", ANNOTATION_ADOPTED_ATTEMPT]) = attempt.to_string().into();
    set_suspend(kind, object, false);
}

/// Stops a workload.
pub fn hold(kind: Kind, object: &mut Value) {
    set_suspend(kind, object, true);
}

/// Makes the templates what they were before the first release, and removes our annotations. `true`: something changed.
pub fn restore(object: &mut Value) -> bool {
    let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) else {
        return false;
    };
    let attempt = annotations.remove(ANNOTATION_ADOPTED_ATTEMPT);
    let found = annotations.remove(ANNOTATION_FOUND);
    let parsed = found.as_ref().and_then(Value::as_str).and_then(|text| serde_json::from_str(text).ok());
    let templates: Map<String, Value> = parsed.unwrap_or_default();
    for (path, parts) in &templates {
        let all: &[&str] = if path == "/spec" { &SIZE } else { &FOUND };
        for part in all.iter().copied() {
            let Some((parent, field)) = part.rsplit_once('/') else { continue };
            let Some(place) = object.pointer_mut(&format!("{path}{parent}")).and_then(Value::as_object_mut)
            else {
                continue;
            };
            match &parts[part] {
                Value::Null => drop(place.remove(field)),
                value => drop(place.insert(field.to_owned(), value.clone())),
            }
        }
        if parts.get(NO_METADATA).is_some()
            && let Some(template) = object.pointer_mut(path).and_then(Value::as_object_mut)
            && template.get("metadata").and_then(Value::as_object).is_some_and(Map::is_empty)
        {
            template.remove("metadata");
        }
    }
    attempt.is_some() || found.is_some()
}

/// The fields that a release changes, as they are before it, by their path.
fn fields_before_release(object: &Value, groups: &[Group], sized: bool) -> Value {
    let of = |path: &str, parts: &[&str]| {
        let place = object.pointer(path).unwrap_or(&Value::Null);
        let parts = parts.iter().filter_map(|part| Some((*part, place.pointer(part)?.clone())));
        (path.to_owned(), Value::from_iter(parts))
    };
    let size = sized.then(|| of("/spec", &SIZE));
    let templates = groups.iter().map(|group| {
        let (path, mut parts) = of(&group.template, &FOUND);
        if object.pointer(&format!("{path}/metadata")).is_none() {
            parts[NO_METADATA] = Value::Null;
        }
        (path, parts)
    });
    Value::from_iter(templates.chain(size))
}

fn set_suspend(kind: Kind, object: &mut Value, suspend: bool) {
    let mut path: Vec<&str> = kind.suspend_in().split('/').filter(|step| !step.is_empty()).collect();
    path.push("suspend");
    *at(object, &path) = suspend.into();
}

/// The place at a path, made if it is not there.
fn at<'a>(object: &'a mut Value, path: &[&str]) -> &'a mut Value {
    path.iter().fold(object, |place, step| {
        if !place.is_object() {
            *place = json!({});
        }
        &mut place[*step]
    })
}

/// A list in a template's pod, made if it is not there.
fn list<'a>(template: &'a mut Value, name: &str) -> &'a mut Vec<Value> {
    let place = at(template, &["spec", name]);
    if !place.is_array() {
        *place = json!([]);
    }
    place.as_array_mut().expect("made a list above")
}
