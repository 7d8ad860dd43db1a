//! Given a cluster; when a snapshot is built; then it matches the cluster's state.

use andreas_api::EnergyPolicySpec;
use andreas_api::slim::{
    SlimEnergyPolicy, SlimGpuNode, SlimNode, SlimPersistentVolume, SlimPersistentVolumeClaim, SlimPod,
    SlimQuota, SlimTrainingJob, SlimTrainingProfile,
};
use andreas_model::{GpuCount, Watts};
use andreas_planner::JobState;
use andreas_runtime::watch::Index;
use serde_json::{Value, json};

use super::*;
use crate::testing::{at, boards as all_boards, gpu_node, key, owner};

mod admission;
mod boards;
mod draws;
mod guards;
mod held;
mod jobs;
mod labels;
mod late;
mod order;
mod predictions;
mod quotas;
mod tenants;

const GPU: &str = "NVIDIA-A100-SXM4-80GB";

#[derive(Default)]
struct World {
    index: ClusterIndex,
    ledger: Option<Ledger>,
    version: u64,
}

impl World {
    fn version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    fn node(&mut self, name: &str, labels: Value, extra: Value) -> &mut Self {
        let mut object = gpu_node(name, GPU, 8);
        object["metadata"]["resourceVersion"] = self.version().into();
        let all = &mut object["metadata"]["labels"];
        all["nvidia.com/gpu.memory"] = "81251".into();
        all.as_object_mut().expect("object").extend(labels.as_object().expect("object").clone());
        object.as_object_mut().expect("object").extend(extra.as_object().expect("object").clone());
        self.index.apply(serde_json::from_value::<SlimNode>(object).expect("a node"));
        self
    }

    fn job(&mut self, name: &str, spec: Value, status: Value, claim: Claim) -> &mut Self {
        let mut all = json!({"epochs": 10, "gpus": {"min": 1, "max": 8},
            "template": {"spec": {"containers": [{"name": "t", "resources": {"requests": {"cpu": "4", "memory": "1Gi"}}}]}}});
        all.as_object_mut().expect("object").extend(spec.as_object().expect("object").clone());
        let job: SlimTrainingJob = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "team", "uid": name, "resourceVersion": self.version(), "creationTimestamp": at(0)},
            "spec": all, "status": status,
        }))
        .expect("a job");
        self.index.apply(job);
        let ledger = self.ledger.get_or_insert_with(|| Ledger::new(at(0)));
        ledger.entry(&key(name), name).set_claim(claim);
        self
    }

    fn pod(&mut self, job: &str, attempt: i64, node: &str, gpus: u32, phase: &str) -> &mut Self {
        let name = format!("{job}-{attempt}-0");
        let pod: SlimPod = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "team", "uid": name, "resourceVersion": self.version(),
                "labels": {"andreas.dev/job": job, "andreas.dev/job-uid": job, "andreas.dev/attempt": attempt.to_string()},
                "ownerReferences": [owner(job, job)]},
            "spec": {"nodeName": node, "containers": [{"name": "t", "resources": {"requests": {"cpu": "4", "nvidia.com/gpu": gpus.to_string()}}}]},
            "status": {"phase": phase},
        }))
        .expect("a pod");
        self.index.apply(pod);
        self
    }

    fn profile(&mut self, name: &str, status: Value) -> &mut Self {
        let profile: SlimTrainingProfile = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "team", "resourceVersion": self.version()},
            "spec": {"measurements": [
                {"gpuType": GPU, "gpus": 1, "millisPerEpoch": 100_000, "watts": 300},
                {"gpuType": GPU, "gpus": 8, "millisPerEpoch": 20_000, "watts": 2_400}]},
            "status": status,
        }))
        .expect("a profile");
        self.index.apply(profile);
        self
    }

    fn policy(&mut self, spec: Value) -> &mut Self {
        let version = self.version();
        let object = json!({"apiVersion": "andreas.dev/v1alpha1", "kind": "EnergyPolicy",
            "metadata": {"name": "default", "resourceVersion": version}, "spec": spec});
        self.index.apply(serde_json::from_value::<SlimEnergyPolicy>(object).expect("a policy"));
        self
    }

    fn snapshot(&mut self) -> Snapshot {
        let ledger = self.ledger.take().unwrap_or_else(|| Ledger::new(at(0)));
        let built = build(&self.index, &ledger, &mut Caches::default(), None, at(100));
        self.ledger = Some(ledger);
        let planned = andreas_planner::plan(&built.snapshot, &andreas_planner::Options::default());
        assert!(planned.is_ok(), "{planned:?}");
        built.snapshot
    }
}

fn waiting() -> Claim {
    Claim::Waiting { not_before: None }
}

fn holds(attempt: i64, node: &str, gpus: i32) -> Value {
    json!({"phase": "Running", "decisions": 4, "allocation": {"attempt": attempt, "generation": 4, "gpuType": GPU, "gpus": gpus,
        "gpusPerWorker": gpus, "nodes": [node], "since": at(10), "runningTime": at(20), "watts": 300}})
}

#[test]
fn only_usable_managed_nodes_with_whole_gpus_are_offered() {
    let mut world = World::default();
    let training = |labels: Value| {
        let mut all = json!({"team": "training"});
        all.as_object_mut().expect("object").extend(labels.as_object().expect("object").clone());
        all
    };
    world
        .policy(json!({"nodeSelector": {"team": "training"}}))
        .node("good", training(json!({"nvidia.com/mig.strategy": "single"})), json!({}))
        .node("mig", training(json!({"nvidia.com/mig-1g.10gb.count": "7"})), json!({}))
        .node("shared", training(json!({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED"})), json!({}))
        .node("other", json!({}), json!({}))
        .node("cordoned", training(json!({})), json!({"spec": {"unschedulable": true}}))
        .node("silent", training(json!({})), json!({"status": {"allocatable": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "Unknown"}]}}));
    let built = build(&world.index, &Ledger::new(at(0)), &mut Caches::default(), None, at(1));
    assert_eq!(built.snapshot.nodes.iter().map(|n| n.name.as_str()).collect::<Vec<_>>(), ["good"]);
    let excluded = built.excluded.expect("some");
    assert!(excluded.starts_with("3 nodes with GPUs are excluded: 1 MigInUse (mig): "), "{excluded}");
    assert!(
        excluded.contains("1 SharedGpus (shared): ") && excluded.contains("1 NotSelected (other): "),
        "{excluded}"
    );
}

#[test]
fn a_pod_is_taken_off_once_by_us_or_by_the_planner() {
    let mut world = World::default();
    world
        .node("n1", json!({}), json!({}))
        .job("runs", json!({}), holds(2, "n1", 2), Claim::Running { since: at(20) })
        .pod("runs", 2, "n1", 2, "Running")
        // Of an earlier attempt that is still ending: only the operator knows of it.
        .pod("runs", 1, "n1", 1, "Running")
        // Of a deleted job.
        .pod("gone", 1, "n1", 4, "Running")
        .pod("done", 1, "n1", 8, "Succeeded");
    let snapshot = world.snapshot();
    assert_eq!(snapshot.nodes[0].free_gpus, GpuCount(3));
    assert_eq!(snapshot.nodes[0].free.cpu_milli, Some(56_000));
    assert!(
        matches!(&snapshot.jobs[0].state, JobState::Running { placement, .. } if placement.gpus_per_node == GpuCount(2))
    );
}

#[test]
fn a_status_on_its_way_is_true_already() {
    let mut world = World::default();
    world.node("n1", json!({}), json!({})).job("a", json!({}), json!(null), waiting());
    let key = key("a");
    let mut ledger = world.ledger.take().expect("a ledger");
    let memory = ledger.entry(&key, "a");
    memory.set_claim(Claim::Starting { since: at(10) });
    memory.begin_write(serde_json::from_value(holds(1, "n1", 4)).expect("a status"));
    let built = build(&world.index, &ledger, &mut Caches::default(), None, at(100));
    assert!(matches!(built.snapshot.jobs[0].state, JobState::Starting { .. }));
    assert_eq!(built.basis.get(&key), Some(&JobBasis { uid: "a".into(), decisions: 4 }));
}

#[test]
fn an_allocation_that_no_step_has_seen_yet_is_held() {
    // The write of the allocation had no answer; a watch has shown it since.
    let mut world = World::default();
    world.node("n1", json!({}), json!({})).node("n2", json!({}), json!({}));
    let mut held = holds(1, "n1", 4);
    held["phase"] = "Starting".into();
    world.job("a", json!({}), held, waiting());
    let snapshot = world.snapshot();
    let JobState::Starting { target, .. } = &snapshot.jobs[0].state else { panic!("{:?}", snapshot.jobs[0]) };
    assert_eq!(target.nodes.iter().map(ToString::to_string).collect::<Vec<_>>(), ["n1"]);
}

#[test]
fn a_job_on_a_node_that_takes_no_new_ones_stays_and_nobody_joins_it() {
    let mut world = World::default();
    world
        .node("n1", json!({}), json!({"spec": {"unschedulable": true}}))
        .node("n2", json!({}), json!({}))
        .job("stays", json!({}), holds(1, "n1", 2), Claim::Running { since: at(20) })
        .pod("stays", 1, "n1", 2, "Running")
        .job("waits", json!({}), json!(null), waiting());
    let snapshot = world.snapshot();
    assert_eq!(snapshot.nodes[0].free_gpus, GpuCount(2));
    let candidates = |at: usize| {
        snapshot.jobs[at].candidates.as_ref().map(|c| c.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!((candidates(0), candidates(1)), (None, Some(vec!["n2".to_owned()])));
}

#[test]
fn who_wants_nothing_or_must_wait_is_not_planned() {
    let mut world = World::default();
    world
        .node("n1", json!({}), json!({}))
        .job("suspended", json!({}), json!(null), Claim::Nothing)
        .job("backs-off", json!({}), json!(null), Claim::Waiting { not_before: Some(at(500)) })
        .job("waited", json!({}), json!(null), Claim::Waiting { not_before: Some(at(50)) });
    let ledger = world.ledger.take().expect("a ledger");
    let built = build(&world.index, &ledger, &mut Caches::default(), None, at(100));
    assert_eq!(built.snapshot.jobs.iter().map(|j| j.id.as_str()).collect::<Vec<_>>(), ["team/waited"]);
    assert_eq!(built.not_before, Some(at(500)));
}

#[test]
fn a_worker_must_fit_by_everything_it_asks_for() {
    let with = |more: Value| {
        let mut all = json!({"nvidia.com/gpu": "8", "cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "100Gi"});
        all.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
        json!({"status": {"allocatable": all, "conditions": [{"type": "Ready", "status": "True"}]}})
    };
    let asks = |template: Value| json!({"resourcesPer": "Gpu", "template": {"spec": template}});
    let mut world = World::default();
    world
        .node("fabric", json!({}), with(json!({"rdma/hca": "4", "hugepages-2Mi": "1Gi"})))
        .node("plain", json!({}), with(json!({})))
        .job(
            "asks",
            asks(json!({"containers": [{"name": "t", "ports": [{"containerPort": 1, "hostPort": 7_000}],
                "resources": {"requests": {"ephemeral-storage": "20Gi"}, "limits": {"rdma/hca": "1"}}}]})),
            json!(null),
            waiting(),
        )
        // An init container of fixed size and containers that grow with the GPUs.
        .job(
            "starts",
            asks(json!({"initContainers": [{"name": "i", "resources": {"requests": {"cpu": "4"}}}],
                "containers": [{"name": "t", "resources": {"requests": {"cpu": "2"}}}]})),
            json!(null),
            waiting(),
        );
    let foreign: andreas_cluster::index::ForeignPod = serde_json::from_value(json!({
        "metadata": {"name": "x", "namespace": "kube-system", "resourceVersion": "1"},
        "spec": {"nodeName": "fabric", "resources": {"requests": {"cpu": "10"}},
            "containers": [{"name": "c", "ports": [{"containerPort": 7_000, "hostPort": 7_000}],
                "resources": {"requests": {"cpu": "1", "ephemeral-storage": "70Gi", "rdma/hca": "1"}}}]},
    }))
    .expect("a pod");
    world.index.apply(foreign);
    let snapshot = world.snapshot();
    let others = |node: usize| -> BTreeMap<&str, u64> {
        snapshot.nodes[node].free.others.iter().map(|(name, left)| (name.as_ref(), *left)).collect()
    };
    let port = "hostPort:TCP/7000";
    assert_eq!(others(0), [("ephemeral-storage", 30 << 30), (port, 0), ("rdma/hca", 3)].into());
    assert_eq!(others(1), [("ephemeral-storage", 100 << 30), (port, 1), ("rdma/hca", 0)].into());
    assert_eq!(snapshot.nodes[0].free.cpu_milli, Some(54_000), "the whole pod's request counts");
    let worker = &snapshot.jobs[0].worker;
    let (fixed, each) = (&worker.fixed.others, &worker.per_gpu.others);
    assert_eq!((fixed.get(port), each.get(port)), (Some(&1), None));
    assert_eq!((fixed.get("rdma/hca"), each.get("rdma/hca")), (None, Some(&1)));
    let plan = andreas_planner::plan(&snapshot, &andreas_planner::Options::default()).expect("a plan");
    assert!(
        matches!(&plan.jobs[&snapshot.jobs[0].id].decision, andreas_planner::Decision::Wait { .. }),
        "one node has no fabric, on the other the port is taken"
    );
    // Never below the real demand for any number of GPUs: 4, 4, 6, 8 ... 16 cores.
    let cpu = |gpus: u64| {
        let worker = &snapshot.jobs[1].worker;
        worker.fixed.cpu_milli.unwrap_or(0) + gpus * worker.per_gpu.cpu_milli.unwrap_or(0)
    };
    for gpus in 1..=8 {
        assert!(cpu(gpus) >= (2_000 * gpus).max(4_000), "{gpus} GPUs: {}", cpu(gpus));
    }
    assert!(cpu(1) <= 4_001 && cpu(8) <= 16_010, "{} {}", cpu(1), cpu(8));
}

#[test]
fn gpus_that_share_a_device_run_where_each_node_has_one() {
    let gang = |hca: &str, gpus: Value, sidecar: bool| {
        let mut spec =
            json!({"containers": [{"name": "t", "resources": {"limits": {"rdma/hca": hca, "cpu": "1"}}}]});
        if sidecar {
            let limits = json!({"limits": {"rdma/hca": "1"}});
            spec["initContainers"] = json!([{"name": "s", "restartPolicy": "Always", "resources": limits}]);
        }
        json!({"resourcesPer": "Gpu", "gpus": gpus, "template": {"spec": spec}})
    };
    // GPUs and devices of each of two nodes and what the quota has left, and whether the gang runs there.
    let two = json!({"min": 16, "maxNodes": 2});
    for (gang, gpus, hcas, quota, runs) in [
        (gang("0.125", two.clone(), false), 8, 1, 2, true),
        (gang("0.125", two.clone(), false), 8, 1, 1, false),
        (gang("0.125", two.clone(), true), 8, 1, 9, false),
        (gang("0.125", two.clone(), true), 8, 2, 4, true),
        (gang("0.166", json!({"min": 12, "maxNodes": 2}), false), 6, 1, 2, true),
        // 1.2 are two.
        (gang("0.4", json!({"min": 6, "maxNodes": 2}), false), 3, 1, 9, false),
    ] {
        let mut world = World::default();
        for name in ["n1", "n2"] {
            let all = json!({"nvidia.com/gpu": gpus.to_string(), "cpu": "64", "memory": "512Gi", "pods": "110",
                "rdma/hca": hcas.to_string()});
            let ready = json!([{"type": "Ready", "status": "True"}]);
            world.node(name, json!({}), json!({"status": {"allocatable": all, "conditions": ready}}));
        }
        let quota: SlimQuota = serde_json::from_value(json!({
            "metadata": {"name": "q", "namespace": "team", "resourceVersion": "1000"},
            "status": {"hard": {"requests.rdma/hca": quota.to_string()}, "used": {}}}))
        .expect("a quota");
        world.index.apply(quota);
        world.job("gang", gang.clone(), json!(null), waiting());
        let snapshot = world.snapshot();
        let plan = andreas_planner::plan(&snapshot, &andreas_planner::Options::default()).expect("a plan");
        let decision = &plan.jobs[&snapshot.jobs[0].id].decision;
        assert_eq!(decision.placement().is_some(), runs, "{gang}: {decision:?}");
        // It is saved with the snapshot.
        let worker = &snapshot.jobs[0].worker;
        let read: andreas_planner::Worker =
            serde_json::from_value(serde_json::to_value(worker).expect("JSON")).expect("a worker");
        assert_eq!(&read, worker);
    }
}

#[test]
fn a_bound_volume_holds_the_job_to_its_nodes() {
    let mut world = World::default();
    for name in ["n1", "n2"] {
        world.node(name, json!({"kubernetes.io/hostname": name}), json!({}));
    }
    let claim = json!({"metadata": {"name": "ckpt", "namespace": "team", "resourceVersion": "1"}, "spec": {"volumeName": "pv"}});
    let volume = json!({"metadata": {"name": "pv", "resourceVersion": "1"}, "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"]}]}]}}}});
    world.index.apply(serde_json::from_value::<SlimPersistentVolumeClaim>(claim).expect("a claim"));
    world.index.apply(serde_json::from_value::<SlimPersistentVolume>(volume).expect("a volume"));
    world.job("bound", json!({"checkpoint": {"claimName": "ckpt"}}), json!(null), waiting()).job(
        "free",
        json!({}),
        json!(null),
        waiting(),
    );
    let snapshot = world.snapshot();
    let candidates = snapshot.jobs[0].candidates.as_ref().expect("not every node");
    assert_eq!(candidates.iter().map(|n| n.as_str()).collect::<Vec<_>>(), ["n2"]);
    assert_eq!(snapshot.jobs[1].candidates, None);
}

#[test]
fn broken_gpus_and_measured_foreign_power_come_from_the_agent() {
    let mut world = World::default();
    let agent: SlimGpuNode = serde_json::from_value(json!({
        "metadata": {"name": "n1", "resourceVersion": "900"}, "spec": {},
        "status": {"agentVersion": "1", "gpus": all_boards(json!([
            {"uuid": "a", "state": "Unhealthy"}, {"uuid": "b", "state": "Held", "holder": "somebody", "watts": 250}, {"uuid": "c", "state": "Free", "watts": 50}]), 8)},
    }))
    .expect("a gpu node");
    world.index.apply(agent);
    world.node("n1", json!({}), json!({}));
    let snapshot = world.snapshot();
    assert_eq!(snapshot.nodes[0].free_gpus, GpuCount(7));
    // The broken one draws power beside it, as an idle one.
    assert_eq!(snapshot.nodes[0].foreign_power.map(|w| w.0), Some(250.0 + 52.0));
}

#[test]
fn a_broken_gpu_is_left_out_exactly_once_whoever_says_so() {
    // Free GPUs of 8. The device plug-in has removed `out` from allocatable, the agent names `gpus`, and
    // foreign pods hold `foreign`.
    let free = |out: u64, gpus: serde_json::Value, foreign: u64, agent: bool| {
        let mut world = World::default();
        let version = if agent { json!("1") } else { json!(null) };
        let said: SlimGpuNode = serde_json::from_value(json!({
            "metadata": {"name": "n1", "resourceVersion": "900"}, "spec": {}, "status": {"agentVersion": version, "gpus": all_boards(gpus, 8)}}))
        .expect("a gpu node");
        world.index.apply(said);
        let allocatable =
            json!({"nvidia.com/gpu": (8 - out).to_string(), "cpu": "64", "memory": "512Gi", "pods": "110"});
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let status =
            json!({"allocatable": allocatable, "capacity": {"nvidia.com/gpu": "8"}, "conditions": ready});
        world.node("n1", json!({}), json!({ "status": status }));
        if foreign > 0 {
            let pod: andreas_cluster::index::ForeignPod = serde_json::from_value(json!({
                "metadata": {"name": "x", "namespace": "other", "uid": "foreign", "resourceVersion": "901"},
                "spec": {"nodeName": "n1", "containers": [{"resources": {"limits": {"nvidia.com/gpu": foreign.to_string()}}}]}}))
            .expect("a pod");
            world.index.apply(pod);
        }
        world.snapshot().nodes[0].free_gpus.0
    };
    let broken = |uuid: &str, holder: Option<&str>| match holder {
        Some(holder) => json!({"uuid": uuid, "state": "Unhealthy", "holder": holder}),
        None => json!({"uuid": uuid, "state": "Unhealthy"}),
    };
    assert_eq!(free(0, json!([broken("a", None)]), 0, true), 7, "the agent alone");
    assert_eq!(free(1, json!([]), 0, true), 7, "the plug-in alone");
    assert_eq!(free(1, json!([broken("a", None)]), 0, true), 7, "both");
    assert_eq!(
        free(1, json!([broken("a", None), broken("b", None)]), 0, true),
        6,
        "the agent knows one more"
    );
    assert_eq!(
        free(0, json!([broken("a", Some("other/x"))]), 2, true),
        6,
        "foreign pods hold it: in use already"
    );
    assert_eq!(free(1, json!([broken("a", Some("other/x")), broken("b", None)]), 2, true), 4);
    assert_eq!(free(0, json!([broken("a", None)]), 0, false), 8, "an agent that has ended knows nothing");
}

#[test]
fn a_move_keeps_its_target_from_the_stop_to_the_start() {
    let mut world = World::default();
    world.node("n1", json!({}), json!({})).node("n2", json!({}), json!({})).job(
        "moves",
        json!({}),
        holds(1, "n1", 2),
        Claim::Running { since: at(20) },
    );
    let key = key("moves");
    let mut ledger = world.ledger.take().expect("a ledger");
    let planned = andreas_lifecycle::Planned::Run {
        gpu_type: GPU.into(),
        nodes: vec!["n2".into()],
        gpus_per_worker: 4,
        limit_watts: None,
        watts: 1_000,
        guard: andreas_lifecycle::Guard::default(),
    };
    ledger.decide(&key, "moves", andreas_lifecycle::DecisionFor { basis: 4, planned }, Vec::new());
    let stopping = Claim::Stopping { gone_by: Some(at(160)), goes_on: true };
    let memory = ledger.entry(&key, "moves");
    let held = serde_json::from_value::<andreas_api::TrainingJobStatus>(holds(1, "n1", 2))
        .expect("a status")
        .allocation;
    memory.keep_target(&stopping, held.as_ref(), at(100));
    memory.set_claim(stopping);
    world.ledger = Some(ledger);
    let on_n2 = |place: &andreas_planner::Placement| {
        place.nodes[0].as_str() == "n2" && place.gpus_per_node == GpuCount(4)
    };
    assert!(
        matches!(&world.snapshot().jobs[0].state, JobState::Stopping { target: Some(target), .. } if on_n2(target))
    );

    // Stopped and not started yet: its next placement is offered to no other job.
    let memory = world.ledger.as_mut().expect("a ledger").entry(&key, "moves");
    memory.set_claim(waiting());
    memory
        .begin_write(serde_json::from_value(json!({"phase": "Pending", "decisions": 5})).expect("a status"));
    assert!(matches!(&world.snapshot().jobs[0].state, JobState::Starting { target, .. } if on_n2(target)));
}

#[test]
fn a_job_that_stops_for_another_reason_than_a_move_has_no_target() {
    let held = serde_json::from_value::<andreas_api::TrainingJobStatus>(holds(1, "n1", 2))
        .expect("a status")
        .allocation;
    let mut ledger = Ledger::new(at(0));
    let key = key("edited");
    ledger.entry(&key, "edited");
    let planned = andreas_lifecycle::Planned::Run {
        gpu_type: GPU.into(),
        nodes: vec!["n1".into()],
        gpus_per_worker: 2,
        limit_watts: None,
        watts: 600,
        guard: andreas_lifecycle::Guard::default(),
    };
    // The last plan's decision was to continue there.
    ledger.decide(&key, "edited", andreas_lifecycle::DecisionFor { basis: 4, planned }, Vec::new());
    let memory = ledger.entry(&key, "edited");
    memory.keep_target(&Claim::Stopping { gone_by: None, goes_on: true }, held.as_ref(), at(100));
    assert_eq!(memory.target(), None);
}
