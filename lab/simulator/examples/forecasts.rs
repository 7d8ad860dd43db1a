//! How good forecasts at submission are, on replays: `cargo run -p andreas-simulator --example forecasts -- TRACE CLUSTER
//! [jobs=300] [skip=0] [pace=0.5] [trials=100] [knowledge=learning|learning-apart|tables] [mape=0] [futures=24] [work=24000]
//! [seed=1] [programs=0] [vary=0] [calibrate=1]`, for example `itp:cluster02.csv.gz lab/simulator/clusters/mixed.yaml`.
//!
//! With `programs=1` jobs have generated names, and runs of one program share what was learnt. `vary` is by how much runs of one
//! program differ in their times: the standard deviation of the logarithm.
//!
//! At the first plan with a job, the sampler of the query API forecasts it, with the operator's settings. At the end of the
//! replay the forecasts are compared with what happened. They know nothing of later submissions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use andreas_baselines::{Method, Options, Scheduler};
use andreas_forecast::{Calibration, JobForecast, Quantiles, Settings, sample};
use andreas_model::{JobId, Time};
use andreas_planner::{Estimate, Job, Placement};
use andreas_predictor::mean_over_median;
use andreas_simulator::readers::{self, TraceRange};
use andreas_simulator::{Conditions, JobOutcome, Knowledge, PredictionError, Scenario, replay};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Of the operator (`operator/src/query/view.rs`).
const TRIALS_IN_A_FUTURE: u64 = 20;
/// Standard deviations to the ends of a 90 % interval.
const Z95: f64 = 1.644_853_626_951_472_2;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let text = |key: &str| args.iter().find_map(|a| a.strip_prefix(key)?.strip_prefix('='));
    let number = |key: &str, or: f64| text(key).and_then(|t| t.parse().ok()).unwrap_or(or);
    let [trace, cluster, ..] = args.as_slice() else { return Err("wanted TRACE CLUSTER".into()) };
    let (format, path) = trace.split_once(':').ok_or("wanted FORMAT:PATH")?;
    let range = TraceRange {
        skip: number("skip", 0.0) as usize,
        take: number("jobs", 300.0) as usize,
        pace: number("pace", 0.5),
        moldable: None,
        looped: false,
        programs: number("programs", 0.0) > 0.0,
    };
    let mut scenario =
        readers::scenario(format.parse()?, &PathBuf::from(path), &PathBuf::from(cluster), range)?;
    let seed = number("seed", 1.0) as u64;
    vary(&mut scenario, number("vary", 0.0), seed);
    let conditions = Conditions {
        error: PredictionError { mape: number("mape", 0.0), corrected: true, stated: true, seed },
        knowledge: match text("knowledge") {
            None | Some("learning") => Knowledge::Learning,
            Some("learning-apart") => Knowledge::LearningApart,
            Some("tables") => Knowledge::Tables,
            Some(other) => {
                return Err(format!("knowledge={other}: wanted learning, learning-apart or tables").into());
            }
        },
        ..Conditions::default()
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
    let mut lengths: BTreeMap<JobId, Length> = BTreeMap::new();
    let truths: BTreeMap<&JobId, &Job> = scenario.jobs.iter().map(|job| (&job.id, job)).collect();
    let calibrates = number("calibrate", 1.0) > 0.0;
    let mut calibration = Calibration::default();
    // As they were sampled, of jobs that have not ended.
    let mut sampled: BTreeMap<JobId, (Time, Quantiles)> = BTreeMap::new();
    let mut decide = |snapshot: &andreas_planner::Snapshot| {
        let plan = scheduler.plan(snapshot)?;
        for job in &snapshot.jobs {
            let place = plan.jobs.get(&job.id).and_then(|planned| planned.decision.placement());
            let (Some(place), Some(truth)) = (place, truths.get(&job.id)) else { continue };
            if !lengths.contains_key(&job.id)
                && let Some(length) = Length::of(job, truth, place)
            {
                lengths.insert(job.id.clone(), length);
            }
        }
        let live: BTreeSet<&JobId> = snapshot.jobs.iter().map(|job| &job.id).collect();
        sampled.retain(|id, (at, finish)| {
            let ended = !live.contains(id);
            if ended {
                calibration.add(finish, *at, snapshot.now);
            }
            !ended
        });
        if snapshot.jobs.iter().any(|job| !first.contains_key(&job.id)) {
            let settings = Settings::within(work, futures, snapshot.jobs.len());
            let options = andreas_planner::Options {
                method: andreas_planner::MethodName::RandomizedGreedy,
                trials: TRIALS_IN_A_FUTURE,
                ..andreas_planner::Options::default()
            };
            let forecast = sample(snapshot, &plan, &options, &settings)?;
            for (id, mut of) in forecast.jobs {
                if first.contains_key(&id) {
                    continue;
                }
                sampled.insert(id.clone(), (snapshot.now, of.finish));
                if calibrates {
                    of.finish = calibration.corrected(&of.finish, snapshot.now);
                }
                first.insert(id, of);
            }
        }
        Ok(plan)
    };
    let replayed = replay(&scenario, &conditions, &mut decide, &mut |_| {})?;
    let pairs: Vec<(&JobForecast, &JobOutcome)> =
        replayed.jobs.iter().filter_map(|job| Some((first.get(&job.id)?, job))).collect();
    report(&pairs);
    report_lengths(lengths.values());
    Ok(())
}

/// What was expected of a run at its first start, and what it takes.
struct Length {
    /// Logarithm of expected (median) over true.
    off: f64,
    /// Standard deviation of the logarithm, as expected.
    sigma: f64,
}

impl Length {
    fn of(seen: &Job, truth: &Job, place: &Placement) -> Option<Self> {
        let at = |job: &Job| {
            let same = |row: &&Estimate| row.gpu_type == place.gpu_type && row.gpus == place.total_gpus();
            job.estimates.iter().find(same).cloned()
        };
        let (seen, truth) = (at(seen)?, at(truth)?);
        let off = libm::log(seen.epoch.0 / mean_over_median(seen.rel_std) / truth.epoch.0);
        Some(Self { off, sigma: seen.rel_std })
    }
}

/// Makes the runs of a program differ.
fn vary(scenario: &mut Scenario, by: f64, seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for job in scenario.jobs.iter_mut().filter(|_| by > 0.0) {
        // The sum of twelve uniform numbers is nearly normal.
        let normal = (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0;
        let factor = libm::exp(by * normal);
        let rows = job.estimates.iter().map(|row| Estimate { epoch: row.epoch * factor, ..row.clone() });
        job.estimates = rows.collect();
    }
}

fn report_lengths<'a>(lengths: impl Iterator<Item = &'a Length>) {
    let all: Vec<&Length> = lengths.collect();
    let mut errors: Vec<f64> = all.iter().map(|length| (libm::exp(length.off) - 1.0).abs()).collect();
    errors.sort_by(f64::total_cmp);
    let inside = all.iter().filter(|length| length.off.abs() <= Z95 * length.sigma).count();
    let median = errors.get(errors.len() / 2).copied().unwrap_or(f64::NAN);
    println!("length of a run, at its start: median error {:.1} %", 100.0 * median);
    println!("  within its 90 % interval   {:.1} %", 100.0 * inside as f64 / all.len().max(1) as f64);
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
    let widest = |f: &JobForecast, end: f64| {
        let mut ends: Vec<f64> =
            f.runs.iter().map(|run| run.as_ref().map_or(f64::INFINITY, |run| run.end.0)).collect();
        ends.sort_by(f64::total_cmp);
        let at = |p: f64| ends[((p * ends.len() as f64) as usize).min(ends.len() - 1)];
        at(0.05) <= end && end <= at(0.95)
    };
    let (within_90, _) = within(|_| true, &widest);
    println!("jobs                         {count}");
    println!("ends within p5 to p95        {within_90:.1} %");
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
