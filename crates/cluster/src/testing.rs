//! For tests, also of other crates: objects of a small cluster.

use andreas_api::slim::SlimTrainingJob;
use andreas_model::ObjectKey;
use jiff::Timestamp;
use serde_json::{Value, json};

/// The instant at which most scenarios begin, and seconds after it.
pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
}

/// The key of an object in the namespace `team`.
pub fn key(name: &str) -> ObjectKey {
    key_in("team", name)
}

/// The key of an object.
pub fn key_in(namespace: &str, name: impl ToString) -> ObjectKey {
    ObjectKey { namespace: namespace.into(), name: name.to_string() }
}

/// The TrainingJob `team/bert` with UID `j1`.
pub fn job(version: u64, status: &Value) -> Value {
    json!({
        "metadata": {"name": "bert", "namespace": "team", "uid": "j1", "resourceVersion": version.to_string(), "generation": 1,
                     "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"epochs": 10, "template": {"spec": {"containers": [{"name": "t", "image": "x"}]}}}, "status": status,
    })
}

/// The same, as it is read.
pub fn slim_job(version: u64, status: &Value) -> SlimTrainingJob {
    serde_json::from_value(job(version, status)).expect("a job")
}

/// The owner reference of a TrainingJob's pod.
pub fn owner(name: &str, uid: &str) -> Value {
    json!({"apiVersion": "andreas.dev/v1alpha1", "kind": "TrainingJob", "name": name, "uid": uid, "controller": true})
}

/// A ready node with this many GPUs of a type.
pub fn gpu_node(name: &str, gpu_type: &str, gpus: u32) -> Value {
    json!({
        "metadata": {"name": name, "resourceVersion": "1",
            "labels": {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": gpu_type}},
        "status": {"allocatable": {"nvidia.com/gpu": gpus.to_string(), "cpu": "64", "memory": "512Gi", "pods": "110"},
                   "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

/// A member of its first attempt, controlled by the TrainingJob `bert` with UID `owner`.
pub fn pod(index: usize, version: u64, owner: &str) -> Value {
    json!({
        "metadata": {"name": format!("bert-1-{index}"), "namespace": "team", "uid": format!("p{index}"), "resourceVersion": version.to_string(),
            "labels": {"andreas.dev/job": "bert", "andreas.dev/job-uid": owner, "andreas.dev/attempt": "1",
                "andreas.dev/index": index.to_string()},
            "ownerReferences": [self::owner("bert", owner)]},
        "spec": {"containers": []}, "status": {"phase": "Pending"},
    })
}

/// An agent's list of GPUs: these, and free ones, so that there are so many. An agent lists all of its node.
pub fn boards(gpus: Value, count: usize) -> Value {
    let Value::Array(mut gpus) = gpus else { return gpus };
    for number in gpus.len()..count {
        gpus.push(json!({"uuid": format!("free-{number}"), "state": "Free"}));
    }
    gpus.into()
}
