//! Benchmarks on the real control plane: `bench NAME`. Each starts its own test beds, prints what it does, ends with a
//! table, and writes the same as JSON and into a Markdown file when asked.
//!
//! | file | what it holds |
//! |---|---|
//! | `bed` | test beds for measuring, jobs and load |
//! | `trace` | the audit log as figures: who wrote what, when each job was bound |
//! | `usage` | CPU time and memory of processes, from `/proc` |
//! | `profile` | what the API server spends its CPU time on |
//! | `report` | tables, and the machine that they were taken on |
//! | `bind`, `overload`, `waiting` | the operator under load and at rest |
//! | `ask` | questions through the API server |
//! | `extender`, `filter` | the extender through the real scheduler, and called directly |
//! | `agent` | the node agent at rest |
//!
//! **In**: flags. **Out**: tables. **Must never be here**: a figure that is computed from anything but what was measured.

mod agent;
mod ask;
mod bed;
mod bind;
mod extender;
mod filter;
mod overload;
mod profile;
mod report;
mod trace;
mod usage;
mod waiting;

use std::path::PathBuf;

use andreas_e2e::outputs::check_writable;
use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use report::{Machine, Report};

/// Measures ANDREAS on a real control plane with pretend nodes.
#[derive(Clone, Debug, Parser)]
#[command(name = "bench", about = "Measures ANDREAS on a real control plane with pretend nodes")]
pub struct BenchArgs {
    #[command(subcommand)]
    what: What,
    #[command(flatten)]
    to: Destinations,
}

/// Where the figures go beside the terminal.
#[derive(Clone, Debug, Args)]
struct Destinations {
    /// Write the figures as JSON to this file, one object per table in a list.
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Put the tables into this Markdown file, each in place of the one before between its marks, else at the end.
    #[arg(long, global = true, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

#[derive(Clone, Debug, Subcommand)]
enum What {
    /// From the first apply to all bound, beside the plain Job controller and default scheduler.
    Bind(bind::BindArgs),
    /// More gangs than GPUs: makespan and GPU use.
    Overload(overload::OverloadArgs),
    /// Thousands of waiting jobs: the operator at rest, one plan, and its start-up.
    Waiting(waiting::WaitingArgs),
    /// The extender: calls over loopback, and pods per second through the real scheduler.
    Extender(extender::ExtenderArgs),
    /// The node agent with idle GPUs and with a run.
    Agent(agent::AgentArgs),
    /// All of them.
    All {
        /// Reduced sizes, a row for every benchmark in some minutes: for finding mistakes, not for figures.
        #[arg(long)]
        quick: bool,
    },
}

/// Runs what the flags say.
///
/// # Errors
/// When a test bed does not start or something that was to be measured did not happen.
pub async fn run(args: BenchArgs) -> Result<()> {
    for path in args.to.json.iter().chain(&args.to.markdown) {
        check_writable(path)?;
    }
    let mut out = Output { to: args.to, reports: Vec::new(), machine: Machine::look().await };
    say(&out.machine.to_string());
    match &args.what {
        What::Bind(bind) => bind::run(bind, &mut out).await,
        What::Overload(overload) => overload::run(overload, &mut out).await,
        What::Waiting(waiting) => waiting::run(waiting, &mut out).await,
        What::Extender(extender) => extender::run(extender, &mut out).await,
        What::Agent(agent) => agent::run(agent, &mut out).await,
        What::All { quick } => all(*quick, &mut out).await,
    }
}

async fn all(quick: bool, out: &mut Output) -> Result<()> {
    let mut failed = Vec::new();
    let mut note = |name: &str, outcome: Result<()>| {
        if let Err(error) = outcome {
            say(&format!("{name}: {error:#}"));
            failed.push(name.to_owned());
        }
    };
    note("agent", agent::run(&agent::AgentArgs::preset(quick), out).await);
    note("extender", extender::run(&extender::ExtenderArgs::preset(quick), out).await);
    note("bind", bind::run(&bind::BindArgs::preset(quick), out).await);
    note("overload", overload::run(&overload::OverloadArgs::preset(quick), out).await);
    note("waiting", waiting::run(&waiting::WaitingArgs::preset(quick), out).await);
    anyhow::ensure!(failed.is_empty(), "not measured: {}", failed.join(", "));
    Ok(())
}

/// Takes finished tables: to the terminal at once, and to the files.
struct Output {
    to: Destinations,
    reports: Vec<serde_json::Value>,
    machine: Machine,
}

impl Output {
    fn add(&mut self, report: &Report) -> Result<()> {
        let text = report.markdown(&self.machine);
        println!("\n{text}");
        self.reports.push(report.json(&self.machine));
        if let Some(path) = &self.to.json {
            std::fs::write(path, serde_json::to_vec_pretty(&self.reports)?)?;
        }
        if let Some(path) = &self.to.markdown {
            report::put_into(path, report.name, &text)?;
        }
        Ok(())
    }
}

fn say(line: &str) {
    eprintln!("{line}");
}
