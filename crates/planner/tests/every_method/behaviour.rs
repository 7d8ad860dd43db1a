//! Scenarios that every method must pass: what it does in situations that people will ask about.

use andreas_model::{CostRate, Seconds, Time};
use andreas_planner::{
    Job, JobState, MultiNodeEffect, Namespace, Plan, Preemption, Resources, Snapshot, WaitReason, Worker,
};

use crate::methods::{self, Method, decide};
use crate::scenarios::{HOUR, cluster, job, on, place, reason, running};

/// Two full nodes of eight GPUs and, every ten minutes, two heavy jobs of four GPUs and half an hour: more than the
/// cluster can do. In the beginning a light job waits that needs a whole node. Says in which step it starts.
pub fn start_of_the_large_one(method: Method, aging: Option<Seconds>) -> Option<u32> {
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
    for method in methods::all() {
        // Nine hours past its deadline its weight has stopped growing: step 60. Then it is next.
        let started = start_of_the_large_one(method, Some(Seconds(HOUR)));
        assert!(started.is_some_and(|step| step < 70), "{method}: {started:?}");
    }
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
    // Given a node with a job of four GPUs for another hour, a fully aged job that needs all eight, and two small ones,
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
    for method in methods::all() {
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
    for method in methods::all() {
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
fn a_gang_takes_the_same_number_of_gpus_on_several_nodes() {
    for method in methods::all() {
        let mut snapshot = cluster(3);
        snapshot.jobs = vec![
            running(job("there", 4), &["n0"], 4),
            Job { spread: vec![MultiNodeEffect { nodes: 2, time_factor: 1.1 }], ..job("gang", 16) },
        ];
        let plan = decide(&snapshot, method);
        assert_eq!(place(&plan, "team/gang"), Some(&on(&["n1", "n2"], 8)), "{method}");
        assert_eq!(plan.jobs["team/gang"].finish, Some(Time(1.1 * HOUR)));
    }
}

#[test]
fn why_a_job_waits_is_always_said() {
    let mut snapshot = cluster(1);
    snapshot.namespaces = vec![Namespace { name: "small".into(), quota: [("pods".into(), 0)].into() }];
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
    for method in methods::all() {
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
fn gpus_of_a_stopping_job_are_busy_and_its_target_is_kept() {
    let stopping = |target| JobState::Stopping { holds: on(&["n0"], 8), target, gone_by: Time(60.0) };
    for method in methods::all() {
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
