//! Stories: what the planner does in situations that people will ask about.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use andreas_core::{CostRate, EnergyPrice, GpuCount, NodeName, Seconds, Steps, Time, Watts};
use andreas_planner::{
    Decision, Estimate, GpuTypeInfo, Job, JobState, Lateness, LimitEffect, MethodName, Namespace, Node,
    Options, Placement, Plan, PowerBudget, Preemption, Resources, Snapshot, Spread, WaitReason, Worker, plan,
};

const HOUR: f64 = 3600.0;

/// `n` nodes with eight GPUs (idle 50 W, training 300 W each) and an overhead of 100 W.
fn cluster(n: usize) -> Snapshot {
    let node = |i: usize| Node {
        name: format!("n{i}").into(),
        gpu_type: "A100".into(),
        gpus: GpuCount(8),
        free_gpus: GpuCount(8),
        overhead: Watts(100.0),
        foreign_power: None,
        free: Resources::default(),
    };
    Snapshot {
        now: Time(0.0),
        tariff: Steps::flat(EnergyPrice::per_kwh(0.2, 1.3)),
        budget: None,
        lateness: Lateness {
            turnaround_share: 0.1,
            late_fixed: Seconds(900.0),
            aging: Some(Seconds(24.0 * HOUR)),
        },
        restart: Seconds(120.0),
        horizon: None,
        gpu_types: vec![GpuTypeInfo { name: "A100".into(), idle: Watts(50.0), max: Watts(400.0) }],
        nodes: (0..n).map(node).collect(),
        namespaces: vec![],
        jobs: vec![],
        prices: None,
        memory: None,
    }
}

/// A job that takes an hour on `gpus` GPUs and can run on nothing else.
fn job(name: &str, gpus: u32) -> Job {
    Job {
        id: format!("team/{name}").into(),
        namespace: "team".into(),
        submit: Time(-HOUR),
        deadline: None,
        weight: CostRate(10.0 * 0.02 / HOUR),
        epochs_left: 10.0,
        estimates: [Estimate {
            gpu_type: "A100".into(),
            gpus: GpuCount(gpus),
            epoch: Seconds(HOUR / 10.0),
            power: Watts(300.0 * f64::from(gpus)),
            rel_std: 0.0,
        }]
        .into(),
        spread: vec![],
        limits: vec![],
        requested_gpus: None,
        worker: Worker::default(),
        candidates: None,
        forbidden: vec![],
        preemption: Preemption::Allowed,
        movable: true,
        min_run: Seconds::ZERO,
        lost: Seconds::ZERO,
        state: JobState::Waiting,
    }
}

fn on(nodes: &[&str], gpus: u32) -> Placement {
    Placement {
        gpu_type: "A100".into(),
        nodes: nodes.iter().map(|n| NodeName::from(*n)).collect(),
        gpus_per_node: GpuCount(gpus),
        limit: None,
    }
}

fn running(job: Job, nodes: &[&str], gpus: u32) -> Job {
    Job { state: JobState::Running { placement: on(nodes, gpus), since: Time(-HOUR) }, ..job }
}

fn with(method: MethodName) -> Options {
    Options { method, ..Options::default() }
}

fn decide(snapshot: &Snapshot, method: MethodName) -> Plan {
    plan(snapshot, &with(method)).unwrap()
}

fn place<'a>(plan: &'a Plan, job: &str) -> Option<&'a Placement> {
    plan.jobs[job].decision.placement()
}

fn reason(plan: &Plan, job: &str) -> (WaitReason, Vec<String>) {
    match &plan.jobs[job].decision {
        Decision::Wait { reason, blockers, .. } => {
            (*reason, blockers.iter().map(ToString::to_string).collect())
        }
        Decision::Run(place) => panic!("{job} runs on {place:?}"),
    }
}

fn budget(watts: f64) -> Option<PowerBudget> {
    Some(PowerBudget {
        watts: Steps::flat(Watts(watts)),
        margin: 0.0,
        scope_factor: 1.0,
        look_ahead: Seconds::ZERO,
    })
}

/// Two full nodes of eight GPUs and, every ten minutes, two heavy jobs of four GPUs and half an hour: more than the
/// cluster can do. In the beginning a light job waits that needs a whole node. Says in which step it starts.
fn start_of_the_large_one(method: MethodName, aging: Option<Seconds>) -> Option<u32> {
    let small = |name: String, epochs_left: f64, submit: Time| Job {
        submit,
        deadline: Some(submit + Seconds(HOUR)),
        weight: CostRate(0.01),
        epochs_left,
        ..job(&name, 4)
    };
    let mut snapshot = cluster(2);
    snapshot.lateness.aging = aging;
    snapshot.jobs.push(Job { weight: CostRate(1e-9), deadline: Some(Time(HOUR)), ..job("large", 8) });
    for (i, node) in ["n0", "n0", "n1", "n1"].into_iter().enumerate() {
        let there = small(format!("first{i}"), 5.0 + i as f64, Time(-2.0 * HOUR));
        snapshot.jobs.push(running(there, &[node], 4));
    }
    for step in 0..150 {
        snapshot.now = Time(f64::from(step) * 600.0);
        for i in 0..2 {
            snapshot.jobs.push(small(format!("small{step:03}{i}"), 5.0, snapshot.now));
        }
        let plan = decide(&snapshot, method);
        advance(&mut snapshot, &plan, 600.0);
        if place(&plan, "team/large").is_some() {
            return Some(step);
        }
    }
    None
}

#[test]
fn every_job_starts_at_last() {
    for method in MethodName::ALL {
        // Nine hours past its deadline its weight has stopped growing: step 60. Then it is next.
        let started = start_of_the_large_one(method, Some(Seconds(HOUR)));
        assert!(started.is_some_and(|step| step < 70), "{method}: {started:?}");
    }
    // Without ageing nobody would ever make room for it.
    assert_eq!(start_of_the_large_one(MethodName::Priority, None), None);
}

/// Carries a plan out and lets time pass.
fn advance(snapshot: &mut Snapshot, plan: &Plan, seconds: f64) {
    let now = snapshot.now;
    for job in &mut snapshot.jobs {
        let Some(goes) = plan.jobs[&job.id].decision.placement() else {
            job.state = JobState::Waiting;
            continue;
        };
        if !matches!(&job.state, JobState::Running { placement, .. } if placement.same_gpus(goes)) {
            job.state = JobState::Running { placement: goes.clone(), since: now };
        }
        job.epochs_left -= seconds / job.estimates[0].epoch.0;
    }
    snapshot.jobs.retain(|job| job.epochs_left > 1e-9);
}

#[test]
fn room_that_is_kept_is_used_until_it_is_needed() {
    // Given a node with a job of four GPUs for another hour, an overdue job that needs all eight, and two small ones,
    // one of half an hour and one of two hours.
    let mut snapshot = cluster(1);
    snapshot.now = Time(1000.0 * HOUR);
    let since = Time(999.0 * HOUR);
    let long_ago = |job| Job { deadline: Some(Time(0.0)), ..job };
    let new = |job: Job, epochs_left: f64| Job { submit: since, epochs_left, ..job };
    let there = Job { preemption: Preemption::Never, ..job("there", 4) };
    let there = Job { state: JobState::Running { placement: on(&["n0"], 4), since }, ..there };
    snapshot.jobs =
        vec![there, long_ago(job("large", 8)), new(job("short", 2), 5.0), new(job("long", 2), 20.0)];
    for method in MethodName::ALL {
        let plan = decide(&snapshot, method);
        assert!(place(&plan, "team/short").is_some(), "{method}");
        assert_eq!(
            reason(&plan, "team/long"),
            (WaitReason::WaitingForCapacity, vec!["team/large".to_owned()])
        );
        assert_eq!(reason(&plan, "team/large").0, WaitReason::WaitingForCapacity);
    }
}

#[test]
fn nobody_is_stopped_for_the_watts_of_room_that_is_kept() {
    // Given a job that may not be stopped, one that may not be moved, and an overdue one that needs all GPUs and, with
    // the 1500 W of the others, more watts than there are,
    let mut snapshot = cluster(1);
    snapshot.now = Time(1000.0 * HOUR);
    let since = Time(999.0 * HOUR);
    let there =
        |job: Job, gpus| Job { state: JobState::Running { placement: on(&["n0"], gpus), since }, ..job };
    snapshot.jobs = vec![
        there(Job { preemption: Preemption::Never, ..job("never", 2) }, 2),
        there(Job { movable: false, ..job("fixed", 2) }, 2),
        Job { deadline: Some(Time(0.0)), ..job("large", 8) },
    ];
    snapshot.budget = budget(2500.0);
    for method in MethodName::ALL {
        // then both go on, and it waits until they are done.
        let plan = decide(&snapshot, method);
        assert_eq!(place(&plan, "team/never"), Some(&on(&["n0"], 2)), "{method}");
        assert_eq!(place(&plan, "team/fixed"), Some(&on(&["n0"], 2)), "{method}");
        assert_eq!(reason(&plan, "team/large").0, WaitReason::WaitingForCapacity);
    }
}

#[test]
fn who_may_not_be_moved_goes_on_elsewhere_only_once_it_has_left() {
    // Given a job that stops on four GPUs and could go on on eight of a free node, but not on four,
    let mut snapshot = cluster(2);
    let state = JobState::Stopping { holds: on(&["n0"], 4), target: None, gone_by: Time(60.0) };
    snapshot.jobs = vec![Job { movable: false, state, ..job("fixed", 8) }];
    for method in MethodName::ALL {
        // then it waits until it has left,
        let plan = decide(&snapshot, method);
        assert_eq!(reason(&plan, "team/fixed"), (WaitReason::WaitingForCapacity, vec![]), "{method}");
        // and is one of those that wait from then on; one that may be moved gets its place at once.
        let gone = Job { state: JobState::Waiting, ..snapshot.jobs[0].clone() };
        let free = Job { movable: true, ..snapshot.jobs[0].clone() };
        for job in [gone, free] {
            let plan = decide(&Snapshot { jobs: vec![job], ..snapshot.clone() }, method);
            assert!(place(&plan, "team/fixed").is_some(), "{method}");
        }
    }
}

#[test]
fn fixed_requests_have_room_kept_that_is_enough_for_them() {
    // Given an overdue job that can run on one GPU, but whose user asked for eight, and four of them taken for a while,
    let mut snapshot = cluster(1);
    snapshot.now = Time(1000.0 * HOUR);
    let since = Time(999.0 * HOUR);
    let row = |gpus: u32| Estimate { gpus: GpuCount(gpus), ..job("large", 8).estimates[0].clone() };
    snapshot.jobs = vec![
        Job { state: JobState::Running { placement: on(&["n0"], 4), since }, ..job("there", 4) },
        Job {
            deadline: Some(Time(0.0)),
            estimates: [row(1), row(8)].into(),
            requested_gpus: Some(GpuCount(8)),
            ..job("large", 8)
        },
        Job { submit: since, epochs_left: 100.0, ..job("later", 4) },
    ];
    for method in [MethodName::FifoFixed, MethodName::EdfFixed, MethodName::PriorityFixed] {
        // then nobody takes the other four for longer than that.
        let plan = decide(&snapshot, method);
        let kept = (WaitReason::WaitingForCapacity, vec!["team/large".to_owned()]);
        assert_eq!(reason(&plan, "team/later"), kept, "{method}");
    }
}

#[test]
fn a_gang_takes_the_same_number_of_gpus_on_several_nodes() {
    for method in MethodName::ALL {
        let mut snapshot = cluster(3);
        snapshot.jobs = vec![
            running(job("there", 4), &["n0"], 4),
            Job { spread: vec![Spread { nodes: 2, time_factor: 1.1 }], ..job("gang", 16) },
        ];
        let plan = decide(&snapshot, method);
        assert_eq!(place(&plan, "team/gang"), Some(&on(&["n1", "n2"], 8)), "{method}");
        assert_eq!(plan.jobs["team/gang"].finish, Some(Time(1.1 * HOUR)));
    }
}

#[test]
fn why_a_job_waits_is_always_said() {
    let mut snapshot = cluster(1);
    snapshot.namespaces =
        vec![Namespace { name: "small".into(), quota: [("pods".into(), 0)].into(), tickets: 1.0 }];
    let pods = Worker { quota_fixed: [("pods".into(), 1)].into(), ..Worker::default() };
    let cpu = Resources { cpu_milli: Some(4000), ..Resources::default() };
    snapshot.nodes[0].free.cpu_milli = Some(16_000);
    snapshot.jobs = vec![
        running(Job { preemption: Preemption::Never, ..job("there", 6) }, &["n0"], 6),
        job("room", 4),
        job("wide", 16),
        Job { worker: Worker { per_gpu: cpu, ..Worker::default() }, ..job("greedy", 8) },
        Job { forbidden: vec!["n0".into()], ..job("unlucky", 1) },
        Job { namespace: "small".into(), worker: pods, ..job("poor", 1) },
    ];
    for method in MethodName::ALL {
        let plan = decide(&snapshot, method);
        let there = vec!["team/there".to_owned()];
        assert_eq!(reason(&plan, "team/room"), (WaitReason::WaitingForCapacity, there), "{method}");
        assert_eq!(reason(&plan, "team/wide").0, WaitReason::NoFeasibleGpuType);
        assert_eq!(reason(&plan, "team/greedy").0, WaitReason::NoFeasibleNode);
        assert_eq!(reason(&plan, "team/unlucky").0, WaitReason::NoFeasibleNode);
        assert_eq!(reason(&plan, "team/poor").0, WaitReason::QuotaExceeded);
    }
}

#[test]
fn a_job_costs_the_budget_its_draw_minus_the_idle_watts_it_replaces() {
    // Given 400 W of idle GPUs, a job of four GPUs adds 100 W overhead and 4 x (300 - 50) W: 1500 W.
    let mut snapshot = cluster(1);
    snapshot.jobs = vec![job("four", 4)];
    for (watts, runs) in [(1500.0, true), (1499.0, false)] {
        snapshot.budget = budget(watts);
        let plan = decide(&snapshot, MethodName::Andreas);
        assert_eq!(place(&plan, "team/four").is_some(), runs);
        assert_eq!(plan.budgeted_power, Watts(if runs { 1500.0 } else { 400.0 }));
        if !runs {
            assert_eq!(reason(&plan, "team/four").0, WaitReason::PowerBudget);
        }
    }
    snapshot.budget = budget(399.0);
    assert_eq!(reason(&decide(&snapshot, MethodName::Fifo), "team/four").0, WaitReason::BudgetInfeasible);
}

#[test]
fn a_lower_budget_first_lowers_limits_then_stops_the_cheapest_and_never_last() {
    let limit =
        LimitEffect { gpu_type: "A100".into(), limit: Watts(200.0), time_factor: 1.05, power_factor: 0.7 };
    let mut snapshot = cluster(3);
    snapshot.jobs = vec![
        running(Job { limits: vec![limit], ..job("limited", 8) }, &["n0"], 8),
        running(Job { weight: CostRate(1e-6), preemption: Preemption::Never, ..job("never", 8) }, &["n1"], 8),
        running(Job { weight: CostRate(1e-3), ..job("dear", 8) }, &["n2"], 8),
    ];
    // Given three nodes at 2500 W each,
    for method in MethodName::ALL {
        // a little less is reached by a limit alone,
        snapshot.budget = budget(7000.0);
        let plan = decide(&snapshot, method);
        assert_eq!(place(&plan, "team/limited").unwrap().limit, Some(Watts(200.0)), "{method}");
        assert!(["team/never", "team/dear"].iter().all(|j| place(&plan, j).is_some()));
        // much less by stops, of jobs that may be stopped first,
        snapshot.budget = budget(3500.0);
        let plan = decide(&snapshot, method);
        let runs: Vec<_> =
            plan.jobs.iter().filter(|j| j.1.decision.placement().is_some()).map(|j| j.0.as_str()).collect();
        assert_eq!(runs, ["team/never"], "{method}");
        assert_eq!(reason(&plan, "team/dear").0, WaitReason::PowerBudget);
        // and nothing at all by stopping everything.
        snapshot.budget = budget(1300.0);
        let plan = decide(&snapshot, method);
        assert!(plan.jobs.values().all(|j| j.decision.placement().is_none()), "{method}");
    }
}

#[test]
fn while_some_leave_for_a_lower_budget_nobody_is_stopped_in_their_place() {
    let mut snapshot = cluster(4);
    let leaving = |name: &str, node: &str| Job {
        state: JobState::Stopping {
            holds: Placement {
                gpu_type: "A100".into(),
                nodes: vec![node.into()],
                gpus_per_node: GpuCount(8),
                limit: None,
            },
            target: None,
            gone_by: Time(60.0),
        },
        ..job(name, 8)
    };
    // Given four nodes (400 W idle, 2500 W each with a job): two run, one leaves, one waits, 8300 W are held now
    snapshot.jobs = vec![
        running(job("dear", 8), &["n0"], 8),
        running(Job { weight: CostRate(1e-6), ..job("cheap", 8) }, &["n1"], 8),
        leaving("leaves", "n2"),
        job("waits", 8),
    ];
    let runs = |plan: &Plan| -> Vec<String> {
        let placed = plan.jobs.iter().filter(|j| j.1.decision.placement().is_some());
        placed.map(|j| j.0.as_str().to_owned()).collect()
    };
    for method in MethodName::ALL {
        // and a budget that is met as soon as that one has left: it stays at that, and nothing starts meanwhile.
        snapshot.budget = budget(5_800.0);
        let plan = decide(&snapshot, method);
        assert_eq!(runs(&plan), ["team/cheap", "team/dear"], "{method}");
        assert_eq!(plan.allowed_power, Some(Watts(5_800.0)), "the budget is said as it is");
        // One that asks for another stop gets that one.
        snapshot.budget = budget(3_700.0);
        assert_eq!(runs(&decide(&snapshot, method)), ["team/dear"], "{method}");
        // What leaves for other reasons under a budget that is kept frees nothing before it is gone.
        snapshot.budget = budget(8_299.0);
        assert_eq!(runs(&decide(&snapshot, method)), ["team/cheap", "team/dear"], "{method}");
    }
}

#[test]
fn a_lower_budget_window_is_seen_ahead() {
    let mut snapshot = cluster(1);
    snapshot.jobs = vec![job("four", 4)];
    let windows = vec![(Time(0.0), Watts(3000.0)), (Time(300.0), Watts(1000.0))];
    for (look_ahead, runs) in [(600.0, false), (60.0, true)] {
        snapshot.budget = Some(PowerBudget {
            watts: Steps::new(windows.clone()).unwrap(),
            look_ahead: Seconds(look_ahead),
            ..budget(0.0).unwrap()
        });
        let plan = decide(&snapshot, MethodName::Edf);
        assert_eq!(place(&plan, "team/four").is_some(), runs);
        if runs {
            assert_eq!(
                plan.next_event,
                Some(Time(240.0)),
                "planned again before the window by the look-ahead"
            );
        }
    }
}

#[test]
fn who_takes_the_place_of_a_stopped_job_comes_after_it() {
    // Given a job that has run long and is not late, and an urgent one that needs its GPUs,
    let mut snapshot = cluster(1);
    snapshot.restart = Seconds::ZERO;
    let idle = Job { deadline: Some(Time(100.0 * HOUR)), ..job("idle", 8) };
    let urgent = Job { deadline: Some(Time(HOUR)), weight: CostRate(1.0), ..job("urgent", 8) };
    snapshot.jobs = vec![running(idle, &["n0"], 8), urgent];
    // when the urgent one is preferred, then the plan says whom it has to wait for.
    snapshot.jobs[1].deadline = Some(Time(0.5 * HOUR));
    let plan = decide(&snapshot, MethodName::Andreas);
    assert_eq!(place(&plan, "team/urgent"), Some(&on(&["n0"], 8)));
    assert_eq!(plan.jobs["team/urgent"].after, ["team/idle".into()]);
    assert_eq!(reason(&plan, "team/idle"), (WaitReason::Preempted, vec!["team/urgent".to_owned()]));
    // Baselines leave it alone.
    let plan = decide(&snapshot, MethodName::Edf);
    assert_eq!(place(&plan, "team/idle"), Some(&on(&["n0"], 8)));
}

#[test]
fn gpus_of_a_stopping_job_are_busy_and_its_target_is_kept() {
    let stopping = |target| JobState::Stopping { holds: on(&["n0"], 8), target, gone_by: Time(60.0) };
    for method in MethodName::ALL {
        let mut snapshot = cluster(2);
        snapshot.jobs = vec![
            Job { state: stopping(Some(on(&["n1"], 8))), ..job("moves", 8) },
            Job { deadline: Some(Time(1.0)), weight: CostRate(1.0), ..job("urgent", 8) },
        ];
        let plan = decide(&snapshot, method);
        assert_eq!(place(&plan, "team/moves"), Some(&on(&["n1"], 8)), "{method}");
        assert_eq!(plan.jobs["team/moves"].finish, Some(Time(HOUR + 60.0)));
        assert_eq!(reason(&plan, "team/urgent").0, WaitReason::WaitingForCapacity);
    }
}

#[test]
fn fixed_requests_ask_for_what_the_user_asked_for_on_the_fastest_type() {
    let mut snapshot = cluster(1);
    snapshot.gpu_types.push(GpuTypeInfo { name: "H100".into(), idle: Watts(60.0), max: Watts(700.0) });
    snapshot.nodes.push(Node { name: "fast".into(), gpu_type: "H100".into(), ..snapshot.nodes[0].clone() });
    let row = |kind: &str, gpus: u32, epoch: f64| Estimate {
        gpu_type: kind.into(),
        gpus: GpuCount(gpus),
        epoch: Seconds(epoch),
        power: Watts(300.0 * f64::from(gpus)),
        rel_std: 0.0,
    };
    let rows = [row("A100", 2, 100.0), row("A100", 4, 60.0), row("H100", 2, 50.0), row("H100", 4, 40.0)];
    for n in 0..5 {
        let job = Job {
            estimates: rows.clone().into(),
            requested_gpus: Some(GpuCount(2)),
            ..job(&format!("j{n}"), 2)
        };
        snapshot.jobs.push(job);
    }
    let plan = decide(&snapshot, MethodName::FifoFixed);
    let by_type = plan.jobs.values().filter_map(|j| j.decision.placement());
    let mut counts = BTreeMap::new();
    for place in by_type {
        assert_eq!(place.gpus_per_node, GpuCount(2));
        *counts.entry(place.gpu_type.as_str()).or_insert(0) += 1;
    }
    assert_eq!(counts, [("A100", 1), ("H100", 4)].into());
}

#[test]
fn a_job_that_has_time_waits_for_cheap_energy() {
    // Given energy that is dear for an hour and cheap from then on, and jobs on a free cluster,
    let price = |per_kwh: f64| EnergyPrice::per_kwh(per_kwh, 1.0);
    let mut snapshot = cluster(2);
    snapshot.tariff = Steps::new(vec![(Time(0.0), price(0.4)), (Time(HOUR), price(0.04))]).unwrap();
    snapshot.jobs = vec![
        Job { deadline: Some(Time(12.0 * HOUR)), ..job("patient", 8) },
        Job { deadline: Some(Time(HOUR)), weight: CostRate(0.01), ..job("urgent", 8) },
    ];
    for method in [MethodName::RandomizedGreedy, MethodName::Exact] {
        // then who has time waits for it, and says so, and is looked at again when the price falls;
        snapshot.now = Time(0.0);
        let plan = decide(&snapshot, method);
        assert_eq!(reason(&plan, "team/patient").0, WaitReason::DeferredForEnergy, "{method}");
        assert!(place(&plan, "team/urgent").is_some(), "{method}");
        assert_eq!(plan.next_event, Some(Time(HOUR)), "{method}");
        snapshot.now = Time(HOUR);
        assert!(place(&decide(&snapshot, method), "team/patient").is_some(), "{method}");
    }
    // At a flat price nobody waits beside free GPUs.
    snapshot.now = Time(0.0);
    snapshot.tariff = Steps::flat(price(0.4));
    assert!(place(&decide(&snapshot, MethodName::RandomizedGreedy), "team/patient").is_some());
}

#[test]
fn room_that_is_free_is_used_by_a_job_that_means_to_change() {
    // Given a job that is in time on eight GPUs alone, a node with two free and one that is free in an hour,
    let mut snapshot = cluster(2);
    snapshot.restart = Seconds(10.0);
    let row = |gpus: u32, epoch: f64| Estimate {
        gpu_type: "A100".into(),
        gpus: GpuCount(gpus),
        epoch: Seconds(epoch),
        power: Watts(300.0 * f64::from(gpus)),
        rel_std: 0.0,
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
