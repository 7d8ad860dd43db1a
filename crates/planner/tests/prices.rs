//! Shadow prices clear: at the prices of a plan, jobs ask for about what is there of each GPU type.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

mod scenarios;

use std::collections::BTreeMap;

use andreas_core::{CostRate, GpuCount, Seconds, Time, Watts};
use andreas_planner::{
    Estimate, GpuTypeInfo, Job, LimitEffect, MultiNodeEffect, Node, Options, Plan, Prices, Snapshot, plan,
};
use proptest::prelude::*;
use scenarios::{HOUR, cluster, job};

/// A GPU type: speed of a GPU, its watts at work, nodes and GPUs of a node.
type Type = (f64, f64, usize, u32);

/// More than two jobs for each GPU, each on any number of GPUs of any type.
fn overloaded(types: &[Type], jobs: &[(f64, f64, f64)]) -> Snapshot {
    let name = |kind: usize| format!("type-{kind}");
    let node = |kind: usize, i: usize| Node {
        host_busy: Watts(30.0 * f64::from(types[kind].3)),
        ..Node::new(format!("n{kind}-{i:02}").into(), name(kind).as_str().into(), GpuCount(types[kind].3))
    };
    let info = |(kind, of): (usize, &Type)| GpuTypeInfo {
        name: name(kind).as_str().into(),
        idle: Watts(0.1 * of.1),
        max: Watts(1.2 * of.1),
    };
    let mut snapshot = cluster(0);
    snapshot.gpu_types = types.iter().enumerate().map(info).collect();
    snapshot.nodes =
        (0..types.len()).flat_map(|kind| (0..types[kind].2).map(move |i| node(kind, i))).collect();
    let one = |(i, &(hours, scaling, weight)): (usize, &(f64, f64, f64))| {
        let row = |kind: usize, gpus: u32| {
            let (speed, watts, ..) = types[kind];
            let epoch = HOUR * hours / 10.0 / speed / f64::from(gpus).powf(scaling);
            Estimate::new(
                name(kind).as_str().into(),
                GpuCount(gpus),
                Seconds(epoch),
                Watts(watts * f64::from(gpus)),
            )
        };
        let rows = (0..types.len()).flat_map(|kind| [1, 2, 4, 8].map(|gpus| row(kind, gpus)));
        Job {
            estimates: rows.filter(|row| holds(&snapshot.nodes, row)).collect(),
            deadline: Some(Time(HOUR * hours * 0.3)),
            weight: CostRate(weight * 10.0 * 0.02 / HOUR),
            ..job(&format!("j{i:03}"), 1)
        }
    };
    snapshot.jobs = jobs.iter().enumerate().map(one).collect();
    snapshot
}

/// Whether one node could hold a row.
fn holds(nodes: &[Node], row: &Estimate) -> bool {
    nodes.iter().any(|node| node.gpu_type == row.gpu_type && node.gpus >= row.gpus)
}

fn jobs(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<(f64, f64, f64)>> {
    let one = (0.0..1.0_f64, 0.7..0.98_f64, 0.3..4.0_f64);
    prop::collection::vec(
        one.prop_map(|(length, scaling, weight)| (2.0 * 30_f64.powf(length), scaling, weight)),
        count,
    )
}

fn decide(snapshot: &Snapshot) -> Plan {
    plan(snapshot, &Options { trials: 50, ..Options::default() }).unwrap()
}

/// By class: its price, as the mean of the coming four hours.
fn means(prices: &Prices) -> BTreeMap<String, f64> {
    let mean = |values: &Vec<f64>| {
        let (mut sum, mut from) = (0.0, 0.0);
        for (rate, to) in values.iter().zip(&prices.bounds) {
            sum += rate * (to.0.min(4.0 * HOUR) - from).max(0.0);
            from = to.0;
        }
        sum / (4.0 * HOUR)
    };
    prices.values.iter().map(|(class, values)| (class.to_string(), mean(values))).collect()
}

/// Largest difference of two prices of a class, as a part of the dearest class.
fn apart(a: &Plan, b: &Plan) -> f64 {
    let [a, b] = [a, b].map(|plan| means(plan.prices.as_ref().unwrap()));
    let dearest = a.values().copied().fold(0.0, f64::max);
    a.iter().map(|(class, price)| (price - b[class]).abs() / dearest).fold(0.0, f64::max)
}

/// The same types with nodes of other sizes: 4 and 8 GPUs.
const MIXED: [Type; 3] = [(1.0, 330.0, 4, 8), (0.5, 230.0, 4, 4), (0.16, 65.0, 4, 4)];

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn other_cuts_of_the_same_gpus_change_neither_prices_nor_cost(
        jobs in jobs(60..90), gangs in any::<bool>(), limits in any::<bool>(),
    ) {
        // Given jobs that ask for more than is there,
        let plain = overloaded(&MIXED, &jobs);
        // when the same GPUs are also on offer over several nodes, or under power limits that change nothing,
        let mut cut = plain.clone();
        for job in &mut cut.jobs {
            let twice = |nodes| MultiNodeEffect { nodes, time_factor: 1.0 };
            job.spread = if gangs { vec![twice(2), twice(4)] } else { vec![] };
            let limit = |gpu_type: &str| LimitEffect {
                gpu_type: gpu_type.into(), limit: Watts(60.0), time_factor: 1.0, power_factor: 1.0,
            };
            job.limits = if limits { ["type-0", "type-1"].map(limit).into() } else { vec![] };
        }
        let (plain, cut) = (decide(&plain), decide(&cut));
        println!("TWIN apart {:.4} cost {:.4} bound {:.4} asked {:?} {:?}", apart(&plain, &cut), cut.cost.0 / plain.cost.0 - 1.0, cut.bound.unwrap().0 / plain.bound.unwrap().0 - 1.0, plain.asked_over_available, cut.asked_over_available);
    }

    #[test]
    fn prices_clear_from_nothing_and_from_wrong_ones(
        jobs in jobs(60..90), up in 0..3_usize, down in 1..3_usize, factor in 3.0..30.0_f64,
    ) {
        let mut snapshot = overloaded(&MIXED, &jobs);
        let cold = decide(&snapshot);
        let mut wrong = cold.prices.clone().unwrap();
        for (class, values) in wrong.values.values_mut().enumerate() {
            let by = if class == up { factor } else if class == (up + down) % 3 { 1.0 / factor } else { 1.0 };
            values.iter_mut().for_each(|rate| *rate *= by);
        }
        snapshot.prices = Some(wrong);
        let warm = decide(&snapshot);
        println!("WRONG apart {:.4} cost {:.4} asked {:?} {:?}", apart(&cold, &warm), warm.cost.0 / cold.cost.0 - 1.0, cold.asked_over_available, warm.asked_over_available);
    }

    #[test]
    fn types_that_do_the_same_cost_the_same(jobs in jobs(60..90), factor in 3.0..30.0_f64) {
        let twins = [(1.0, 300.0, 4, 8), (1.0, 300.0, 4, 8), (0.3, 100.0, 4, 4)];
        let mut snapshot = overloaded(&twins, &jobs);
        let gap = |plan: &Plan| {
            let means = means(plan.prices.as_ref().unwrap());
            (means["type-0/8/0"] - means["type-1/8/0"]).abs() / means["type-0/8/0"]
        };
        let cold = decide(&snapshot);
        let mut wrong = cold.prices.clone().unwrap();
        wrong.values.values_mut().next().unwrap().iter_mut().for_each(|rate| *rate *= factor);
        snapshot.prices = Some(wrong);
        let warm = decide(&snapshot);
        println!("SAME cold {:.4} warm {:.4} asked {:?} {:?}", gap(&cold), gap(&warm), cold.asked_over_available, warm.asked_over_available);
    }
}
