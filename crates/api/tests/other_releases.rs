//! Objects as an earlier release wrote them, and as a later one might: they are read, whatever they hold beside what is known here.
#![allow(clippy::unwrap_used, reason = "a test may panic where it fails")]

use andreas_api::gpu_node::GpuCondition;
use andreas_api::phase::{Outcome, Phase, Reason};
use andreas_api::slim::{AllocatedJob, SlimEnergyPolicy, SlimGpuNode, SlimTrainingJob, SlimTrainingProfile};
use andreas_api::training_job::Preemption;
use serde_json::{Value, json};

/// A running job with a history, as release 0.1.0 stored it before this release.
fn earlier_job() -> Value {
    json!({
        "apiVersion": "andreas.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": {"name": "bert", "namespace": "team", "uid": "j1", "resourceVersion": "900", "generation": 2,
                     "creationTimestamp": "2026-11-01T08:00:00Z"},
        "spec": {
            "deadlineAfter": "36h", "weight": 10, "epochs": 3, "gpus": {"min": 1, "max": 4, "maxNodes": 1}, "resourcesPer": "Worker",
            "template": {"spec": {"containers": [{"name": "train", "image": "x"}]}},
            "checkpoint": {"claimName": "c", "path": "/checkpoint", "graceSeconds": 60, "exclusive": false},
            "preemption": "Allowed", "retries": 3, "startTimeout": "15m", "suspend": false, "historyLimit": 3,
        },
        "status": {
            "observedGeneration": 2, "phase": "Running", "attempts": 2, "userFailures": 0, "clusterFailures": 1, "restarts": 0,
            "decisions": 4,
            "allocation": {"attempt": 2, "generation": 4, "gpuType": "NVIDIA-A100-SXM4-80GB", "gpus": 4, "gpusPerWorker": 4,
                           "nodes": ["a100-0"], "since": "2026-11-01T08:10:00Z",
                           "boundTime": "2026-11-01T08:10:05Z", "runningTime": "2026-11-01T08:10:20Z", "watts": 1400},
            "history": [{"attempt": 1, "outcome": "ClusterFailure", "reason": "ClusterFailure", "gpuType": "Tesla-T4", "gpus": 1,
                         "placement": "t4-0", "ended": "2026-11-01T08:09:00Z", "milliPercent": 1000, "joules": 100}],
            "progress": {"milliPercent": 42000, "attempt": 2, "at": "2026-11-01T09:00:00Z"},
        },
    })
}

/// The same with words and fields that this release does not know.
fn later_job() -> Value {
    let mut job = earlier_job();
    job["spec"]["preemption"] = json!("Priced");
    job["spec"]["resourcesPer"] = json!("Socket");
    job["spec"]["elastic"] = json!({"between": [1, 2]});
    let status = &mut job["status"];
    status["phase"] = json!("Resizing");
    status["stop"] =
        json!({"attempt": 2, "reason": "Resize", "since": "2026-11-01T09:00:00Z", "outcome": "Resized"});
    status["allocation"]["gpuType"] = json!({"name": "NVIDIA-A100-SXM4-80GB"});
    status["allocation"]["slices"] = json!([1, 2]);
    let mut record = status["history"][0].clone();
    record["outcome"] = json!("Resized");
    record["exitCode"] = json!("none");
    status["history"].as_array_mut().unwrap().push(record);
    job
}

fn read<T: serde::de::DeserializeOwned>(object: &Value) -> T {
    serde_json::from_str(&object.to_string()).unwrap()
}

#[test]
fn what_an_earlier_release_wrote_is_read_whole() {
    let job: SlimTrainingJob = read(&earlier_job());
    let status = job.status.unwrap();
    assert_eq!((status.phase, status.history.len()), (Phase::Running, 1));
    assert_eq!(status.history[0].outcome, Outcome::ClusterFailure);
    let allocation = status.allocation.unwrap();
    assert_eq!(
        (allocation.attempt, allocation.generation, allocation.nodes),
        (2, 4, vec!["a100-0".to_owned()])
    );
}

#[test]
fn what_ran_under_a_release_that_billed_no_hosts_has_no_share_of_one() {
    let mut stored = earlier_job();
    stored["status"]["consumption"] = json!({"joules": 100, "source": "Measured", "energyCostMicros": 7,
        "latenessCostMicros": 0});
    let status = read::<SlimTrainingJob>(&stored).status.unwrap();
    let used = status.consumption.unwrap();
    assert_eq!(
        (used.joules, used.energy_cost_micros, used.host_joules, used.host_cost_micros),
        (100, 7, 0, 0)
    );
    assert_eq!((status.history[0].host_joules, status.allocation.unwrap().host_watts), (0, 0));
}

#[test]
fn former_names_of_fields_are_ignored_and_those_of_reasons_understood() {
    let mut stored = earlier_job();
    stored["status"]["avoid"] = json!([{"node": "a100-1", "times": 2, "until": "2026-11-01T08:20:00Z"}]);
    stored["status"]["history"][0]["reason"] = json!("NodeSilent");
    let job: SlimTrainingJob = read(&stored);
    let status = job.status.unwrap();
    assert!(status.excluded_nodes.is_empty(), "such a node may be chosen once more");
    assert_eq!(Reason::parse(&status.history[0].reason), Some(Reason::NodeNotReady));
    assert_eq!(Reason::parse("WaitingForRoom"), Some(Reason::WaitingForRelease));
    assert_eq!(Reason::NodeNotReady.as_str(), "NodeNotReady");
    // Requests for holders are counted anew, and no answer to an earlier one is taken for one to a later.
    let node: SlimGpuNode = read(&json!({
        "metadata": {"name": "n"}, "spec": {"wakeGeneration": 1, "look": 7}, "status": {"observedWakeGeneration": 1, "looked": 7, "gpus": []},
    }));
    assert_eq!((node.spec.wake_generation, node.spec.holders_generation), (1, 0));
    assert_eq!(node.status.unwrap().observed_holders_generation, 0);
}

#[test]
fn words_of_a_later_release_do_not_make_a_job_unreadable() {
    let mut stored = later_job();
    stored["status"]["allocation"]["gpuType"] = json!("NVIDIA-A100-SXM4-80GB");
    let job: SlimTrainingJob = read(&stored);
    assert_eq!(job.spec.preemption, Preemption::Never, "it loses no work");
    let status = job.status.unwrap().with_a_known_phase();
    assert_eq!(status.phase, Phase::Starting, "what has an allocation goes on");
    assert_eq!(status.stop.as_ref().map(|stop| stop.outcome), Some(None), "judged when it has ended");
    assert_eq!(status.history.len(), 1, "a record that cannot be read is left out");
    let waiting: SlimTrainingJob = read(&{
        stored["status"]["allocation"] = Value::Null;
        stored
    });
    assert_eq!(waiting.status.unwrap().with_a_known_phase().phase, Phase::Pending);
}

#[test]
fn the_extender_reads_only_what_it_needs_of_an_allocation() {
    let job: AllocatedJob = read(&later_job());
    let allocation = job.status.unwrap().allocation.unwrap();
    assert_eq!(
        (allocation.attempt, allocation.generation, allocation.nodes),
        (2, 4, vec!["a100-0".to_owned()])
    );
}

#[test]
fn other_objects_of_a_later_release_are_read() {
    let node: SlimGpuNode = read(&json!({
        "metadata": {"name": "n"}, "spec": {"wakeGeneration": 1, "clocks": []},
        "status": {"observedWakeGeneration": 1, "gpus": [{"uuid": "GPU-1", "state": "Sliced"}, {"uuid": "GPU-2", "state": "Free"}]},
    }));
    let states: Vec<_> = node.status.unwrap().gpus.iter().map(|gpu| gpu.state).collect();
    assert_eq!(states, [GpuCondition::Unhealthy, GpuCondition::Free], "what is not understood is not used");
    let policy: SlimEnergyPolicy = read(&json!({
        "metadata": {"name": "default"},
        "spec": {"limits": "Adaptive", "nodeLoss": {"action": "Fence"}, "rest": {"mode": "Deep"}, "powerBudget": {"scope": "Rack"}},
    }));
    assert_eq!(serde_json::to_value(policy.spec.limits).unwrap(), "Off");
    assert_eq!(serde_json::to_value(policy.spec.node_loss.action).unwrap(), "Wait");
    assert_eq!(serde_json::to_value(policy.spec.rest.mode).unwrap(), "Off");
    let profile: SlimTrainingProfile = read(&json!({
        "metadata": {"name": "p"}, "spec": {"features": {"precision": "fp4", "batchSize": 8}},
        "status": {"observations": [{"run": "a-1"}, {"run": "a-2", "gpuType": "T4", "gpus": 1, "nodes": 1, "millisPerEpoch": 5,
                   "milliEpochs": 1000, "at": "2026-11-01T09:00:00Z"}]},
    }));
    let features = profile.spec.features.unwrap();
    assert_eq!((features.precision, features.batch_size), (None, Some(8)));
    assert_eq!(profile.status.unwrap().observations.len(), 1);
}
