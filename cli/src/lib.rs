//! The command line: `kubectl-andreas` (and `kubectl andreas`, once it is on the PATH).
//!
//! **Holds** the commands' arguments and what they print.
//!
//! | commands | where their answers come from |
//! |---|---|
//! | `queue`, `explain`, `whatif`, `can` | the operator's query API (`ask`) |
//! | `nodes`, `budget`, `acct`, `doctor` | objects of the API server (`inventory`, `account`, `doctor`) |
//! | `submit`, `logs`, `suspend`, `resume`, `cancel` | they read and write TrainingJobs and their pods (`jobs`) |
//! | `convert` | files ([`convert`]) |
//! | `profile`, `snapshot` | the API server and the operator, as files |
//! | `completion` | the definition of the commands (`shell`) |
//!
//! **Flows**: arguments, files and standard input in; tables and JSON out.
//!
//! **Must never be here**: a policy, an estimate, a cost. A panic on any input.

// They panic where the output is closed or full: `output::print`, `output::print_error`.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod account;
mod ask;
mod budget;
pub mod cluster;
pub mod convert;
mod doctor;
pub mod exit;
mod input;
mod inventory;
pub mod jobs;
mod name;
mod nodes;
pub mod output;
pub mod profile;
mod shell;
mod snapshot;
mod when;

use anyhow::Result;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

/// Deadline-, weight- and energy-aware scheduling of training jobs: ask, submit, watch, account.
#[derive(Debug, Parser)]
#[command(name = "kubectl-andreas", version, disable_help_subcommand = true, after_long_help = exit::CODES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Queue(ask::QueueArgs),
    Explain(ask::ExplainArgs),
    Whatif(ask::WhatIfArgs),
    Can(ask::CanArgs),
    Submit(Box<jobs::SubmitArgs>),
    Logs(jobs::LogsArgs),
    Wait(jobs::WaitArgs),
    /// Suspend: stop running jobs with a checkpoint, and hold waiting ones, until they are resumed.
    ///
    /// Sets spec.suspend. A job without a checkpoint starts again from its beginning later. Needs the right to patch TrainingJobs.
    Suspend(jobs::ControlArgs),
    /// Resume: let suspended jobs be planned again.
    ///
    /// Needs the right to patch TrainingJobs.
    Resume(jobs::ControlArgs),
    /// Cancel: end jobs for good.
    ///
    /// Deletes the TrainingJobs with their pods; checkpoints stay. What the jobs used is no longer in `acct` then: suspend a job to keep
    /// its record. Of a TrainingJob that stands for a Job, TrainJob... that one is deleted: its TrainingJob goes with it, and would else be
    /// made again. Needs the right to get TrainingJobs, and to delete what is deleted.
    Cancel(jobs::ControlArgs),
    Convert(convert::ConvertArgs),
    Nodes(nodes::NodesArgs),
    Budget(budget::BudgetArgs),
    Acct(account::AcctArgs),
    Doctor(doctor::DoctorArgs),
    Profile(profile::ProfileArgs),
    Snapshot(snapshot::SnapshotArgs),
    Completion(shell::CompletionArgs),
}

/// The program's arguments; ends the program where they make no sense, or ask for help.
pub fn arguments() -> Cli {
    let matches = allow_negative_values(Cli::command()).get_matches();
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// Passes values such as that of `--tail -1` to the check of the flag before them; else they would be read as flags.
fn allow_negative_values(command: clap::Command) -> clap::Command {
    let takes = |arg: clap::Arg| {
        let value = arg.get_action().takes_values() && !arg.is_last_set() && !arg.is_positional();
        arg.allow_negative_numbers(value)
    };
    command.mut_args(takes).mut_subcommands(allow_negative_values)
}

/// Does what the arguments say.
///
/// # Errors
/// Whatever goes wrong, with the file and field it is about.
pub fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Queue(args) => ask::queue(&args),
        Command::Explain(args) => ask::explain(&args),
        Command::Whatif(args) => ask::what_if(&args),
        Command::Can(args) => ask::can(&args),
        Command::Submit(args) => jobs::submit(&args),
        Command::Logs(args) => jobs::logs(&args),
        Command::Wait(args) => jobs::wait(&args),
        Command::Suspend(args) => jobs::control(&args, jobs::Action::Suspend),
        Command::Resume(args) => jobs::control(&args, jobs::Action::Resume),
        Command::Cancel(args) => jobs::control(&args, jobs::Action::Cancel),
        Command::Convert(args) => convert::run(&args),
        Command::Nodes(args) => nodes::run(&args),
        Command::Budget(args) => budget::run(&args),
        Command::Acct(args) => account::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Snapshot(args) => snapshot::run(&args),
        Command::Completion(args) => shell::completion(&args, Cli::command()),
    }
}

/// Whether an error says that the reader of our output has closed it.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    })
}
