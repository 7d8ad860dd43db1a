//! What a watch keeps of a workload.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::marker::PhantomData;

use andreas_api::names::{ANNOTATION_ADOPTED_ATTEMPT, FIELD_MANAGER, LABEL_ADOPT};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::Deserialize;
use serde_json::Value;

use crate::adopt::groups::groups;
use crate::adopt::kind::Kind;
use crate::convert::{AnnotationError, Request};

/// How a workload ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// It did what it should.
    pub succeeded: bool,
    /// Its controller's words.
    pub message: String,
    /// When, by its controller.
    pub at: Option<Time>,
}

/// State of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Its kind.
    pub kind: Kind,
    /// Name, UID, versions, labels and annotations.
    pub metadata: ObjectMeta,
    /// Its switch `suspend` is set.
    pub suspended: bool,
    /// Who besides us owns that switch: the field manager that wrote it last.
    pub switched_by: Option<String>,
    /// Its end.
    pub end: Option<End>,
    /// Pods of a Job that have neither succeeded nor failed for good, or pods with GPUs of the child Jobs of a JobSet that have not: its
    /// controller makes no more than these. `None` where it does not count them.
    pub pods_left: Option<i64>,
    /// Each of its pods succeeds once, and its controller does not count them one by one: a pod that has succeeded is one less.
    pub pods_succeed_once: bool,
    /// Parts of it start after others: pods with GPUs may come long after its release.
    pub parts_in_order: bool,
    /// Pods of a Job that have failed. 0 where its controller does not count them.
    pub pods_failed: i64,
}

impl Workload {
    /// Reads an object of that kind; `None` if its metadata are not an object's.
    pub fn from_object(kind: Kind, object: &Value) -> Option<Self> {
        let mut metadata = object["metadata"].clone();
        if let Some(fields) = metadata.as_object_mut() {
            fields.remove("managedFields");
        }
        let metadata = serde_json::from_value(metadata).ok()?;
        Some(Self {
            kind,
            metadata,
            suspended: kind.is_suspended(object),
            switched_by: switched_by(kind, object),
            end: end(kind, &object["status"]),
            pods_left: pods_left(kind, object),
            pods_succeed_once: pods_succeed_once(kind, object),
            parts_in_order: match kind {
                Kind::JobSet => depends(&object["spec"]),
                // Its runtime says so, which is another object.
                Kind::TrainJob => true,
                Kind::Job | Kind::PyTorchJob | Kind::RayJob => false,
            },
            pods_failed: if kind == Kind::Job { object["status"]["failed"].as_i64().unwrap_or(0) } else { 0 },
        })
    }

    /// Whether it has the label `andreas.dev/adopt=true`.
    pub fn wants_adoption(&self) -> bool {
        let label = self.metadata.labels.as_ref().and_then(|labels| labels.get(LABEL_ADOPT));
        label.is_some_and(|value| value == "true")
    }

    /// The attempt that it was last released for.
    pub fn attempt(&self) -> Option<i64> {
        self.annotation(ANNOTATION_ADOPTED_ATTEMPT)?.parse().ok()
    }

    /// Value of an annotation; `None` if the workload lacks it.
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(name).map(String::as_str)
    }

    /// The scheduling request in its annotations.
    ///
    /// # Errors
    /// When one of them has an invalid value.
    pub fn request(&self) -> Result<Request, AnnotationError> {
        Request::from_annotations(self.metadata.annotations.as_ref().unwrap_or(&BTreeMap::new()))
    }

    /// The object that made it and starts it, if any.
    pub fn controller(&self) -> Option<&OwnerReference> {
        let owners = self.metadata.owner_references.as_deref().unwrap_or_default();
        owners.iter().find(|owner| owner.controller == Some(true))
    }
}

/// Who owns the switch beside us. Not `kubectl`, `kubectl-patch`...: behind those are people, who do not undo what we do by themselves.
fn switched_by(kind: Kind, object: &Value) -> Option<String> {
    let path = format!("/fieldsV1{}/f:suspend", kind.suspend_parent().replace('/', "/f:"));
    let managers = object["metadata"]["managedFields"].as_array()?;
    let is_other = |name: &str| name != FIELD_MANAGER && !name.starts_with("kubectl");
    let others = managers.iter().filter(|entry| entry["manager"].as_str().is_some_and(is_other));
    let owner =
        others.filter(|entry| entry.pointer(&path).is_some()).max_by_key(|entry| entry["time"].as_str())?;
    owner["manager"].as_str().map(str::to_owned)
}

fn pods_left(kind: Kind, object: &Value) -> Option<i64> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let left = match kind {
        Kind::Job => {
            let done = status["succeeded"].as_i64().unwrap_or(0);
            let failed = status["failedIndexes"].as_str().map_or(0, indexes);
            let left = spec["completions"].as_i64()?.saturating_sub(done).saturating_sub(failed);
            // Its owner may have lowered the number since it was adopted.
            left.min(spec["parallelism"].as_i64().unwrap_or(1))
        }
        Kind::JobSet => {
            let seen = status["replicatedJobsStatus"].as_array()?;
            let groups = groups(kind, object).into_iter().map(|group| {
                let job = &object.pointer(group.template.strip_suffix("/template/spec/template")?)?;
                let jobs = job["replicas"].as_i64().unwrap_or(1).max(1);
                let done = seen.iter().find(|part| part["name"] == job["name"]);
                let done = done.and_then(|part| part["succeeded"].as_i64()).unwrap_or(0).clamp(0, jobs);
                Some(group.pods / jobs * (jobs - done))
            });
            groups.sum::<Option<i64>>()?
        }
        Kind::PyTorchJob | Kind::TrainJob | Kind::RayJob => return None,
    };
    Some(left.max(1))
}

/// Whether Jobs of a JobSet's `spec` start after others of it.
fn depends(spec: &Value) -> bool {
    let jobs = spec["replicatedJobs"].as_array().into_iter().flatten();
    spec["startupPolicy"]["startupPolicyOrder"] == "InOrder"
        || jobs.into_iter().any(|job| job["dependsOn"].as_array().is_some_and(|on| !on.is_empty()))
}

/// How many indexes a text of a Job's status names, as "1,3-5" (`batch/v1`, `failedIndexes`).
fn indexes(text: &str) -> i64 {
    let count = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (i64, i64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        Some(last.saturating_sub(first).saturating_add(1).max(0))
    };
    text.split(',').filter_map(count).fold(0, i64::saturating_add)
}

fn pods_succeed_once(kind: Kind, object: &Value) -> bool {
    match kind {
        Kind::Job => false,
        // Others take the place of those that succeed in a Job with more completions than pods at once.
        Kind::JobSet => groups(kind, object).iter().all(|group| {
            let job = group.template.strip_suffix("/template").and_then(|path| object.pointer(path));
            let number = |name: &str| job?[name].as_i64();
            number("completions").unwrap_or(1) <= number("parallelism").unwrap_or(1)
        }),
        Kind::PyTorchJob | Kind::TrainJob | Kind::RayJob => true,
    }
}

fn end(kind: Kind, status: &Value) -> Option<End> {
    let time = |value: &Value| Time::deserialize(value).ok();
    let condition = |names: &[&str], succeeded: bool| -> Option<End> {
        let all = status["conditions"].as_array()?;
        let is = |one: &&Value| {
            one["status"] == "True" && one["type"].as_str().is_some_and(|name| names.contains(&name))
        };
        let found = all.iter().find(is)?;
        let part = |name: &str| found[name].as_str().unwrap_or_default();
        let message = if part("message").is_empty() { part("reason") } else { part("message") };
        Some(End { succeeded, message: message.into(), at: time(&found["lastTransitionTime"]) })
    };
    if kind == Kind::RayJob {
        let text = |name: &str| status[name].as_str().unwrap_or_default();
        let texts = [text("message"), text("reason"), text("jobStatus")];
        let message = texts.into_iter().find(|words| !words.is_empty()).unwrap_or_default().to_owned();
        let at = time(&status["endTime"]);
        return match text("jobDeploymentStatus") {
            "Complete" => Some(End { succeeded: text("jobStatus") == "SUCCEEDED", message, at }),
            // Of one that failed its validation, no pod is ever made.
            "Failed" | "ValidationFailed" => Some(End { succeeded: false, message, at }),
            _ => None,
        };
    }
    let good: &[&str] = match kind {
        Kind::JobSet => &["Completed"],
        Kind::PyTorchJob => &["Succeeded"],
        _ => &["Complete"],
    };
    condition(good, true).or_else(|| condition(&["Failed"], false))
}

/// A kind as a type.
pub trait Tag: Send + Sync + 'static {
    /// The kind.
    const KIND: Kind;
}

/// A workload of one kind, as it is watched.
#[derive(Clone, Debug)]
pub struct Watched<T> {
    /// The workload.
    pub workload: Workload,
    kind: PhantomData<T>,
}

impl<'de, T: Tag> Deserialize<'de> for Watched<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Value::deserialize(deserializer)?;
        let workload = Workload::from_object(T::KIND, &object);
        let workload = workload.ok_or_else(|| serde::de::Error::custom("metadata cannot be read"))?;
        Ok(Self { workload, kind: PhantomData })
    }
}

impl<T: Tag> kube::Resource for Watched<T> {
    type DynamicType = ();
    type Scope = kube::core::NamespaceResourceScope;

    fn kind(_: &()) -> Cow<'_, str> {
        T::KIND.name().into()
    }

    fn group(_: &()) -> Cow<'_, str> {
        T::KIND.group().into()
    }

    fn version(_: &()) -> Cow<'_, str> {
        T::KIND.version().into()
    }

    fn plural(_: &()) -> Cow<'_, str> {
        T::KIND.plural().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.workload.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.workload.metadata
    }
}

macro_rules! tags {
    ($($tag:ident),+) => {
        $(
            #[doc = concat!(stringify!($tag), "s.")]
            #[derive(Clone, Copy, Debug)]
            pub struct $tag;

            impl Tag for $tag {
                const KIND: Kind = Kind::$tag;
            }
        )+
    };
}

tags!(Job, JobSet, TrainJob, PyTorchJob, RayJob);
