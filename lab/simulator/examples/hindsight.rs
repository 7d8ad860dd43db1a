//! How far replays are from the best that anybody could have done who knew all jobs beforehand: `cargo run --release -p
//! andreas-simulator --example hindsight -- TRACE CLUSTER [jobs=300] [skip=0] [pace=0.5] [trials=100]
//! [knowledge=learning|perfect] [methods=...] [share=0.1] [fixed=900] [slice=900] [tail=400] [rounds=60,150]`, for example
//! `itp:cluster02.csv.gz lab/simulator/clusters/mixed.yaml`.
//!
//! The bound is that of [`andreas_bounds`], after each of these rounds of its search. Both sides count the energy of
//! jobs and of nodes with a job, tardiness, misses and time in the system; restarts, lost work and the fit of nodes are in
//! the replays alone, so the regret is at most the distance. Without a power budget.

use std::collections::BTreeMap;
use std::path::PathBuf;

use andreas_baselines::{Method, Options, Scheduler};
use andreas_bounds::{KnownJob, KnownJobs, RunOption};
use andreas_model::{EnergyPrice, GpuCount, GpuType, Seconds, Time, Watts};
use andreas_planner::{Job, MultiNodeEffect};
use andreas_simulator::readers::{self, TraceRange};
use andreas_simulator::{Conditions, Knowledge, PredictionError, Scenario, replay};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let text = |key: &str| args.iter().find_map(|a| a.strip_prefix(key)?.strip_prefix('='));
    let number = |key: &str, or: f64| match text(key) {
        Some(text) => text.parse().map_err(|_| format!("{key}={text}: not a number")),
        None => Ok(or),
    };
    let [trace, cluster, ..] = args.as_slice() else { return Err("wanted TRACE CLUSTER".into()) };
    let (format, path) = trace.split_once(':').ok_or("wanted FORMAT:PATH")?;
    let range = TraceRange {
        skip: number("skip", 0.0)? as usize,
        take: number("jobs", 300.0)? as usize,
        pace: number("pace", 0.5)?,
        moldable: None,
        looped: false,
        programs: false,
    };
    let mut scenario =
        readers::scenario(format.parse()?, &PathBuf::from(path), &PathBuf::from(cluster), range)?;
    scenario.lateness.turnaround_share = number("share", scenario.lateness.turnaround_share)?;
    scenario.lateness.late_fixed = Seconds(number("fixed", scenario.lateness.late_fixed.0)?);
    let known = known(&scenario, number("slice", 900.0)?, number("tail", 400.0)? as usize);
    let mut bounds = Vec::new();
    for rounds in text("rounds").unwrap_or("60,150").split(',') {
        let rounds = rounds.parse()?;
        bounds.push(known.bound(rounds).0);
        println!("bound after {rounds} rounds: {:.1}", bounds[bounds.len() - 1]);
    }
    let bound = bounds.iter().copied().fold(0.0, f64::max);
    let conditions = Conditions {
        error: PredictionError { mape: 0.0, corrected: true, stated: true, seed: 1 },
        knowledge: match text("knowledge") {
            None | Some("learning") => Knowledge::Learning,
            Some("perfect") => Knowledge::Tables,
            Some(other) => return Err(format!("knowledge={other}: wanted perfect or learning").into()),
        },
        ..Conditions::default()
    };
    for method in text("methods").unwrap_or("randomized-greedy").split(',') {
        let options = Options {
            method: method.parse::<Method>()?,
            seed: 1,
            trials: number("trials", 100.0)? as u64,
            accounting: scenario.accounting(),
            ..Options::default()
        };
        let mut scheduler = Scheduler { tickets: scenario.tickets.clone(), ..Scheduler::new(options) };
        let replayed = replay(&scenario, &conditions, &mut |snapshot| scheduler.plan(snapshot), &mut |_| {})?;
        let total = replayed.summary.total.0;
        let above = (total / bound - 1.0) * 100.0;
        println!(
            "{method}: {total:.1}, {above:+.1} % above the bound, {} left out",
            replayed.summary.unfinished
        );
    }
    Ok(())
}

/// The jobs of a scenario, known beforehand, with prices of GPUs in slices of `length` seconds and in `tail` of them after the
/// last submission.
fn known(scenario: &Scenario, length: f64, tail: usize) -> KnownJobs {
    let mut classes: BTreeMap<(GpuType, GpuCount), (u32, f64)> = BTreeMap::new();
    for node in &scenario.nodes {
        let entry = classes.entry((node.gpu_type.clone(), node.gpus)).or_insert((0, f64::INFINITY));
        entry.0 += node.gpus.0;
        entry.1 = entry.1.min(node.host_busy.0 / f64::from(node.gpus.0));
    }
    let first = scenario.jobs.iter().map(|job| job.submit.0).fold(f64::INFINITY, f64::min);
    let last = scenario.jobs.iter().map(|job| job.submit.0).fold(first, f64::max);
    let slices = ((last - first) / length) as usize + tail;
    let edges: Vec<Time> = (0..=slices).map(|slice| Time(first + slice as f64 * length)).collect();
    let lowest = |pair: &[Time]| {
        let prices = scenario.tariff.pieces(pair[0], pair[1]).map(|(_, _, price)| price);
        prices.min_by(EnergyPrice::total_cmp).unwrap_or_default()
    };
    KnownJobs {
        prices: edges.windows(2).map(lowest).collect(),
        edges,
        gpus: classes.values().map(|(gpus, _)| GpuCount(*gpus)).collect(),
        watts: Watts(f64::INFINITY),
        lateness: scenario.lateness.clone(),
        jobs: scenario.jobs.iter().map(|job| known_job(job, &classes)).collect(),
    }
}

/// All ways in which a job may run, over one node and over several.
fn known_job(job: &Job, classes: &BTreeMap<(GpuType, GpuCount), (u32, f64)>) -> KnownJob {
    let mut options = Vec::new();
    for row in job.estimates.iter() {
        let one = MultiNodeEffect { nodes: 1, time_factor: 1.0 };
        for span in std::iter::once(&one).chain(&job.spread).filter(|span| row.gpus.0 % span.nodes == 0) {
            for (class, ((kind, size), (_, host))) in classes.iter().enumerate() {
                if *kind != row.gpu_type || size.0 < row.gpus.0 / span.nodes {
                    continue;
                }
                let power = Watts(row.power.0 + host * f64::from(row.gpus.0));
                let time = Seconds(job.epochs_left * row.epoch.0 * span.time_factor);
                options.push(RunOption { class, gpus: row.gpus, time, power, budgeted: power });
            }
        }
    }
    KnownJob { submit: job.submit, deadline: job.deadline, weight: job.weight, options }
}
