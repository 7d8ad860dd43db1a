//! Whether the simulator tells what a cluster does: the same arrivals on the test bed and in a replay with the run's own
//! instants, delays and knowledge.
//!
//! [`check`] runs the demo's cluster for each workload and method and appends what came of it to a file. Each plan of the operator is made
//! again from its snapshot. [`page`] is made of all that the file has, replayed ([`replayed`]); so runs may be made on several days.

pub mod measured;
pub mod page;
pub mod replayed;
mod scenario;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;

use andreas_baselines::Method;
use andreas_demo::DemoArgs;
use andreas_demo::nodes::Nodes;
use andreas_demo::runs::{self, Run, Trained};
use andreas_demo::summary::MeasuredRun;
use andreas_e2e::outputs::check_writable;
use andreas_e2e::replanned::SamePlans;
use andreas_e2e::workload::{self, TimeScale, WorkloadJob};
use andreas_planner::MethodName;
use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use measured::Delays;
use replayed::LeftOut;
use scenario::price_of_misses;

/// What can be asked.
#[derive(Clone, Debug, clap::Parser)]
#[command(
    name = "fidelity",
    about = "Compares runs on the test bed with replays of the same arrivals, and writes the page of it"
)]
pub struct FidelityArgs {
    /// Runs of each workload and method; 0 only writes the page.
    #[arg(long, default_value_t = 5)]
    pub runs: u16,
    /// Methods, separated by commas: those that the operator offers, fifo-fixed and edf-fixed.
    #[arg(long, value_delimiter = ',', default_value = "fifo-fixed,edf,randomized-greedy", value_parser = method)]
    pub methods: Vec<Method>,
    /// Workloads, separated by commas: all, first-20, dense.
    #[arg(long, value_delimiter = ',', default_value = "all,first-20,dense")]
    pub workloads: Vec<Workload>,
    /// Results of all runs so far, one a line; new ones are appended.
    #[arg(long, default_value = "lab/docs/fidelity.jsonl", value_name = "FILE")]
    pub results: PathBuf,
    /// The page to write.
    #[arg(long, default_value = "lab/docs/fidelity.md", value_name = "FILE")]
    pub page: PathBuf,
    /// Where snapshots of the last run are kept.
    #[arg(long, default_value = "target/fidelity-snapshots", value_name = "FOLDER")]
    pub snapshots: PathBuf,
    /// Give up a run after this many seconds of training time.
    #[arg(long, default_value_t = 420)]
    pub limit: u64,
}

/// The operator's method for a method of the page, and whether jobs may have only what they ask for: the operator has no method with
/// fixed requests, and needs none for jobs without a choice.
fn of_operator(method: Method) -> Option<(MethodName, bool)> {
    match method {
        Method::FifoFixed => Some((MethodName::Fifo, true)),
        Method::EdfFixed => Some((MethodName::Edf, true)),
        other => other.of_product().map(|name| (name, false)),
    }
}

fn method(text: &str) -> Result<Method, String> {
    let method = text.parse::<Method>().map_err(|unknown| unknown.to_string())?;
    of_operator(method).map(|_| method).ok_or_else(|| format!("{text} cannot be run on the test bed"))
}

/// Jobs and their arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// The demo's 40 jobs.
    All,
    /// The first 20 of them.
    #[value(name = "first-20")]
    First20,
    /// All 40, submitted twice as fast.
    Dense,
}

impl Workload {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::All, Self::First20, Self::Dense];

    /// Its name on the page.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::First20 => "first-20",
            Self::Dense => "dense",
        }
    }

    /// Its jobs, all with their fixed requests alone or all as they are.
    ///
    /// # Errors
    /// When the trace cannot be read.
    pub fn jobs(self, fixed: bool) -> Result<Vec<WorkloadJob>> {
        let mut jobs = workload::jobs(TimeScale::DEMO)?;
        match self {
            Self::All => {}
            Self::First20 => jobs.truncate(20),
            Self::Dense => jobs.iter_mut().for_each(|job| job.submit_offset_s *= 0.5),
        }
        Ok(if fixed { jobs.into_iter().map(WorkloadJob::with_fixed_request).collect() } else { jobs })
    }
}

/// Figures of a run or a replay.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Figures {
    /// Whether no pod ran.
    pub replayed: bool,
    /// Jobs that ended.
    pub finished: usize,
    /// Those that ended after their deadline.
    pub late: usize,
    /// Sum of weight x seconds late.
    pub weighted_tardiness: f64,
    /// Mean time from submission to end, s.
    pub mean_turnaround_s: f64,
    /// Energy of the jobs' GPUs, kWh.
    pub energy_kwh: f64,
    /// Energy of nodes beside their GPUs while they had a job, kWh.
    pub host_kwh: f64,
    /// Price of both energies, lateness and turnaround.
    pub cost: f64,
    /// Starts after the first.
    pub restarts: usize,
}

impl From<&MeasuredRun> for Figures {
    fn from(run: &MeasuredRun) -> Self {
        Self {
            replayed: false,
            finished: run.finished,
            late: run.late,
            weighted_tardiness: run.weighted_tardiness,
            mean_turnaround_s: run.mean_turnaround_s,
            energy_kwh: run.energy_kwh,
            host_kwh: run.host_kwh,
            cost: run.cost,
            restarts: usize::try_from(run.restarts).unwrap_or_default(),
        }
    }
}

/// A run on the test bed.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct TestBedRun {
    /// Its day.
    pub date: String,
    /// Its jobs.
    pub workload: Workload,
    /// Its method.
    pub method: Method,
    /// When each job was submitted, s after the first, by name.
    pub submits: BTreeMap<String, f64>,
    /// Its mean delays.
    pub delays: Delays,
    /// What it came to.
    pub figures: Figures,
    /// Time in the system of each job, s, by name.
    pub turnarounds: BTreeMap<String, f64>,
    /// Its plans, made again. Older runs do not have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plans: Option<SamePlans>,
}

/// A run and its replay.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// On the test bed.
    pub run: TestBedRun,
    /// In the simulator.
    pub replay: Figures,
    /// The same replay with something left out, to see what it is worth.
    pub others: BTreeMap<LeftOut, Figures>,
    /// Time in the system of each job in the replay, s, by name.
    pub turnarounds: BTreeMap<String, f64>,
    /// What missed deadlines cost by their fixed price, in the replay and in the run.
    pub misses: [f64; 2],
}

/// Runs, replays, and writes the page.
///
/// # Errors
/// When a run does not end as reported, or a file cannot be read or written.
pub async fn check(args: &FidelityArgs) -> Result<()> {
    if args.runs > 0 {
        check_writable(&args.results)?;
    }
    check_writable(&args.page)?;
    for run in 0..args.runs {
        for workload in &args.workloads {
            for method in &args.methods {
                println!("run {} of {}: {} jobs under {method}", run + 1, args.runs, workload.as_str());
                let compared = one(*workload, *method, args).await?;
                println!("{}", page::line(&compared));
                append(args, &compared.run)?;
            }
        }
    }
    let text = std::fs::read_to_string(&args.results)
        .with_context(|| format!("reading {}", args.results.display()))?;
    // Replays take a second: all are made anew, so that the page is one of this build.
    let all = text.lines().map(|line| serde_json::from_str::<TestBedRun>(line)?.compared());
    let all: Vec<Compared> = all.collect::<Result<_>>()?;
    ensure!(!all.is_empty(), "{}: no runs", args.results.display());
    let before = std::fs::read_to_string(&args.page)?;
    if page::runs_of(&before) > all.len() {
        let (page, results) = (args.page.display(), args.results.display());
        println!("{page} is of more runs than {results} has, and stays as it is: --page writes another");
        return Ok(());
    }
    std::fs::write(&args.page, page::page(&all)).with_context(|| format!("writing {}", args.page.display()))
}

async fn one(workload: Workload, method: Method, args: &FidelityArgs) -> Result<Compared> {
    let (operators, fixed) = of_operator(method).context("no method of the operator")?;
    let jobs = workload.jobs(fixed)?;
    let nodes = Nodes::pretend();
    let args = DemoArgs {
        quick: true,
        pretend: true,
        keep: false,
        jobs: u16::try_from(jobs.len())?,
        method: Some(operators),
        kill: Vec::new(),
        plain: true,
        summary: None,
        snapshots: Some(args.snapshots.clone()),
        limit: args.limit,
    };
    let ran = runs::all(&[Run::Product], &args, &jobs, &nodes).await?;
    let Trained { cluster, summary, recorded } = ran;
    let (phases, turnarounds) = {
        let seen = cluster.observer.seen();
        (measured::phases(&seen), measured::turnarounds(&seen))
    };
    cluster.stop().await;
    let (plans, differ) = recorded.context("no snapshots were saved")?.plan_again()?;
    differ.iter().for_each(|line| println!("another plan: {line}"));
    let run = TestBedRun {
        date: jiff::Zoned::now().date().to_string(),
        workload,
        method,
        submits: measured::submits(&phases),
        delays: Delays::of(&phases),
        figures: Figures::from(&summary.run),
        turnarounds,
        plans: Some(plans),
    };
    run.compared()
}

impl TestBedRun {
    fn compared(self) -> Result<Compared> {
        let (operators, fixed) = of_operator(self.method).context("no method of the operator")?;
        let (jobs, nodes) = (self.workload.jobs(fixed)?, Nodes::pretend());
        let of = |left_out| replayed::replay(&jobs, &nodes, operators, &self.submits, &self.delays, left_out);
        let (replay, ends) = of(LeftOut::Nothing)?;
        let mut others = BTreeMap::new();
        for left_out in LeftOut::ALL.into_iter().filter(|one| *one != LeftOut::Nothing) {
            others.insert(left_out, of(left_out)?.0);
        }
        let time = |name: &String| Some(ends.get(name)? - self.submits.get(name)?);
        let turnarounds: BTreeMap<String, f64> =
            ends.keys().filter_map(|name| Some((name.clone(), time(name)?))).collect();
        let policy = scenario::demo_policy(&nodes)?;
        let misses = [&turnarounds, &self.turnarounds].map(|times| price_of_misses(&jobs, times, &policy));
        Ok(Compared { run: self, replay, others, turnarounds, misses })
    }
}

fn append(args: &FidelityArgs, run: &TestBedRun) -> Result<()> {
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&args.results)?;
    writeln!(file, "{}", serde_json::to_string(run)?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn jobs_with_fixed_requests_have_no_choice_and_all_can_run() {
        for job in Workload::All.jobs(true).unwrap() {
            assert_eq!(
                (job.gpus.min, job.gpus.max, job.gpus.counts.len()),
                (job.requested_gpus, job.requested_gpus, 1)
            );
            assert!(!job.configurations().is_empty(), "{}", job.name);
        }
        assert!(Workload::All.jobs(false).unwrap().iter().any(|job| job.gpus.max > job.requested_gpus));
    }

    #[test]
    fn methods_that_no_cluster_can_run_are_refused() {
        let parse = |methods: &str| FidelityArgs::try_parse_from(["fidelity", "--methods", methods]);
        assert_eq!(parse("edf-fixed,fifo").unwrap().methods, [Method::EdfFixed, Method::Fifo]);
        assert!(parse("tiresias").is_err() && parse("none").is_err());
        let usual = FidelityArgs::parse_from(["fidelity"]).methods;
        assert_eq!(usual, [Method::FifoFixed, Method::Edf, Method::RandomizedGreedy]);
    }
}
