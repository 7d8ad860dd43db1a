//! Given agents' reports and users' claims; when plans are made; then the power budget counts real watts.

use std::time::Duration;

use andreas_cluster::energy::draws::{limit_in_force, measured, reported};
use andreas_model::{GpuType, TypeDraw, Watts};
use andreas_planner::{Decision, LimitsCount, Options};

use super::*;

/// A job that claims 1 W per GPU, on a node whose agent reports `watts` per GPU.
fn world(status: Value, watts: i64) -> World {
    let mut world = World::default();
    let claimed =
        json!({"measurements": [{"gpuType": GPU, "gpus": 8, "millisPerEpoch": 60_000, "watts": 8}]});
    let profile: SlimTrainingProfile = serde_json::from_value(json!({
        "metadata": {"name": "a", "namespace": "team", "resourceVersion": world.version()}, "spec": claimed}))
    .expect("a profile");
    world.index.apply(profile);
    world
        .node("n1", json!({}), json!({}))
        .policy(json!({"powerBudget": {"watts": 100_000}, "limits": "Off"}));
    let mut status = status;
    if !status.is_null() && status["progress"].is_null() {
        status["progress"] = at_work();
    }
    let claim = if status.is_null() { waiting() } else { Claim::Running { since: at(20) } };
    world.job("a", json!({"gpus": {"min": 8, "max": 8}}), status, claim).pod("a", 1, "n1", 8, "Running");
    world.report(watts, 1, 1, 100);
    world
}

/// Progress of the first attempt, whose first step was reported at 20 s.
fn at_work() -> Value {
    json!({"milliPercent": 2_000, "attempt": 1, "at": at(30), "first": {"at": at(20), "milliPercent": 1_000}})
}

impl World {
    /// The agent of `n1` reports the draw of the job's GPUs and the generation of limits in force.
    fn report(&mut self, watts: i64, generation: i64, observed: i64, lowest: i64) {
        let gpu = |n: i32| {
            json!({"uuid": format!("GPU-{n}"), "state": "Held", "holder": "team/a-1-0", "watts": watts, "joules": 0,
            "minLimitWatts": lowest, "maxLimitWatts": 400})
        };
        let gpus: Vec<Value> = (0..8).map(gpu).collect();
        let node: SlimGpuNode = serde_json::from_value(json!({
            "metadata": {"name": "n1", "resourceVersion": self.version(), "generation": generation},
            "spec": {"limits": [{"pod": "team/a-1-0", "watts": 220}]},
            "status": {"agentVersion": "1", "reportSeconds": 60, "observedGeneration": observed, "gpus": gpus}}))
        .expect("a gpu node");
        self.index.apply(node);
    }

    fn built(&mut self, caches: &mut Caches, now: i64) -> Snapshot {
        let ledger = self.ledger.take().expect("a ledger");
        let built = build(&self.index, &ledger, caches, None, at(now));
        self.ledger = Some(ledger);
        built.snapshot
    }
}

fn row(snapshot: &Snapshot) -> (f64, f64) {
    let row = snapshot.jobs[0].estimates.iter().find(|row| row.gpus.0 == 8).expect("a row");
    (row.power.0, row.draw.expect("a bound").0)
}

#[test]
fn a_users_own_watts_never_count_below_the_boards_maximum_before_the_run_is_measured() {
    let mut waits = world(json!(null), 0);
    let (power, draw) = row(&waits.snapshot());
    assert!(power < 100.0, "the cost is counted with what the user says: {power}");
    assert_eq!(draw, 8.0 * 400.0, "the budget with what the boards may draw");
    // Running for a minute and a half: reports may still show an idle GPU.
    let mut young = world(holds(1, "n1", 8), 60);
    assert_eq!(row(&young.built(&mut Caches::default(), 110)).1, 3_200.0);
}

#[test]
fn a_run_that_loads_data_is_not_measured_by_its_idle_gpus() {
    // It has said that it began, and nothing since.
    let mut status = holds(1, "n1", 8);
    status["progress"] = json!({"milliPercent": 0, "attempt": 1, "at": at(20)});
    let mut loads = world(status.clone(), 60);
    assert_eq!(row(&loads.built(&mut Caches::default(), 400)).1, 3_200.0);
    // Some programs never report.
    assert_eq!(row(&loads.built(&mut Caches::default(), 919)).1, 3_200.0);
    assert_eq!(row(&loads.built(&mut Caches::default(), 920)).1, 8.0 * 60.0 * 1.1);
    // The first step is reported at 400 s: an agent's report may be a minute old.
    status["progress"] = at_work();
    status["progress"]["first"]["at"] = json!(at(400));
    let mut begins = world(status, 60);
    assert_eq!(row(&begins.built(&mut Caches::default(), 519)).1, 3_200.0);
    assert_eq!(row(&begins.built(&mut Caches::default(), 520)).1, 8.0 * 60.0 * 1.1);
}

#[test]
fn a_measured_run_counts_for_the_highest_draw_that_its_agents_reported() {
    let mut runs = world(holds(1, "n1", 8), 250);
    let mut caches = Caches::default();
    let counted = 8.0 * 250.0 * 1.1;
    assert!((row(&runs.built(&mut caches, 200)).1 - counted).abs() < 1e-6);
    // A lower report later changes nothing: the next epoch draws as much as the last one.
    runs.report(100, 1, 1, 100);
    assert!((row(&runs.built(&mut caches, 300)).1 - counted).abs() < 1e-6);
    runs.report(390, 1, 1, 100);
    assert_eq!(row(&runs.built(&mut caches, 400)).1, 3_200.0, "never more than the boards may draw");
    // Nor does a report below the idle draw.
    runs.report(1, 1, 1, 100);
    assert_eq!(row(&runs.built(&mut Caches::default(), 500)).1, 8.0 * 52.0);
}

#[test]
fn what_plans_have_seen_of_a_run_counts_for_whoever_plans_between_them() {
    let mut runs = world(holds(1, "n1", 8), 250);
    let mut caches = Caches::default();
    runs.built(&mut caches, 200);
    runs.report(100, 1, 1, 100);
    let mut counted = |draws| row(&runs.built(&mut Caches { draws, ..Caches::default() }, 300)).1;
    let seen = caches.draws.clone();
    assert!((counted(Default::default()) - 8.0 * 100.0 * 1.1).abs() < 1e-6);
    assert!((counted(seen) - 8.0 * 250.0 * 1.1).abs() < 1e-6);
    // Runs that are over are not handed on.
    let of_runs = |index: &ClusterIndex| caches.draws.of_runs(index);
    let none = of_runs(&ClusterIndex::new());
    assert!((counted(none) - 8.0 * 100.0 * 1.1).abs() < 1e-6);
    let handed_on = of_runs(&world(holds(1, "n1", 8), 100).index);
    assert!((counted(handed_on) - 8.0 * 250.0 * 1.1).abs() < 1e-6);
}

/// Otherwise it would grow by its measured draw, count for the boards' maximum as a new run, and shrink again: for ever.
#[test]
fn the_measured_draw_of_a_run_says_nothing_of_itself_on_another_number_of_gpus() {
    let mut runs = world(holds(1, "n1", 8), 110);
    let mut status = holds(1, "n1", 8);
    status["progress"] = at_work();
    runs.job("a", json!({}), status, Claim::Running { since: at(20) });
    let built = runs.built(&mut Caches::default(), 200);
    let estimates = &built.jobs[0].estimates;
    let draw = |gpus: u32| estimates.iter().find(|row| row.gpus == GpuCount(gpus)).and_then(|row| row.draw);
    assert!((draw(8).expect("counted").0 - 8.0 * 110.0 * 1.1).abs() < 1e-6);
    assert_eq!(draw(4), Some(Watts(4.0 * 400.0)));
}

#[test]
fn nobody_counts_for_less_than_measured_families_draw_once_enough_are_known() {
    let mut waits = world(json!(null), 0);
    let profile = |world: &mut World, name: &str, watts: i64, limit: Value| {
        let mut seen = lasting(15, watts);
        seen["observations"][0]["powerLimitWatts"] = limit;
        world.profile(name, seen);
    };
    profile(&mut waits, "f1", 4 * 200, json!(null));
    profile(&mut waits, "f2", 4 * 290, json!(null));
    assert_eq!(row(&waits.snapshot()).1, 3_200.0, "two profiles say too little");
    profile(&mut waits, "limited", 4 * 100, json!(100));
    assert_eq!(row(&waits.snapshot()).1, 3_200.0, "a draw under a limit is none without one");
    waits.profile("short", lasting(14, 4 * 210));
    assert_eq!(row(&waits.snapshot()).1, 3_200.0, "the mean of a short run is that of its start");
    let mut claimed = lasting(15, 4 * 210);
    claimed["observations"][0]["claimed"] = json!(true);
    waits.profile("claimed", claimed);
    assert_eq!(row(&waits.snapshot()).1, 3_200.0, "how long it ran is the program's own word");
    profile(&mut waits, "f3", 4 * 210, json!(null));
    assert_eq!(
        row(&waits.snapshot()).1,
        8.0 * 320.0,
        "the highest with the margin of a measurement, in steps of 20 W"
    );
}

/// A profile whose run with four GPUs lasted so many minutes and drew so many watts.
fn lasting(minutes: i64, watts: i64) -> Value {
    json!({"observations": [{"run": "x-1", "gpuType": GPU, "gpus": 4, "nodes": 1, "millisPerEpoch": 60_000,
        "milliEpochs": 1_000 * minutes, "watts": watts, "at": at(0)}]})
}

#[test]
fn families_that_slept_make_nobody_count_for_less_than_half_of_a_boards_maximum() {
    let mut waits = world(json!(null), 0);
    for name in ["f1", "f2", "f3"] {
        waits.profile(name, lasting(20, 4 * 55));
    }
    assert_eq!(row(&waits.snapshot()).1, 8.0 * 200.0);
}

#[test]
fn a_bound_stays_between_idle_and_maximum() {
    let draw = TypeDraw { idle: 50.0, max: 400.0, unmeasured: 300.0, guards: None };
    assert_eq!(draw.of_predicted(1.0, 2), 600.0);
    assert_eq!(draw.of_predicted(700.0, 2), 700.0);
    assert_eq!(draw.of_predicted(1e9, 2), 800.0);
    assert_eq!(draw.of_measured(0.0, 2), 100.0);
    assert_eq!(draw.of_predicted(f64::NAN, 2), 600.0);
}

#[test]
fn the_limit_of_a_run_counts_once_its_agent_has_set_it() {
    let mut status = holds(1, "n1", 8);
    status["allocation"]["powerLimitWatts"] = json!(220);
    let policy: EnergyPolicySpec = serde_json::from_value(json!({"limits": "On"})).expect("a policy");
    let mut runs = world(status, 200);
    let in_force = |world: &World, policy: &EnergyPolicySpec| {
        let job = world.index.jobs().get(&key("a")).expect("the job");
        let allocation = job.status.as_ref().and_then(|status| status.allocation.as_ref()).expect("one");
        assert_eq!(measured(&world.index, &key("a"), allocation, at(30)), None, "it has run for ten seconds");
        limit_in_force(&world.index, &key("a"), allocation, policy)
    };
    assert!(in_force(&runs, &policy));
    assert!(!in_force(&runs, &EnergyPolicySpec::default()), "agents set none");
    runs.report(200, 3, 2, 100);
    assert!(!in_force(&runs, &policy), "not carried out yet");
    runs.report(200, 3, 3, 300);
    assert!(!in_force(&runs, &policy), "out of the range");
    runs.report(200, 3, 3, 100);
    assert!(in_force(&runs, &policy));
    let gpu = json!({"uuid": "GPU-0", "state": "Held", "holder": "team/a-1-0", "minLimitWatts": 100, "maxLimitWatts": 200});
    let node = json!({"metadata": {"name": "n1", "resourceVersion": runs.version(), "generation": 3},
        "spec": {"limits": [{"pod": "team/a-1-0", "watts": 220}]},
        "status": {"agentVersion": "1", "observedGeneration": 3, "gpus": [gpu]}});
    runs.index.apply(serde_json::from_value::<SlimGpuNode>(node).expect("a gpu node"));
    assert!(in_force(&runs, &policy), "its owner has less in force");
    let gpu = json!({"uuid": "GPU-0", "state": "Unhealthy", "holder": "team/a-1-0", "minLimitWatts": 100, "maxLimitWatts": 400});
    let node = json!({"metadata": {"name": "n1", "resourceVersion": runs.version(), "generation": 3},
        "spec": {"limits": [{"pod": "team/a-1-0", "watts": 220}]},
        "status": {"agentVersion": "1", "observedGeneration": 3, "gpus": [gpu]}});
    runs.index.apply(serde_json::from_value::<SlimGpuNode>(node).expect("a gpu node"));
    assert!(!in_force(&runs, &policy), "nobody knows what a broken GPU has");
}

#[test]
fn neither_limit_nor_draw_of_a_run_counts_once_its_agent_is_silent() {
    let mut status = holds(1, "n1", 8);
    status["allocation"]["powerLimitWatts"] = json!(220);
    let policy: EnergyPolicySpec = serde_json::from_value(json!({"limits": "On"})).expect("a policy");
    let mut runs = world(status, 200);
    let seen = |world: &World| {
        let job = world.index.jobs().get(&key("a")).expect("the job");
        let allocation = job.status.as_ref().and_then(|status| status.allocation.as_ref()).expect("one");
        let in_force = limit_in_force(&world.index, &key("a"), allocation, &policy);
        (in_force, reported(&world.index, &key("a"), allocation))
    };
    runs.index.age_reports(Duration::from_secs(170));
    assert_eq!(seen(&runs), (true, Some(1_600.0)));
    assert_eq!(runs.snapshot().nodes[0].foreign_power, Some(Watts(0.0)));
    // Its node's kubelet goes on to answer.
    runs.index.age_reports(Duration::from_secs(10));
    assert_eq!(seen(&runs), (false, None));
    assert_eq!(runs.snapshot().nodes[0].foreign_power, None, "nor does it say what others draw");
    runs.report(201, 1, 1, 100);
    assert_eq!(seen(&runs), (true, Some(1_608.0)));
}

/// A start that waits for the watts of a stop is ordered as soon as the pod has ended, and must not be withdrawn for a report of before.
#[test]
fn a_pod_that_has_ended_draws_nothing_though_the_last_report_names_it() {
    let mut world = world(holds(1, "n1", 8), 390);
    let foreign = |world: &mut World| world.snapshot().nodes[0].foreign_power.map(|watts| watts.0);
    // It has ended, and its job holds nothing any more.
    world.job("a", json!({"gpus": {"min": 8, "max": 8}}), json!({"phase": "Pending"}), waiting());
    assert_eq!(foreign(&mut world), Some(3_120.0), "it is no longer its job's, and has not ended");
    world.pod("a", 1, "n1", 8, "Failed");
    assert_eq!(foreign(&mut world), Some(0.0));
    // Its object is gone too.
    <andreas_cluster::index::ClusterIndex as Index<SlimPod>>::delete(&mut world.index, &key("a-1-0"), None);
    assert_eq!(foreign(&mut world), Some(0.0));
    // Nobody has ever seen this one.
    let held =
        |n: i32| json!({"uuid": format!("u{n}"), "state": "Held", "holder": "team/b-1-0", "watts": 120});
    world.agent("n1", (0..8).map(held).collect());
    assert_eq!(foreign(&mut world), Some(960.0));
}

/// Their controller divides the GPUs of a node among its pods as it likes.
#[test]
fn pods_of_an_adopted_job_that_share_a_node_are_measured_and_limited_together() {
    let policy: EnergyPolicySpec = serde_json::from_value(json!({"limits": "On"})).expect("a policy");
    let mut world = World::default();
    world.node("n1", json!({}), json!({})).policy(json!({"powerBudget": {"watts": 100_000}, "limits": "On"}));
    let mut status = holds(1, "n1", 2);
    status["allocation"]["powerLimitWatts"] = json!(220);
    let adopts = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "x", "uid": "x", "pods": 2});
    let spec = json!({"gpus": {"min": 2, "max": 2}, "adopts": adopts});
    world.job("a", spec, status, Claim::Running { since: at(20) });
    for name in ["x-0", "x-1"] {
        let pod: SlimPod = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "team", "uid": name, "resourceVersion": world.version(),
                "labels": {"andreas.dev/job": "a", "andreas.dev/adopted": "a", "andreas.dev/adopted-attempt": "1"}},
            "spec": {"nodeName": "n1", "containers": [{"name": "t", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
            "status": {"phase": "Running"}}))
        .expect("a pod");
        world.index.apply(pod);
    }
    // How many of the two pods have a limit, and the draw of each of their GPUs.
    let mut seen = |limited: usize, watts: [i32; 2]| {
        let gpu = |n: usize| {
            json!({"uuid": format!("GPU-{n}"), "state": "Held", "holder": format!("team/x-{n}"), "watts": watts[n],
            "minLimitWatts": 100, "maxLimitWatts": 400})
        };
        let limits =
            (0..limited).map(|n| json!({"pod": format!("team/x-{n}"), "watts": 220})).collect::<Vec<_>>();
        let node: SlimGpuNode = serde_json::from_value(json!({
            "metadata": {"name": "n1", "resourceVersion": world.version(), "generation": 1}, "spec": {"limits": limits},
            "status": {"agentVersion": "1", "observedGeneration": 1, "gpus": [gpu(0), gpu(1)]}}))
        .expect("a gpu node");
        world.index.apply(node);
        let job = world.index.jobs().get(&key("a")).expect("the job");
        let allocation = job.status.as_ref().and_then(|status| status.allocation.as_ref()).expect("one");
        (
            limit_in_force(&world.index, &key("a"), allocation, &policy),
            reported(&world.index, &key("a"), allocation),
        )
    };
    assert_eq!(seen(2, [200, 210]), (true, Some(410.0)));
    assert_eq!(seen(1, [200, 390]), (false, Some(590.0)), "nothing limits the second pod");
    assert_eq!(seen(2, [200, 0]), (true, None));
}

/// A pod of others on node n1.
fn other(world: &mut World, name: &str, gpus: u32) {
    let pod: andreas_cluster::index::ForeignPod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "other", "uid": name, "resourceVersion": world.version()},
        "spec": {"nodeName": "n1", "containers": [{"resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}}]}}))
    .expect("a pod");
    world.index.apply(pod);
}

/// It owes no report as long as nobody holds a GPU: that it has ended is seen by what it does not say.
#[test]
fn pods_of_others_that_no_agent_names_count_for_the_boards_maximum_after_a_minute() {
    let mut world = World::default();
    world.node("n1", json!({}), json!({})).policy(json!({"powerBudget": {"watts": 10_000}}));
    let gpu = |n: i32| json!({"uuid": format!("u{n}"), "state": "Free", "watts": 50});
    world.agent("n1", (0..8).map(gpu).collect());
    world.index.age_reports(Duration::from_secs(180));
    other(&mut world, "x", 2);
    assert_eq!(world.snapshot().nodes[0].foreign_power, Some(Watts(0.0)), "it was bound a moment ago");
    // Others come meanwhile, as of a CronJob.
    world.index.age_reports(Duration::from_secs(50));
    other(&mut world, "y", 1);
    world.index.age_reports(Duration::from_secs(10));
    assert_eq!(world.snapshot().nodes[0].foreign_power, Some(Watts(800.0)));
    let held = |n: i32| json!({"uuid": format!("u{n}"), "state": "Held", "holder": "other/x", "watts": 120});
    world.agent("n1", (0..2).map(held).chain((2..8).map(gpu)).collect());
    assert_eq!(world.snapshot().nodes[0].foreign_power, Some(Watts(240.0)));
    world.index.age_reports(Duration::from_secs(50));
    assert_eq!(world.snapshot().nodes[0].foreign_power, Some(Watts(240.0 + 400.0)), "the other one is not");
}

/// A run under a limit of 220 W whose program was measured on its eight GPUs, at `watts` each.
fn under_a_limit(watts: i64) -> World {
    measured_run(watts, json!(220))
}

fn measured_run(watts: i64, limit: Value) -> World {
    let mut status = holds(1, "n1", 8);
    status["allocation"]["powerLimitWatts"] = limit;
    let seen = json!({"observations": [
        {"run": "x-1", "gpuType": GPU, "gpus": 8, "nodes": 1, "millisPerEpoch": 60_000, "milliEpochs": 9_000, "watts": 2_400, "at": at(0)}]});
    let mut runs = world(status, watts);
    runs.policy(json!({"powerBudget": {"watts": 100_000}, "limits": "On"}));
    runs.profile("a", seen);
    runs
}

/// When its limits count, whether it is offered none, and the limit that it keeps.
fn limits(snapshot: &Snapshot) -> (LimitsCount, bool, Option<Watts>) {
    let job = &snapshot.jobs[0];
    let JobState::Running { placement, .. } = &job.state else { panic!("{:?}", job.state) };
    (job.limits_count, job.limits.is_empty(), placement.limit)
}

#[test]
fn a_limit_that_is_not_set_in_time_is_given_up_and_counts_for_nothing() {
    let mut runs = under_a_limit(380);
    runs.report(380, 3, 2, 100);
    let mut caches = Caches::default();
    let soon = runs.built(&mut caches, 100);
    assert_eq!(limits(&soon), (LimitsCount::NotYetSet, false, Some(Watts(220.0))));
    // The plan keeps the limit and starts nothing with its watts.
    let plan = andreas_planner::plan(&soon, &Options::default()).expect("a plan");
    assert!(matches!(&plan.jobs[&soon.jobs[0].id].decision, Decision::Run(place) if place.limit.is_some()));
    let late = runs.built(&mut caches, 161);
    assert_eq!(limits(&late), (LimitsCount::AtOnce, true, None));
    let draw =
        late.jobs[0].estimates.iter().find(|row| row.gpu_type == GpuType::new(GPU)).and_then(|r| r.draw);
    assert_eq!(draw, Some(Watts(3_200.0)));
}

#[test]
fn no_limit_is_offered_while_an_agent_is_silent_and_again_once_it_reports() {
    let mut runs = under_a_limit(200);
    let mut caches = Caches::default();
    let none = (LimitsCount::AtOnce, true, None);
    let kept = |count: LimitsCount| (count, false, Some(Watts(220.0)));
    assert_eq!(limits(&runs.built(&mut caches, 100)), kept(LimitsCount::WhenSet));
    runs.index.age_reports(Duration::from_secs(180));
    for now in [101, 162, 400] {
        assert_eq!(limits(&runs.built(&mut caches, now)), none, "{now}: it may be lifted");
    }
    runs.report(201, 1, 1, 100);
    assert_eq!(limits(&runs.built(&mut caches, 401)), kept(LimitsCount::WhenSet));
    // Silent before it could set a new one: it has its minute once it is back.
    runs.report(201, 3, 2, 100);
    assert_eq!(limits(&runs.built(&mut caches, 402)), kept(LimitsCount::NotYetSet));
    runs.index.age_reports(Duration::from_secs(180));
    assert_eq!(limits(&runs.built(&mut caches, 500)), none);
    runs.report(202, 3, 2, 100);
    for now in [501, 560] {
        assert_eq!(limits(&runs.built(&mut caches, now)), kept(LimitsCount::NotYetSet), "{now}");
    }
    assert_eq!(limits(&runs.built(&mut caches, 561)), none);
}

/// Once a plan took the limit off, there is none in the allocation that could be seen not to be in force.
#[test]
fn a_run_without_a_limit_is_offered_none_while_its_agent_is_silent() {
    let mut runs = measured_run(200, Value::Null);
    let offered = |runs: &mut World| !runs.built(&mut Caches::default(), 100).jobs[0].limits.is_empty();
    assert!(offered(&mut runs));
    runs.index.age_reports(Duration::from_secs(180));
    assert!(!offered(&mut runs));
    runs.report(202, 1, 1, 100);
    assert!(offered(&mut runs));
}
