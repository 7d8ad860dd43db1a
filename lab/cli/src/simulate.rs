//! `andreas-lab simulate`: a trace on a described cluster, under any list of methods.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use andreas_baselines::{Method, Options};
use andreas_model::{Seconds, StepFunction};
use andreas_simulator::readers::{self, Format, TraceRange, peak};
use andreas_simulator::report::{self, Report};
use andreas_simulator::{
    Delays, Knowledge, Outcome, PredictionError, ProductPolicy, Scenario, Setup, Sleep, Watch, run_all,
};
use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::Usage;
use crate::plan::method_parser;

/// Simulate: replay a trace of jobs on a described cluster under several methods, side by side.
///
/// By default as the product runs them: it learns times and watts, starts and stops take their time, and work since a checkpoint is
/// lost. Prints one table; --json writes everything. All methods see the same jobs, prices and failures.
#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// Trace as FORMAT:PATH; formats: csv, andreas (a folder, with its own cluster), itp, philly, chronus, openb. Several
    /// traces give several tables, and one of their totals
    #[arg(long, value_name = "FORMAT:PATH", value_parser = trace, required = true)]
    trace: Vec<(Format, PathBuf)>,
    /// Cluster, tariff, rules and models (YAML)
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// Methods, separated by commas
    #[arg(long, value_name = "METHODS", value_delimiter = ',', value_parser = method_parser(), default_value = Method::default().as_str())]
    methods: Vec<Method>,
    /// Seed of randomised methods and of prediction errors
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Most trials of a randomised method in each decision
    #[arg(long, value_name = "N", default_value_t = Options::default().trials)]
    trials: u64,
    /// Leave out the first jobs of the trace
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip: usize,
    /// Take this many jobs of the trace
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Submit this many times as fast as the trace
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pace: f64,
    /// Mean errors of predicted times, separated by commas (0.16: 16 %)
    #[arg(long, value_name = "SHARES", value_delimiter = ',', default_value = "0")]
    mape: Vec<f64>,
    /// Whether the first measured epoch corrects wrong predictions
    #[arg(long, value_enum, default_value_t = Correction::On)]
    correction: Correction,
    /// Runs of each method, with restarts, first starts and stops up to 3 s shorter or longer: tables have means and standard
    /// deviations
    #[arg(long, value_name = "N", default_value_t = 1)]
    runs: usize,
    /// Whether nodes without a job sleep, separated by commas (modelled)
    #[arg(long, value_enum, value_name = "WHEN", value_delimiter = ',', default_value = "never")]
    sleep: Vec<Asleep>,
    /// Share of jobs that may run on other numbers of GPUs than they request, separated by commas; instead of the cluster file's
    #[arg(long, value_name = "SHARES", value_delimiter = ',')]
    moldable: Vec<f64>,
    /// Repeat the trace and count its second round: the steady state
    #[arg(long)]
    looped: bool,
    /// Jobs have generated names: with --knowledge learning, runs of one program (image, command line) share what was learnt, as
    /// in the operator; with learning-apart they do not. Epochs are then the same work in all runs of a program
    #[arg(long)]
    programs: bool,
    /// Measured delays in seconds (YAML: restart_s, debounce_s, bind_s, first_start_s, stop_s); instead of the cluster file's
    #[arg(long, value_name = "FILE")]
    delays: Option<PathBuf>,
    /// What the planner knows of times and watts, separated by commas
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',', default_value = "learning")]
    knowledge: Vec<Known>,
    /// What replays leave out of what the product meets and does, separated by commas
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',')]
    without: Vec<LeftOut>,
    /// Power budgets as shares of the cluster's peak, separated by commas; instead of the cluster file's
    #[arg(long, value_name = "SHARES", value_delimiter = ',')]
    budget_share: Vec<f64>,
    /// What a restart costs, in seconds; instead of the cluster file's
    #[arg(long, value_name = "S")]
    restart_s: Option<f64>,
    /// Longest time between decisions, in seconds; instead of the cluster file's
    #[arg(long, value_name = "S")]
    tick_s: Option<f64>,
    /// How long a node that sleeps takes to wake, in seconds; instead of the cluster file's
    #[arg(long, value_name = "S")]
    wake_s: Option<f64>,
    /// What time in the system costs, as a share of lateness; instead of the cluster file's
    #[arg(long, value_name = "SHARE")]
    turnaround_share: Option<f64>,
    /// How to print the tables
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Write all figures, job by job, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Output {
    Table,
    Markdown,
    /// The totals alone, as Markdown
    Totals,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Correction {
    On,
    Off,
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Known {
    /// The true times, with the error of --mape, which --correction corrects
    Perfect,
    /// As the product: predicted from model and batch, or from a table with the error of --mape; then from every epoch and every
    /// job, with the operator's rules. --correction has no effect
    Learning,
    /// The same without sharing between runs of one program
    LearningApart,
    /// The first prediction, without any observation
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum LeftOut {
    /// First starts, stops and decisions take no time; restarts do
    Delays,
    /// Jobs save before they stop
    LostWork,
    /// Under a budget, runs count for what is predicted that they draw, measured or not
    Guards,
    /// Weights of waiting and late jobs do not grow
    Aging,
    /// Runs that have just started may be moved
    MinRun,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Asleep {
    /// All nodes stay on
    Never,
    /// After some minutes without a job, until one is placed there
    Rule,
    /// In every gap that is long enough, known beforehand
    Oracle,
}

fn trace(text: &str) -> Result<(Format, PathBuf), String> {
    let (format, path) = text.split_once(':').ok_or("must be FORMAT:PATH, such as itp:cluster04.csv.gz")?;
    Ok((format.parse::<Format>().map_err(|e| e.to_string())?, PathBuf::from(path)))
}

/// Runs the subcommand.
pub fn run(args: &SimulateArgs) -> Result<()> {
    check(args)?;
    let shares: Vec<Option<f64>> =
        if args.moldable.is_empty() { vec![None] } else { args.moldable.iter().copied().map(Some).collect() };
    let mut scenarios = Vec::new();
    for trace in &args.trace {
        for share in &shares {
            scenarios.push(scenario(args, trace, *share)?);
        }
    }
    // Now, and not after an hour of replays.
    if let Some(file) = &args.json {
        let opened = std::fs::File::options().append(true).create(true).open(file);
        opened.with_context(|| file.display().to_string())?;
    }
    let setups = setups(args);
    let jobs: usize = scenarios.iter().map(|s| s.jobs.len()).sum();
    let bar = bar(jobs * setups.len() * args.runs * args.budget_share.len().max(1));
    let watch = Progress { begin: Instant::now(), bar: &bar };
    let mut outcomes = Vec::new();
    for scenario in &scenarios {
        outcomes.push(replays(args, scenario, &setups, &watch)?);
    }
    bar.finish_and_clear();
    let reports: Vec<Report<'_>> =
        scenarios.iter().zip(&outcomes).map(|(scenario, outcomes)| Report { scenario, outcomes }).collect();
    if let Some(file) = &args.json {
        write(file, &report::json(&reports)?)?;
    }
    let mut stdout = io::stdout().lock();
    for report in &reports {
        match args.output {
            Output::Table => writeln!(stdout, "{}", report::table(report))?,
            Output::Markdown => writeln!(stdout, "{}", report::markdown(report))?,
            Output::Totals => continue,
        }
        for line in gang_waits(&setups, report) {
            writeln!(stdout, "{line}\n")?;
        }
    }
    if reports.len() > 1 || args.output == Output::Totals {
        write!(stdout, "{}", report::matrix(&reports))?;
    }
    stdout.flush()?;
    Ok(())
}

/// All replays of a scenario: at each budget, under each setup.
fn replays(
    args: &SimulateArgs,
    scenario: &Scenario,
    setups: &[Setup],
    watch: &Progress<'_>,
) -> Result<Vec<Outcome>> {
    let of = |scenario: &Scenario| {
        run_all(scenario, setups, args.runs, watch)
            .map_err(|(method, e)| anyhow!("{}: {method}: {e}", scenario.name))
    };
    if args.budget_share.is_empty() {
        return of(scenario);
    }
    let peak = peak(&scenario.gpu_types, &scenario.nodes);
    let mut outcomes = Vec::new();
    for share in &args.budget_share {
        let budget = Some(StepFunction::flat(peak * *share));
        for mut outcome in of(&Scenario { budget, ..scenario.clone() })? {
            let label = format!("budget {:.0} % {}", 100.0 * share, outcome.label);
            label.trim_end().clone_into(&mut outcome.label);
            outcomes.push(outcome);
        }
    }
    Ok(outcomes)
}

/// How long gangs wait with less knowledge, of each such row that has one beside it where the planner knows all.
fn gang_waits(setups: &[Setup], report: &Report<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    // The same setups for each budget.
    for outcomes in report.outcomes.chunks(setups.len().max(1)) {
        for (setup, outcome) in setups.iter().zip(outcomes) {
            let knows_all = |other: &Setup| {
                other.knowledge == Knowledge::Tables
                    && other.error.mape <= 0.0
                    && (other.method, other.sleep) == (setup.method, setup.sleep)
            };
            let reference = setups.iter().position(knows_all);
            let reference = reference.filter(|_| setup.knowledge != Knowledge::Tables);
            let line = reference.and_then(|row| report::gang_waits(report.scenario, &outcomes[row], outcome));
            lines.extend(line);
        }
    }
    lines
}

fn check(args: &SimulateArgs) -> Result<()> {
    if !(args.pace > 0.0 && args.pace <= 1e6) {
        bail!(Usage(format!("--pace: {} is not above 0 and at most 1e6", args.pace)));
    }
    if !(1..=1000).contains(&args.runs) {
        bail!(Usage(format!("--runs: {} is not between 1 and 1000", args.runs)));
    }
    let bounds: [(&str, &[f64], f64, f64, &str); 7] = [
        ("moldable", args.moldable.as_slice(), 0.0, 1.0, "0 and 1"),
        ("mape", args.mape.as_slice(), 0.0, 2.0, "0 and 2"),
        ("budget-share", args.budget_share.as_slice(), 0.0, 10.0, "0 and 10"),
        ("restart-s", args.restart_s.as_slice(), 0.0, 1e9, "0 and 1e9"),
        ("tick-s", args.tick_s.as_slice(), 1.0, 1e9, "1 and 1e9"),
        ("wake-s", args.wake_s.as_slice(), 0.0, 1e6, "0 and 1e6"),
        ("turnaround-share", args.turnaround_share.as_slice(), 0.0, 1e6, "0 and 1e6"),
    ];
    for (flag, values, lowest, highest, between) in bounds {
        if let Some(value) = values.iter().find(|value| !(lowest..=highest).contains(*value)) {
            bail!(Usage(format!("--{flag}: {value} is not between {between}")));
        }
    }
    Ok(())
}

fn scenario(
    args: &SimulateArgs,
    (format, path): &(Format, PathBuf),
    moldable: Option<f64>,
) -> Result<Scenario> {
    let range = TraceRange {
        skip: args.skip,
        take: args.jobs.unwrap_or(usize::MAX),
        pace: args.pace,
        moldable,
        looped: args.looped,
        programs: args.programs,
    };
    let mut scenario = match (format, &args.cluster) {
        (Format::Andreas, None) if args.pace != 1.0 => {
            bail!(Usage("--pace: an instance of ANDREAS keeps its own".into()))
        }
        (Format::Andreas, None) if args.looped || moldable.is_some() => {
            bail!(Usage("--looped, --moldable: an instance of ANDREAS is replayed as it is".into()))
        }
        (Format::Andreas, None) => {
            let mut scenario = readers::andreas::read(path, Seconds::ZERO)?;
            scenario.jobs = scenario.jobs.into_iter().skip(range.skip).take(range.take).collect();
            scenario
        }
        (Format::Andreas, Some(_)) => {
            bail!(Usage("--cluster: an instance of ANDREAS brings its own cluster".into()))
        }
        (_, None) => bail!(Usage("--cluster is missing: only an instance of ANDREAS brings its own".into())),
        (_, Some(cluster)) => readers::scenario(*format, path, cluster, range)?,
    };
    if let Some(share) = moldable {
        scenario.name = format!("{}, {:.0} % moldable", scenario.name, 100.0 * share);
    }
    if let Some(file) = &args.delays {
        let (restart, delays) = readers::delays(file)?;
        scenario.restart = restart.unwrap_or(scenario.restart);
        scenario.delays = delays;
    }
    if let Some(restart) = args.restart_s {
        scenario.restart = Seconds(restart);
    }
    if let Some(tick) = args.tick_s {
        scenario.tick = Some(Seconds(tick));
    }
    if let Some(wake) = args.wake_s {
        scenario.sleep.wake_s = wake;
    }
    if args.without.contains(&LeftOut::Delays) {
        scenario.delays = Delays::default();
    }
    if args.without.contains(&LeftOut::LostWork) {
        scenario.checkpoint = Seconds::ZERO;
    }
    if let Some(share) = args.turnaround_share {
        scenario.lateness.turnaround_share = share;
    }
    Ok(scenario)
}

/// The product's rules, without those that are left out.
fn policy(args: &SimulateArgs) -> ProductPolicy {
    let all = ProductPolicy::default();
    let has = |part| !args.without.contains(&part);
    ProductPolicy {
        aging: all.aging.filter(|_| has(LeftOut::Aging)),
        min_run: if has(LeftOut::MinRun) { all.min_run } else { Seconds::ZERO },
        guards: has(LeftOut::Guards),
    }
}

fn setups(args: &SimulateArgs) -> Vec<Setup> {
    let mut setups = Vec::new();
    for &mape in &args.mape {
        for &known in &args.knowledge {
            let corrections: &[bool] = match args.correction {
                _ if mape <= 0.0 || known != Known::Perfect => &[false],
                Correction::On => &[true],
                Correction::Off => &[false],
                Correction::Both => &[false, true],
            };
            for &corrected in corrections {
                for (&method, &asleep) in args
                    .methods
                    .iter()
                    .flat_map(|method| args.sleep.iter().map(move |asleep| (method, asleep)))
                {
                    let error = PredictionError { mape, corrected, stated: true, seed: args.seed };
                    let knowledge = match known {
                        Known::Perfect => Knowledge::Tables,
                        Known::Learning => Knowledge::Learning,
                        Known::LearningApart => Knowledge::LearningApart,
                        Known::None => Knowledge::Unlearned,
                    };
                    let mut label = label(mape, corrected, known, args.knowledge.len() > 1);
                    let sleep = match asleep {
                        Asleep::Never => Sleep::Never,
                        Asleep::Rule => Sleep::Rule,
                        Asleep::Oracle => Sleep::Oracle,
                    };
                    let word = match asleep {
                        Asleep::Never => "",
                        Asleep::Rule => "node sleep",
                        Asleep::Oracle => "node sleep, oracle",
                    };
                    label = format!("{label} {word}").trim().to_owned();
                    setups.push(Setup {
                        method,
                        seed: args.seed,
                        trials: args.trials,
                        error,
                        knowledge,
                        policy: policy(args),
                        sleep,
                        label,
                    });
                }
            }
        }
    }
    setups
}

/// What distinguishes a variant from the others.
fn label(mape: f64, corrected: bool, known: Known, several: bool) -> String {
    let mut words = Vec::new();
    if mape > 0.0 {
        words.push(format!("MAPE {:.0} %", 100.0 * mape));
    }
    words.extend(match known {
        Known::Perfect if corrected => Some("corrected".to_owned()),
        Known::Perfect => (several && mape <= 0.0).then(|| "knowing all".to_owned()),
        Known::Learning => Some("learning".to_owned()),
        Known::LearningApart => Some("learning, each job by itself".to_owned()),
        Known::None => Some("not learning".to_owned()),
    });
    words.join(" ")
}

/// A bar that counts jobs that have ended, on a terminal only.
fn bar(jobs: usize) -> ProgressBar {
    let target =
        if io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(jobs as u64), target);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} jobs, {elapsed} (about {eta} left)")
    {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

struct Progress<'a> {
    begin: Instant,
    bar: &'a ProgressBar,
}

impl Watch for Progress<'_> {
    fn seconds(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    fn ended(&self, jobs: usize) {
        self.bar.inc(jobs as u64);
    }
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| file.display().to_string())
}
