//! A small cluster for unit tests: three nodes with GPUs and one without an agent, three jobs, a policy with a budget.

use serde_json::{Value, json};

use super::Objects;

/// The instant that the fixtures are of.
pub const NOW: &str = "2026-11-24T12:00:00Z";

fn gpu(uuid: u32, state: &str, holder: Option<&str>, watts: i32) -> Value {
    let mut gpu = json!({"uuid": format!("GPU-{uuid:08}-aaaa"), "state": state, "watts": watts, "joules": 1});
    if let Some(holder) = holder {
        gpu["holder"] = holder.into();
        gpu["heldSince"] = "2026-11-24T11:00:00Z".into();
    }
    gpu
}

fn ready(status: &str, reason: &str) -> Value {
    json!([{"type": "Ready", "status": status, "reason": reason, "message": "",
            "lastTransitionTime": "2026-11-24T09:00:00Z"}])
}

/// GpuNodes.
pub fn gpu_nodes() -> Value {
    let pod = Some("team-a/bert-large-2-0");
    let mut broken = gpu(9, "Unhealthy", None, 30);
    broken["problems"] = json!([{"reason": "Xid", "fatal": true, "xid": 79, "message": "fell off the bus"}]);
    json!([
        {"metadata": {"name": "gpu-1"},
         "spec": {"gpuType": "NVIDIA-A100-SXM4-80GB", "limits": [{"pod": "team-a/bert-large-2-0", "watts": 300}]},
         "status": {"agentVersion": "0.1.0", "conditions": ready("True", "Working"),
            "gpus": [gpu(1, "Held", pod, 290), gpu(2, "Held", pod, 285),
                     gpu(3, "Held", Some("other/notebook-0"), 100), gpu(4, "Resting", None, 20)]}},
        {"metadata": {"name": "gpu-2"}, "spec": {"gpuType": "Tesla-T4"},
         "status": {"agentVersion": "0.1.0", "conditions": ready("True", "Working"),
            "emptySince": "2026-11-24T10:30:00Z", "gpus": [gpu(8, "Free", None, 10), broken]}},
        {"metadata": {"name": "gpu-3"},
         "spec": {"excluded": {"reason": "MigInUse", "message": "its GPUs are cut by MIG: switch it off"}},
         "status": {"agentVersion": "0.1.0", "conditions": ready("True", "Working"),
            "gpus": [gpu(11, "Free", None, 60)]}},
    ])
}

/// Nodes.
pub fn nodes() -> Value {
    let node = |name: &str, product: &str, gpus: &str| {
        let labels =
            json!({"nvidia.com/gpu.product": product, "nvidia.com/cuda.driver-version.full": "580.95.05"});
        json!({"metadata": {"name": name, "labels": labels},
               "status": {"allocatable": {"nvidia.com/gpu": gpus, "cpu": "8"},
                          "conditions": [{"type": "Ready", "status": "True"}]}})
    };
    json!([
        node("gpu-1", "NVIDIA-A100-SXM4-80GB", "4"),
        node("gpu-2", "Tesla-T4", "2"),
        node("gpu-3", "NVIDIA-A100-SXM4-80GB", "1"),
        node("gpu-4", "Tesla-T4", "4"),
        json!({"metadata": {"name": "cpu-1"}, "status": {"allocatable": {"cpu": "8"}}}),
    ])
}

/// A machine that is off.
pub fn powers() -> Value {
    let machine = json!({"nodeUid": "n5", "labels": {"nvidia.com/gpu.product": "Tesla-T4"}, "gpus": 4});
    json!([{"metadata": {"name": "gpu-5"}, "spec": {"wanted": "Off"}, "status": {"state": "Off", "machine": machine}}])
}

/// A pod template that every job may have.
pub fn template() -> Value {
    json!({"spec": {"containers": [{"name": "train", "image": "example.org/train"}]}})
}

/// TrainingJobs: one runs, one waits, one has ended late, one has failed.
pub fn jobs() -> Value {
    json!([
        {"metadata": {"name": "bert-large", "namespace": "team-a", "uid": "u1",
                      "annotations": {"andreas.dev/user": "ada@example.org"},
                      "creationTimestamp": "2026-11-24T08:00:00Z"},
         "spec": {"template": template(), "weight": 20},
         "status": {"phase": "Running", "attempts": 2, "deadline": "2026-11-24T18:00:00Z",
            "profile": {"name": "bert"},
            "allocation": {"attempt": 2, "generation": 3, "gpuType": "NVIDIA-A100-SXM4-80GB", "gpus": 2,
                "gpusPerWorker": 2, "nodes": ["gpu-1"], "since": "2026-11-24T10:50:00Z",
                "runningTime": "2026-11-24T11:00:00Z", "watts": 1400},
            "progress": {"milliPercent": 42000, "attempt": 2, "at": "2026-11-24T11:59:00Z"},
            "prediction": {"finishTime": "2026-11-24T14:00:00Z", "onTimePercent": 97, "risk": "Low",
                           "source": "Observed"},
            "display": {"progress": "42%", "nodes": "gpu-1", "onTime": "97%"}, "startTime": "2026-11-24T08:10:00Z",
            "history": [{"attempt": 1, "outcome": "Stopped", "reason": "Preempted", "gpuType": "Tesla-T4", "gpus": 4,
                "placement": "gpu-2", "started": "2026-11-24T08:10:00Z", "ended": "2026-11-24T10:10:00Z"}],
            "consumption": {"joules": 9_000_000, "hostJoules": 3_600_000, "source": "Measured", "currency": "EUR",
                "energyCostMicros": 650_000, "hostCostMicros": 260_000, "latenessCostMicros": 10_000}}},
        {"metadata": {"name": "waits", "namespace": "team-a", "uid": "u2",
                      "creationTimestamp": "2026-11-24T11:30:00Z"},
         "spec": {"template": template(), "gpus": {"min": 2, "max": 8}},
         "status": {"phase": "Pending", "reason": "WaitingForCapacity",
            "prediction": {"startTime": "2026-11-24T14:00:00Z", "finishTime": "2026-11-24T16:00:00Z",
                           "risk": "None", "source": "Prior"}}},
        {"metadata": {"name": "late", "namespace": "team-b", "uid": "u3",
                      "creationTimestamp": "2026-10-30T08:00:00Z"},
         "spec": {"template": template(), "profileRef": {"name": "gpt"}},
         "status": {"phase": "Succeeded", "attempts": 1, "deadline": "2026-10-31T10:00:00Z", "display": {"onTime": "Missed"},
            "startTime": "2026-10-30T09:00:00Z", "completionTime": "2026-10-31T11:00:00Z",
            "history": [{"attempt": 1, "outcome": "Finished", "reason": "Completed", "gpuType": "Tesla-T4", "gpus": 1,
                "placement": "gpu-2", "started": "2026-10-31T09:00:00Z", "ended": "2026-10-31T11:00:00Z"}],
            "consumption": {"joules": 720_000, "source": "Predicted", "currency": "EUR",
                "energyCostMicros": 52_000, "latenessCostMicros": 200_000}}},
        {"metadata": {"name": "broken", "namespace": "team-b", "uid": "u4",
                      "creationTimestamp": "2026-11-24T07:00:00Z"},
         "spec": {"template": template()},
         "status": {"phase": "Failed", "reason": "RetriesExhausted", "attempts": 1, "userFailures": 1,
            "completionTime": "2026-11-24T07:30:00Z",
            "history": [{"attempt": 1, "outcome": "UserFailure", "reason": "ContainerFailed", "exitCode": 1,
                "message": "No such file", "gpuType": "Tesla-T4", "gpus": 2, "placement": "gpu-2",
                "started": "2026-11-24T07:00:00Z", "ended": "2026-11-24T07:30:00Z"}]}},
    ])
}

/// The EnergyPolicy.
pub fn policy() -> Value {
    json!({"metadata": {"name": "default", "generation": 4},
           "spec": {"powerBudget": {"watts": 4000, "timeZone": "Europe/Rome",
                        "windows": [{"from": "08:00", "to": "18:00", "watts": 3000}]},
                    "prices": {"energyPerKWh": "0.2"}, "pue": "1.5"},
           "status": {"observedGeneration": 4,
                "power": {"time": "2026-11-24T11:59:30Z", "budgetWatts": 3000, "drawnWatts": 1740, "idleWatts": 980,
                    "nextChange": "2026-11-24T17:00:00Z", "nextBudgetWatts": 4000, "kwhCostMicros": 300_000},
                "conditions": [
                {"type": "Ready", "status": "True", "reason": "AsExpected", "message": "in force",
                 "lastTransitionTime": "2026-11-24T09:00:00Z"},
                {"type": "BudgetMet", "status": "True", "reason": "AsExpected", "message": "within the budget",
                 "lastTransitionTime": "2026-11-24T09:00:00Z"}]}})
}

/// All of it.
pub fn objects() -> Objects {
    Objects {
        gpu_nodes: serde_json::from_value(gpu_nodes()).unwrap(),
        nodes: Some(serde_json::from_value(nodes()).unwrap()),
        jobs: Some(serde_json::from_value(jobs()).unwrap()),
        powers: serde_json::from_value(powers()).unwrap(),
        adopted: Vec::new(),
        notes: Vec::new(),
    }
}
