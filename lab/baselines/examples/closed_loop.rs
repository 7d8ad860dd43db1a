//! Methods side by side in a closed loop: `cargo run --release -p andreas-baselines --example closed_loop -- [jobs=400]
//! [gaps=900,450,250] [seeds=1] [first=1] [methods=...] [share=0.1] [fixed=900] [restart=120] [wear=600] [budget=W] [clusters=1] [error=0] [pace=1] [minrun=0] [limits=0] [weights=1] [trials=1000]
//! [bound=0]`; `first` is the first seed, `bound` the number of rounds in which a clairvoyant lower bound is sought.
//!
//! Figures are means ± standard deviations over the seeds, each of which is another load. The distance from the bound is that of
//! the sums over all seeds, with the standard deviation of the seeds' own distances.

#[path = "../tests/bound/mod.rs"]
mod bound;
#[path = "../../../crates/planner/tests/closed/mod.rs"]
mod closed;

use andreas_baselines::{Method, Options, Scheduler};
use andreas_planner::DEFAULT_WEAR;
use bound::bound;
use closed::{Bill, Load, replay};

/// Mean, and standard deviation where there are several values.
fn spread(values: impl Iterator<Item = f64>) -> (f64, Option<f64>) {
    let values: Vec<f64> = values.collect();
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count.max(1.0);
    let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
    (mean, (count > 1.0).then(|| (squares / (count - 1.0)).sqrt()))
}

/// A cell of the table.
fn cell(bills: &[Bill], figure: impl Fn(&Bill) -> f64) -> String {
    let (mean, sd) = spread(bills.iter().map(figure));
    sd.map_or_else(|| format!("{mean:.2}"), |sd| format!("{mean:.2} ± {sd:.2}"))
}

/// How far the bills are above the bounds of the same loads, in per cent.
fn above(bills: &[Bill], bounds: &[f64]) -> String {
    let (total, bound): (f64, f64) = (bills.iter().map(Bill::total).sum(), bounds.iter().sum());
    let (_, sd) = spread(bills.iter().zip(bounds).map(|(bill, bound)| (bill.total() / bound - 1.0) * 100.0));
    let sd = sd.map_or_else(String::new, |sd| format!(" ± {sd:.2}"));
    let mean = bound / bounds.len() as f64;
    format!("  {:+.2}{sd} % above the bound {mean:.2}", (total / bound - 1.0) * 100.0)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let text = |key: &str| args.iter().find_map(|a| a.strip_prefix(key)?.strip_prefix('='));
    let number = |key: &str, or: f64| text(key).and_then(|t| t.parse().ok()).unwrap_or(or);
    let list = |key: &str, or: &str| -> Vec<String> {
        text(key).unwrap_or(or).split(',').map(ToOwned::to_owned).collect()
    };
    let methods = list("methods", "fifo-fixed,edf-fixed,fifo,edf,priority,andreas,randomized-greedy");
    let (first, seeds) = (number("first", 1.0) as u64, number("seeds", 1.0) as u64);
    let heads =
        ["total", "energy", "overhd", "idle", "tardy", "misses", "turnar", "late", "hours", "restarts"];
    let heads: String = heads.iter().map(|head| format!("{head:>17}")).collect();
    println!("  gap method            {heads}  ms mean/max      gap");
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
            let mut bills = Vec::new();
            for seed in first..first + seeds {
                let load = Load {
                    jobs: number("jobs", 400.0) as usize,
                    gap: gap.parse().unwrap_or(450.0),
                    seed,
                    share: number("share", 0.1),
                    late_fixed: number("fixed", 900.0),
                    restart: number("restart", 120.0),
                    wear: number("wear", DEFAULT_WEAR.0),
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
                if rounds > 0 && least.len() <= bills.len() {
                    least.push(bound(&load, rounds));
                }
                bills.push(bill);
            }
            let figures: [fn(&Bill) -> f64; 10] = [
                Bill::total,
                |bill| bill.energy,
                |bill| bill.overhead,
                |bill| bill.idle,
                |bill| bill.tardiness,
                |bill| bill.misses,
                |bill| bill.turnaround,
                |bill| bill.late as f64,
                |bill| bill.mean_hours,
                |bill| bill.restarts,
            ];
            let cells: String =
                figures.iter().map(|figure| format!("{:>17}", cell(&bills, figure))).collect();
            let mean = |figure: fn(&Bill) -> f64| spread(bills.iter().map(figure)).0;
            let most = |figure: fn(&Bill) -> f64| bills.iter().map(figure).fold(0.0, f64::max);
            let watts = most(|bill| bill.above);
            println!(
                "{gap:>5} {name:<18}{cells} {:6.2}/{:6.1} {:6.3} %{}{}",
                mean(|bill| bill.mean_ms),
                most(|bill| bill.worst_ms),
                mean(|bill| bill.gap) * 100.0,
                if least.is_empty() { String::new() } else { above(&bills, &least) },
                if watts > 1e-6 { format!(" ABOVE BUDGET by {watts:.0} W") } else { String::new() },
            );
        }
    }
}
