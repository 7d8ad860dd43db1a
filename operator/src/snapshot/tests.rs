//! Given a cluster; when a snapshot is made; then the planner is told the truth.

use andreas_api::slim::{
    SlimEnergyPolicy, SlimGpuNode, SlimNode, SlimPersistentVolume, SlimPersistentVolumeClaim, SlimPod,
    SlimQuota, SlimTrainingJob, SlimTrainingProfile,
};
use andreas_core::GpuCount;
use andreas_planner::JobState;
use andreas_runtime::watch::Index;
use serde_json::{Value, json};

use super::*;

const GPU: &str = "NVIDIA-A100-SXM4-80GB";

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
}

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
        let mut all = json!({"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": GPU, "nvidia.com/gpu.memory": "81251"});
        all.as_object_mut().expect("object").extend(labels.as_object().expect("object").clone());
        let mut object = json!({
            "metadata": {"name": name, "resourceVersion": self.version(), "labels": all},
            "spec": {},
            "status": {"allocatable": {"nvidia.com/gpu": "8", "cpu": "64", "memory": "512Gi", "pods": "110"},
                       "conditions": [{"type": "Ready", "status": "True"}]},
        });
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
        let key = ObjectKey { namespace: "team".into(), name: name.into() };
        let ledger = self.ledger.get_or_insert_with(|| Ledger::new(at(0)));
        ledger.entry(&key, name).claim = Some(claim);
        self
    }

    fn pod(&mut self, job: &str, attempt: i64, node: &str, gpus: u32, phase: &str) -> &mut Self {
        let name = format!("{job}-{attempt}-0");
        let pod: SlimPod = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "team", "uid": name, "resourceVersion": self.version(),
                "labels": {"andreas.dev/job": job, "andreas.dev/attempt": attempt.to_string()},
                "ownerReferences": [{"apiVersion": "andreas.dev/v1alpha1", "kind": "TrainingJob", "name": job, "uid": job, "controller": true}]},
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
        let built = build(&self.index, &ledger, &mut Tables::default(), None, at(100));
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
        "gpusPerWorker": gpus, "nodes": [node], "placement": node, "since": at(10), "runningTime": at(20), "watts": 300}})
}

#[test]
fn only_usable_managed_nodes_with_whole_gpus_are_offered() {
    let mut world = World::default();
    world
        .node("good", json!({}), json!({}))
        .node("mig", json!({"nvidia.com/mig.strategy": "single"}), json!({}))
        .node("shared", json!({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED"}), json!({}))
        .node("other", json!({"nvidia.com/gpu.present": "false"}), json!({}))
        .node("cordoned", json!({}), json!({"spec": {"unschedulable": true}}))
        .node("silent", json!({}), json!({"status": {"allocatable": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "Unknown"}]}}));
    let built = build(&world.index, &Ledger::new(at(0)), &mut Tables::default(), None, at(1));
    assert_eq!(built.snapshot.nodes.iter().map(|n| n.name.as_str()).collect::<Vec<_>>(), ["good"]);
    assert_eq!(built.left_alone, ["mig", "shared"]);
}

#[test]
fn a_pod_is_taken_off_once_by_us_or_by_the_planner() {
    let mut world = World::default();
    world
        .node("n1", json!({}), json!({}))
        .job("runs", json!({}), holds(2, "n1", 2), Claim::Running { since: at(20) })
        .pod("runs", 2, "n1", 2, "Running")
        // Of an earlier attempt, still ending: nobody but us knows of it.
        .pod("runs", 1, "n1", 1, "Running")
        // Of a job that is no more.
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
    let key = ObjectKey { namespace: "team".into(), name: "a".into() };
    let mut ledger = world.ledger.take().expect("a ledger");
    let memory = ledger.entry(&key, "a");
    memory.claim = Some(Claim::Starting { since: at(10) });
    memory.pending = serde_json::from_value(holds(1, "n1", 4)).ok();
    let built = build(&world.index, &ledger, &mut Tables::default(), None, at(100));
    assert!(matches!(built.snapshot.jobs[0].state, JobState::Starting { .. }));
    assert_eq!(built.basis.get(&key), Some(&4));
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
    let built = build(&world.index, &ledger, &mut Tables::default(), None, at(100));
    assert_eq!(built.snapshot.jobs.iter().map(|j| j.id.as_str()).collect::<Vec<_>>(), ["team/waited"]);
    assert_eq!(built.not_before, Some(at(500)));
}

#[test]
fn tables_hold_what_the_user_knows_and_leave_out_types_that_are_too_small() {
    let mut world = World::default();
    world
        .node("n1", json!({}), json!({}))
        .node(
            "small",
            json!({"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360"}),
            json!({}),
        )
        .profile("bert", json!(null))
        .job(
            "known",
            json!({"profile": "bert", "gpus": {"min": 1, "max": 8, "memoryGiB": 80}}),
            json!(null),
            waiting(),
        )
        .job("unknown", json!({}), json!(null), waiting());
    let snapshot = world.snapshot();
    let known = &snapshot.jobs[0];
    assert!(
        known.estimates.iter().all(|row| row.gpu_type.as_str() == GPU),
        "80 GB boards report 79.3 GiB, T4 have 15"
    );
    let one = known.estimates.iter().find(|row| row.gpus == GpuCount(1)).expect("a row");
    assert!((one.epoch.0 - 100.0).abs() < 1e-6 && (one.power.0 - 300.0).abs() < 1e-6);
    assert_eq!(known.worker.fixed.cpu_milli, Some(4_000));
    // Of which nothing is known starts on one configuration: fewest GPUs of the commonest type.
    assert_eq!(snapshot.jobs[1].estimates.len(), 1);

    world.profile("bert", json!({"outOfMemoryTypes": [GPU]}));
    let snapshot = world.snapshot();
    assert!(snapshot.jobs[0].estimates.is_empty());
}

#[test]
fn what_is_planned_for_its_gpu_memory_is_what_a_step_allows_node_by_node() {
    const T4: &str = "Tesla-T4";
    let t4 = |mib: &str| json!({"nvidia.com/gpu.product": T4, "nvidia.com/gpu.memory": mib});
    let mut world = World::default();
    world.node("full", t4("15360"), json!({})).node("half", t4("7680"), json!({})).job(
        "asks",
        json!({"gpus": {"min": 1, "memoryGiB": 16}}),
        json!(null),
        waiting(),
    );
    let snapshot = world.snapshot();
    let job = &snapshot.jobs[0];
    assert!(!job.estimates.is_empty(), "16 GB boards report 15 GiB");
    let candidates = job.candidates.as_ref().expect("not every node");
    assert_eq!(candidates.iter().map(|n| n.as_str()).collect::<Vec<_>>(), ["full"]);

    // The step carries out what the plan says: a waiting job that is given "full" takes it.
    let key = ObjectKey { namespace: "team".into(), name: "asks".into() };
    let verdict = crate::lifecycle::Planned::Run {
        gpu_type: T4.into(),
        nodes: vec!["full".into()],
        gpus_per_worker: 1,
        limit_watts: None,
        watts: 70,
    };
    let mut memory = world.ledger.as_mut().expect("a ledger").entry(&key, "asks").clone();
    memory.decision = Some(crate::lifecycle::DecisionFor { basis: 0, verdict });
    memory.verdict = Some(crate::lifecycle::Verdict { gpus: 1, at: at(90), refusal: None });
    let seen =
        crate::executor::observe::Seen::gather(&world.index, |_| memory, &key, Arc::default(), at(100));
    let status = seen.expect("the job").step().status;
    assert_eq!(status.allocation.map(|a| a.nodes), Some(vec!["full".to_owned()]), "{:?}", status.reason);
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
        // An init container of one size and containers that grow with the GPUs.
        .job(
            "starts",
            asks(json!({"initContainers": [{"name": "i", "resources": {"requests": {"cpu": "4"}}}],
                "containers": [{"name": "t", "resources": {"requests": {"cpu": "2"}}}]})),
            json!(null),
            waiting(),
        );
    let foreign: crate::index::ForeignPod = serde_json::from_value(json!({
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
    // Never below what it takes with any number of GPUs: 4, 4, 6, 8 ... 16 cores.
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
fn quotas_give_back_what_the_planner_takes_off_itself() {
    let mut world = World::default();
    let quota: SlimQuota = serde_json::from_value(json!({
        "metadata": {"name": "q", "namespace": "team", "resourceVersion": "1000"},
        "status": {"hard": {"requests.nvidia.com/gpu": "8", "pods": "10"}, "used": {"requests.nvidia.com/gpu": "6", "pods": "3"}},
    }))
    .expect("a quota");
    world.index.apply(quota);
    world
        .node("n1", json!({}), json!({}))
        .job("runs", json!({"resourcesPer": "Gpu"}), holds(1, "n1", 2), Claim::Running { since: at(20) })
        .pod("runs", 1, "n1", 2, "Running");
    let snapshot = world.snapshot();
    let left = &snapshot.namespaces[0].quota;
    assert_eq!((left.get("q/requests.nvidia.com/gpu"), left.get("q/pods")), (Some(&4), Some(&8)));
    let worker = &snapshot.jobs[0].worker;
    assert_eq!(worker.quota_per_gpu.get("q/requests.nvidia.com/gpu"), Some(&1));
    assert_eq!(worker.quota_fixed.get("q/pods"), Some(&1));
    assert_eq!((worker.fixed.cpu_milli, worker.per_gpu.cpu_milli), (Some(0), Some(4_000)));
}

#[test]
fn broken_gpus_and_measured_foreign_power_come_from_the_agent() {
    let mut world = World::default();
    let agent: SlimGpuNode = serde_json::from_value(json!({
        "metadata": {"name": "n1", "resourceVersion": "900"}, "spec": {},
        "status": {"agentVersion": "1", "gpus": [
            {"uuid": "a", "state": "Unhealthy"}, {"uuid": "b", "state": "Held", "holder": "somebody", "watts": 250}, {"uuid": "c", "state": "Free", "watts": 50}]},
    }))
    .expect("a gpu node");
    world.index.apply(agent);
    world.node("n1", json!({}), json!({}));
    let snapshot = world.snapshot();
    assert_eq!(snapshot.nodes[0].free_gpus, GpuCount(7));
    assert_eq!(snapshot.nodes[0].foreign_power.map(|w| w.0), Some(250.0));
}

#[test]
fn a_broken_gpu_is_left_out_exactly_once_whoever_says_so() {
    // Free GPUs of 8, where the device plug-in has taken `out` from what may be asked for, the agent names `gpus`, and foreign
    // pods take `foreign`.
    let free = |out: u64, gpus: serde_json::Value, foreign: u64, agent: bool| {
        let mut world = World::default();
        let version = if agent { json!("1") } else { json!(null) };
        let said: SlimGpuNode = serde_json::from_value(json!({
            "metadata": {"name": "n1", "resourceVersion": "900"}, "spec": {}, "status": {"agentVersion": version, "gpus": gpus}}))
        .expect("a gpu node");
        world.index.apply(said);
        let allocatable =
            json!({"nvidia.com/gpu": (8 - out).to_string(), "cpu": "64", "memory": "512Gi", "pods": "110"});
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let status =
            json!({"allocatable": allocatable, "capacity": {"nvidia.com/gpu": "8"}, "conditions": ready});
        world.node("n1", json!({}), json!({ "status": status }));
        if foreign > 0 {
            let pod: crate::index::ForeignPod = serde_json::from_value(json!({
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
        free(0, json!([broken("a", Some("foreign"))]), 2, true),
        6,
        "foreign pods hold it: in use already"
    );
    assert_eq!(free(1, json!([broken("a", Some("foreign")), broken("b", None)]), 2, true), 4);
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
    let key = ObjectKey { namespace: "team".into(), name: "moves".into() };
    let mut ledger = world.ledger.take().expect("a ledger");
    let verdict = crate::lifecycle::Planned::Run {
        gpu_type: GPU.into(),
        nodes: vec!["n2".into()],
        gpus_per_worker: 4,
        limit_watts: None,
        watts: 1_000,
    };
    ledger.decide(&key, crate::lifecycle::DecisionFor { basis: 4, verdict }, Vec::new());
    let stopping = Claim::Stopping { gone_by: Some(at(160)), goes_on: true };
    let memory = ledger.entry(&key, "moves");
    let held = serde_json::from_value::<andreas_api::TrainingJobStatus>(holds(1, "n1", 2))
        .expect("a status")
        .allocation;
    memory.keep_target(&stopping, held.as_ref(), at(100));
    memory.claim = Some(stopping);
    world.ledger = Some(ledger);
    let on_n2 = |place: &andreas_planner::Placement| {
        place.nodes[0].as_str() == "n2" && place.gpus_per_node == GpuCount(4)
    };
    assert!(
        matches!(&world.snapshot().jobs[0].state, JobState::Stopping { target: Some(target), .. } if on_n2(target))
    );

    // It has stopped and not started yet: nobody else is offered its target.
    world.ledger.as_mut().expect("a ledger").entry(&key, "moves").claim = Some(waiting());
    assert!(matches!(&world.snapshot().jobs[0].state, JobState::Starting { target, .. } if on_n2(target)));
}

#[test]
fn a_job_that_stops_for_another_reason_than_a_move_has_no_target() {
    let held = serde_json::from_value::<andreas_api::TrainingJobStatus>(holds(1, "n1", 2))
        .expect("a status")
        .allocation;
    let mut ledger = Ledger::new(at(0));
    let key = ObjectKey { namespace: "team".into(), name: "edited".into() };
    ledger.entry(&key, "edited");
    let verdict = crate::lifecycle::Planned::Run {
        gpu_type: GPU.into(),
        nodes: vec!["n1".into()],
        gpus_per_worker: 2,
        limit_watts: None,
        watts: 600,
    };
    // The plan's last word was to go on there.
    ledger.decide(&key, crate::lifecycle::DecisionFor { basis: 4, verdict }, Vec::new());
    let memory = ledger.entry(&key, "edited");
    memory.keep_target(&Claim::Stopping { gone_by: None, goes_on: true }, held.as_ref(), at(100));
    assert_eq!(memory.target, None);
}

#[test]
fn power_limits_are_offered_where_agents_can_set_them_and_a_held_one_slows_its_job() {
    let mut world = World::default();
    let agent = |version: u64, low: i32| -> SlimGpuNode {
        let gpu = |uuid| json!({"uuid": uuid, "state": "Free", "minLimitWatts": low, "maxLimitWatts": 400});
        serde_json::from_value(json!({
            "metadata": {"name": "n1", "resourceVersion": version.to_string()}, "spec": {},
            "status": {"agentVersion": "1", "gpus": [gpu("a"), gpu("b")]},
        }))
        .expect("a gpu node")
    };
    let held = |watts: i32| {
        let mut status = holds(1, "n1", 8);
        status["allocation"]["powerLimitWatts"] = watts.into();
        status
    };
    let limits = |snapshot: &Snapshot, job: usize| -> Vec<f64> {
        snapshot.jobs[job].limits.iter().map(|l| l.limit.0).collect()
    };
    let running = || Claim::Running { since: at(20) };
    world
        .node("n1", json!({}), json!({}))
        .profile("bert", json!(null))
        .job("known", json!({"profile": "bert"}), held(220), running())
        .job("unknown", json!({}), json!(null), waiting());
    world.index.apply(agent(900, 100));
    let of_job = |snapshot: &Snapshot| match &snapshot.jobs[0].state {
        JobState::Running { placement, .. } => placement.limit.map(|watts| watts.0),
        _ => panic!("it runs"),
    };

    let snapshot = world.snapshot();
    assert_eq!((limits(&snapshot, 0), of_job(&snapshot)), (vec![], None), "the policy sets none");

    world.policy(json!({"limits": "On"}));
    let snapshot = world.snapshot();
    assert_eq!(
        limits(&snapshot, 0),
        [160.0, 220.0, 280.0],
        "340 W would take nothing away from a draw of 300 W"
    );
    assert_eq!(limits(&snapshot, 1), [0.0; 0], "nobody knows what it draws");
    assert_eq!(of_job(&snapshot), Some(220.0));
    let effects = &snapshot.jobs[0].limits;
    assert!(
        effects
            .windows(2)
            .all(|w| w[0].time_factor >= w[1].time_factor && w[0].power_factor < w[1].power_factor)
    );
    assert!(effects.iter().all(|l| l.time_factor >= 1.0 && l.power_factor * 300.0 <= l.limit.0 + 1e-6));

    world.policy(json!({"limits": "Observe"}));
    let built =
        build(&world.index, world.ledger.as_ref().expect("jobs"), &mut Tables::default(), None, at(100));
    assert_eq!(limits(&built.snapshot, 0), [0.0; 0], "looked at, not planned");
    let looked_at = built.observed_limits.expect("some");
    assert_eq!(looked_at[&built.snapshot.jobs[0].id].len(), 3);
    world.policy(json!({"limits": "On"}));

    // The node with the narrowest range counts.
    world.index.apply(agent(901, 300));
    let snapshot = world.snapshot();
    assert_eq!(of_job(&snapshot), None, "220 W are not offered any more");
    world.node("n2", json!({}), json!({}));
    assert_eq!(limits(&world.snapshot(), 0), [0.0; 0], "nobody would set them on n2");
}

#[test]
fn what_is_seen_of_a_run_moves_its_other_configurations_and_nobody_elses() {
    let mut world = World::default();
    let slow = |timed: i64| {
        let mut status = holds(1, "n1", 1);
        status["progress"] = json!({"milliPercent": 20_000, "text": "20%", "attempt": 1, "at": at(100), "stepwise": true,
            "millisPerEpoch": 200_000, "timedMilliEpochs": timed});
        status
    };
    world
        .node("n1", json!({}), json!({}))
        .profile("bert", json!(null))
        .job("slow", json!({"profile": "bert"}), slow(2_000), Claim::Running { since: at(20) })
        .job("waits", json!({"profile": "bert"}), json!(null), waiting());
    let snapshot = world.snapshot();
    let epoch = |job: usize, gpus: u32| {
        let rows = &snapshot.jobs[job].estimates;
        rows.iter()
            .find(|row| row.gpus == GpuCount(gpus))
            .map(|row| (row.epoch.0, row.rel_std))
            .expect("a row")
    };
    // Twice as slow as its user said, on one GPU and so on eight.
    assert!((epoch(0, 1).0 / 200.0 - 1.0).abs() < 0.05, "{:?}", epoch(0, 1));
    assert!((epoch(0, 8).0 / 40.0 - 1.0).abs() < 0.25, "{:?}", epoch(0, 8));
    assert!(epoch(0, 1).1 < 0.12 && epoch(0, 8).1 < 0.5, "{:?} {:?}", epoch(0, 1), epoch(0, 8));
    // What it says of itself stays with it until it has ended.
    assert!((epoch(1, 1).0 - 100.0).abs() < 1e-6 && (epoch(1, 8).0 - 20.0).abs() < 1e-6);
}

#[test]
fn one_run_of_a_family_may_look_at_a_type_that_the_family_is_not_known_on() {
    const OTHER: &str = "NVIDIA-H100-80GB-HBM3";
    let times = |profiling: &str| {
        let mut world = World::default();
        let seen = json!([{"run": "a-1", "gpuType": GPU, "gpus": 1, "nodes": 1, "millisPerEpoch": 100_000, "milliEpochs": 50_000,
            "watts": 300, "at": at(0)}]);
        let spec = json!({"profile": "bert", "profiling": profiling, "epochs": 500, "gpus": {"min": 1}, "checkpoint": {}});
        world
            .node("n1", json!({}), json!({}))
            .node("n2", json!({"nvidia.com/gpu.product": OTHER}), json!({}))
            .profile("bert", json!({"observations": seen}))
            .job("first", spec.clone(), json!(null), waiting())
            .job("second", spec, json!(null), waiting());
        let snapshot = world.snapshot();
        let time = |job: usize, gpu_type: &str| {
            let row = snapshot.jobs[job].estimates.iter().find(|row| row.gpu_type.as_str() == gpu_type);
            row.expect("a row").epoch.0
        };
        let plan = andreas_planner::plan(&snapshot, &andreas_planner::Options::default()).expect("a plan");
        let on = |job: usize| match &plan.jobs[&snapshot.jobs[job].id].decision {
            andreas_planner::Decision::Run(placement) => placement.gpu_type.to_string(),
            wait @ andreas_planner::Decision::Wait { .. } => panic!("{wait:?}"),
        };
        ([time(0, GPU), time(0, OTHER), time(1, OTHER)], [on(0), on(1)])
    };
    let ((off, stay), (auto, go)) = (times("Off"), times("Auto"));
    // The plan takes the offer, and no more than one run goes.
    assert_eq!((stay, go), ([GPU, GPU].map(str::to_owned), [OTHER, GPU].map(str::to_owned)));
    assert_eq!((off[0], off[1]), (auto[0], off[2]));
    assert!(auto[1] < off[1] && auto[1] >= 0.7 * off[1], "{auto:?} {off:?}");
    assert_eq!(auto[2], off[2], "one look at a time");
}
