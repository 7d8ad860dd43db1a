use andreas_runtime::watch::Index;
use serde_json::json;

use super::*;
use crate::index::SlimNamespace;
use crate::testing::{self, at, key};

/// Given a namespace that allows a weight of 20; when two jobs of different weights end late, then their
/// lateness costs are equal.
#[test]
fn the_bill_of_lateness_takes_the_weight_that_the_namespace_allows() {
    let mut index = ClusterIndex::new();
    let namespace: SlimNamespace = serde_json::from_value(json!({
        "metadata": {"name": "team", "resourceVersion": "1", "annotations": {"andreas.dev/max-weight": "20"}}}))
    .expect("a namespace");
    index.apply(namespace);
    let created: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
    let bill = |weight: i32| {
        let job = json!({
            "metadata": {"name": "late", "namespace": "team", "creationTimestamp": created},
            "spec": {"deadlineAfter": "1h", "weight": weight, "template": {"spec": {"containers": []}}}});
        let job: SlimTrainingJob = serde_json::from_value(job).expect("a job");
        let now = created + jiff::SignedDuration::from_hours(3);
        energy(&index, &job, &EnergyPolicySpec::default(), &[], None, None, now).lateness_micros
    };
    assert_eq!(bill(500), bill(20));
    assert!(bill(20) > bill(5));
}

/// Energy of a run of 300 W from second 0 on, with its deadline at 100, as a step at `now` counts it. Its kubelet's clock says when it
/// took the pod, and when the container ended.
fn counted(accepted: i64, ended: i64, now: i64) -> EnergyView {
    let mut index = ClusterIndex::new();
    let allocation = json!({"attempt": 1, "generation": 1, "gpuType": "A", "gpus": 1, "gpusPerWorker": 1, "nodes": ["n1"],
        "placement": "n1", "since": at(0), "runningTime": at(0), "watts": 300});
    let mut job = testing::job(1, &json!({"phase": "Running", "allocation": allocation}));
    job["metadata"]["creationTimestamp"] = json!(at(0));
    job["spec"]["deadline"] = json!(at(100));
    index.apply(serde_json::from_value::<SlimTrainingJob>(job).expect("a job"));
    let mut pod = testing::pod(0, 2, "j1");
    pod["spec"]["nodeName"] = "n1".into();
    let terminated = json!({"exitCode": 0, "startedAt": at(accepted), "finishedAt": at(ended)});
    pod["status"] = json!({"phase": "Succeeded", "startTime": at(accepted),
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at(0)}],
        "containerStatuses": [{"name": "t", "state": {"terminated": terminated}}]});
    index.apply(serde_json::from_value::<SlimPod>(pod).expect("a pod"));
    let memory = Ledger::new(at(0)).entry(&key("bert"), "j1").clone();
    JobInput::gather(&index, |_| memory, &key("bert"), Arc::default(), at(now)).expect("the job").energy
}

#[test]
fn a_run_is_billed_until_its_end_whenever_the_operator_sees_it() {
    let late = counted(0, 90, 10_000);
    assert_eq!(late, counted(0, 90, 90));
    assert_eq!(late.attempt_joules, 90 * 300);
    // The clock of the node is an hour behind: its kubelet may have taken the pod a minute after it was bound.
    assert_eq!(counted(-3_600, 90 - 3_600, 10_000).attempt_joules, 150 * 300);
    // It was set back meanwhile: the end has no date.
    assert_eq!(counted(0, 90 - 3_600, 10_000).attempt_joules, 10_000 * 300);
}

#[test]
fn a_node_is_unhealthy_since_the_last_of_its_gpus_broke() {
    let at = |second: i64| Timestamp::from_second(second).expect("a time").to_string();
    let fact = |second: serde_json::Value| {
        let gpu = |uuid: &str, since: &serde_json::Value| {
            let mut gpu = json!({"uuid": uuid, "gpuType": "A", "state": "Unhealthy"});
            gpu["unhealthySince"] = since.clone();
            gpu
        };
        let node: SlimGpuNode = serde_json::from_value(json!({
            "metadata": {"name": "n1", "resourceVersion": "1"}, "spec": {},
            "status": {"agentVersion": "1", "gpus": [gpu("a", &json!(at(10))), gpu("b", &second)],
                "conditions": [{"type": "Unhealthy", "status": "True", "reason": "Xid", "message": "", "lastTransitionTime": at(5)}]}}))
        .expect("a GpuNode");
        agent(&node).and_then(|fact| fact.unhealthy_since).map(Timestamp::as_second)
    };
    assert_eq!(fact(json!(at(500))), Some(500));
    // An agent of an earlier version dates the node alone.
    assert_eq!(fact(json!(null)), Some(10));
}
