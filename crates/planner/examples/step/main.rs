//! How long one decision takes: `cargo run --release -p andreas-planner --example step -- METHOD JOBS NODES [REPEATS]
//! [INSTANCES] [TRIALS] [GAP]`.
//!
//! A third of the GPUs is held by running jobs; the rest of the jobs waits. Prints milliseconds per decision, the
//! cost and how many jobs run.

mod instance;

use std::time::Instant;

use andreas_planner::{MethodName, Options, plan};
use instance::instance;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, or: usize| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(or);
    let method: MethodName = args.first().and_then(|a| a.parse().ok()).unwrap_or_default();
    let trials = number(5, 1000) as u64;
    let gap = args.get(6).and_then(|a| a.parse().ok()).unwrap_or(0.0);
    let options = Options { method, trials, gap, ..Options::default() };
    let (mut gaps, mut worst, mut proven, mut times) = (0.0, 0.0_f64, 0, Vec::new());
    let seeds = number(4, 1);
    for seed in 0..seeds {
        let mut snapshot = instance(number(1, 1000), number(2, 100), 42 + seed as u64);
        for repeat in 0..number(3, 3) {
            let start = Instant::now();
            let plan = match plan(&snapshot, &options) {
                Ok(plan) => plan,
                Err(error) => return println!("{error}"),
            };
            let ms = start.elapsed().as_secs_f64() * 1e3;
            let running = plan.jobs.values().filter(|j| j.decision.placement().is_some()).count();
            let gap = plan.gap.map_or_else(|| "no bound".into(), |gap| format!("gap {:.4} %", gap * 100.0));
            if seeds == 1 {
                println!(
                    "{method}: {ms:.2} ms, cost {:.6}, {gap}, {running} run, {} trials",
                    plan.cost, plan.trials
                );
            }
            times.push(ms);
            if repeat == 0 {
                gaps += plan.gap.unwrap_or(0.0) / seeds as f64;
                worst = worst.max(plan.gap.unwrap_or(0.0));
                proven += usize::from(plan.gap.is_some_and(|gap| gap < 1e-6));
            }
            // From the second time on with the prices of the first.
            snapshot.prices = plan.prices;
        }
    }
    times.sort_by(f64::total_cmp);
    println!(
        "{method}: {seeds} instances, gap mean {:.4} %, worst {:.4} %, proven {proven}; median {:.2} ms, worst {:.2} ms",
        gaps * 100.0,
        worst * 100.0,
        times[times.len() / 2],
        times[times.len() - 1]
    );
}
