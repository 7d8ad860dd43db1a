//! The changes of a workload: released on nodes, stopped. What of its templates changes, and how that is restored, is in
//! [`crate::convert::found`].

use andreas_api::names::{
    ANNOTATION_ADOPTED_ATTEMPT, ANNOTATION_FOUND, GATE_NODE, GPU_RESOURCE, LABEL_ADOPTED,
    LABEL_ADOPTED_ATTEMPT, LABEL_HOSTNAME as HOSTNAME, LABEL_JOB,
};
use serde_json::{Value, json};

use crate::adopt::groups::Group;
use crate::adopt::kind::Kind;
use crate::convert::found::fields_before_release;

/// What a release writes into the pod templates of an attempt.
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
pub fn write_directives(object: &mut Value, groups: &[Group], directives: &Directives) {
    let templates = groups.iter().map(|group| group.template.as_str());
    let found = fields_before_release(object, templates, directives.pods.is_some());
    if object["metadata"]["annotations"][ANNOTATION_FOUND].is_null() {
        *entry(object, &["metadata", "annotations", ANNOTATION_FOUND]) = found.to_string().into();
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
            *entry(template, &["metadata", "labels", label]) = value.into();
        }
        match &directives.hostname {
            Some(hostname) => {
                *entry(template, &["spec", "nodeSelector", HOSTNAME]) = hostname.as_str().into()
            }
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
    /// Whether a pod template carries this leftover.
    pub fn is_present_in(self, template: &Value) -> bool {
        let labels = &template["metadata"]["labels"];
        let ours = !labels[LABEL_ADOPTED].is_null();
        ours && (self == Self::Any || !template["spec"]["nodeSelector"][HOSTNAME].is_null())
    }
}

/// Gives a Job so many pods. An Indexed Job whose pods all run at once completes with as many.
fn resize(object: &mut Value, pods: i64) {
    let spec = entry(object, &["spec"]);
    let at_once = spec["parallelism"].as_i64().unwrap_or(1);
    if spec["completions"].as_i64() == Some(at_once) {
        *entry(spec, &["completions"]) = pods.into();
    }
    *entry(spec, &["parallelism"]) = pods.into();
}

/// Starts a workload for an attempt. Its templates were written by [`write_directives`] before, or are with the same
/// write.
pub fn release(kind: Kind, object: &mut Value, attempt: i64) {
    *entry(object, &["metadata", "annotations", ANNOTATION_ADOPTED_ATTEMPT]) = attempt.to_string().into();
    set_suspend(kind, object, false);
}

/// Stops a workload.
pub fn hold(kind: Kind, object: &mut Value) {
    set_suspend(kind, object, true);
}

fn set_suspend(kind: Kind, object: &mut Value, suspend: bool) {
    let mut path: Vec<&str> = kind.suspend_parent().split('/').filter(|step| !step.is_empty()).collect();
    path.push("suspend");
    *entry(object, &path) = suspend.into();
}

/// The value at a path; missing objects on the way are created.
fn entry<'a>(object: &'a mut Value, path: &[&str]) -> &'a mut Value {
    path.iter().fold(object, |place, step| {
        if !place.is_object() {
            *place = json!({});
        }
        &mut place[*step]
    })
}

/// A list in a template's pod spec, created if it is missing.
fn list<'a>(template: &'a mut Value, name: &str) -> &'a mut Vec<Value> {
    let place = entry(template, &["spec", name]);
    if !place.is_array() {
        *place = json!([]);
    }
    place.as_array_mut().expect("made a list above")
}
