//! Given machines that may be switched off; when plans are made over time; then those that nobody needs go off, and a job that needs one
//! waits for it by name.

use std::cell::Cell;

use andreas_api::slim::{SlimEnergyPolicy, SlimNode, SlimNodePower, SlimTrainingJob};
use andreas_cluster::index::ForeignPod;
use andreas_planner::Options;
use andreas_runtime::watch::Index;
use serde_json::{Value, json};

use super::*;
use crate::planning::{FromLastPlan, make, record};
use crate::snapshot::Caches;
use crate::testing::{at, gpu_node, key, stepped};

const GPU: &str = "NVIDIA-A100-SXM4-80GB";

thread_local! {
    /// The second of this test's clock.
    static NOW: Cell<i64> = const { Cell::new(0) };
}

struct World {
    index: ClusterIndex,
    sleep: Sleep,
    version: u64,
    second: i64,
    /// Replicas of the buffer of a100.
    replicas: usize,
    /// State, what is wanted, and since when, by name.
    machines: BTreeMap<String, (String, String, i64)>,
}

impl World {
    fn new(policy: Value) -> Self {
        let board = json!({"name": GPU, "idleWatts": 50, "maxWatts": 400, "hostIdleWatts": 600, "hostBusyWatts": 1000, "hostOffWatts": 20});
        let mut policy = policy;
        policy["gpuTypes"] = json!([board]);
        let mut world = Self {
            index: ClusterIndex::with_clock(clock),
            sleep: Sleep::new(at(0)),
            version: 1,
            second: 0,
            replicas: 0,
            machines: BTreeMap::new(),
        };
        let object = json!({"metadata": {"name": "default", "resourceVersion": "1"}, "spec": policy});
        world.index.apply(serde_json::from_value::<SlimEnergyPolicy>(object).expect("a policy"));
        world
    }

    fn version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    fn node(&mut self, name: &str) -> &mut Self {
        let mut node = gpu_node(name, GPU, 8);
        node["metadata"]["resourceVersion"] = json!(self.version());
        self.index.apply(serde_json::from_value::<SlimNode>(node).expect("a node"));
        self
    }

    /// A node that an autoscaler added, ready or only registered.
    fn added(&mut self, name: &str, ready: bool) -> &mut Self {
        let mut node = gpu_node(name, GPU, 8);
        node["metadata"]["resourceVersion"] = json!(self.version());
        node["metadata"]["labels"]["pool"] = json!("a100");
        if !ready {
            node["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
        }
        self.index.apply(serde_json::from_value::<SlimNode>(node).expect("a node"));
        self
    }

    /// A NodePower in this state from now on.
    fn machine(&mut self, name: &str, state: &str, wanted: &str) -> &mut Self {
        self.machines.insert(name.to_owned(), (state.to_owned(), wanted.to_owned(), self.second));
        self
    }

    /// node-power reads the power of all machines.
    fn read(&mut self) {
        for (name, (state, wanted, since)) in self.machines.clone() {
            let node = gpu_node(&name, GPU, 8);
            let remembered = json!({"nodeUid": "u", "labels": node["metadata"]["labels"], "gpus": 8,
                "allocatable": node["status"]["allocatable"]});
            let power = json!({
                "metadata": {"name": name, "uid": name, "resourceVersion": self.version()},
                "spec": {"wanted": wanted},
                "status": {"state": state, "since": at(since), "readTime": at(self.second), "bootSeconds": 360,
                    "machine": remembered}});
            self.index.apply(serde_json::from_value::<SlimNodePower>(power).expect("a NodePower"));
        }
    }

    fn job(&mut self, name: &str, gpus: i32, status: Value) -> &mut Self {
        let version = self.version();
        let object = json!({
            "metadata": {"name": name, "namespace": "team", "uid": name, "resourceVersion": version, "generation": 1,
                "creationTimestamp": at(0)},
            "spec": {"epochs": 10, "deadlineAfter": "1h", "weight": 50,
                "gpus": {"min": gpus, "max": gpus, "maxNodes": (gpus + 7) / 8},
                "template": {"spec": {"containers": [{"name": "t", "image": "x"}]}}},
            "status": status});
        self.index.apply(serde_json::from_value::<SlimTrainingJob>(object).expect("a job"));
        self
    }

    /// The plan at that second: what is wanted, and what is decided for the job `a`.
    fn plan(&mut self, second: i64) -> (Wanted, Option<Planned>) {
        self.second = second;
        NOW.set(second);
        self.read();
        let waiting = self.index.waiting_pods();
        self.index.see_capacity(at(second));
        let index = self.index.for_plan();
        let mut ledger = stepped(&index, at(second));
        let last = (FromLastPlan::default(), at(second));
        let (_, built, made) = make(&index, &ledger, Caches::default(), last, &Options::default());
        let (plan, _) = made.expect("a plan");
        let wanted = self.sleep.after(&index, (&built.snapshot, &plan), &waiting, at(second));
        let more = wanted.capacity.iter().map(|(pool, asked)| (pool.clone(), asked.more)).collect();
        let asked = self.index.ask_capacity(&more, at(second));
        let of_pool = wanted.capacity.get("a100").copied().unwrap_or_default();
        self.replicas = asked.get("a100").map_or(0, |asked| of_pool.replicas(*asked));
        record(&self.index, &mut ledger, &built, &plan);
        let decision = ledger.get(&key("a")).and_then(|memory| memory.plan().decision.clone());
        (wanted, decision.map(|decision| decision.planned))
    }

    fn off(&mut self, second: i64) -> Vec<String> {
        let (wanted, _) = self.plan(second);
        let off = wanted.power.into_iter().filter(|(_, power)| *power == WantedPower::Off);
        off.map(|(name, _)| name).collect()
    }
}

fn clock() -> Timestamp {
    at(NOW.get())
}

/// It runs on all GPUs of a node.
fn holds_all(node: &str) -> Value {
    json!({"phase": "Running", "decisions": 4, "allocation": {"attempt": 1, "generation": 4, "gpuType": GPU, "gpus": 8,
        "gpusPerWorker": 8, "nodes": [node], "since": at(0), "runningTime": at(1), "watts": 2000}})
}

fn on() -> Value {
    json!({"nodeSleep": {"mode": "On", "idleAfter": "10m"}})
}

#[test]
fn empty_machines_go_off_once_their_idle_draw_has_cost_a_start_and_demand_was_seen() {
    let mut world = World::new(on());
    world.node("n1").node("n2").node("n3").machine("n1", "On", "On").machine("n2", "On", "On");
    world.job("a", 8, holds_all("n1"));
    // A new operator has seen no demand yet.
    assert_eq!(world.off(10), Vec::<String>::new());
    let (wanted, _) = world.plan(3_000);
    assert_eq!(wanted.next, Some(Time(1_800_003_600.0)), "and looks again then");
    // The busy one and the one without a NodePower are not asked to.
    assert_eq!(world.off(3_600), ["n2"]);
    // Its GPUs and host draw 1000 W less without it: a start of 360 s at 1000 W has paid 360 s after it went off.
    world.machine("n2", "Off", "Off");
    let (wanted, _) = world.plan(3_700);
    assert_eq!(wanted.saved, Joules(0.0));
    let (wanted, _) = world.plan(4_060);
    let expected = 980.0 * (460.0 - 360_000.0 / 980.0);
    assert!((wanted.saved.0 - expected).abs() < 1.0, "{:?} {expected}", wanted.saved);
    assert_eq!(wanted.power["n2"], WantedPower::Off, "it stays off");
}

#[test]
fn a_job_that_needs_a_machine_which_is_off_waits_for_it_by_name() {
    let mut world = World::new(on());
    world.node("n1").machine("n1", "On", "On").machine("n2", "Off", "Off").machine("n3", "Off", "Off");
    world.job("b", 8, holds_all("n1")).job("a", 8, json!(null));
    let (wanted, planned) = world.plan(20);
    assert_eq!([wanted.power["n2"], wanted.power["n3"]], [WantedPower::On, WantedPower::Off]);
    world.machine("n2", "Off", "On");
    assert_eq!(world.off(21), ["n3"]);
    let waits = |message: &str| Some(Planned::Wait { reason: Reason::NodeStarting, message: message.into() });
    assert_eq!(planned, waits("n2 is off and starts, which takes about 6 min"));
    // node-power starts it: the expected end stands.
    world.machine("n2", "Starting", "On");
    for second in [25, 100] {
        let (wanted, planned) = world.plan(second);
        assert_eq!([wanted.power["n2"], wanted.power["n3"]], [WantedPower::On, WantedPower::Off]);
        assert_eq!(planned, waits("n2 starts, expected at 08:06 UTC"), "{second}");
    }
    // It is there: the job gets it.
    world.node("n2").machine("n2", "On", "On");
    let (wanted, planned) = world.plan(400);
    assert_eq!(wanted.power["n2"], WantedPower::On);
    assert_eq!(wanted.power["n3"], WantedPower::Off);
    assert!(matches!(planned, Some(Planned::Run { nodes, .. }) if nodes == ["n2"]));
    world.job("a", 8, holds_all("n2"));
    assert_eq!(world.off(401), ["n3"]);
}

#[test]
fn what_nobody_can_start_is_waited_for_by_nobody() {
    let mut world = World::new(on());
    world.machine("n2", "Quarantined", "Off").job("a", 8, json!(null));
    let (wanted, planned) = world.plan(30);
    assert_eq!(wanted.power, BTreeMap::new());
    assert!(matches!(planned, Some(Planned::Wait { reason: Reason::NoFeasibleGpuType, .. })), "{planned:?}");
}

#[test]
fn a_run_stays_where_it_is_until_a_better_machine_is_on() {
    let mut world = World::new(on());
    world.node("n1").machine("n1", "On", "On").machine("n2", "Off", "Off").job("a", 8, holds_all("n1"));
    world.read();
    let index = world.index.for_plan();
    let ledger = stepped(&index, at(0));
    let last = (FromLastPlan::default(), at(0));
    let (_, built, _) = make(&index, &ledger, Caches::default(), last, &Options::default());
    let nodes = built.snapshot.nodes.iter().map(|node| (&node.name, node)).collect();
    let runs_on = |node: &str| {
        let placement = json!({"gpu_type": GPU, "nodes": [node], "gpus_per_node": 8});
        let decision = Decision::Run(serde_json::from_value(placement).expect("a placement"));
        let planned = Planned::Wait { reason: Reason::Preempted, message: String::new() };
        wish(&decision, planned, (&index, &built.snapshot.jobs[0].state), &nodes, at(0))
    };
    assert!(runs_on("n1").is_some(), "decided as ever");
    assert_eq!(runs_on("n2"), None, "nothing is decided for it");
}

#[test]
fn pods_of_others_without_a_node_start_a_machine_that_has_what_they_ask_for() {
    let mut world = World::new(on());
    world.node("n1").machine("n1", "On", "On").machine("n2", "Off", "Off").machine("n3", "Off", "Off");
    let pod = |name: &str, reason: &str, selector: Value, version: &str| -> ForeignPod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "others", "uid": name, "resourceVersion": version, "creationTimestamp": at(0)},
            "spec": {"nodeSelector": selector, "containers": [{"name": "c", "resources": {"requests": {"nvidia.com/gpu": "4"}}}]},
            "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": reason}]}}))
        .expect("a pod")
    };
    let starts = |world: &mut World, second: i64| {
        let (wanted, _) = world.plan(second);
        wanted.power.values().filter(|power| **power == WantedPower::On).count() - 1
    };
    world.index.apply(pod("gated", "SchedulingGated", json!({}), "100"));
    world.index.apply(pod("elsewhere", "Unschedulable", json!({"zone": "b"}), "101"));
    assert_eq!(starts(&mut world, 40), 0);
    world.index.apply(pod("one", "Unschedulable", json!({"nvidia.com/gpu.product": GPU}), "102"));
    world.index.apply(pod("two", "Unschedulable", json!({}), "103"));
    assert_eq!(starts(&mut world, 41), 1, "both fit one");
    world.machine("n2", "Starting", "On");
    assert_eq!(starts(&mut world, 42), 1, "it is on its way");
    world.index.apply(pod("three", "Unschedulable", json!({}), "104"));
    assert_eq!(starts(&mut world, 43), 2);
}

#[test]
fn a_machine_on_its_way_off_draws_and_one_that_no_plan_can_use_comes_on() {
    let mut world = World::new(on());
    world.node("n1").machine("n1", "On", "On").machine("n2", "GoingOff", "Off").machine("n3", "Off", "Off");
    world.job("b", 8, holds_all("n1")).job("a", 8, json!(null));
    world.read();
    let index = world.index.for_plan();
    let last = (FromLastPlan::default(), at(0));
    let (_, built, _) = make(&index, &stepped(&index, at(0)), Caches::default(), last, &Options::default());
    let state = |name: &str| {
        let node = built.snapshot.nodes.iter().find(|node| node.name.as_str() == name);
        node.and_then(|node| node.sleep).map(|sleep| sleep.state)
    };
    assert!(matches!(state("n2"), Some(NodePower::Waking { .. })), "{:?}", state("n2"));
    assert_eq!(state("n3"), Some(NodePower::Asleep));
    // The one that is off is there earlier, and the other goes on its way.
    let (wanted, _) = world.plan(10);
    assert_eq!([wanted.power["n2"], wanted.power["n3"]], [WantedPower::Off, WantedPower::On]);
    // The administrator leaves all nodes of the type out: nobody would start them again.
    let selector = json!({"nodeSelector": {"team": "training"}, "nodeSleep": {"mode": "On"}});
    let mut world = World::new(selector);
    world.machine("n3", "Off", "Off");
    assert_eq!(world.off(20), Vec::<String>::new());
    assert_eq!(world.plan(21).0.power["n3"], WantedPower::On);
}

#[test]
fn nodes_kept_ready_stay_on_and_off_means_all_on() {
    let ready = json!({"nodeSleep": {"mode": "On", "readyNodes": [{"gpuType": GPU, "nodes": 1}]}});
    let mut world = World::new(ready);
    world.node("n1").node("n2").machine("n1", "On", "On").machine("n2", "On", "On");
    world.plan(10);
    assert_eq!(world.off(3_600).len(), 1);
    for mode in ["Off", "Observe"] {
        let mut world = World::new(json!({"nodeSleep": {"mode": mode}}));
        world.node("n1").machine("n1", "On", "Off").machine("n2", "Off", "Off");
        world.plan(10);
        assert_eq!(world.off(3_600), Vec::<String>::new(), "{mode}");
        world.plan(4_000);
        let (wanted, _) = world.plan(4_100);
        // It would have been off from an hour on, and have paid its start after six minutes.
        let expected = if mode == "Observe" { 980.0 * 100.0 } else { 0.0 };
        assert!((wanted.saved.0 - expected).abs() < 1.0, "{mode}: {:?}", wanted.saved);
    }
}

fn cloud() -> Value {
    json!({"nodeSleep": {"idleAfter": "10m"}, "capacity": [{"name": "a100", "gpuType": GPU, "gpus": 8, "maxNodes": 3,
        "allocatable": {"cpu": "60", "memory": "500Gi", "pods": "100"}, "nodeSelector": {"pool": "a100"}}]})
}

/// What is asked for of the pool a100: more, and kept.
fn asked(wanted: &Wanted) -> (usize, usize) {
    wanted.capacity.get("a100").map_or((0, 0), |asked| (asked.more, asked.kept))
}

fn message(decision: Option<Planned>) -> String {
    match decision {
        Some(Planned::Wait { message, .. }) => message,
        other => panic!("it does not wait: {other:?}"),
    }
}

#[test]
fn nodes_that_jobs_need_are_asked_for_of_an_autoscaler_and_given_back() {
    let mut world = World::new(cloud());
    let (wanted, _) = world.plan(1);
    assert_eq!(asked(&wanted), (0, 0), "nobody needs one");
    world.job("a", 8, Value::Null).job("b", 8, Value::Null);
    let (wanted, decision) = world.plan(10);
    assert_eq!(asked(&wanted), (2, 0));
    assert_eq!(message(decision), "a node of a100 starts, expected at 08:05 UTC");
    assert!(wanted.power.is_empty(), "nobody switches them");
    // One has registered, and the other is ready.
    world.added("n1", false).added("n2", true);
    let (wanted, _) = world.plan(100);
    assert_eq!(asked(&wanted), (1, 0), "one waits, and one runs on the node that is there");
    world.added("n1", true).job("b", 8, holds_all("n2"));
    let (wanted, decision) = world.plan(130);
    assert_eq!(asked(&wanted), (0, 0));
    assert!(matches!(decision, Some(Planned::Run { nodes, .. }) if nodes == ["n1"]));
    // Both end: what is empty stays as long as it may be needed again soon, and then goes.
    world.job("a", 8, json!({"phase": "Succeeded"})).job("b", 8, json!({"phase": "Succeeded"}));
    let (wanted, _) = world.plan(200);
    assert_eq!(asked(&wanted), (0, 2));
    let (wanted, _) = world.plan(9_000);
    assert_eq!(asked(&wanted), (0, 0));
}

#[test]
fn what_a_job_needs_no_longer_is_no_longer_asked_for() {
    let mut world = World::new(cloud());
    world.job("a", 8, Value::Null);
    assert_eq!(asked(&world.plan(10).0), (1, 0));
    world.job("a", 8, json!({"phase": "Failed"}));
    assert_eq!((asked(&world.plan(20).0), world.replicas), ((0, 0), 1), "plans change their mind");
    assert_eq!((asked(&world.plan(81).0), world.replicas), ((0, 0), 0));
    // It is late, though one plan in between does not need it.
    world.job("a", 8, Value::Null).plan(100);
    world.job("a", 8, json!({"phase": "Failed"})).plan(500);
    world.job("a", 8, Value::Null).plan(510);
    world.plan(1_001);
    assert!(world.index.missing_capacity().contains("gave no node"), "{}", world.index.missing_capacity());
}

#[test]
fn a_pool_that_gives_no_nodes_is_named_and_asked_again_later() {
    let mut world = World::new(cloud());
    world.job("a", 8, Value::Null);
    assert_eq!(asked(&world.plan(10).0), (1, 0));
    assert_eq!(asked(&world.plan(900).0), (1, 0), "three times the time of a start");
    let (wanted, decision) = world.plan(920);
    assert_eq!(asked(&wanted), (0, 0));
    let said = message(decision);
    let missing = "a100: it gave no node within 15 min, and is asked again at 08:25 UTC";
    assert!(said.ends_with(missing), "{said}");
    assert_eq!(world.index.missing_capacity(), missing);
    assert_eq!(asked(&world.plan(1_600).0), (1, 0));
    world.plan(2_600);
    assert!(world.index.missing_capacity().ends_with("09:03 UTC"), "{}", world.index.missing_capacity());
    // What cannot be written is tried again soon.
    assert_eq!(asked(&world.plan(4_000).0), (1, 0));
    world.index.note_unwritten(&BTreeMap::from([("a100".to_owned(), "forbidden".to_owned())]));
    let said = message(world.plan(4_001).1);
    assert_eq!(
        said,
        "a node of a100 starts, expected at 09:11 UTC; a100: its CapacityBuffer is not written: forbidden"
    );
    world.index.note_unwritten(&BTreeMap::new());
    assert_eq!(asked(&world.plan(4_002).0), (1, 0));
    world.added("n1", true);
    assert!(matches!(world.plan(4_100).1, Some(Planned::Run { nodes, .. }) if nodes == ["n1"]));
}

#[test]
fn nodes_of_a_gang_that_came_first_stay_until_the_last_is_there() {
    let mut world = World::new(cloud());
    world.added("n1", true).added("n2", true);
    world.job("a", 24, Value::Null);
    let (wanted, decision) = world.plan(10);
    assert_eq!((asked(&wanted), world.replicas), ((1, 2), 3), "{:?}", message(decision));
    // One that flaps did not come because it was asked for.
    world.added("n1", false).plan(20);
    world.added("n1", true).plan(30);
    assert_eq!(world.replicas, 3);
    assert_eq!(world.index.missing_capacity(), "");
    world.added("n3", true);
    assert!(matches!(world.plan(40).1, Some(Planned::Run { nodes, .. }) if nodes.len() == 3));
    assert_eq!(world.replicas, 0);
}

#[test]
fn a_pool_that_gives_a_part_again_and_again_is_asked_less_and_less_often() {
    let mut world = World::new(cloud());
    world.job("a", 16, Value::Null);
    let mut named = BTreeSet::new();
    let mut node = 0;
    for second in (10..20_000).step_by(30) {
        world.plan(second);
        if world.replicas == 2 && node == 0 {
            node = second;
            world.added(&format!("n{second}"), true);
        }
        if world.replicas == 0 && node != 0 {
            let gone = ObjectKey { namespace: String::new(), name: format!("n{node}") };
            Index::<SlimNode>::delete(&mut world.index, &gone, None);
            node = 0;
        }
        named.extend(Some(world.index.missing_capacity()).filter(|said| !said.is_empty()));
    }
    assert!((4..=7).contains(&named.len()), "{named:?}");
}

#[test]
fn nodes_that_no_plan_would_use_are_not_asked_for() {
    let mut policy = cloud();
    policy["nodeSelector"] = json!({"team": "ml"});
    let mut world = World::new(policy);
    world.job("a", 8, Value::Null);
    let (wanted, decision) = world.plan(10);
    assert_eq!(asked(&wanted), (0, 0));
    assert!(message(decision).contains("a100: its nodes lack labels that spec.nodeSelector asks for"));
}
