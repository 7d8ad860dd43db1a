//! Nodes with labels of NVIDIA's and the clouds' software: which are planned, which are excluded and why.
//! Recorded label sets and their sources: `tests/nodes/labels`.

use std::path::Path;

use andreas_cluster::energy::budget::draw;
use andreas_cluster::energy::inventory::{node_use, summary};
use andreas_cluster::energy::{Exclusion, Inventory, NodeUse};

use super::*;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Recorded {
    setup: String,
    planned: Option<String>,
    excluded: Option<String>,
    #[serde(default)]
    ignored: bool,
    labels: BTreeMap<String, String>,
    capacity: BTreeMap<String, String>,
    allocatable: BTreeMap<String, String>,
}

fn recorded() -> BTreeMap<String, Recorded> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/nodes/labels");
    let files = std::fs::read_dir(folder)
        .expect("the folder of recorded labels")
        .map(|file| file.expect("a file").path());
    let sets = files.filter(|path| path.extension().is_some_and(|e| e == "yaml")).map(|path| {
        let text = std::fs::read_to_string(&path).expect("a text");
        let set = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path.file_stem().expect("a name").to_string_lossy().into_owned(), set)
    });
    sets.collect()
}

fn node(name: &str, set: &Recorded) -> SlimNode {
    let with = |amounts: &BTreeMap<String, String>| {
        let mut all = json!({"cpu": "64", "memory": "512Gi", "pods": "110"});
        all.as_object_mut().expect("object").extend(amounts.iter().map(|(k, v)| (k.clone(), json!(v))));
        all
    };
    serde_json::from_value(json!({
        "metadata": {"name": name, "resourceVersion": "1", "labels": set.labels},
        "status": {"capacity": with(&set.capacity), "allocatable": with(&set.allocatable),
            "conditions": [{"type": "Ready", "status": "True"}]},
    }))
    .expect("a node")
}

#[test]
fn recorded_nodes_are_planned_as_their_type_or_excluded_with_the_reason() {
    let policy = EnergyPolicySpec::default();
    let sets = recorded();
    assert!(sets.len() >= 14, "{}", sets.len());
    for (name, set) in &sets {
        let node = node(name, set);
        let found = match node_use(&node, &policy) {
            NodeUse::NoGpus => (None, None, true),
            NodeUse::Planned(gpu_type) => (Some(gpu_type.to_owned()), None, false),
            NodeUse::Excluded(why) => (None, Some(why.as_str().to_owned()), false),
        };
        assert_eq!(found, (set.planned.clone(), set.excluded.clone(), set.ignored), "{name}: {}", set.setup);
    }
}

#[test]
fn a_cluster_of_recorded_nodes_offers_the_planned_ones_alone_and_names_the_others() {
    let (sets, mut world) = (recorded(), World::default());
    for (name, set) in &sets {
        world.index.apply(node(name, set));
    }
    let built = build(&world.index, &Ledger::new(at(0)), &mut Caches::default(), None, at(1));
    let offered: Vec<&str> = built.snapshot.nodes.iter().map(|n| n.name.as_str()).collect();
    let planned: Vec<&str> =
        sets.iter().filter(|(_, s)| s.planned.is_some()).map(|(n, _)| n.as_str()).collect();
    assert_eq!(offered, planned);
    let words = built.excluded.expect("some are excluded");
    for reason in ["MigInUse", "SharedGpus", "NoWholeGpus", "NoTypeLabel", "nvidia.com/gpu.product"] {
        assert!(words.contains(reason), "{reason}: {words}");
    }
    assert!(words.len() < 1_024, "{words}");
}

#[test]
fn a_node_that_offers_more_gpus_than_a_machine_has_takes_neither_the_plan_nor_the_budget_of_others() {
    let node = |name: &str, gpus: u64| -> SlimNode {
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}},
            "status": {"allocatable": {"nvidia.com/gpu": gpus.to_string(), "cpu": "64", "memory": "1Ti", "pods": "110"},
                       "conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .expect("a node")
    };
    let policy = EnergyPolicySpec::default();
    assert!(matches!(node_use(&node("n", 64), &policy), NodeUse::Planned(_)));
    assert_eq!(node_use(&node("n", 65), &policy), NodeUse::Excluded(Exclusion::TooManyGpus));

    let mut world = World::default();
    world.index.apply(node("honest", 8));
    let floor = |world: &World| draw(&Inventory::with(&world.index, &policy), at(1)).floor;
    let before = floor(&world);
    world.index.apply(node("liar", 2_000));
    let built = build(&world.index, &Ledger::new(at(0)), &mut Caches::default(), None, at(1));
    let offered: Vec<&str> = built.snapshot.nodes.iter().map(|n| n.name.as_str()).collect();
    assert_eq!(offered, ["honest"]);
    assert!(built.excluded.is_some_and(|words| words.contains("TooManyGpus")));
    assert!(before > 0.0 && floor(&world).total_cmp(&before).is_eq(), "{before}");
}

#[test]
fn a_node_that_offers_more_gpus_than_it_has_boards_is_shared() {
    let node = |offered: &str, capacity: &str, boards: &str| -> SlimNode {
        serde_json::from_value(json!({
            "metadata": {"name": "n", "labels": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.count": boards}},
            "status": {"allocatable": {"nvidia.com/gpu": offered}, "capacity": {"nvidia.com/gpu": capacity}},
        }))
        .expect("a node")
    };
    let policy = EnergyPolicySpec::default();
    let hidden = Exclusion::MoreThanBoards { offered: 40, boards: 4 };
    assert_eq!(node_use(&node("40", "40", "4"), &policy), NodeUse::Excluded(hidden));
    assert_eq!(hidden.as_str(), "SharedGpus");
    // A board that is gone, a label without a number, and a device plug-in that starts again say nothing of sharing.
    for (offered, capacity, boards) in
        [("7", "8", "7"), ("8", "8", "eight"), ("8", "8", "0"), ("0", "8", "4")]
    {
        assert!(matches!(node_use(&node(offered, capacity, boards), &policy), NodeUse::Planned(_)));
    }
}

#[test]
fn where_a_label_makes_a_type_of_each_node_most_are_planned_and_the_others_excluded() {
    let mut world = World::default();
    for n in 0..129 {
        world.node(&format!("n{n:03}"), json!({"nvidia.com/gpu.product": format!("rack-{n}")}), json!({}));
    }
    world.job("any", json!({}), json!(null), waiting());
    assert_eq!(world.snapshot().nodes.len(), 100);
    let built = build(&world.index, &Ledger::new(at(0)), &mut Caches::default(), None, at(1));
    assert!(built.excluded.is_some_and(|words| words.contains("29 TooManyTypes")));
}

#[test]
fn the_first_type_label_that_a_node_has_names_its_type() {
    let node: SlimNode = serde_json::from_value(json!({
        "metadata": {"name": "n", "labels": {"example.com/board": "b300", "node.kubernetes.io/instance-type": "p6.48xlarge"}},
        "status": {"allocatable": {"nvidia.com/gpu": "8"}},
    }))
    .expect("a node");
    let mut policy = EnergyPolicySpec::default();
    assert_eq!(node_use(&node, &policy), NodeUse::Planned("p6.48xlarge"));
    policy.type_labels.insert(0, "example.com/board".into());
    assert_eq!(node_use(&node, &policy), NodeUse::Planned("b300"));
    policy.type_labels = vec!["example.com/other".into()];
    assert_eq!(node_use(&node, &policy), NodeUse::Excluded(Exclusion::NoTypeLabel));
    policy.node_selector = BTreeMap::from([("team".into(), "training".into())]);
    assert_eq!(node_use(&node, &policy), NodeUse::Excluded(Exclusion::NotSelected));
}

#[test]
fn a_node_keeps_its_type_while_its_device_plug_in_restarts() {
    let node: SlimNode = serde_json::from_value(json!({
        "metadata": {"name": "n", "labels": {"node.kubernetes.io/instance-type": "p5.48xlarge"}},
        "status": {"allocatable": {"nvidia.com/gpu": "0"}, "capacity": {"nvidia.com/gpu": "8"}},
    }))
    .expect("a node");
    assert_eq!(node_use(&node, &EnergyPolicySpec::default()), NodeUse::Planned("p5.48xlarge"));
}

#[test]
fn a_node_draws_as_much_while_its_device_plug_in_restarts() {
    let budget = json!({"powerBudget": {"watts": 20_000}});
    let policy: EnergyPolicySpec = serde_json::from_value(budget.clone()).expect("a policy");
    let mut world = World::default();
    world.policy(budget);
    let mut draws = |used: u64, expected: f64| {
        if used > 0 {
            let pod: andreas_cluster::index::ForeignPod = serde_json::from_value(json!({
                "metadata": {"name": "x", "namespace": "other", "uid": "foreign", "resourceVersion": "901"},
                "spec": {"nodeName": "n1", "containers": [{"resources": {"limits": {"nvidia.com/gpu": used.to_string()}}}]}}))
            .expect("a pod");
            world.index.apply(pod);
        }
        for offered in ["8", "7", "0"] {
            let status = json!({"capacity": {"nvidia.com/gpu": "8"},
                "allocatable": {"nvidia.com/gpu": offered, "cpu": "64", "memory": "1Ti", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}]});
            world.node("n1", json!({}), json!({ "status": status }));
            let plan = andreas_planner::plan(&world.snapshot(), &andreas_planner::Options::default());
            let planned = plan.expect("a plan").budgeted_power.0;
            let seen = draw(&Inventory::with(&world.index, &policy), at(100)).floor;
            assert_eq!((planned, seen), (expected, expected), "{used} in use, {offered} offered");
        }
    };
    // A host of 1 kW and eight A100 of 52 W.
    draws(0, 1_416.0);
    // Two of them are in use by others, and count for 400 W.
    draws(2, 1_416.0 + 2.0 * (400.0 - 52.0));
}

#[test]
fn a_message_counts_excluded_nodes_by_reason_and_names_three() {
    let policy = EnergyPolicySpec::default();
    assert_eq!(summary(&[], &policy), None);
    let mut excluded: Vec<_> = (0..40).map(|i| (format!("mig-{i}"), Exclusion::MigInUse)).collect();
    excluded.extend([("eks-0".to_owned(), Exclusion::NoTypeLabel)]);
    let words = summary(&excluded, &policy).expect("some");
    assert!(
        words.starts_with(
            "41 nodes with GPUs are excluded: 40 MigInUse (mig-0, mig-1, mig-2, ...): MIG is in use"
        ),
        "{words}"
    );
    assert!(words.ends_with(
        "1 NoTypeLabel: the node has none of the type labels nvidia.com/gpu.product, \
         cloud.google.com/gke-accelerator, node.kubernetes.io/instance-type"
    ));
}
