//! Whether the simulator tells what a cluster does: the same arrivals on the test bed and in a replay with the run's own
//! instants, delays and knowledge.
//!
//! [`check`] runs the demo's cluster for each workload and method and appends what came of it to a file.
//! [`page`] is made of all that the file has, replayed ([`replayed`]); so runs may be made on several days.

pub mod measured;
pub mod page;
pub mod replayed;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;

use andreas_e2e::outputs::check_writable;
use andreas_e2e::workload::{self, TimeScale, WorkloadJob};
use andreas_planner::MethodName;
use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::nodes::Nodes;
use crate::summary::Baseline;
use crate::{DemoArgs, trained};
use measured::Delays;
use replayed::LeftOut;

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
    /// Methods, separated by commas: those that the operator offers.
    #[arg(long, value_delimiter = ',', default_value = "fifo,edf,randomized-greedy")]
    pub methods: Vec<MethodName>,
    /// Workloads, separated by commas: all, first-20, dense.
    #[arg(long, value_delimiter = ',', default_value = "all,first-20,dense")]
    pub workloads: Vec<Workload>,
    /// Results of all runs so far, one a line; new ones are appended.
    #[arg(long, default_value = "target/fidelity.jsonl", value_name = "FILE")]
    pub results: PathBuf,
    /// The page to write.
    #[arg(long, default_value = "docs/fidelity.md", value_name = "FILE")]
    pub page: PathBuf,
    /// Give up a run after this many seconds of training time.
    #[arg(long, default_value_t = 420)]
    pub limit: u64,
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

    /// Its jobs.
    ///
    /// # Errors
    /// When the trace cannot be read.
    pub fn jobs(self) -> Result<Vec<WorkloadJob>> {
        let mut jobs = workload::jobs(TimeScale::DEMO)?;
        match self {
            Self::All => {}
            Self::First20 => jobs.truncate(20),
            Self::Dense => jobs.iter_mut().for_each(|job| job.submit_offset_s *= 0.5),
        }
        Ok(jobs)
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
    pub method: MethodName,
    /// When each job was submitted, s after the first, by name.
    pub submits: BTreeMap<String, f64>,
    /// Its mean delays.
    pub delays: Delays,
    /// What it came to.
    pub figures: Baseline,
    /// Time in the system of each job, s, by name.
    pub turnarounds: BTreeMap<String, f64>,
}

/// A run and its replay.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// On the test bed.
    pub run: TestBedRun,
    /// In the simulator.
    pub replay: Baseline,
    /// The same replay with something left out, to see what it is worth.
    pub others: BTreeMap<LeftOut, Baseline>,
    /// Time in the system of each job in the replay, s, by name.
    pub turnarounds: BTreeMap<String, f64>,
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
                let compared = one(*workload, *method, args.limit).await?;
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
    std::fs::write(&args.page, page::page(&all)).with_context(|| format!("writing {}", args.page.display()))
}

async fn one(workload: Workload, method: MethodName, limit: u64) -> Result<Compared> {
    let jobs = workload.jobs()?;
    let nodes = Nodes::pretend();
    let args = DemoArgs {
        pretend: true,
        keep: false,
        jobs: u16::try_from(jobs.len())?,
        method: Some(method),
        kill: Vec::new(),
        plain: true,
        summary: None,
        snapshots: None,
        limit,
    };
    let (cluster, summary, phases) = trained(&args, &jobs, &nodes).await?;
    cluster.stop().await;
    let run = TestBedRun {
        date: jiff::Zoned::now().date().to_string(),
        workload,
        method,
        submits: measured::submits(&phases),
        delays: Delays::of(&phases),
        figures: summary.as_row(),
        turnarounds: summary.turnarounds,
    };
    run.compared()
}

impl TestBedRun {
    fn compared(self) -> Result<Compared> {
        let (jobs, nodes) = (self.workload.jobs()?, Nodes::pretend());
        let of =
            |left_out| replayed::replay(&jobs, &nodes, self.method, &self.submits, &self.delays, left_out);
        let (replay, ends) = of(LeftOut::Nothing)?;
        let mut others = BTreeMap::new();
        for left_out in LeftOut::ALL.into_iter().filter(|one| *one != LeftOut::Nothing) {
            others.insert(left_out, of(left_out)?.0);
        }
        let time = |name: &String| Some(ends.get(name)? - self.submits.get(name)?);
        let turnarounds = ends.keys().filter_map(|name| Some((name.clone(), time(name)?))).collect();
        Ok(Compared { run: self, replay, others, turnarounds })
    }
}

fn append(args: &FidelityArgs, run: &TestBedRun) -> Result<()> {
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&args.results)?;
    writeln!(file, "{}", serde_json::to_string(run)?)?;
    Ok(())
}
