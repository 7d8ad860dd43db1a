use andreas_cluster::index::SlimNamespace;
use andreas_runtime::watch::Index;
use serde_json::json;

use super::*;
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
        "since": at(0), "runningTime": at(0), "watts": 300});
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
    assert_eq!(late.attempt.joules, 90 * 300);
    // The clock of the node is an hour behind: its kubelet may have taken the pod a minute after it was bound.
    assert_eq!(counted(-3_600, 90 - 3_600, 10_000).attempt.joules, 150 * 300);
    // It was set back meanwhile: the end has no date.
    assert_eq!(counted(0, 90 - 3_600, 10_000).attempt.joules, 10_000 * 300);
}

/// A run of 300 W, and 100 W of its hosts, from second 0 on, whose node is as this says; as a step after 60 hours counts it.
fn counted_on(node: Option<serde_json::Value>, status: &serde_json::Value) -> EnergyView {
    let mut index = ClusterIndex::new();
    let allocation = json!({"attempt": 1, "generation": 1, "gpuType": "A", "gpus": 1, "gpusPerWorker": 1, "nodes": ["n1"],
        "since": at(0), "runningTime": at(0), "watts": 300, "hostWatts": 100});
    index.apply(testing::slim_job(1, &json!({"phase": "Running", "allocation": allocation})));
    let mut pod = testing::pod(0, 2, "j1");
    pod["spec"]["nodeName"] = "n1".into();
    pod["status"] = status.clone();
    index.apply(serde_json::from_value::<SlimPod>(pod).expect("a pod"));
    if let Some(conditions) = node {
        let mut node = testing::gpu_node("n1", "A", 1);
        node["status"]["conditions"] = json!([conditions]);
        index.apply(serde_json::from_value::<SlimNode>(node).expect("a node"));
    }
    let memory = Ledger::new(at(0)).entry(&key("bert"), "j1").clone();
    let now = at(60 * 3_600);
    JobInput::gather(&index, |_| memory, &key("bert"), Arc::default(), now).expect("the job").energy
}

#[test]
fn what_a_node_used_is_billed_until_its_last_sign() {
    let ready = |status: &str, hours: i64| json!({"type": "Ready", "status": status, "lastTransitionTime": at(hours * 3_600)});
    let hours =
        |view: &EnergyView| (view.attempt.joules / 3_600 / 300, view.attempt.host_joules / 3_600 / 100);
    let runs = json!({"phase": "Running", "containerStatuses": [{"name": "t", "state": {"running": {"startedAt": at(0)}}}]});
    let silent = counted_on(Some(ready("Unknown", 1)), &runs);
    assert_eq!(hours(&silent), (1, 1));
    let well = counted_on(Some(ready("True", 1)), &runs);
    assert_eq!(hours(&well), (60, 60));
    assert_eq!(silent.lateness_micros, well.lateness_micros, "the job becomes later all the same");
    // Its kubelet came back after two days and lost the container, while the operator was away.
    let marked = |containers: i64| {
        let condition = |kind: &str, hours: i64| json!({"type": kind, "status": "False", "lastTransitionTime": at(hours * 3_600)});
        let lost =
            json!({"exitCode": 255, "reason": "Unknown", "startedAt": at(0), "finishedAt": at(48 * 3_600)});
        json!({"phase": "Failed", "conditions": [condition("Ready", 1), condition("ContainersReady", containers)],
            "containerStatuses": [{"name": "t", "state": {"terminated": lost}}]})
    };
    assert_eq!(hours(&counted_on(Some(ready("True", 48)), &marked(48))), (1, 1));
    assert_eq!(hours(&counted_on(None, &marked(48))), (1, 1));
    assert_eq!(hours(&counted_on(Some(ready("True", 0)), &marked(1))), (48, 48), "its own probe had failed");
}

#[test]
fn measured_energy_of_a_run_that_is_seen_late_costs_what_it_did_at_its_end() {
    let mut index = ClusterIndex::new();
    let released =
        json!([{"pod": "team/bert-1-0", "since": at(1), "joules": 3_600_000, "seconds": 36_000, "gpus": 1}]);
    let node: SlimGpuNode = serde_json::from_value(json!({
        "metadata": {"name": "n1", "resourceVersion": "1"}, "spec": {}, "status": {"released": released}}))
    .expect("a GpuNode");
    index.apply(node);
    // Its start was never written, so nothing is predicted.
    let allocation = json!({"attempt": 1, "generation": 1, "gpuType": "A", "gpus": 1, "gpusPerWorker": 1, "nodes": ["n1"],
        "since": at(0), "watts": 300});
    let job = testing::slim_job(1, &json!({"phase": "Starting", "allocation": allocation}));
    let member =
        measured::Member { node: "n1".into(), pod: "team/bert-1-0".into(), bound: at(0), accepted: None };
    // It is 8:00 when the pods are bound.
    let night = json!({"windows": [{"from": "22:00", "to": "06:00", "energyPerKWh": "0.1"}]});
    let policy: EnergyPolicySpec =
        serde_json::from_value(json!({"pue": "1", "prices": {"energyPerKWh": "0.2", "tariff": night}}))
            .expect("a policy");
    let cost = |ended: Option<i64>, now: i64| {
        let members = std::slice::from_ref(&member);
        let ended = ended.map(|hour| at(hour * 3_600));
        let ends = ended.map(|at| AttemptEnds { members: vec![at], at, lasts: true });
        let view = energy(&index, &job, &policy, members, None, ends, at(now * 3_600));
        assert!(view.measured);
        view.attempt.micros as f64 / 1e6
    };
    assert!((cost(Some(15), 24) - 0.1).abs() < 1e-5, "it ended in the night and is seen by day");
    assert!((cost(None, 24) - 0.2).abs() < 1e-5);
}

#[test]
fn a_job_made_again_sees_the_old_pods_that_were_deleted_by_force() {
    let job = |uid: &str, version: u64| {
        let mut job = testing::job(version, &json!(null));
        job["metadata"]["uid"] = uid.into();
        serde_json::from_value::<SlimTrainingJob>(job).expect("a job")
    };
    let delete_pod =
        |index: &mut ClusterIndex| <ClusterIndex as Index<SlimPod>>::delete(index, &key("bert-1-0"), None);
    for (phase, kept) in [("Running", 1), ("Succeeded", 0)] {
        let mut pod = testing::pod(0, 2, "older");
        pod["spec"] = json!({"nodeName": "n1", "containers": [], "terminationGracePeriodSeconds": 60});
        pod["status"]["phase"] = phase.into();
        let pod: SlimPod = serde_json::from_value(pod).expect("a pod");
        let index = || {
            let mut index = ClusterIndex::new();
            let node = testing::gpu_node("n1", "A", 1);
            index.apply(serde_json::from_value::<SlimNode>(node).expect("a node"));
            index.apply(pod.clone());
            index
        };
        // Their job was deleted before them, or after.
        let mut job_first = index();
        delete_pod(&mut job_first);
        job_first.apply(job("j1", 5));
        let mut pod_first = index();
        pod_first.apply(job("older", 1));
        delete_pod(&mut pod_first);
        pod_first.apply(job("j1", 5));
        for index in [job_first, pod_first] {
            let memory = Ledger::new(at(0)).entry(&key("bert"), "j1").clone();
            let seen = JobInput::gather(&index, |_| memory, &key("bert"), Arc::default(), at(0));
            let seen = seen.expect("the job");
            assert_eq!((seen.deleted.len(), seen.nodes.len()), (kept, kept), "{phase}");
        }
    }
}

#[test]
fn of_two_pods_with_one_gpu_the_younger_of_ours_gives_way() {
    let pod = |name: &str, created: i64, job: Option<&str>| {
        let mut pod = testing::pod(0, 2, job.unwrap_or("nobody"));
        pod["metadata"]["name"] = name.into();
        pod["metadata"]["creationTimestamp"] = json!(at(created));
        pod["spec"]["nodeName"] = "n1".into();
        if job.is_none() {
            pod["metadata"]["ownerReferences"] = json!([]);
        }
        serde_json::from_value::<SlimPod>(pod).expect("a pod")
    };
    let shares = json!([{"pod": "team/a", "thousandths": 500}, {"pod": "team/b", "thousandths": 500}]);
    let gives_way = |pods: [SlimPod; 2], reason: &str| {
        let mut index = ClusterIndex::new();
        pods.into_iter().for_each(|pod| index.apply(pod));
        let gpu = json!({"uuid": "g", "state": "Held", "shares": shares, "problems": [{"reason": reason}]});
        gives_way(&serde_json::from_value(gpu).expect("a GPU"), &index, "n1")
    };
    let ours = || [pod("a", 10, Some("j1")), pod("b", 20, Some("j1"))];
    assert_eq!(gives_way(ours(), "TwoHolders").as_deref(), Some("team/b"));
    assert_eq!(gives_way(ours(), "Xid"), None);
    let [a, _] = ours();
    assert_eq!(gives_way([a, pod("b", 20, None)], "TwoHolders").as_deref(), Some("team/a"));
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
        agent(&node, &ClusterIndex::new(), Timestamp::UNIX_EPOCH)
            .and_then(|fact| fact.unhealthy_since)
            .map(Timestamp::as_second)
    };
    assert_eq!(fact(json!(at(500))), Some(500));
    // An agent of an earlier version dates the node alone.
    assert_eq!(fact(json!(null)), Some(10));
}
