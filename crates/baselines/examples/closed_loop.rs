//! Methods side by side in a closed loop: `cargo run --release -p andreas-baselines --example closed_loop -- [jobs=400]
//! [gaps=900,450,250] [seeds=1] [methods=...] [share=0.1] [fixed=900] [restart=120] [wear=300] [budget=W] [clusters=1] [error=0] [pace=1] [minrun=0] [limits=0] [weights=1] [trials=1000]
//! [bound=0]`; `bound` is the number of rounds in which a clairvoyant lower bound is sought.

#[path = "../../planner/tests/closed/mod.rs"]
mod closed;

use andreas_baselines::{Method, Options, Scheduler};
use closed::bound::bound;
use closed::{Bill, Load, replay};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let text = |key: &str| args.iter().find_map(|a| a.strip_prefix(key)?.strip_prefix('='));
    let number = |key: &str, or: f64| text(key).and_then(|t| t.parse().ok()).unwrap_or(or);
    let list = |key: &str, or: &str| -> Vec<String> {
        text(key).unwrap_or(or).split(',').map(ToOwned::to_owned).collect()
    };
    let methods = list("methods", "fifo-fixed,edf-fixed,fifo,edf,priority,andreas,randomized-greedy");
    let seeds = number("seeds", 1.0) as u64;
    println!(
        "  gap method              total  energy  overhd    idle  tardy  misses  turnar  late  hours restarts  ms mean/max   gap"
    );
    for gap in list("gaps", "900,450,250") {
        let mut least: Vec<f64> = Vec::new();
        for name in &methods {
            let method = match name.parse::<Method>() {
                Ok(method) => method,
                Err(error) => {
                    println!("{error}");
                    continue;
                }
            };
            let mut sum = Bill::default();
            for seed in 1..=seeds {
                let load = Load {
                    jobs: number("jobs", 400.0) as usize,
                    gap: gap.parse().unwrap_or(450.0),
                    seed,
                    share: number("share", 0.1),
                    late_fixed: number("fixed", 900.0),
                    restart: number("restart", 120.0),
                    wear: number("wear", 300.0),
                    budget: text("budget").and_then(|t| t.parse().ok()),
                    clusters: number("clusters", 1.0) as usize,
                    error: number("error", 0.0),
                    pace: number("pace", 1.0),
                    min_run: number("minrun", 0.0),
                    limits: number("limits", 0.0) > 0.0,
                    weights: number("weights", 1.0),
                    ..Load::default()
                };
                let trials = number("trials", 1000.0) as u64;
                let mut scheduler = Scheduler::new(Options { method, trials, ..Options::default() });
                let bill = replay(&load, &mut |snapshot| scheduler.plan(snapshot).expect("a valid snapshot"));
                let rounds = number("bound", 0.0) as usize;
                if rounds > 0 && least.len() < seed as usize {
                    least.push(bound(&load, rounds));
                }
                let n = seeds as f64;
                sum.energy += bill.energy / n;
                sum.overhead += bill.overhead / n;
                sum.idle += bill.idle / n;
                sum.tardiness += bill.tardiness / n;
                sum.misses += bill.misses / n;
                sum.turnaround += bill.turnaround / n;
                sum.late += bill.late;
                sum.mean_hours += bill.mean_hours / n;
                sum.restarts += bill.restarts / n;
                sum.mean_ms += bill.mean_ms / n;
                sum.worst_ms = sum.worst_ms.max(bill.worst_ms);
                sum.gap += bill.gap / n;
                sum.above = sum.above.max(bill.above);
            }
            println!(
                "{gap:>5} {name:<18} {:7.2} {:7.2} {:7.2} {:7.2} {:6.2} {:7.2} {:7.2} {:5} {:6.2} {:8.2} {:6.2}/{:6.1} {:6.3} %{}{}",
                sum.total(),
                sum.energy,
                sum.overhead,
                sum.idle,
                sum.tardiness,
                sum.misses,
                sum.turnaround,
                sum.late / seeds.max(1) as usize,
                sum.mean_hours,
                sum.restarts,
                sum.mean_ms,
                sum.worst_ms,
                sum.gap * 100.0,
                if least.is_empty() {
                    String::new()
                } else {
                    let bound = least.iter().sum::<f64>() / least.len() as f64;
                    format!("  {:+.2} % above the bound {bound:.2}", (sum.total() / bound - 1.0) * 100.0)
                },
                if sum.above > 1e-6 { format!(" ABOVE BUDGET by {:.0} W", sum.above) } else { String::new() },
            );
        }
    }
}
