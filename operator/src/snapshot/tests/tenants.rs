//! Whatever tenants write into their jobs, a plan takes no more than its limits: counted, not timed.

use super::*;

/// A container that asks for these extended resources.
fn asking(names: impl Iterator<Item = String>) -> Value {
    let limits: serde_json::Map<String, Value> = names.map(|name| (name, "1".into())).collect();
    json!({"template": {"spec": {"containers": [{"name": "t", "resources": {"limits": limits}}]}}})
}

fn with_ports(ports: &[u16]) -> Value {
    let ports: Vec<_> = ports.iter().map(|port| json!({"containerPort": 1, "hostPort": port})).collect();
    json!({"template": {"spec": {"containers": [{"name": "t", "ports": ports}]}}})
}

/// Names of resources that each node has an amount of in a plan.
fn columns(snapshot: &Snapshot) -> Vec<Vec<String>> {
    let of = |node: &andreas_planner::Node| node.free.others.keys().map(ToString::to_string).collect();
    snapshot.nodes.iter().map(of).collect()
}

#[test]
fn a_resource_that_no_node_offers_takes_no_memory_for_each_node() {
    let mut world = World::default();
    let with = |name: &str| {
        json!({"status": {"allocatable": {"nvidia.com/gpu": "8", "cpu": "64", "memory": "1Ti", "pods": "110", name: "1"},
            "conditions": [{"type": "Ready", "status": "True"}]}})
    };
    world.node("n1", json!({}), with("rdma/hca")).node("n2", json!({}), with("rdma/hca")).node(
        "n3",
        json!({}),
        json!({}),
    );
    world.job("known", asking(["rdma/hca".to_owned()].into_iter()), json!(null), waiting());
    for job in 0..20 {
        let names = (0..32).map(|name| format!("a.b/{job}-{name}"));
        world.job(&format!("j{job}"), asking(names), json!(null), waiting());
    }
    let snapshot = world.snapshot();
    assert_eq!(columns(&snapshot), vec![["rdma/hca"]; 3]);
    for job in &snapshot.jobs {
        let nowhere = job.candidates.as_ref().is_some_and(|nodes| nodes.is_empty());
        assert_eq!(nowhere, job.id.as_str() != "team/known", "{}", job.id);
    }
    // A job that runs where a device has gone stays where it is.
    world.job(
        "runs",
        asking(["gone/device".to_owned()].into_iter()),
        holds(1, "n3", 1),
        Claim::Running { since: at(20) },
    );
    let runs = world.snapshot().jobs.into_iter().find(|job| job.id.as_str() == "team/runs").expect("the job");
    assert_eq!(runs.candidates.as_deref().map(<[_]>::len), Some(1));
}

#[test]
fn a_port_of_the_node_counts_where_workers_compete_for_it() {
    let mut world = World::default();
    world.node("n1", json!({}), json!({}));
    for (job, ports) in [("a", [9_400, 1]), ("b", [9_400, 2]), ("c", [3, 4])] {
        world.job(job, with_ports(&ports), json!(null), waiting());
    }
    assert_eq!(columns(&world.snapshot()), [["hostPort:TCP/9400"]]);
    let pod = json!({"metadata": {"name": "proxy", "namespace": "other", "uid": "proxy", "resourceVersion": world.version()},
        "spec": {"nodeName": "n1", "containers": [{"name": "x", "ports": [{"containerPort": 1, "hostPort": 3}],
            "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}, "status": {"phase": "Running"}});
    world.index.apply(serde_json::from_value::<andreas_cluster::index::ForeignPod>(pod).expect("a pod"));
    assert_eq!(columns(&world.snapshot()), [["hostPort:TCP/3", "hostPort:TCP/9400"]]);
    // However many ports there are.
    for job in 0..40 {
        let ports: Vec<u16> = (0..32).map(|port| 10_000 + job / 2 * 32 + port).collect();
        world.job(&format!("many-{job}"), with_ports(&ports), json!(null), waiting());
    }
    assert!(columns(&world.snapshot())[0].len() <= 128);
}

#[test]
fn different_demands_are_held_against_each_node_once_and_again_when_it_changes() {
    let mut world = World::default();
    let nodes = 12;
    for node in 0..nodes {
        world.node(
            &format!("n{node:02}"),
            json!({"kubernetes.io/hostname": format!("n{node:02}")}),
            json!({}),
        );
    }
    let not_on = |job: usize| {
        let expressions = json!([{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [format!("n{:02}", job % nodes)]},
            {"key": "x", "operator": "NotIn", "values": [job.to_string()]}]);
        let terms = json!([{"matchExpressions": expressions}]);
        let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
        json!({"template": {"spec": {"containers": [{"name": "t"}], "affinity": affinity}}})
    };
    for job in 0..30 {
        world.job(&format!("j{job:02}"), not_on(job), json!(null), waiting());
    }
    let ledger = world.ledger.take().expect("jobs");
    let mut caches = Caches::default();
    let plan = |world: &World, caches: &mut Caches| {
        let before = caches.admissions.checks;
        let snapshot = build(&world.index, &ledger, caches, None, at(100)).snapshot;
        (caches.admissions.checks - before, snapshot)
    };
    let (checks, snapshot) = plan(&world, &mut caches);
    assert_eq!((checks, caches.admissions.names()), (30 * nodes, 30 * (nodes - 1)));
    let listed = |snapshot: &Snapshot, job: usize| -> Vec<String> {
        let names = snapshot.jobs[job].candidates.iter().flat_map(|names| names.iter());
        names.map(ToString::to_string).collect()
    };
    assert!(!listed(&snapshot, 3).contains(&"n03".to_owned()) && listed(&snapshot, 3).len() == nodes - 1);
    assert_eq!(plan(&world, &mut caches).0, 0);
    // Another label of one node,
    world.node("n05", json!({"kubernetes.io/hostname": "other", "x": "7"}), json!({}));
    let (checks, snapshot) = plan(&world, &mut caches);
    assert_eq!(checks, 30);
    assert!(listed(&snapshot, 5).is_empty() && snapshot.jobs[5].candidates.is_none(), "every node");
    assert!(!listed(&snapshot, 7).contains(&"n05".to_owned()));
    // a node that is cordoned, which needs no look at what jobs demand,
    let cordoned = json!({"spec": {"unschedulable": true}});
    world.node("n06", json!({"kubernetes.io/hostname": "n06"}), cordoned);
    let (_, snapshot) = plan(&world, &mut caches);
    assert!(!listed(&snapshot, 0).contains(&"n06".to_owned()));
    // and jobs that are gone leave nothing behind.
    for job in 0..30 {
        let key = key(&format!("j{job:02}"));
        <andreas_cluster::index::ClusterIndex as Index<SlimTrainingJob>>::delete(
            &mut world.index,
            &key,
            None,
        );
    }
    plan(&world, &mut caches);
    assert_eq!(caches.admissions.names(), 0);
}

#[test]
fn the_grace_period_of_a_waiting_job_is_its_own() {
    let mut world = World::default();
    world.policy(json!({"powerBudget": {"watts": 9_000}})).node("n1", json!({}), json!({}));
    world.job("runs", json!({}), holds(1, "n1", 1), Claim::Running { since: at(20) });
    let never =
        json!({"gpus": {"min": 4_096, "max": 4_096}, "checkpoint": {"path": "/c", "graceSeconds": 3_600}});
    world.job("never", never, json!(null), waiting());
    let graces: Vec<_> = world.snapshot().jobs.iter().map(|job| (job.id.to_string(), job.grace.0)).collect();
    assert_eq!(graces, [("team/never".to_owned(), 3_600.0), ("team/runs".to_owned(), 30.0)]);
}

#[test]
fn more_gpu_types_than_a_plan_may_have_leave_the_largest_planned() {
    let mut world = World::default();
    for node in 0..140 {
        let labels = json!({"nvidia.com/gpu.product": format!("type-{node:03}")});
        world.node(&format!("n{node:03}"), labels, json!({}));
    }
    world.node("more", json!({"nvidia.com/gpu.product": "type-139"}), json!({}));
    let snapshot = world.snapshot();
    assert_eq!(snapshot.nodes.len(), 101);
    assert!(snapshot.nodes.iter().any(|node| node.name.as_str() == "n139"));
}
