//! A TrainingJob in the making: name, counts of GPUs, limits of time, template.

use std::collections::BTreeMap;

use andreas_api::names::{
    ANNOTATION_GPUS, GPU_RESOURCE, GROUP, LABEL_ADOPT, MAX_JOB_NAME, VERSION, is_job_name,
};
use serde_json::{Map, Value, json};

use super::error::ConvertError;
use super::fields::Fields;
use super::kueue;
use super::launch;
use super::notes::Notes;
use super::request::{MAX_GPUS, READ, Request};
use super::template::{Template, per_gpu};

/// Most nodes of a TrainingJob.
pub const MAX_NODES: i64 = 512;
/// Characters that the API server adds to `generateName`.
const ADDED: usize = 5;
/// What kubectl keeps of the whole object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// How many workers a job has, and GPUs in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    /// Fewest workers.
    pub min: i64,
    /// Most workers.
    pub max: i64,
    /// GPUs of one.
    pub gpus: i64,
}

impl Workers {
    /// A fixed number.
    pub fn fixed(workers: i64, gpus: i64) -> Self {
        Self { min: workers, max: workers, gpus }
    }
}

/// A TrainingJob in the making.
#[derive(Debug)]
pub struct Draft {
    metadata: Map<String, Value>,
    spec: Map<String, Value>,
    request: Request,
    /// Kueue or ANDREAS would start it.
    queued: bool,
}

impl Draft {
    /// A draft with name, namespace, labels and annotations of an object. Annotations by which it would be adopted
    /// become fields.
    ///
    /// # Errors
    /// When one of them is of another type, or has an invalid value.
    pub fn from_metadata(mut metadata: Fields, notes: &mut Notes) -> Result<Self, ConvertError> {
        let mut kept = Map::new();
        if let Some(name) = metadata.text("name")? {
            kept.insert("name".into(), job_name(&name, "metadata.name", notes).into());
        } else if let Some(prefix) = metadata.text("generateName")? {
            kept.insert("generateName".into(), name_prefix(&prefix, notes).into());
        } else {
            notes.lost("metadata.name", "is missing: the TrainingJob is called converted");
            kept.insert("name".into(), "converted".into());
        }
        if let Some(namespace) = metadata.text("namespace")? {
            kept.insert("namespace".into(), namespace.into());
        }
        let mut annotations = metadata.object("annotations")?;
        let mut asked = BTreeMap::new();
        for name in READ {
            asked.extend(annotations.text(name)?.map(|text| (name.to_owned(), text)));
        }
        let request = Request::from_annotations(&asked)?;
        let mut draft = Self { metadata: kept, spec: Map::new(), request, queued: false };
        for (map, mut entries) in [("labels", metadata.object("labels")?), ("annotations", annotations)] {
            entries.ignore(&[LAST_APPLIED]);
            let adopt = entries.take(LABEL_ADOPT).is_some_and(|value| value == "true");
            draft.queued |= adopt && map == "labels";
            let limit = entries.path(kueue::LIMIT);
            draft.set_max_run_time(limit, entries.number(kueue::LIMIT)?, notes);
            draft.queued |= entries.names().any(|name| name == kueue::QUEUE);
            kueue::take(&mut entries, notes);
            if !entries.is_empty() {
                draft.metadata.insert(map.into(), entries.into_value());
            }
        }
        metadata.lost("ownerReferences", notes, "the owner does not know TrainingJobs");
        metadata.lost("finalizers", notes, "the program behind it does not know TrainingJobs");
        Ok(draft)
    }

    /// Takes metadata and `suspend` from a job of another kind. Returns the draft and the rest of the spec.
    ///
    /// # Errors
    /// When a field is missing or of another type.
    pub fn begin(object: Value, notes: &mut Notes) -> Result<(Self, Fields), ConvertError> {
        let mut fields = Fields::new("", object)?;
        let mut draft = Self::from_metadata(fields.object("metadata")?, notes)?;
        let mut spec = fields.object("spec")?;
        draft.take_suspend(&mut spec, notes)?;
        Ok((draft, spec))
    }

    /// Takes `suspend` out of a spec and sets it in the TrainingJob, unless a queue would have started the job.
    ///
    /// # Errors
    /// When it is neither true nor false.
    pub fn take_suspend(&mut self, spec: &mut Fields, notes: &mut Notes) -> Result<(), ConvertError> {
        let path = spec.path("suspend");
        if spec.truth("suspend")? {
            if self.queued {
                let text = "Kueue or ANDREAS would have started it: the TrainingJob is not suspended";
                notes.changed(path, text);
            } else {
                self.set("suspend", true);
            }
        }
        Ok(())
    }

    /// Sets retries to 0 if no limit was given, for kinds that do not start a failed program again.
    pub fn set_no_retries(&mut self, field: impl Into<String>, notes: &mut Notes) {
        if !self.spec.contains_key("retries") {
            notes.changed(field, "a program that fails is not started again: retries: 0");
            self.set("retries", 0);
        }
    }

    /// Sets a field of the spec.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.spec.insert(name.to_owned(), value.into());
    }

    /// Sets retries from a limit of failures, bounded to 0 to 100.
    pub fn set_retries(&mut self, field: String, limit: Option<i64>, notes: &mut Notes) {
        if let Some(limit) = limit {
            let bounded = limit.clamp(0, 100);
            if bounded != limit {
                notes.changed(field, format!("{limit} is bounded to retries: {bounded}"));
            }
            self.set("retries", bounded);
        }
    }

    /// Sets the longest run of an attempt from seconds.
    pub fn set_max_run_time(&mut self, field: String, seconds: Option<i64>, notes: &mut Notes) {
        if let Some(seconds) = seconds.filter(|seconds| *seconds > 0) {
            notes.changed(field, "limits each attempt (maxRunTime) and not the whole life of the job");
            self.set("maxRunTime", duration_text(seconds));
        }
    }

    /// Sets the time from the end of the job to the deletion of its object, in seconds: 0 to a year.
    pub fn set_ttl(&mut self, seconds: Option<i64>) {
        if let Some(seconds) = seconds {
            self.set("ttlSecondsAfterFinished", seconds.clamp(0, 31_536_000));
        }
    }

    /// The TrainingJob with these workers of this template.
    pub fn finish(mut self, workers: Workers, mut template: Template, notes: &mut Notes) -> Value {
        let mut gpus = self.gpus(workers, template.other_devices, notes);
        let Request { mutable, fixed, types, gpus: totals } = std::mem::take(&mut self.request);
        let follows = match totals.map(|totals| totals.gpus(workers.gpus)) {
            Some(Ok((most, totals))) => {
                gpus.extend(totals);
                on_nodes(&mut gpus, most / workers.gpus.max(1));
                true
            }
            Some(Err(error)) => {
                notes.lost(format!("metadata.annotations.{ANNOTATION_GPUS}"), error.problem);
                false
            }
            None => false,
        };
        let types = if types.is_empty() { template.gpu_type.into_iter().collect() } else { types };
        if !types.is_empty() {
            gpus.insert("types".into(), types.iter().take(32).map(String::as_str).collect());
        }
        // A plan may put the GPUs of several pods into one worker.
        if workers.max > 1 || follows {
            self.set("resourcesPer", "Gpu");
            if per_gpu(&mut template.value, workers.gpus) {
                notes.changed(
                    template.field.clone(),
                    format!(
                        "the resources of a pod, divided by its {} GPUs: resourcesPer: Gpu",
                        workers.gpus
                    ),
                );
            }
        }
        let total = gpus.get("max").or_else(|| gpus.get("min")).and_then(Value::as_i64).unwrap_or(1);
        launch::check(&template.words, workers.gpus, total, &template.field, notes);
        // A program that torchrun starts reads PET_*.
        if template.plain_names
            && !launch::is_torchrun(&template.words)
            && !self.spec.contains_key("rendezvous")
        {
            self.set("rendezvous", "Env");
            notes.changed(
                template.field.as_str(),
                "rendezvous: Env sets MASTER_ADDR, RANK and WORLD_SIZE, one process for each worker",
            );
        }
        for (name, value) in mutable.into_iter().chain(fixed) {
            self.set(&name, value);
        }
        self.set("gpus", Value::Object(gpus));
        if let Some(seconds) = template.max_run_time.filter(|_| !self.spec.contains_key("maxRunTime")) {
            self.set("maxRunTime", duration_text(seconds));
        }
        if let Some(container) = template.container {
            self.set("container", container);
        }
        self.set("template", template.value);
        json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": "TrainingJob",
            "metadata": self.metadata,
            "spec": self.spec,
        })
    }

    fn gpus(&self, workers: Workers, other_devices: bool, notes: &mut Notes) -> Map<String, Value> {
        if workers.gpus == 0 {
            let text = if other_devices {
                "devices are asked for in another way: one GPU for each worker is written, set gpus.min"
            } else {
                "the job asks for no GPU: a TrainingJob has one at least in each worker"
            };
            notes.lost(GPU_RESOURCE, text);
        }
        let per = workers.gpus.max(1);
        let bounded = |workers: i64| workers.max(1).saturating_mul(per).clamp(1, MAX_GPUS);
        let (min, max) = (bounded(workers.min), bounded(workers.max.max(workers.min)));
        if workers.max.max(1).saturating_mul(per) > MAX_GPUS || workers.max > MAX_NODES {
            notes.lost("gpus", format!("a TrainingJob has at most {MAX_GPUS} GPUs on {MAX_NODES} nodes"));
        }
        let mut gpus = Map::new();
        gpus.insert("min".into(), min.into());
        if max > min {
            gpus.insert("max".into(), max.into());
        }
        let nodes = workers.max.clamp(1, MAX_NODES).min(max);
        if nodes > 1 {
            gpus.insert("maxNodes".into(), nodes.into());
            notes.changed(
                "gpus",
                format!("{max} GPUs in total on at most {nodes} nodes: they may come from fewer"),
            );
        }
        gpus
    }
}

/// On as many nodes at most as there are pods; one is the default.
fn on_nodes(gpus: &mut Map<String, Value>, pods: i64) {
    gpus.remove("maxNodes");
    let nodes = pods.min(MAX_NODES);
    if nodes > 1 {
        gpus.insert("maxNodes".into(), nodes.into());
    }
}

/// A name that a TrainingJob may have.
pub fn job_name(name: &str, field: &str, notes: &mut Notes) -> String {
    let made = host_name(name, MAX_JOB_NAME);
    if made != name {
        notes.changed(field, format!("the name is {made}: at most {MAX_JOB_NAME} characters, a host name"));
    }
    made
}

/// What the API server may make such names of.
fn name_prefix(prefix: &str, notes: &mut Notes) -> String {
    if is_job_name(&format!("{prefix}{}", "x".repeat(ADDED))) {
        return prefix.to_owned();
    }
    let made = host_name(prefix.trim_end_matches('-'), MAX_JOB_NAME - ADDED - 1) + "-";
    notes.changed(
        "metadata.generateName",
        format!("names begin with {made}: at most {MAX_JOB_NAME} characters in all, a host name"),
    );
    made
}

/// The beginning of a host name, at most so long.
fn host_name(name: &str, most: usize) -> String {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let lower = name.to_ascii_lowercase();
    let mut made: String = lower.chars().map(|c| if allowed(c) { c } else { '-' }).collect();
    if !made.starts_with(|c: char| c.is_ascii_lowercase()) {
        made.insert_str(0, "job-");
    }
    if made.len() > most {
        // Runs of a sweep often differ at the end of their names alone.
        let ending = format!("-{:08x}", hash(name));
        made.truncate(most.saturating_sub(ending.len()));
        made.truncate(made.trim_end_matches('-').len());
        made += &ending;
    }
    let made = made.trim_end_matches('-');
    if made.is_empty() { "job".to_owned() } else { made.to_owned() }
}

/// FNV-1a: the same name has the same ending each time.
fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// A duration as the API reads it: `24h30m`.
pub fn duration_text(seconds: i64) -> String {
    let seconds = seconds.clamp(1, 9_999_999 * 3_600);
    let parts = [(seconds / 3600, 'h'), (seconds / 60 % 60, 'm'), (seconds % 60, 's')];
    parts
        .into_iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, unit)| format!("{number}{unit}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use andreas_api::DurationText;

    use super::*;

    #[test]
    fn annotations_by_which_it_would_be_adopted_become_fields() {
        let job = |annotations: Value| {
            let object = json!({
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": "tune", "labels": {"andreas.dev/adopt": "true", "team": "a"}, "annotations": annotations},
                "spec": {"parallelism": 2, "suspend": true, "template": {"spec": {"containers": [
                    {"name": "train", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 2}}},
                ]}}},
            });
            crate::convert::object(&object, &[]).map(|made| made.unwrap().job)
        };
        let made = job(json!({
            "note": "kept", "andreas.dev/found": "x",
            "andreas.dev/deadline-after": "36h", "andreas.dev/weight": "50", "andreas.dev/epochs": "90",
            "andreas.dev/profile": "bert", "andreas.dev/preemption": "Never", "andreas.dev/checkpoint": "true",
            "andreas.dev/gpu-types": "A100, H100", "andreas.dev/gpus": "2,4,8",
        }));
        let made = made.unwrap();
        let (meta, spec) = (&made["metadata"], &made["spec"]);
        assert_eq!(
            (&meta["annotations"], &meta["labels"]),
            (&json!({"note": "kept"}), &json!({"team": "a"}))
        );
        let gpus = json!({"min": 2, "max": 8, "maxNodes": 4, "counts": [2, 4, 8], "types": ["A100", "H100"]});
        assert_eq!(spec["gpus"], gpus);
        assert_eq!((&spec["deadlineAfter"], &spec["weight"]), (&json!("36h"), &json!(50)));
        assert_eq!((&spec["epochs"], &spec["profileRef"]), (&json!(90), &json!({"name": "bert"})));
        assert_eq!((&spec["preemption"], &spec["checkpoint"]), (&json!("Never"), &json!({})));
        assert!(spec["suspend"].is_null(), "ANDREAS would have started it: {spec}");

        let refused = job(json!({"andreas.dev/weight": "heavy"})).unwrap_err().to_string();
        assert_eq!(refused, "annotation andreas.dev/weight: \"heavy\" is no whole number from 1 to 1000");
        let many: Vec<String> = (1..=65).map(|number: i32| number.to_string()).collect();
        let refused = job(json!({"andreas.dev/gpus": many.join(",")})).unwrap_err().to_string();
        assert_eq!(refused, "annotation andreas.dev/gpus: it has 65 numbers, the most is 64");
        let plain = job(Value::Null).unwrap();
        assert_eq!(plain["spec"]["gpus"], json!({"min": 4, "maxNodes": 2}));
        assert!(plain["spec"]["weight"].is_null() && plain["metadata"]["annotations"].is_null(), "{plain}");
    }

    #[test]
    fn a_name_becomes_a_host_name() {
        let name = |name: &str| job_name(name, "metadata.name", &mut Notes::default());
        assert_eq!(name("resnet-50"), "resnet-50");
        assert_eq!(
            (name("My_Job.v2"), name("50x"), name("---")),
            ("my-job-v2".into(), "job-50x".into(), "job".into())
        );
        assert_eq!(name(&"x".repeat(80)).len(), MAX_JOB_NAME);
    }

    #[test]
    fn durations_can_be_read_again() {
        for seconds in [1, 60, 3600, 86_400, 90_061, 1_234_567, 86_400 * 400 + 1] {
            assert_eq!(DurationText(duration_text(seconds)).seconds(), Some(seconds));
        }
        assert_eq!(duration_text(88_200), "24h30m");
    }
}
