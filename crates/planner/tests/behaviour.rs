//! Stories: what the planner does in situations that people will ask about.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use andreas_core::{CostRate, EnergyPrice, GpuCount, Seconds, Steps, Time, Watts};
use andreas_planner::{
    Estimate, GpuTypeInfo, Job, JobState, MethodName, Namespace, Node, Plan, Preemption, Resources, Snapshot,
    Spread, WaitReason, Worker,
};

mod stories;

use stories::{HOUR, cluster, decide, job, on, place, reason, running};

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
        draw: None,
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
        draw: None,
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
