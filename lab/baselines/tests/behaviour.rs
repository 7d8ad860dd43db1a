//! Scenarios: what other systems' methods do in situations that people will ask about.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

#[path = "../../../crates/planner/tests/every_method/behaviour.rs"]
mod every_method;
mod methods;
#[path = "../../../crates/planner/tests/scenarios/mod.rs"]
mod scenarios;

use std::collections::BTreeMap;

use andreas_model::{CostRate, GpuCount, Seconds, Time, Watts};
use andreas_planner::{Estimate, GpuTypeInfo, Job, JobState, MultiNodeEffect, Node, WaitReason};
use every_method::start_of_the_large_one;
use methods::{Method, decide};
use scenarios::{HOUR, cluster, job, on, place, reason, running};

#[test]
fn without_ageing_nobody_ever_makes_room_for_a_large_light_job() {
    assert_eq!(start_of_the_large_one(Method::Priority, None), None);
}

#[test]
fn fixed_requests_have_room_kept_that_is_enough_for_them() {
    // Given a fully aged job that can run on one GPU, but whose user asked for eight, and four of them taken for a while,
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
    for method in [Method::FifoFixed, Method::EdfFixed, Method::PriorityFixed] {
        // then nobody takes the other four for longer than that.
        let plan = decide(&snapshot, method);
        let kept = (WaitReason::WaitingForCapacity, vec!["team/large".to_owned()]);
        assert_eq!(reason(&plan, "team/later"), kept, "{method}");
    }
}

#[test]
fn fixed_requests_ask_for_what_the_user_asked_for_on_the_fastest_type() {
    let mut snapshot = cluster(1);
    snapshot.gpu_types.push(GpuTypeInfo { name: "H100".into(), idle: Watts(60.0), max: Watts(700.0) });
    snapshot.nodes.push(Node { name: "fast".into(), gpu_type: "H100".into(), ..snapshot.nodes[0].clone() });
    let row = |kind: &str, gpus: u32, epoch: f64| {
        Estimate::new(kind.into(), GpuCount(gpus), Seconds(epoch), Watts(300.0 * f64::from(gpus)))
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
    let plan = decide(&snapshot, Method::FifoFixed);
    let by_type = plan.jobs.values().filter_map(|j| j.decision.placement());
    let mut counts = BTreeMap::new();
    for place in by_type {
        assert_eq!(place.gpus_per_node, GpuCount(2));
        *counts.entry(place.gpu_type.as_str()).or_insert(0) += 1;
    }
    assert_eq!(counts, [("A100", 1), ("H100", 4)].into());
}

#[test]
fn fixed_requests_are_on_the_fewest_nodes_that_could_hold_them() {
    let on_two = |name: &str, gpus: u32| Job {
        spread: vec![MultiNodeEffect { nodes: 2, time_factor: 1.1 }],
        requested_gpus: Some(GpuCount(gpus)),
        ..job(name, gpus)
    };
    // Given two GPUs free on each of two nodes, and a job of four that may be on several,
    let mut free = cluster(2);
    free.jobs = vec![running(job("a", 6), &["n0"], 6), running(job("b", 6), &["n1"], 6), on_two("asks", 4)];
    // and one of eight whose only large node refuses it, beside two nodes of four,
    let mut refused = cluster(3);
    for node in &mut refused.nodes[1..] {
        (node.gpus, node.free_gpus) = (GpuCount(4), GpuCount(4));
    }
    refused.jobs = vec![Job { forbidden: vec!["n0".into()], ..on_two("asks", 8) }];
    for method in [Method::FifoFixed, Method::EdfFixed, Method::PriorityFixed] {
        // then the first waits for one node, as its user asked for one, and the second, for which there is none, does not.
        assert_eq!(place(&decide(&free, method), "team/asks"), None, "{method}");
        assert_eq!(place(&decide(&refused, method), "team/asks"), Some(&on(&["n1", "n2"], 4)), "{method}");
    }
    assert_eq!(place(&decide(&free, Method::Fifo), "team/asks"), Some(&on(&["n0", "n1"], 2)));
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
    let plan = decide(&snapshot, Method::Andreas);
    assert_eq!(place(&plan, "team/urgent"), Some(&on(&["n0"], 8)));
    assert_eq!(plan.jobs["team/urgent"].after, ["team/idle".into()]);
    assert_eq!(reason(&plan, "team/idle"), (WaitReason::Preempted, vec!["team/urgent".to_owned()]));
    // Baselines leave it alone.
    let plan = decide(&snapshot, Method::Edf);
    assert_eq!(place(&plan, "team/idle"), Some(&on(&["n0"], 8)));
}
