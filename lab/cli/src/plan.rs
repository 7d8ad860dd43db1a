//! `andreas-lab plan`: one saved snapshot, or a stream of states.

use std::fs;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use andreas_baselines::{Memory, Method, Options, Scheduler, Tickets};
use andreas_model::{Joules, NamespaceName, Time, Watts};
use andreas_planner::{Plan, Snapshot};
use anyhow::{Context, Result, anyhow};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use comfy_table::{ContentArrangement, Table, presets};

use crate::reason::reason;
use crate::stdio::{self, Session};

/// Plan: who runs where, with how many GPUs, and why the others wait.
///
/// With --snapshot, one decision for a saved snapshot of a cluster. With --stdio, one decision for each state that
/// comes as a line of JSON on standard input, until it ends.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("input").required(true).args(["stdio", "snapshot"]))]
pub struct PlanArgs {
    /// Read a JSON state per line from standard input, write a JSON decision per line to standard output
    #[arg(long)]
    stdio: bool,
    /// A saved snapshot (JSON)
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,
    /// How to decide
    ///
    /// Without: what a snapshot saved from an operator says, else randomized-greedy
    #[arg(long, value_name = "METHOD", value_parser = method_parser())]
    method: Option<Method>,
    /// Seed of randomised methods; the same seed gives the same plan on every machine. Without: the operator's, else 0
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Most trials of a randomised method. Without: the operator's, else 1000
    #[arg(long, value_name = "N")]
    trials: Option<u64>,
    /// How far above its proven bound a plan may be, as part of its cost, from 0 (as near as the trials reach) to
    /// below 1: the more, the less time it takes. 0.003 is 0.3 %
    #[arg(long, value_parser = gap, allow_negative_numbers = true)]
    gap: Option<f64>,
    /// With --stdio: add "_plan" with cost, bound, gap, and a reason for each job
    #[arg(long, requires = "stdio")]
    explain: bool,
    /// How to print the plan of a snapshot
    #[arg(long, short, value_enum, default_value_t = Output::Table, conflicts_with = "stdio")]
    output: Output,
    /// The same as --output json
    #[arg(long, conflicts_with = "stdio")]
    json: bool,
}

/// Most that a budget may allow; an operator's snapshot says more where no window limits the draw.
const MOST_BUDGET: Watts = Watts(1e9);

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Output {
    Table,
    Json,
}

/// Method names as clap knows them, so that --help lists them.
pub fn method_parser() -> impl TypedValueParser<Value = Method> {
    PossibleValuesParser::new(Method::ALL.map(Method::as_str)).try_map(|name| name.parse::<Method>())
}

/// Runs the subcommand.
pub fn run(args: &PlanArgs) -> Result<()> {
    let stdout = BufWriter::new(io::stdout().lock());
    match &args.snapshot {
        Some(file) => {
            let (snapshot, saved) = read(file)?;
            let scheduler = Scheduler { options: options(args, saved.options), ..saved };
            one(file, &snapshot, scheduler, args.json || args.output == Output::Json, stdout)
        }
        None => {
            let mut session = Session::new(options(args, Options::default()), args.explain);
            stdio::serve(&mut session, BufReader::new(io::stdin().lock()), stdout)
                .context("standard input or output")
        }
    }
}

fn gap(text: &str) -> Result<f64, String> {
    let gap: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..1.0).contains(&gap) { Ok(gap) } else { Err("not from 0 to below 1".to_owned()) }
}

/// What the arguments say, else what was saved.
fn options(args: &PlanArgs, saved: Options) -> Options {
    Options {
        method: args.method.unwrap_or(saved.method),
        seed: args.seed.unwrap_or(saved.seed),
        trials: args.trials.unwrap_or(saved.trials),
        gap: args.gap.unwrap_or(saved.gap),
        ..saved
    }
}

/// A plan, and what its method remembers of it.
#[derive(serde::Serialize)]
struct Planned<'a> {
    #[serde(flatten)]
    plan: &'a Plan,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<Memory>,
}

fn one(
    file: &Path,
    snapshot: &Snapshot,
    mut scheduler: Scheduler,
    json: bool,
    mut out: impl Write,
) -> Result<()> {
    let plan = scheduler.plan(snapshot).with_context(|| file.display().to_string())?;
    if json {
        let planned = Planned { plan: &plan, memory: scheduler.memory };
        serde_json::to_writer_pretty(&mut out, &planned).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        writeln!(out, "{}", table(snapshot, &plan))?;
        writeln!(out, "{}", summary(&plan))?;
    }
    out.flush()?;
    Ok(())
}

/// What a saved snapshot says beside what the planner reads.
#[derive(serde::Deserialize)]
struct Saved {
    #[serde(rename = "_options", default)]
    options: Options,
    #[serde(default)]
    memory: Option<Memory>,
    #[serde(default)]
    namespaces: Vec<Share>,
}

/// Tickets of a namespace; none: 1.
#[derive(serde::Deserialize)]
struct Share {
    name: NamespaceName,
    tickets: Option<f64>,
}

/// A saved snapshot, and a scheduler with the options that were saved with it.
fn read(file: &Path) -> Result<(Snapshot, Scheduler)> {
    let name = file.display();
    let text = fs::read(file).with_context(|| format!("{name}"))?;
    let mut decoder = serde_json::Deserializer::from_slice(&text);
    let snapshot: Snapshot = serde_path_to_error::deserialize(&mut decoder)
        .map_err(|e| anyhow!("{name}: {}: {}", e.path(), e.inner()))?;
    decoder.end().with_context(|| format!("{name}: after the snapshot"))?;
    let mut decoder = serde_json::Deserializer::from_slice(&text);
    let saved: Saved = serde_path_to_error::deserialize(&mut decoder)
        .map_err(|e| anyhow!("{name}: {}: {}", e.path(), e.inner()))?;
    let tickets = saved.namespaces.into_iter().filter_map(|share| Some((share.name, share.tickets?)));
    let tickets = Tickets(tickets.collect());
    Ok((snapshot, Scheduler { options: saved.options, tickets, memory: saved.memory }))
}

fn table(snapshot: &Snapshot, plan: &Plan) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header([
        "JOB", "GPUS", "TYPE", "NODES", "LIMIT", "FINISH", "DEADLINE", "ON TIME", "ENERGY", "COST", "REASON",
    ]);
    for job in &snapshot.jobs {
        let Some(decided) = plan.jobs.get(&job.id) else { continue };
        let place = decided.decision.placement();
        let cell = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        table.add_row([
            job.id.to_string(),
            cell(place.map(|p| p.total_gpus().to_string())),
            cell(place.map(|p| p.gpu_type.to_string())),
            cell(place.map(|p| p.nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))),
            cell(place.and_then(|p| p.limit).map(|l| l.to_string())),
            cell(decided.finish.map(|t| from_now(plan.now, t))),
            cell(job.deadline.map(|t| from_now(plan.now, t))),
            cell(job.deadline.map(|_| format!("{:.0} %", 100.0 * decided.on_time))),
            energy(decided.energy),
            format!("{:.4}", decided.cost.0),
            reason(decided),
        ]);
    }
    table
}

fn energy(joules: Joules) -> String {
    if joules.0 > 0.0 { format!("{:.3} kWh", joules.kwh()) } else { "-".to_owned() }
}

/// `+1h05m`, or `-12m` for an instant that has passed.
fn from_now(now: Time, then: Time) -> String {
    let seconds = (then - now).0;
    let sign = if seconds < 0.0 { '-' } else { '+' };
    let minutes = (seconds.abs() / 60.0).round();
    let (hours, rest) = ((minutes / 60.0).floor(), minutes % 60.0);
    if hours > 0.0 { format!("{sign}{hours}h{rest:02}m") } else { format!("{sign}{rest}m") }
}

fn summary(plan: &Plan) -> String {
    let runs = plan.jobs.values().filter(|j| j.decision.placement().is_some()).count();
    let mut text = format!(
        "{}, seed {}, {} trials: {runs} of {} jobs run, cost {:.4}",
        plan.method,
        plan.seed,
        plan.trials,
        plan.jobs.len(),
        plan.cost.0
    );
    if let (Some(bound), Some(gap)) = (plan.bound, plan.gap) {
        text += &format!(", bound {:.4}, gap {:.3} %", bound.0, 100.0 * gap);
    }
    if let Some(allowed) = plan.allowed_power.filter(|watts| *watts <= MOST_BUDGET) {
        text += &format!(", {:.0} W of {:.0} W", plan.budgeted_power.0, allowed.0);
    }
    text
}
