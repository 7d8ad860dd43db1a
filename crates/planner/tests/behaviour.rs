//! Scenarios: what the planner does in situations that people will ask about.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

#[path = "every_method/behaviour.rs"]
mod every_method;
mod methods;
mod scenarios;

use andreas_model::{CostRate, EnergyPrice, GpuCount, Seconds, StepFunction, Time, Watts};
use andreas_planner::{
    Estimate, GpuTypeInfo, Job, MethodName, MultiNodeEffect, Namespace, Preemption, WaitReason, Worker,
};
use methods::decide;
use scenarios::{HOUR, budget, cluster, job, message, on, place, reason, running};

#[test]
fn a_job_that_has_time_waits_for_cheap_energy() {
    // Given energy that is dear for an hour and cheap from then on, and jobs on a free cluster,
    let price = |per_kwh: f64| EnergyPrice::per_kwh(per_kwh, 1.0);
    let mut snapshot = cluster(2);
    snapshot.tariff = StepFunction::new(vec![(Time(0.0), price(0.4)), (Time(HOUR), price(0.04))]).unwrap();
    snapshot.jobs = vec![
        Job { deadline: Some(Time(12.0 * HOUR)), ..job("patient", 8) },
        Job { deadline: Some(Time(HOUR)), weight: CostRate(0.01), ..job("urgent", 8) },
    ];
    // then who has time waits for it, and says so, and is looked at again when the price falls;
    snapshot.now = Time(0.0);
    let plan = decide(&snapshot, MethodName::RandomizedGreedy);
    assert_eq!(reason(&plan, "team/patient").0, WaitReason::DeferredForEnergy);
    assert_eq!(message(&plan, "team/patient"), "energy costs 90 % less in 1.0 hours");
    assert!(place(&plan, "team/urgent").is_some());
    assert_eq!(plan.next_event, Some(Time(HOUR)));
    // Its GPUs are not left free for nothing.
    assert_eq!(plan.gpus_left_free, 0);
    snapshot.now = Time(HOUR);
    assert!(place(&decide(&snapshot, MethodName::RandomizedGreedy), "team/patient").is_some());
    // At a flat price nobody waits beside free GPUs.
    snapshot.now = Time(0.0);
    snapshot.tariff = StepFunction::flat(price(0.4));
    assert!(place(&decide(&snapshot, MethodName::RandomizedGreedy), "team/patient").is_some());
}

#[test]
fn a_job_that_waits_for_power_is_told_the_watts_it_needs_and_those_free() {
    // Given two nodes of eight GPUs, and a budget for both idle and one at work,
    let mut snapshot = cluster(2);
    snapshot.jobs = vec![Job { weight: CostRate(0.01), ..job("first", 8) }, job("second", 8)];
    snapshot.budget = budget(4_000.0);
    let plan = decide(&snapshot, MethodName::RandomizedGreedy);
    // then who waits does so for the watts that it adds to those that idle GPUs draw.
    assert!(place(&plan, "team/first").is_some());
    assert_eq!(reason(&plan, "team/second").0, WaitReason::PowerBudget);
    let message = message(&plan, "team/second");
    assert!(message.starts_with("its GPUs are there, the watts are not: it needs "), "{message}");
    assert!(message.ends_with(" are free"), "{message}");
}

#[test]
fn a_run_whose_gpus_others_take_is_stopped_for_these_and_not_for_the_watts_that_it_lacks_elsewhere() {
    // Given a run on four GPUs of a node, a budget for one node at work, and a job worth more, which needs all GPUs of that node,
    let mut snapshot = cluster(2);
    (snapshot.restart, snapshot.wear) = (Seconds(10.0), Seconds::ZERO);
    let urgent = Job {
        weight: CostRate(1.0),
        deadline: Some(Time(HOUR)),
        candidates: Some(["n0".into()].into()),
        ..job("urgent", 8)
    };
    snapshot.jobs = vec![running(job("runs", 4), &["n0"], 4), urgent];
    snapshot.budget = budget(3_500.0);
    let plan = decide(&snapshot, MethodName::RandomizedGreedy);
    // then the run makes room, and says for whom: with all watts of the world it would leave as well.
    assert_eq!(place(&plan, "team/urgent"), Some(&on(&["n0"], 8)));
    assert_eq!(reason(&plan, "team/runs"), (WaitReason::Preempted, vec!["team/urgent".to_owned()]));
    // With these watts both would run, were the other node open to it: then watts are the reason.
    snapshot.jobs[1].candidates = None;
    assert_eq!(
        reason(&decide(&snapshot, MethodName::RandomizedGreedy), "team/runs").0,
        WaitReason::PowerBudget
    );
    // Where its GPUs are left to it, and their watts are not, watts are the reason.
    snapshot.jobs[1].candidates = Some(["n1".into()].into());
    let plan = decide(&snapshot, MethodName::RandomizedGreedy);
    assert_eq!(place(&plan, "team/urgent"), Some(&on(&["n1"], 8)));
    assert_eq!(reason(&plan, "team/runs").0, WaitReason::PowerBudget);
}

#[test]
fn room_that_is_free_is_used_by_a_job_that_means_to_change() {
    // Given a job that is in time on eight GPUs alone, a node with two free and one that is free in an hour,
    let mut snapshot = cluster(2);
    (snapshot.restart, snapshot.wear) = (Seconds(10.0), Seconds::ZERO);
    let row = |gpus: u32, epoch: f64| {
        Estimate::new("A100".into(), GpuCount(gpus), Seconds(epoch), Watts(300.0 * f64::from(gpus)))
    };
    let never = |job: Job| Job { preemption: Preemption::Never, ..job };
    snapshot.jobs = vec![
        running(never(job("short", 8)), &["n0"], 8),
        running(never(Job { epochs_left: 400.0, ..job("long", 6) }), &["n1"], 6),
        Job {
            estimates: [row(2, 4.0 * HOUR / 10.0), row(8, HOUR / 10.0)].into(),
            deadline: Some(Time(2.1 * HOUR)),
            weight: CostRate(0.01),
            ..job("elastic", 2)
        },
    ];
    // then it trains on the two until then.
    let plan = decide(&snapshot, MethodName::RandomizedGreedy);
    assert_eq!(place(&plan, "team/elastic"), Some(&on(&["n1"], 2)));
    assert!(plan.next_event.is_some_and(|at| at <= Time(HOUR)), "{:?}", plan.next_event);
    // A job that may not be stopped would have to stay there: it waits for the eight.
    snapshot.jobs[2].preemption = Preemption::Never;
    assert_eq!(place(&decide(&snapshot, MethodName::RandomizedGreedy), "team/elastic"), None);
}

#[test]
fn a_gang_that_is_worth_more_than_those_in_its_way_starts_however_soon_it_could_start_later() {
    // Given two nodes full of jobs of one GPU with twenty hours to go, one of which ends each quarter of an hour,
    let mut snapshot = cluster(2);
    let hours = |epochs: f64, job: Job| Job { epochs_left: epochs, weight: CostRate(1e-5), ..job };
    let small = |i: usize| {
        let left = if i < 4 { 2.5 * (i + 1) as f64 } else { 200.0 };
        running(hours(left, job(&format!("small{i:02}"), 1)), &[["n0", "n1"][i % 2]], 1)
    };
    // others that wait for what they leave, and a gang that needs both nodes and is late by the hour,
    let waiting = (0..8).map(|i| hours(200.0, job(&format!("waiting{i}"), 1)));
    let gang = |weight: f64| Job {
        spread: vec![MultiNodeEffect { nodes: 2, time_factor: 1.0 }],
        deadline: Some(Time(HOUR)),
        weight: CostRate(weight),
        ..job("gang", 16)
    };
    // then it waits where it is worth no more than they are, and else starts, however little a quarter of an hour costs.
    for (weight, starts) in [(2e-5, false), (1.5e-4, true)] {
        snapshot.jobs = (0..16).map(small).chain(waiting.clone()).chain([gang(weight)]).collect();
        let plan = decide(&snapshot, MethodName::RandomizedGreedy);
        assert_eq!(place(&plan, "team/gang").is_some(), starts, "{weight}: {plan:?}");
    }
}

#[test]
fn gpus_beside_a_job_that_waits_for_better_ones_are_left_free_and_counted() {
    // Given a node whose GPUs are free in two minutes, and one whose GPUs take a job twenty times as long,
    let mut snapshot = cluster(2);
    snapshot.gpu_types.push(GpuTypeInfo { name: "T4".into(), idle: Watts(10.0), max: Watts(70.0) });
    snapshot.nodes[1].gpu_type = "T4".into();
    let row = |gpu_type: &str, epoch: f64, watts: f64| {
        Estimate::new(gpu_type.into(), GpuCount(8), Seconds(epoch), Watts(watts))
    };
    let first = Job { epochs_left: 10.0 / 30.0, ..job("first", 8) };
    snapshot.jobs = vec![
        running(Job { preemption: Preemption::Never, ..first }, &["n0"], 8),
        Job {
            estimates: [row("A100", HOUR / 10.0, 2_400.0), row("T4", 2.0 * HOUR, 560.0)].into(),
            deadline: Some(Time(1.5 * HOUR)),
            weight: CostRate(1e-3),
            preemption: Preemption::Never,
            ..job("urgent", 8)
        },
    ];
    // then it waits for the first ones, and the others are counted as left free.
    let plan = decide(&snapshot, MethodName::RandomizedGreedy);
    assert_eq!(reason(&plan, "team/urgent").0, WaitReason::WaitingForCapacity);
    assert_eq!(plan.gpus_left_free, 8);
}

#[test]
fn a_job_whose_turn_has_come_takes_idle_gpus_before_those_of_others() {
    // Given a job that runs on one of two nodes and would lose days, and one whose turn it is by age,
    let mut snapshot = cluster(2);
    snapshot.now = Time(1000.0 * HOUR);
    let runs = Job { submit: snapshot.now, lost: Seconds(100.0 * HOUR), ..job("runs", 8) };
    snapshot.jobs = vec![running(runs, &["n0"], 8), Job { submit: Time(0.0), ..job("old", 8) }];
    for method in methods::all() {
        // then that one starts on the other node,
        let plan = decide(&snapshot, method);
        assert_eq!(place(&plan, "team/runs"), Some(&on(&["n0"], 8)), "{method}");
        assert_eq!(place(&plan, "team/old"), Some(&on(&["n1"], 8)), "{method}");
    }
    // and takes the first only where it can have no other.
    snapshot.jobs[1].candidates = Some(vec!["n0".into()].into());
    let plan = decide(&snapshot, MethodName::RandomizedGreedy);
    assert_eq!(place(&plan, "team/old"), Some(&on(&["n0"], 8)));
}

#[test]
fn a_quota_that_is_exceeded_stops_nobody_when_another_namespace_takes_gpus() {
    // Given a gang whose namespace has less quota than it holds, and a job by whose turn somebody else is displaced,
    let mut snapshot = cluster(3);
    snapshot.now = Time(1000.0 * HOUR);
    snapshot.namespaces = vec![Namespace { name: "small".into(), quota: [("services".into(), 0)].into() }];
    let new = |job: Job| Job { submit: Time(999.0 * HOUR), ..job };
    let service = Worker { quota_per_gang: [("services".into(), 1)].into(), ..Worker::default() };
    let gang = Job {
        namespace: "small".into(),
        worker: service,
        spread: vec![MultiNodeEffect { nodes: 2, time_factor: 1.1 }],
        lost: Seconds(HOUR),
        ..new(job("gang", 16))
    };
    let old = Job { submit: Time(0.0), candidates: Some(vec!["n0".into()].into()), ..job("old", 8) };
    snapshot.jobs = vec![running(gang, &["n1", "n2"], 8), running(new(job("young", 8)), &["n0"], 8), old];
    for method in methods::all() {
        // then the gang goes on, whoever is displaced.
        let plan = decide(&snapshot, method);
        assert_eq!(place(&plan, "team/gang"), Some(&on(&["n1", "n2"], 8)), "{method}");
        assert_eq!(place(&plan, "team/old").is_none(), methods::moves_nothing(method), "{method}");
    }
}
