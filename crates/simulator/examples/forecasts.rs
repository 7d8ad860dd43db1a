//! How good forecasts at submission are, on replays: `cargo run -p andreas-simulator --example forecasts -- TRACE CLUSTER
//! [jobs=300] [skip=0] [pace=0.5] [trials=100] [knowledge=tables|learning] [mape=0.16] [futures=24] [work=24000] [seed=1]`, for
//! example `itp:cluster02.csv.gz crates/simulator/clusters/mixed.yaml`.
//!
//! At the first plan with a job, the sampler of the query API forecasts it, with the operator's settings. At the end of the
//! replay the forecasts are compared with what happened. A forecast knows nothing of later submissions, as in the product.

use std::collections::BTreeMap;
use std::path::PathBuf;

use andreas_baselines::{Method, Options, Scheduler};
use andreas_core::JobId;
use andreas_forecast::{JobForecast, Settings, sample};
use andreas_simulator::readers::{self, TraceRange};
use andreas_simulator::{Conditions, JobOutcome, Knowledge, PredictionError, Sleep, replay};

/// Of the operator (`operator/src/query/view.rs`).
const TRIALS_IN_A_FUTURE: u64 = 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let text = |key: &str| args.iter().find_map(|a| a.strip_prefix(key)?.strip_prefix('='));
    let number = |key: &str, or: f64| text(key).and_then(|t| t.parse().ok()).unwrap_or(or);
    let [trace, cluster] = &args[..2] else { return Err("wanted TRACE CLUSTER".into()) };
    let (format, path) = trace.split_once(':').ok_or("wanted FORMAT:PATH")?;
    let range = TraceRange {
        skip: number("skip", 0.0) as usize,
        take: number("jobs", 300.0) as usize,
        pace: number("pace", 0.5),
        moldable: None,
        looped: false,
        programs: number("programs", 0.0) > 0.0,
    };
    let scenario = readers::scenario(format.parse()?, &PathBuf::from(path), &PathBuf::from(cluster), range)?;
    let seed = number("seed", 1.0) as u64;
    let conditions = Conditions {
        error: PredictionError { mape: number("mape", 0.16), corrected: true, stated: true, seed },
        knowledge: if text("knowledge") == Some("learning") {
            Knowledge::Learning
        } else {
            Knowledge::Tables
        },
        sleep: Sleep::Never,
        memoryless: false,
    };
    let options = Options {
        method: Method::RandomizedGreedy,
        seed,
        trials: number("trials", 100.0) as u64,
        accounting: scenario.accounting(),
        ..Options::default()
    };
    let (futures, work) = (number("futures", 24.0) as usize, number("work", 24_000.0) as usize);
    let mut scheduler = Scheduler { tickets: scenario.tickets.clone(), ..Scheduler::new(options) };
    let mut first: BTreeMap<JobId, JobForecast> = BTreeMap::new();
    let mut decide = |snapshot: &andreas_planner::Snapshot| {
        let plan = scheduler.plan(snapshot)?;
        if snapshot.jobs.iter().any(|job| !first.contains_key(&job.id)) {
            let settings = Settings::within(work, futures, snapshot.jobs.len());
            let options = andreas_planner::Options {
                method: andreas_planner::MethodName::RandomizedGreedy,
                trials: TRIALS_IN_A_FUTURE,
                ..andreas_planner::Options::default()
            };
            let forecast = sample(snapshot, &plan, &options, &settings)?;
            for (id, of) in forecast.jobs {
                first.entry(id).or_insert(of);
            }
        }
        Ok(plan)
    };
    let replayed = replay(&scenario, &conditions, &mut decide, &mut |_| {})?;
    let pairs: Vec<(&JobForecast, &JobOutcome)> =
        replayed.jobs.iter().filter_map(|job| Some((first.get(&job.id)?, job))).collect();
    report(&pairs);
    Ok(())
}

fn report(pairs: &[(&JobForecast, &JobOutcome)]) {
    let ended: Vec<(&JobForecast, &JobOutcome, f64)> =
        pairs.iter().filter_map(|(f, job)| Some((*f, *job, job.finish?.0))).collect();
    let share = |count: usize, of: usize| 100.0 * count as f64 / of.max(1) as f64;
    let within = |p: fn(&JobForecast) -> bool, hit: &dyn Fn(&JobForecast, f64) -> bool| {
        let chosen: Vec<_> = ended.iter().filter(|(f, ..)| p(f)).collect();
        let hits = chosen.iter().filter(|(f, _, end)| hit(f, *end)).count();
        (share(hits, chosen.len()), chosen.len())
    };
    let inside = |f: &JobForecast, end: f64| f.finish.p10.0 <= end && end <= f.finish.p90.0;
    let (covered, count) = within(|_| true, &inside);
    let (below, _) = within(|_| true, &|f, end| end < f.finish.p10.0);
    let mut errors: Vec<f64> = ended
        .iter()
        .map(|(f, job, end)| (f.finish.p50.0 - end).abs() / (end - job.submit.0).max(1.0))
        .collect();
    errors.sort_by(f64::total_cmp);
    let median = |of: &[f64]| of.get(of.len() / 2).copied().unwrap_or(f64::NAN);
    let mut starts: Vec<f64> = ended
        .iter()
        .filter_map(|(f, job, end)| {
            Some((f.start.p50.0 - job.start?.0).abs() / (end - job.submit.0).max(1.0))
        })
        .collect();
    starts.sort_by(f64::total_cmp);
    let due: Vec<(f64, f64)> = ended
        .iter()
        .filter_map(|(f, job, end)| Some((f.on_time, f64::from(u8::from(*end <= job.deadline?.0)))))
        .collect();
    let brier = due.iter().map(|(p, met)| (p - met).powi(2)).sum::<f64>() / due.len().max(1) as f64;
    let rate = due.iter().map(|(_, met)| met).sum::<f64>() / due.len().max(1) as f64;
    println!("jobs                         {count}");
    println!("ends within p10 to p90       {covered:.1} %, before p10 {below:.1} %");
    println!("median error of the end      {:.1} % of the time in the system", 100.0 * median(&errors));
    println!("median error of the start    {:.1} % of the time in the system", 100.0 * median(&starts));
    println!("Brier score                  {brier:.3} of {} with a deadline", due.len());
    println!("  of a constant ({:.0} % met)  {:.3}", 100.0 * rate, rate * (1.0 - rate));
    // What was forecast with about the same probability, and how often it was so.
    for low in [0.0, 0.2, 0.4, 0.6, 0.8] {
        let of: Vec<_> = due.iter().filter(|(p, _)| *p >= low && (*p < low + 0.2 || low == 0.8)).collect();
        if !of.is_empty() {
            let (p, met) = of.iter().fold((0.0, 0.0), |(a, b), (p, met)| (a + p, b + met));
            let n = of.len() as f64;
            println!("  forecast {:.2}, met {:.2}, {} jobs", p / n, met / n, of.len());
        }
    }
}
