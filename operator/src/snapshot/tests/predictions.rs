//! Given a profile's data; then the planner gets matching times, draws and choices.

use andreas_predictor::mean_over_median;

use super::*;

/// Median seconds per epoch of a planner's row, which holds the mean.
fn median(row: &andreas_planner::Estimate) -> f64 {
    row.epoch.0 / mean_over_median(row.rel_std)
}

#[test]
fn the_planner_is_given_the_mean_time_of_an_epoch_not_the_median() {
    // Given an unknown job: 4 h, wrong by a factor of three each way.
    let mut world = World::default();
    world.node("n1", json!({}), json!({})).job("unknown", json!({"epochs": 10}), json!(null), waiting());
    let snapshot = world.snapshot();
    let row = &snapshot.jobs[0].estimates[0];
    // Then its median is the usual run time and the mean lies 44 % above.
    assert!((median(row) / 1_440.0 - 1.0).abs() < 1e-6, "{row:?}");
    assert!((row.epoch.0 / median(row) - 1.444).abs() < 1e-3, "{row:?}");
}

#[test]
fn a_pace_as_predicted_makes_the_mean_of_an_unknown_run_sure() {
    // Given an unknown run of 1,440 s an epoch, wrong by a factor of three each way, that keeps to that by 1 %.
    let mut status = holds(1, "n1", 1);
    status["progress"] = json!({"milliPercent": 30_000, "attempt": 1, "at": at(100), "stepwise": true,
        "millisPerEpoch": 1_450_000, "timedMilliEpochs": 2_000});
    let mut world = World::default();
    world.node("n1", json!({}), json!({})).job(
        "unknown",
        json!({}),
        status,
        Claim::Running { since: at(20) },
    );
    let snapshot = world.snapshot();
    let mut rows = snapshot.jobs[0].estimates.iter();
    let row = rows.find(|row| row.gpus == GpuCount(1)).expect("a row");
    // Then its mean is what was seen, and no longer 44 % above it.
    assert!((row.epoch.0 / 1_450.0 - 1.0).abs() < 0.03 && row.rel_std < 0.15, "{row:?}");
}

#[test]
fn the_usual_run_is_one_on_the_fewest_gpus_that_a_job_may_have() {
    // Given two unknown jobs that may have 4 or 8 GPUs, and say so in two ways.
    let mut world = World::default();
    world
        .node("n1", json!({}), json!({}))
        .job("a", json!({"gpus": {"max": 8, "counts": [4, 8]}}), json!(null), waiting())
        .job("b", json!({"gpus": {"min": 4, "max": 8}}), json!(null), waiting());
    // Then either takes the usual 4 h on 4 of them.
    for job in &world.snapshot().jobs {
        let row = job.estimates.iter().find(|row| row.gpus == GpuCount(4)).expect("a row");
        assert!((median(row) / 1_440.0 - 1.0).abs() < 1e-6, "{}: {row:?}", job.id);
        assert_eq!(job.unknown.map(|run| run.least), Some(GpuCount(4)), "{}", job.id);
    }
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
            json!({"profileRef": {"name": "bert"}, "gpus": {"min": 1, "max": 8, "memoryGiB": 80}}),
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
    assert!((median(one) - 100.0).abs() < 1e-6 && (1.0..1.02).contains(&(one.power.0 / 300.0)), "{one:?}");
    assert_eq!(known.worker.fixed.cpu_milli, Some(4_000));
    assert_eq!((known.unknown, known.movable), (None, true));
    // Of an unknown one every configuration is offered; more than its fewest GPUs cost extra until it reports.
    let unknown = &snapshot.jobs[1];
    let kinds = |name: &str| unknown.estimates.iter().filter(|row| row.gpu_type.as_str() == name).count();
    assert!(kinds(GPU) > 0 && kinds("Tesla-T4") > 0, "{:?}", unknown.estimates);
    assert_eq!(unknown.unknown.map(|look| look.least), Some(GpuCount(1)));
    assert!(!unknown.movable);
}

/// Types with the totals that a job is offered.
fn offered(job: &andreas_planner::Job) -> Vec<(&str, u32)> {
    job.estimates.iter().map(|row| (row.gpu_type.as_str(), row.gpus.0)).collect()
}

#[test]
fn choices_that_failed_are_left_out_while_there_are_others() {
    let (large, small) =
        (json!({}), json!({"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360"}));
    let old = json!({"nvidia.com/gpu.product": "Tesla-M60", "nvidia.com/gpu.memory": "8192"});
    let barred = |fields: Value| {
        let mut barred = fields;
        barred["at"] = at(50).to_string().into();
        json!({ "barred": [barred] })
    };
    let (few, t4) = (json!({"gpuType": "Tesla-T4", "mostGpus": 2}), json!({"gpuType": "Tesla-T4"}));
    let all = |name| [(name, 1), (name, 2), (name, 4), (name, 8)];
    for (what, spec, others, expected) in [
        (&few, json!({}), vec![&large], [&all(GPU)[..], &[("Tesla-T4", 4), ("Tesla-T4", 8)]].concat()),
        (&few, json!({}), vec![], vec![("Tesla-T4", 4), ("Tesla-T4", 8)]),
        // Nothing else is left.
        (&few, json!({"gpus": {"min": 1, "max": 2}}), vec![], vec![("Tesla-T4", 1), ("Tesla-T4", 2)]),
        // A type with even less memory.
        (&few, json!({"gpus": {"min": 1, "max": 2}}), vec![&old, &large], vec![(GPU, 1), (GPU, 2)]),
        (&t4, json!({}), vec![&large], all(GPU).to_vec()),
        (&t4, json!({"gpus": {"types": ["Tesla-T4"]}}), vec![&large], vec![("Tesla-T4", 1)]),
        // The other type has too few GPUs.
        (
            &t4,
            json!({"gpus": {"min": 16, "maxNodes": 2}}),
            vec![&small, &large],
            vec![(GPU, 16), ("Tesla-T4", 16)],
        ),
    ] {
        let mut world = World::default();
        world.node("small", small.clone(), json!({})).profile("bert", barred(what.clone()));
        for (n, labels) in others.into_iter().enumerate() {
            world.node(&format!("n{n}"), labels.clone(), json!({}));
        }
        let mut with = spec.clone();
        with["profileRef"] = json!({"name": "bert"});
        world.job("any", with, json!(null), waiting());
        assert_eq!(offered(&world.snapshot().jobs[0]), expected, "{what} {spec}");
    }
}

#[test]
fn an_architecture_and_a_size_that_failed_are_left_out_while_there_are_others() {
    let mut world = World::default();
    let arm = json!({"kubernetes.io/arch": "arm64"});
    let failed = |second: i64| {
        json!({"barred": [{"architecture": "arm64", "at": at(50).to_string()},
            {"gpuType": GPU, "gpusPerWorker": 8, "at": at(second).to_string()}]})
    };
    world.node("arm", arm, json!({})).profile("bert", failed(50)).job(
        "any",
        json!({"profileRef": {"name": "bert"}}),
        json!(null),
        waiting(),
    );
    let candidates = |snapshot: &Snapshot| snapshot.jobs[0].candidates.as_ref().map(|all| all.to_vec());
    let snapshot = world.snapshot();
    assert_eq!(candidates(&snapshot), None, "there are no others");
    let refused = &snapshot.jobs[0].refused_workers;
    assert_eq!(refused.iter().map(|r| (r.least.0, r.most.0)).collect::<Vec<_>>(), [(8, 8)]);
    let plan = andreas_planner::plan(&snapshot, &andreas_planner::Options::default()).expect("a plan");
    let placement = plan.jobs[&snapshot.jobs[0].id].decision.placement().expect("it runs");
    assert!(placement.gpus_per_node.0 < 8, "{placement:?}");
    world.node("x86", json!({"kubernetes.io/arch": "amd64"}), json!({})).profile("bert", failed(-3_600));
    let snapshot = world.snapshot();
    assert_eq!(candidates(&snapshot), Some(vec!["x86".into()]));
    assert!(snapshot.jobs[0].refused_workers.is_empty(), "an hour ago");
    // A job that the others do not admit has no others.
    let selector = json!({"kubernetes.io/arch": "arm64"});
    let template =
        json!({"spec": {"nodeSelector": selector, "containers": [{"name": "trainer", "image": "x"}]}});
    let spec = json!({"profileRef": {"name": "bert"}, "template": template});
    world.job("any", spec, json!(null), waiting());
    assert_eq!(candidates(&world.snapshot()), Some(vec!["arm".into()]));
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
        .job("known", json!({"profileRef": {"name": "bert"}}), held(220), running())
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
        status["progress"] = json!({"milliPercent": 20_000, "attempt": 1, "at": at(100), "stepwise": true,
            "millisPerEpoch": 200_000, "timedMilliEpochs": timed});
        status
    };
    world
        .node("n1", json!({}), json!({}))
        .profile("bert", json!(null))
        .job("slow", json!({"profileRef": {"name": "bert"}}), slow(2_000), Claim::Running { since: at(20) })
        .job("waits", json!({"profileRef": {"name": "bert"}}), json!(null), waiting());
    let snapshot = world.snapshot();
    let row = |job: usize, gpus: u32| {
        let rows = &snapshot.jobs[job].estimates;
        rows.iter().find(|row| row.gpus == GpuCount(gpus)).expect("a row")
    };
    let epoch = |job: usize, gpus: u32| (row(job, gpus).epoch.0, row(job, gpus).rel_std);
    // Twice as slow as its user said, on one GPU and therefore on eight.
    assert!((epoch(0, 1).0 / 200.0 - 1.0).abs() < 0.05, "{:?}", epoch(0, 1));
    assert!((epoch(0, 8).0 / 40.0 - 1.0).abs() < 0.25, "{:?}", epoch(0, 8));
    assert!(epoch(0, 1).1 < 0.12 && epoch(0, 8).1 < 0.5, "{:?} {:?}", epoch(0, 1), epoch(0, 8));
    // Its self-reported pace affects only itself until it has ended.
    assert!((median(row(1, 1)) - 100.0).abs() < 1e-6 && (median(row(1, 8)) - 20.0).abs() < 1e-6);
}

#[test]
fn a_run_that_is_slow_on_a_type_it_looks_at_says_nothing_of_the_type_its_family_is_known_on() {
    const OTHER: &str = "NVIDIA-H100-80GB-HBM3";
    // Given a profile with a long run on one type, 100 s per epoch, and a run that takes six times as long on
    // another.
    let mut world = World::default();
    let seen = json!([{"run": "a-1", "gpuType": GPU, "gpus": 1, "nodes": 1, "millisPerEpoch": 100_000, "milliEpochs": 500_000,
        "watts": 300, "at": at(0)}]);
    let mut looks = holds(1, "n2", 1);
    looks["allocation"]["gpuType"] = OTHER.into();
    looks["progress"] = json!({"milliPercent": 20_000, "attempt": 1, "at": at(100), "stepwise": true,
        "millisPerEpoch": 600_000, "timedMilliEpochs": 4_000});
    let spec =
        json!({"profileRef": {"name": "bert"}, "epochs": 20, "gpus": {"min": 1, "max": 8}, "checkpoint": {}});
    world
        .node("n1", json!({}), json!({}))
        .node("n2", json!({"nvidia.com/gpu.product": OTHER}), json!({}))
        .profile("bert", json!({"observations": seen}))
        .job("looks", spec, looks, Claim::Running { since: at(20) });
    let snapshot = world.snapshot();
    let epoch = |gpu_type: &str, gpus: u32| {
        let mut rows = snapshot.jobs[0].estimates.iter();
        let row = rows.find(|row| row.gpu_type.as_str() == gpu_type && row.gpus == GpuCount(gpus));
        row.expect("a row").epoch.0
    };
    // Then the one type is as slow as observed, on more GPUs too, and the other as fast as known.
    assert!((epoch(OTHER, 1) / 600.0 - 1.0).abs() < 0.1, "{}", epoch(OTHER, 1));
    assert!(epoch(OTHER, 8) > epoch(GPU, 8), "{} {}", epoch(OTHER, 8), epoch(GPU, 8));
    assert!((epoch(GPU, 1) / 100.0 - 1.0).abs() < 0.15, "{}", epoch(GPU, 1));
}

#[test]
fn a_long_run_does_not_wait_for_a_night_that_is_no_longer_than_others() {
    // Given a cheap night, and a run of most of a day: whenever it starts, it has the night and the day once each.
    let night = json!({"windows": [{"from": "22:00", "to": "06:00", "energyPerKWh": "0.14"}]});
    let mut world = World::default();
    world
        .policy(json!({"pue": "1", "prices": {"energyPerKWh": "0.2", "tariff": night}}))
        .node("n1", json!({}), json!({}))
        .profile("bert", json!(null))
        .job(
            "long",
            json!({"profileRef": {"name": "bert"}, "epochs": 4_140, "weight": 2, "gpus": {"min": 8, "max": 8}}),
            json!(null),
            waiting(),
        );
    let snapshot = world.snapshot();
    // Then it starts at once on an idle cluster.
    let plan = andreas_planner::plan(&snapshot, &andreas_planner::Options::default()).expect("a plan");
    let decision = &plan.jobs[&snapshot.jobs[0].id].decision;
    assert!(matches!(decision, andreas_planner::Decision::Run(_)), "{decision:?}");
}
