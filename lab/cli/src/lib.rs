//! The command line of the laboratory: plans, replays and predictions without a cluster.
//!
//! **Holds** the commands `plan` (a saved snapshot, or the line protocol of [`stdio`]), `simulate` (traces under any
//! method) and `profile` (the predictor on tables of measurements).
//!
//! **Flows**: files and standard input in; tables, JSON and decisions out. Product plans come from the planner, as the
//! operator's do; those of other systems' methods from `andreas-baselines`; predictions from `andreas-predictor`.
//!
//! **Must never be here**: a policy, an estimate, a cost, a cluster. A panic on any input.

mod plan;
pub mod profile;
mod reason;
mod simulate;
pub mod stdio;

use std::fmt;
use std::io;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Plan saved snapshots, replay traces and evaluate predictions, without a cluster.
#[derive(Debug, Parser)]
#[command(name = "andreas-lab", version, disable_help_subcommand = true, after_long_help = CODES)]
pub struct Lab {
    #[command(subcommand)]
    command: Command,
}

/// The arguments make no sense together.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Whether an error says that the reader of our output has closed it.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.into_iter().any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

const CODES: &str = "Exit codes: 0 done; 1 something failed; 2 the arguments make no sense.";

#[derive(Debug, Subcommand)]
enum Command {
    Plan(plan::PlanArgs),
    Simulate(Box<simulate::SimulateArgs>),
    Profile(profile::ProfileArgs),
}

/// Runs what the arguments ask for.
///
/// # Errors
/// Whatever goes wrong, with the file and field it is about.
pub fn run(lab: Lab) -> Result<()> {
    match lab.command {
        Command::Plan(args) => plan::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Profile(args) => profile::run(&args),
    }
}
