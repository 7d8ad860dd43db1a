//! Draw of undescribed GPUs, and the bounds on agents' reports.

use andreas_cluster::energy::{Exclusion, Inventory, NodeUse};

use super::*;

const NEW: &str = "NVIDIA-X900";

/// A node of 4 GPUs of an unknown type, with its agent's report if any.
fn with_unknown_board(gpus: Option<Value>) -> World {
    let mut world = World::default();
    let four = json!({"status": {"allocatable": {"nvidia.com/gpu": "4", "cpu": "64", "memory": "512Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}]}});
    world.node("n1", json!({"nvidia.com/gpu.product": NEW}), four);
    if let Some(gpus) = gpus {
        world.agent("n1", gpus);
    }
    world
}

impl World {
    pub(super) fn agent(&mut self, node: &str, gpus: Value) {
        let object = json!({"metadata": {"name": node, "resourceVersion": self.version()}, "spec": {},
            "status": {"agentVersion": "1", "gpus": all_boards(gpus, 8)}});
        self.index.apply(serde_json::from_value::<SlimGpuNode>(object).expect("a gpu node"));
    }

    fn exclusion_of(&self, node: &str) -> Option<Exclusion> {
        let key = ObjectKey { namespace: String::new(), name: node.into() };
        Inventory::from_index(&self.index)
            .node_use(self.index.nodes().get(&key).expect("the node"))
            .exclusion()
    }
}

#[test]
fn an_unknown_board_is_excluded_under_a_power_budget_until_somebody_says_what_it_draws() {
    let mut world = with_unknown_board(None);
    assert_eq!(world.exclusion_of("n1"), None, "without a budget its energy is assumed");
    assert!(Inventory::from_index(&world.index).unknown().contains(NEW));
    for budget in [
        json!({"powerBudget": {"watts": 5_000}}),
        json!({"powerBudget": {"windows": [{"from": "17:00", "to": "20:00", "watts": 8_000}]}}),
    ] {
        world.policy(budget);
        assert_eq!(world.exclusion_of("n1"), Some(Exclusion::UnknownBoard));
    }
    // The agent reads its driver.
    world.agent(
        "n1",
        json!([{"uuid": "a", "state": "Free", "boardWatts": 900}, {"uuid": "b", "state": "Free"}]),
    );
    assert_eq!(world.exclusion_of("n1"), None);
    let snapshot = world.snapshot();
    let described = snapshot.gpu_types.iter().find(|info| info.name.as_str() == NEW).expect("the type");
    assert_eq!((described.idle, described.max), (Watts(180.0), Watts(900.0)));
    // The administrator's value has precedence.
    world.policy(
        json!({"powerBudget": {"watts": 5_000}, "gpuTypes": [{"name": NEW, "idleWatts": 60, "maxWatts": 800}]}),
    );
    let described = world.snapshot().gpu_types;
    assert_eq!(described.iter().map(|info| info.max).collect::<Vec<_>>(), [Watts(800.0)]);
}

/// Given two nodes of 400 W boards; when their agents report what is in force there without a limit of ours; then a board without
/// a limit draws no more than the highest of these, once all are known.
#[test]
fn a_board_without_a_limit_draws_at_most_what_its_owner_has_in_force() {
    let mut world = World::default();
    world.node("n1", json!({}), json!({})).node("n2", json!({}), json!({}));
    let report = |world: &mut World, node: &str, highest: &[Option<i32>]| {
        let gpu = |(n, highest): (usize, &Option<i32>)| {
            let mut gpu = json!({"uuid": format!("{node}-{n}"), "state": "Free"});
            if let Some(highest) = highest {
                (gpu["minLimitWatts"], gpu["maxLimitWatts"]) = (json!(100), json!(highest));
            }
            gpu
        };
        world.agent(node, highest.iter().enumerate().map(gpu).collect());
    };
    let max = |world: &World| Inventory::from_index(&world.index).board(GPU).max.0;
    report(&mut world, "n1", &[Some(250); 8]);
    assert_eq!(max(&world), 400.0, "the other node has no agent");
    report(&mut world, "n2", &[Some(300); 7]);
    assert_eq!(max(&world), 400.0, "a GPU is not reported");
    report(
        &mut world,
        "n2",
        &[Some(300), Some(300), Some(300), Some(300), None, Some(300), Some(300), Some(300)],
    );
    assert_eq!(max(&world), 400.0, "one takes no limits");
    report(&mut world, "n2", &[Some(300); 8]);
    assert_eq!(max(&world), 300.0);
    assert_eq!(world.snapshot().gpu_types[0].max, Watts(300.0));
    assert_eq!(
        world.snapshot().nodes[0].host_idle,
        Watts(1_000.0),
        "the host of such boards stays what it is"
    );
    report(&mut world, "n2", &[Some(500); 8]);
    assert_eq!(max(&world), 400.0, "never above what the board is known for");
    // The policy's row stays what it says of everything else.
    report(&mut world, "n2", &[Some(250); 8]);
    let row = json!({"name": GPU, "idleWatts": 60, "maxWatts": 350, "hostIdleWatts": 700});
    world.policy(json!({"gpuTypes": [row]}));
    let board = Inventory::from_index(&world.index).board(GPU);
    assert_eq!((board.idle, board.max, board.host(8).idle), (Watts(60.0), Watts(250.0), Watts(700.0)));
}

#[test]
fn an_agent_cannot_say_that_a_board_draws_more_than_any_board_does() {
    let world = with_unknown_board(Some(json!([{"uuid": "a", "state": "Free", "boardWatts": 100_000}])));
    let inventory = Inventory::from_index(&world.index);
    assert_eq!(inventory.policy().gpu_types[0].max_watts, 3_000);
    // The report is ignored for a known board.
    let mut world = World::default();
    world.node("n1", json!({}), json!({}));
    world.agent("n1", json!([{"uuid": "a", "state": "Free", "boardWatts": 3_000}]));
    assert!(Inventory::from_index(&world.index).policy().gpu_types.is_empty());
    let key = ObjectKey { namespace: String::new(), name: "n1".into() };
    let node = world.index.nodes().get(&key).expect("the node");
    assert_eq!(Inventory::from_index(&world.index).node_use(node), NodeUse::Planned(GPU));
}

#[test]
fn what_an_agent_says_of_others_counts_up_to_the_maxima_of_the_boards_that_are_there() {
    let mut world = World::default();
    world.node("n1", json!({}), json!({})).policy(json!({"powerBudget": {"watts": 10_000}}));
    let lie = |n: i32| json!({"uuid": format!("{n}"), "state": "Held", "holder": format!("other-{n}"), "watts": i32::MAX});
    world.agent("n1", (0..64).map(lie).collect());
    // Eight A100 of at most 400 W, beside a host of 1 kW.
    assert_eq!(world.snapshot().nodes[0].foreign_power, Some(Watts(3_200.0)));
    let whole = andreas_cluster::energy::budget::draw(&Inventory::from_index(&world.index), at(100)).whole;
    assert!(whole <= 8.0 * (400.0 + 52.0) + 1_000.0, "{whole}");
    // A possible value is accepted.
    world.agent("n1", json!([{"uuid": "0", "state": "Held", "holder": "other", "watts": 250}]));
    assert_eq!(world.snapshot().nodes[0].foreign_power, Some(Watts(250.0)));
    // A GPU that does not report its draw counts for the board's maximum.
    world.agent("n1", json!([{"uuid": "0", "state": "Held", "holder": "other", "watts": 0}]));
    assert_eq!(world.snapshot().nodes[0].foreign_power, Some(Watts(400.0)));
    // An agent that does not know who holds a GPU knows no draw of others.
    world.agent("n1", json!([{"uuid": "0", "state": "Held", "watts": 250}]));
    assert_eq!(world.snapshot().nodes[0].foreign_power, None);
}

#[test]
fn boards_of_several_models_are_not_planned_as_one_type_unless_the_device_plug_in_leaves_the_others_out() {
    for (last, boards, mixed) in [(50, 8, true), (300, 8, false), (50, 9, false)] {
        let mut world = World::default();
        world.node("n1", json!({}), json!({}));
        let board = |n: i32| json!({"uuid": n.to_string(), "state": "Free", "boardWatts": if n == 0 { last } else { 400 }});
        world.agent("n1", (0..boards).map(board).collect());
        let key = ObjectKey { namespace: String::new(), name: "n1".into() };
        let node = world.index.nodes().get(&key).expect("the node");
        let excluded = Inventory::from_index(&world.index).node_use(node).exclusion().map(Exclusion::as_str);
        assert_eq!(excluded, mixed.then_some("MixedBoards"), "{last} W of {boards}");
    }
}

#[test]
fn a_board_that_is_gone_and_gpus_that_pods_have_by_claims_are_taken_off_once() {
    let free = |uuid: &str| json!({"uuid": uuid, "state": "Free"});
    let lost = json!({"uuid": "h", "state": "Unhealthy", "problems": [{"reason": "GpuLost", "fatal": true}]});
    let xid = json!({"uuid": "h", "state": "Unhealthy", "problems": [{"reason": "Xid", "fatal": true}]});
    let by_claim = |uuid: &str| json!({"uuid": uuid, "state": "Held"});
    let with = |last: &serde_json::Value| -> Vec<_> {
        ["a", "b", "c", "d", "e", "f", "g"].map(free).into_iter().chain([last.clone()]).collect()
    };
    let claims: Vec<_> = ["a", "b", "c", "d", "e", "f", "g", "h"].map(by_claim).into();
    // Capacity and allocatable of the node, its agent's boards, a pod of ours there, and the GPUs that are free.
    for (capacity, offered, boards, ours, expected) in [
        ("8", "8", with(&lost), false, 7),
        ("8", "7", with(&lost), false, 7),
        // The plug-in was started after the board was lost.
        ("7", "7", with(&lost), false, 7),
        // It does not offer another board than the broken one.
        ("7", "7", with(&xid), false, 6),
        ("8", "8", claims.clone(), false, 0),
        // The agent does not know the GPUs of the device plug-in's pods either.
        ("8", "8", claims, true, 6),
    ] {
        let amounts =
            |gpus: &str| json!({"nvidia.com/gpu": gpus, "cpu": "64", "memory": "512Gi", "pods": "110"});
        let status = json!({"capacity": amounts(capacity), "allocatable": amounts(offered),
            "conditions": [{"type": "Ready", "status": "True"}]});
        let mut world = World::default();
        world.node("n1", json!({}), json!({ "status": status }));
        world.agent("n1", boards.into());
        if ours {
            world.pod("gone", 1, "n1", 2, "Running");
        }
        assert_eq!(world.snapshot().nodes[0].free_gpus, GpuCount(expected), "{capacity} {offered}");
    }
}

/// Given a node of eight GPUs; when its device plug-in takes six broken ones out; then they are nobody's, and a job with the other two
/// is billed for a quarter of the host as before.
#[test]
fn a_job_is_not_billed_for_the_gpus_of_its_host_that_are_broken() {
    for offered in ["8", "2"] {
        let amounts =
            |gpus: &str| json!({"nvidia.com/gpu": gpus, "cpu": "64", "memory": "512Gi", "pods": "110"});
        let status = json!({"capacity": amounts("8"), "allocatable": amounts(offered),
            "conditions": [{"type": "Ready", "status": "True"}]});
        let mut world = World::default();
        world.node("n1", json!({}), json!({"status": status}));
        let node = world.snapshot().nodes.remove(0);
        assert_eq!(node.gpus.to_string(), offered);
        assert_eq!(node.host_share(GpuCount(2)).0, 400.0, "{offered}");
    }
}
