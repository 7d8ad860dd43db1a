//! A small cluster and its jobs, for scenarios: eight GPUs of one type on every node, jobs of an hour.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]
#![allow(dead_code, reason = "each file of scenarios uses its part of it")]

use andreas_model::{CostRate, EnergyPrice, GpuCount, NodeName, Seconds, StepFunction, Time, Watts};
use andreas_planner::{
    DEFAULT_WEAR, Decision, Estimate, GpuTypeInfo, Job, JobState, Lateness, MultiNodeEffect, Node, Placement,
    Plan, PowerBudget, Snapshot, WaitReason,
};

pub const HOUR: f64 = 3600.0;

/// `n` nodes with eight GPUs (idle 50 W, training 300 W each) and an overhead of 100 W.
pub fn cluster(n: usize) -> Snapshot {
    let node = |i: usize| Node {
        host_busy: Watts(100.0),
        ..Node::new(format!("n{i}").into(), "A100".into(), GpuCount(8))
    };
    Snapshot {
        now: Time(0.0),
        tariff: StepFunction::flat(EnergyPrice::per_kwh(0.2, 1.3)),
        budget: None,
        lateness: Lateness {
            turnaround_share: 0.1,
            late_fixed: Seconds(900.0),
            aging: Some(Seconds(24.0 * HOUR)),
        },
        restart: Seconds(120.0),
        wear: DEFAULT_WEAR,
        gpu_types: vec![GpuTypeInfo { name: "A100".into(), idle: Watts(50.0), max: Watts(400.0) }],
        nodes: (0..n).map(node).collect(),
        namespaces: vec![],
        jobs: vec![],
        prices: None,
        intended: vec![],
    }
}

/// A job that takes an hour on `gpus` GPUs and can run on nothing else.
pub fn job(name: &str, gpus: u32) -> Job {
    Job::new(
        format!("team/{name}").into(),
        "team".into(),
        Time(-HOUR),
        CostRate(10.0 * 0.02 / HOUR),
        10.0,
        [Estimate::new("A100".into(), GpuCount(gpus), Seconds(HOUR / 10.0), Watts(300.0 * f64::from(gpus)))]
            .into(),
    )
}

pub fn on(nodes: &[&str], gpus: u32) -> Placement {
    Placement {
        gpu_type: "A100".into(),
        nodes: nodes.iter().map(|n| NodeName::from(*n)).collect(),
        gpus_per_node: GpuCount(gpus),
        limit: None,
    }
}

pub fn running(job: Job, nodes: &[&str], gpus: u32) -> Job {
    Job { state: JobState::Running { placement: on(nodes, gpus), since: Time(-HOUR) }, ..job }
}

pub fn place<'a>(plan: &'a Plan, job: &str) -> Option<&'a Placement> {
    plan.jobs[job].decision.placement()
}

pub fn reason(plan: &Plan, job: &str) -> (WaitReason, Vec<String>) {
    match &plan.jobs[job].decision {
        Decision::Wait { reason, blockers, .. } => {
            (*reason, blockers.iter().map(ToString::to_string).collect())
        }
        Decision::Run(place) => panic!("{job} runs on {place:?}"),
    }
}

/// Why a job waits, in words.
pub fn message<'a>(plan: &'a Plan, job: &str) -> &'a str {
    match &plan.jobs[job].decision {
        Decision::Wait { message, .. } => message,
        Decision::Run(place) => panic!("{job} runs on {place:?}"),
    }
}

pub fn budget(watts: f64) -> Option<PowerBudget> {
    Some(PowerBudget { watts: StepFunction::flat(Watts(watts)), margin: 0.0, scope_factor: 1.0 })
}

/// `n` nodes of this many GPUs and jobs of different lengths and weights, each with these numbers of GPUs.
pub fn bin_packing(n: usize, node: u32, jobs: usize, sizes: &[u32]) -> Snapshot {
    let mut snapshot = cluster(n);
    for of in &mut snapshot.nodes {
        (of.gpus, of.free_gpus) = (GpuCount(node), GpuCount(node));
    }
    snapshot.jobs = (0..jobs)
        .map(|i| {
            let row = |gpus: u32| {
                Estimate::new(
                    "A100".into(),
                    GpuCount(gpus),
                    Seconds(HOUR * (1.0 + (i % 7) as f64) / f64::from(gpus)),
                    Watts(300.0 * f64::from(gpus)),
                )
            };
            Job {
                estimates: [row(sizes[i % sizes.len()])].into(),
                deadline: Some(Time(HOUR * (2.0 + (i % 5) as f64))),
                weight: CostRate(1e-4 * (1.0 + (i % 11) as f64)),
                ..job(&format!("j{i:02}"), 1)
            }
        })
        .collect();
    snapshot
}

/// The same jobs as gangs over two nodes, with as many GPUs on each.
pub fn over_two_nodes(mut snapshot: Snapshot) -> Snapshot {
    for job in &mut snapshot.jobs {
        let twice = |row: &Estimate| Estimate {
            gpus: GpuCount(2 * row.gpus.0),
            power: Watts(2.0 * row.power.0),
            ..row.clone()
        };
        job.estimates = job.estimates.iter().map(twice).collect();
        job.spread = vec![MultiNodeEffect { nodes: 2, time_factor: 1.0 }];
    }
    snapshot
}
