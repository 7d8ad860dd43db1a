//! How near the bound of a step is for numbers of GPUs that fill no node: `cargo run --release -p andreas-planner --example
//! sizes`.
//!
//! Prints a table: the gap of the default method, and the part of the possible saving that may be missed, without a budget and under one.

#[path = "../tests/scenarios/mod.rs"]
mod scenarios;

use andreas_planner::{Options, Snapshot, plan};
use scenarios::{bin_packing, budget, over_two_nodes};

/// Name, nodes, GPUs of each, GPUs of the jobs in turn, and whether these are gangs over two nodes with so many on each.
const CASES: [(&str, usize, u32, &[u32], bool); 6] = [
    ("3 on 4", 20, 4, &[3], false),
    ("5 on 8", 10, 8, &[5], false),
    ("3, 5, 6 on 8", 10, 8, &[3, 5, 6], false),
    ("5, 8 on 8", 10, 8, &[5, 8], false),
    ("2 x 3 on 4", 20, 4, &[3], true),
    ("2 x 6 on 8", 10, 8, &[6], true),
];
/// GPUs that jobs want, as a part of those that there are.
const LOADS: [f64; 3] = [1.0, 1.5, 3.0];
/// The budget, as a part of what the whole cluster draws at work.
const BUDGET: f64 = 0.6;

fn percent(part: Option<f64>) -> String {
    part.map_or_else(|| "-".to_owned(), |part| format!("{:.3} %", 100.0 * part))
}

fn cells(snapshot: &Snapshot) -> String {
    match plan(snapshot, &Options::default()) {
        Ok(plan) => format!("{} | {}", percent(plan.gap), percent(plan.missed_saving)),
        Err(error) => format!("{error} | -"),
    }
}

fn main() {
    println!("| GPUs | load | jobs | gap | missed | gap under a budget | missed |");
    println!("|---|---|---|---|---|---|---|");
    for (name, nodes, node, sizes, gangs) in CASES {
        let mean = f64::from(sizes.iter().sum::<u32>()) / sizes.len() as f64;
        let mean = if gangs { 2.0 * mean } else { mean };
        for load in LOADS {
            let jobs = (load * nodes as f64 * f64::from(node) / mean).round() as usize;
            let snapshot = bin_packing(nodes, node, jobs, sizes);
            let snapshot = if gangs { over_two_nodes(snapshot) } else { snapshot };
            // 300 W for each GPU and 100 W for each host at work, as `bin_packing` has them.
            let peak = nodes as f64 * (f64::from(node) * 300.0 + 100.0);
            let bounded = Snapshot { budget: budget(BUDGET * peak), ..snapshot.clone() };
            println!("| {name} | {load} | {jobs} | {} | {} |", cells(&snapshot), cells(&bounded));
        }
    }
}
