//! Writes the problem of a decision for other solvers: `make lab WHAT=anchors` runs this and compares their plans with ours.

use std::time::Instant;

use serde_json::{Value, json};

use super::*;

#[path = "../../../examples/step/instance.rs"]
mod instance;

/// One decision as a program of jobs, configurations and classes of equal nodes, with the plan that we make of it.
fn problem(jobs: usize, nodes: usize, seed: u64) -> Value {
    let snapshot = instance::instance(jobs, nodes, seed);
    let options = Options::default();
    let timed_plan = |gap: f64| {
        let options = Options { gap, ..options.clone() };
        let timed = |_| {
            let start = Instant::now();
            let plan = crate::plan(&snapshot, &options).expect("a plan");
            (start.elapsed().as_secs_f64() * 1e3, plan)
        };
        let mut all: Vec<_> = (0..5).map(timed).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (ms, plan) = all.swap_remove(2);
        json!({ "ms": ms, "cost": plan.cost, "bound": plan.bound })
    };
    let ours = json!({ "full": timed_plan(0.0), "gap_0.003": timed_plan(0.003) });
    let prepared = budget::prepared(&snapshot);
    let classes = Classes::new(&prepared);
    let cost_table = CostTable::new(&prepared, &classes);
    let (current, _) = crate::lookahead::present(&prepared);
    let tables = (&classes, &cost_table);
    let kept = crate::lookahead::kept(&prepared, &current);
    let prices = ShadowPrices::new(&prepared, tables, &kept, 0.0);
    let priced = Priced::new(&prepared, tables, &prices, &current);
    let context = Context {
        instance: &prepared,
        options: &options,
        classes: &classes,
        cost_table: &cost_table,
        priced: &priced,
    };
    let base = PartialPlan::after(&prepared, &current, &vec![true; current.len()]);
    assert!(base.assignments.iter().all(Option::is_none), "every job may move");
    let step = context.step(&current, &base);
    let class = |n: usize| {
        let first = classes.of_node.iter().position(|of| *of == n).expect("a node");
        let of = &classes.list[n];
        json!({ "name": of.name, "size": of.size, "gpus": of.gpus,
            // Money for each GPU that is free on a node in use.
            "free": cost_table.fragmentation(&prepared, first as u32, 1) / (of.size as f64 - 1.0) })
    };
    let job = |job: usize| {
        let data = &prepared.jobs[job];
        let mut choices = Vec::new();
        for (config, of) in data.configs.iter().enumerate() {
            let item = &cost_table.items[cost_table.columns_of(job).start + config];
            for class in (0..classes.list.len()).filter(|class| cost_table.classes(item) & 1 << class != 0) {
                // A node that the job is not on.
                let held = current[job].as_ref().and_then(|current| current.nodes.as_slice().first());
                let other =
                    |n: &usize| classes.of_node[*n] == class && held.is_none_or(|h| *h as usize != *n);
                let node = (0..classes.of_node.len()).find(other).expect("a node");
                let cost = step.cost(job, &Assignment { config, nodes: Nodes::One(node as u32) });
                choices.push(json!([class, of.gpus, of.time, cost, false]));
            }
            if let Some(current) = current[job].as_ref().filter(|current| current.config == config) {
                let class = classes.of_node[current.nodes.as_slice()[0] as usize];
                choices.push(json!([class, of.gpus, of.time, step.cost(job, current), true]));
            }
        }
        json!({ "wait": step.wait[job], "age": prepared.now - data.job.submit.0, "choices": choices })
    };
    json!({
        "jobs": (0..jobs).map(job).collect::<Vec<_>>(),
        "classes": (0..classes.list.len()).map(class).collect::<Vec<_>>(),
        "restart_s": snapshot.restart.0,
        "ours": ours,
    })
}

#[test]
#[ignore = "writes files for other solvers: make lab WHAT=anchors"]
fn write_problems() {
    let folder = std::path::PathBuf::from(std::env::var("ANCHORS").expect("ANCHORS names a folder"));
    for (jobs, nodes, count) in [(100, 20, 10), (1000, 100, 10)] {
        for seed in 42..42 + count {
            let path = folder.join(format!("{jobs}x{nodes}-{seed}.json"));
            std::fs::write(path, problem(jobs, nodes, seed).to_string()).expect("a file");
        }
    }
}
