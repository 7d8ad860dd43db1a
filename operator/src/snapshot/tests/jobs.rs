//! The planner's view of a job: weight, length, and loss by a stop.

use andreas_cluster::index::SlimNamespace;

use super::*;

#[test]
fn weights_beyond_what_the_namespace_allows_are_planned_as_the_bound() {
    let weights = |annotations: Value| {
        let mut world = World::default();
        let version = world.version();
        let namespace =
            json!({"metadata": {"name": "team", "resourceVersion": version, "annotations": annotations}});
        world.index.apply(serde_json::from_value::<SlimNamespace>(namespace).expect("a namespace"));
        world
            .node("n1", json!({}), json!({}))
            .job("loud", json!({"weight": 500}), json!(null), waiting())
            .job("bound", json!({"weight": 20}), json!(null), waiting());
        let jobs = world.snapshot().jobs;
        [jobs[0].weight, jobs[1].weight]
    };
    let [bound, loud] = weights(json!({"andreas.dev/max-weight": "20"}));
    assert_eq!(loud, bound);
    let [bound, loud] = weights(json!({}));
    assert!(loud > bound, "{loud:?} {bound:?}");
}

#[test]
fn a_job_that_no_gpu_type_fits_is_expected_to_take_the_policys_run_time_or_its_namespaces() {
    let expected = |world: &mut World| {
        let ledger = world.ledger.as_ref().expect("a ledger");
        let built = build(&world.index, ledger, &mut Caches::default(), None, at(100));
        let of = |name: &str| {
            let (_, found) = built.expected.iter().find(|(key, _)| key.name == name).expect("expected");
            found.outlook.seconds_left
        };
        of("fits-nowhere")
    };
    let mut world = World::default();
    world.policy(json!({"unknownJobs": {"runTime": "1h"}})).node("n1", json!({}), json!({})).job(
        "fits-nowhere",
        json!({"gpus": {"min": 1, "types": ["NVIDIA-B300"]}}),
        json!(null),
        waiting(),
    );
    assert_eq!(expected(&mut world), 3_600.0);
    world.profile("other", json!({"finishedRuns": [{"run": "r", "seconds": 600, "at": at(0)}]}));
    assert_eq!(expected(&mut world), 600.0, "what runs of its namespace took");
}

#[test]
fn a_job_is_planned_with_its_restarts_of_the_day_and_what_its_profiles_restarts_took() {
    let planned = |restarts: Value| {
        let mut world = World::default();
        let mut status = holds(2, "n1", 1);
        status["history"] = json!([{"attempt": 1, "outcome": "Stopped", "reason": "Stopping", "gpuType": GPU, "gpus": 1,
            "placement": "n1", "started": at(-90), "ended": at(5), "plannedStop": at(0)}]);
        world.node("n1", json!({}), json!({})).profile("bert", json!({"restarts": restarts})).job(
            "runs",
            json!({"profileRef": {"name": "bert"}}),
            status,
            Claim::Running { since: at(20) },
        );
        let job = world.snapshot().jobs.remove(0);
        (job.restart.map(|time| time.0), job.restarts_last_day)
    };
    let took = |seconds: i64| json!({"run": format!("a-{seconds}"), "seconds": seconds, "at": at(0)});
    assert_eq!(planned(json!([took(200), took(210)])), (None, 1), "the policy's time");
    assert_eq!(planned(json!([took(200), took(210), took(190)])), (Some(210.0), 1));
}

#[test]
fn what_a_stop_loses_is_what_stops_of_its_family_have_lost() {
    let lost = |checkpoint: Value| {
        let mut world = World::default();
        let mut status = holds(2, "n1", 1);
        status["attempts"] = 2.into();
        status["history"] = json!([{"attempt": 1, "outcome": "Stopped", "reason": "Preempted", "gpuType": GPU, "gpus": 1,
            "placement": "n1", "message": "", "started": at(0), "ended": at(5), "milliPercent": 50_000, "joules": 0}]);
        status["progress"] =
            json!({"milliPercent": 60_000, "attempt": 2, "attemptStart": 40_000, "at": at(90)});
        let spec = json!({"profileRef": {"name": "bert"}, "epochs": 100, "checkpoint": checkpoint});
        status["allocation"]["runningTime"] = json!(at(-100_000));
        world.node("n1", json!({}), json!({})).profile("bert", json!(null)).job(
            "runs",
            spec,
            status,
            Claim::Running { since: at(-100_000) },
        );
        world.snapshot().jobs[0].lost.0
    };
    // Ten epochs of 100 s between the reported progress and the next attempt's start.
    let saved = lost(json!({"claimName": "ckpt"}));
    assert!((saved / 1_000.0 - 1.0).abs() < 0.05, "{saved}");
    assert!((lost(json!(null)) - 100_100.0).abs() < 1.0, "without a checkpoint all of it");
}

#[test]
fn a_job_with_very_many_configurations_is_offered_powers_of_two() {
    let mut world = World::default();
    for n in 0..4 * 64 {
        let product = json!({"nvidia.com/gpu.product": format!("NVIDIA-{}", n % 4)});
        world.node(&format!("n{n}"), product, json!({}));
    }
    let counts: Vec<i32> = (1..=64).collect();
    let any = json!({"max": 64, "counts": counts, "maxNodes": 64});
    let mut one = any.clone();
    one["types"] = json!(["NVIDIA-1"]);
    let mut three = holds(1, "n0", 1);
    three["allocation"]["gpuType"] = "NVIDIA-0".into();
    three["allocation"]["nodes"] = json!(["n0", "n4", "n8"]);
    three["allocation"]["gpus"] = 3.into();
    world.job("held", json!({"gpus": any}), three, Claim::Running { since: at(20) });
    world.job("any", json!({"gpus": any}), json!(null), waiting()).job(
        "one",
        json!({"gpus": one}),
        json!(null),
        waiting(),
    );
    let snapshot = world.snapshot();
    let nodes = |name: &str| {
        let job = snapshot.jobs.iter().find(|job| job.id.as_str() == name).expect("planned");
        job.spread.iter().map(|effect| effect.nodes).collect::<Vec<_>>()
    };
    assert_eq!(nodes("team/any"), [2, 4, 8, 16, 32, 64], "688 configurations");
    assert!(nodes("team/one").contains(&3), "172 configurations");
    assert_eq!(nodes("team/held"), [2, 3, 4, 8, 16, 32, 64], "and what it holds");
}
