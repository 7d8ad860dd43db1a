//! The command line: `kubectl-andreas` (and `kubectl andreas`, once it is on the PATH).
//!
//! **Holds** the commands' arguments and what they print.
//!
//! | commands | where their answers come from |
//! |---|---|
//! | `queue`, `explain`, `whatif`, `can` | the operator's query API (`ask`) |
//! | `ui` | the same and objects of the API server, as a page on this machine (`ui`) |
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
mod ui;
mod when;

use std::ffi::OsString;

use anyhow::Result;
use clap::{Args as _, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use cluster::{ConnectArgs, Namespaces};

/// Flags that the help of commands leaves out.
const GLOBAL: &str = "Also as kubectl has them, for every command: --cluster, --user, --server (-s), --token, --as, --as-group, \
                      --insecure-skip-tls-verify. Flags of the cluster may stand before the command.";

/// Deadline-, weight- and energy-aware scheduling of training jobs: ask, submit, watch, account.
#[derive(Debug, Parser)]
#[command(name = "kubectl-andreas", bin_name = "kubectl andreas", version, disable_help_subcommand = true, after_help = GLOBAL, after_long_help = format!("{GLOBAL}\n\n{}", exit::CODES))]
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
    Ui(ui::UiArgs),
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
    let command = allow_negative_values(Cli::command());
    let given = behind_their_command(std::env::args_os().collect(), &command);
    let matches = command.get_matches_from(given);
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// As kubectl, takes flags of the cluster and its namespaces before a command too: they are moved behind it.
fn behind_their_command(mut given: Vec<OsString>, command: &clap::Command) -> Vec<OsString> {
    let global = ConnectArgs::augment_args(Namespaces::augment_args(clap::Command::new("global")));
    // How many words a flag takes with its value; 0 for what is none of these flags.
    let words = |text: &str| {
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let long =
            |arg: &&clap::Arg| name.strip_prefix("--").is_some_and(|name| arg.get_long() == Some(name));
        let short = |arg: &&clap::Arg| {
            let letters = name.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
            letters.is_some_and(|letters| arg.get_short().is_some_and(|short| letters.starts_with(short)))
        };
        let of_short = global.get_arguments().find(short);
        let Some(arg) = global.get_arguments().find(long).or(of_short) else { return 0 };
        let attached = value.is_some() || (of_short.is_some() && name.len() > 2);
        1 + usize::from(arg.get_action().takes_values() && !attached)
    };
    let mut begin = 1;
    while let Some(count) = given.get(begin).and_then(|text| text.to_str()).map(words).filter(|n| *n > 0) {
        begin += count;
    }
    let (mut end, mut of) = (begin, command);
    while let Some(next) =
        given.get(end).and_then(|text| text.to_str()).and_then(|name| of.find_subcommand(name))
    {
        (of, end) = (next, end + 1);
    }
    if end > begin {
        given[1..end].rotate_left(begin - 1);
    }
    given
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
        Command::Ui(args) => ui::run(&args),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_the_cluster_stand_before_a_command_or_behind_it() {
        let command = Cli::command();
        let moved = |text: &str| {
            let given = text.split(' ').map(OsString::from).collect();
            let moved = behind_their_command(given, &command);
            moved.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
        };
        for (given, expected) in [
            ("k --kubeconfig F -n team queue --wide", "k queue --kubeconfig F -n team --wide"),
            (
                "k --context=c -nteam --insecure-skip-tls-verify nodes n1",
                "k nodes --context=c -nteam --insecure-skip-tls-verify n1",
            ),
            ("k --as queue queue", "k queue --as queue"),
            ("k -A queue", "k queue -A"),
            ("k --context c profile export p", "k profile export --context c p"),
            ("k submit j -- -n 3 queue", "k submit j -- -n 3 queue"),
            ("k --nonsense queue", "k --nonsense queue"),
            ("k --version", "k --version"),
            ("k -n", "k -n"),
        ] {
            assert_eq!(moved(given), expected, "{given}");
        }
        let text =
            "k queue --as a --as-group g --user u --cluster c -s https://h --token t --request-timeout 30s";
        assert!(Cli::try_parse_from(text.split(' ')).is_ok());
    }
}
