//! Completion of `kubectl andreas`: kubectl runs this program under the name `kubectl_complete-andreas` with the words so far,
//! and completes by what that prints (kubectl 1.26 and later, "Shell completion for plugins"). clap_complete has an engine for the
//! like, but marks it as unstable, and knows no names of jobs.

use std::collections::BTreeSet;
use std::path::Path;

use andreas_api::slim::SlimTrainingJob;
use clap::builder::StyledStr;
use clap::{Arg, Command};
use kube::ResourceExt as _;

use crate::cluster::{Cluster, ConnectArgs, Selection, block_on};

/// The name under which kubectl looks for it.
const NAME: &str = "kubectl_complete-andreas";
/// Directives of cobra's protocol: the shell completes files; it completes nothing else.
const FILES: u8 = 0;
const NOTHING_ELSE: u8 = 4;
/// Seconds that the names of jobs may take.
const LIMIT: u64 = 2;
/// Maximum names of jobs.
const MOST: usize = 1_000;

/// Whether a program that was started by this name is asked for completions.
pub fn is_asked_as(program: &str) -> bool {
    Path::new(program).file_stem().is_some_and(|name| name == NAME)
}

/// What the last word may be.
#[derive(Debug, PartialEq, Eq)]
enum Word {
    /// One of these, each with what it is.
    OneOf(Vec<(String, String)>),
    /// A job's name.
    Job,
    /// A file or folder.
    File,
    /// Anything.
    Free,
}

/// Lines for kubectl: one for each completion, with a tab before what it is, and the directive. The last word is the one to complete,
/// and may be empty.
pub fn lines(command: Command, words: &[String]) -> String {
    let (last, before) = words.split_last().map_or(("", words), |(last, before)| (last.as_str(), before));
    let (found, directive) = match wanted(command, before, last) {
        Word::OneOf(all) => (all, NOTHING_ELSE),
        Word::Job => (jobs(before).into_iter().map(|name| (name, String::new())).collect(), NOTHING_ELSE),
        Word::File => (Vec::new(), FILES),
        Word::Free => (Vec::new(), NOTHING_ELSE),
    };
    let mut text = String::new();
    for (word, what) in found.into_iter().filter(|(word, _)| word.starts_with(last)) {
        text += &if what.is_empty() { format!("{word}\n") } else { format!("{word}\t{what}\n") };
    }
    text + &format!(":{directive}\n")
}

fn wanted(mut command: Command, before: &[String], last: &str) -> Word {
    command.build();
    let mut at = &command;
    let mut value_of: Option<&Arg> = None;
    let mut positional = 0;
    for word in before {
        if value_of.take().is_some() {
            continue;
        }
        if word == "--" {
            return Word::File;
        }
        if word.starts_with('-') {
            value_of = flag(at, word).filter(|arg| arg.get_action().takes_values() && !word.contains('='));
        } else if let Some(below) = at.find_subcommand(word) {
            (at, positional) = (below, 0);
        } else {
            positional += 1;
        }
    }
    if let Some(arg) = value_of {
        return value(arg);
    }
    if last.starts_with('-') {
        let flags = at.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_long().is_some());
        return Word::OneOf(
            flags
                .map(|arg| (format!("--{}", arg.get_long().unwrap_or_default()), first_line(arg.get_help())))
                .collect(),
        );
    }
    if at.has_subcommands() {
        let below = at.get_subcommands().filter(|below| !below.is_hide_set());
        return Word::OneOf(
            below.map(|below| (below.get_name().to_owned(), first_line(below.get_about()))).collect(),
        );
    }
    // The last positional may take several words.
    let all: Vec<&Arg> = at.get_positionals().collect();
    let several = |arg: &&&Arg| arg.get_num_args().is_some_and(|count| count.max_values() > 1);
    let arg = all.get(positional).or_else(|| all.last().filter(several)).copied();
    arg.map_or(Word::Free, value)
}

/// The flag of a word: `--name`, `--name=value`, `-n`.
fn flag<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let name = word.split('=').next().unwrap_or(word);
    command.get_arguments().find(|arg| match name.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => {
            arg.get_short().is_some_and(|short| name.strip_prefix('-') == Some(short.to_string().as_str()))
        }
    })
}

/// What the value of a flag or a positional may be.
fn value(arg: &Arg) -> Word {
    let possible = arg.get_possible_values();
    if !possible.is_empty() {
        let all = possible.iter().filter(|one| !one.is_hide_set());
        return Word::OneOf(all.map(|one| (one.get_name().to_owned(), first_line(one.get_help()))).collect());
    }
    match arg.get_value_names().unwrap_or_default().first().map(|name| name.as_str()) {
        Some("JOB") => Word::Job,
        Some("FILE" | "FOLDER" | "PATH") => Word::File,
        _ => Word::Free,
    }
}

fn first_line(text: Option<&StyledStr>) -> String {
    text.and_then(|text| text.to_string().lines().next().map(str::to_owned)).unwrap_or_default()
}

/// Names of the TrainingJobs of the namespace that the words select, without those that are among them; none if the cluster does not
/// answer soon.
fn jobs(words: &[String]) -> Vec<String> {
    let of = |names: &[&str]| {
        let at = words.iter().rposition(|word| names.contains(&word.split('=').next().unwrap_or(word)))?;
        words[at].split_once('=').map(|(_, value)| value.to_owned()).or_else(|| words.get(at + 1).cloned())
    };
    let args = ConnectArgs {
        context: of(&["--context"]),
        kubeconfig: of(&["--kubeconfig"]).map(Into::into),
        request_timeout: LIMIT,
    };
    let namespace = of(&["--namespace", "-n"]);
    let listed = block_on(async {
        let cluster = Cluster::connect(&args).await?.without_warnings();
        let namespace = cluster.namespace_or(namespace.as_deref());
        Ok(cluster.list::<SlimTrainingJob>(Some(&namespace), &Selection::default()).await?)
    });
    let typed: BTreeSet<&str> = words.iter().map(String::as_str).collect();
    let names = listed.map(|listed| listed.items).unwrap_or_default().into_iter().map(|job| job.name_any());
    names.filter(|name| !typed.contains(name.as_str())).take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn completed(line: &str) -> Vec<String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let text = lines(crate::Cli::command(), &words);
        text.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect()
    }

    fn wanted_in(line: &str) -> Word {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let (last, before) = words.split_last().unwrap();
        wanted(crate::Cli::command(), before, last)
    }

    #[test]
    fn commands_flags_and_values_are_completed() {
        assert_eq!(completed("wh"), ["whatif", ":4"]);
        assert!(completed("").contains(&"queue".to_owned()));
        assert_eq!(completed("acct --all-n"), ["--all-namespaces", ":4"]);
        assert_eq!(completed("queue -o js"), ["json", ":4"]);
        assert_eq!(completed("queue -n team --output y"), ["yaml", ":4"]);
        assert_eq!(completed("completion z"), ["zsh", ":4"]);
        assert!(completed("profile ").contains(&"fit".to_owned()));
    }

    #[test]
    fn a_shell_completes_files_and_what_is_free_is_left_alone() {
        assert_eq!(completed("whatif -f "), [":0"]);
        assert_eq!(completed("submit x --image y -- python "), [":0"]);
        assert_eq!(completed("queue --context "), [":4"]);
        assert_eq!(completed("nonsense "), completed(""), "kubectl says what is wrong when it is run");
    }

    #[test]
    fn names_of_jobs_are_wanted_where_a_command_takes_them() {
        for line in [
            "explain ",
            "logs -n team x",
            "suspend a ",
            "cancel --namespace=team a b ",
            "wait ",
            "whatif --without ",
        ] {
            assert_eq!(wanted_in(line), Word::Job, "{line}");
        }
        assert_eq!(wanted_in("explain one "), Word::Free, "it takes one job");
    }

    #[test]
    fn it_is_known_by_its_name_alone() {
        assert!(is_asked_as("/usr/local/bin/kubectl_complete-andreas"));
        assert!(!is_asked_as("kubectl-andreas") && !is_asked_as(""));
    }
}
