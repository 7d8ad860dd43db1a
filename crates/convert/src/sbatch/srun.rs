//! The options of srun: which words are theirs, and which are the program's.

use super::super::notes::Notes;
use super::variables::{self, Variable};
use super::{image, units};

/// Long options with a value, in the next word where it is not after `=`. Those of pyxis begin with `container-`.
const VALUED: [&str; 98] = [
    "accel-bind",
    "account",
    "acctg-freq",
    "bb",
    "bbf",
    "begin",
    "chdir",
    "cluster-constraint",
    "clusters",
    "comment",
    "constraint",
    "container",
    "container-env",
    "container-id",
    "container-image",
    "container-mounts",
    "container-name",
    "container-save",
    "container-workdir",
    "core-spec",
    "cores-per-socket",
    "cpu-bind",
    "cpu-freq",
    "cpus-per-gpu",
    "cpus-per-task",
    "deadline",
    "delay-boot",
    "dependency",
    "distribution",
    "epilog",
    "error",
    "exclude",
    "export",
    "extra",
    "extra-node-info",
    "gid",
    "gpu-bind",
    "gpu-freq",
    "gpus",
    "gpus-per-node",
    "gpus-per-socket",
    "gpus-per-task",
    "gres",
    "gres-flags",
    "het-group",
    "hint",
    "input",
    "job-name",
    "jobid",
    "licenses",
    "mail-type",
    "mail-user",
    "mcs-label",
    "mem",
    "mem-bind",
    "mem-per-cpu",
    "mem-per-gpu",
    "mincpus",
    "mpi",
    "msg-timeout",
    "network",
    "nodefile",
    "nodelist",
    "nodes",
    "ntasks",
    "ntasks-per-core",
    "ntasks-per-gpu",
    "ntasks-per-node",
    "ntasks-per-socket",
    "open-mode",
    "output",
    "partition",
    "power",
    "prefer",
    "priority",
    "profile",
    "prolog",
    "qos",
    "relative",
    "reservation",
    "segment",
    "signal",
    "slurmd-debug",
    "sockets-per-node",
    "switches",
    "task-epilog",
    "task-prolog",
    "thread-spec",
    "threads",
    "threads-per-core",
    "time",
    "time-min",
    "tmp",
    "tres-bind",
    "tres-per-task",
    "uid",
    "wait",
    "wckey",
];
/// Long options whose value, if they have one, is after `=`.
const FLAGS: [&str; 40] = [
    "bcast",
    "compress",
    "contiguous",
    "container-entrypoint",
    "container-mount-home",
    "container-readonly",
    "container-remap-root",
    "container-writable",
    "disable-status",
    "exact",
    "exclusive",
    "external",
    "hold",
    "immediate",
    "interactive",
    "kill-on-bad-exit",
    "label",
    "nice",
    "no-allocate",
    "no-container-entrypoint",
    "no-container-mount-home",
    "no-container-remap-root",
    "no-kill",
    "overcommit",
    "overlap",
    "oversubscribe",
    "preserve-env",
    "propagate",
    "pty",
    "quiet",
    "quit-on-interrupt",
    "reboot",
    "resv-ports",
    "send-libs",
    "spread-job",
    "unbuffered",
    "use-min-nodes",
    "verbose",
    "whole",
    "x11",
];
/// Short options with a value, in the same word or in the next.
const SHORT_VALUED: &str = "ABCDFGJLMNSTWcdeimnopqrtwx";
/// Short options without a value, or with one in the same word.
const SHORT_FLAGS: &str = "EHIKOQXZklsuv";
/// Options that say something of the program's surroundings, each with what to do.
const LOST: [(&str, &str); 3] = [
    ("chdir", "set workingDir in the template"),
    ("container-workdir", "set workingDir in the template"),
    ("container-mounts", "mount volumes in the template"),
];

/// Short options that are read, and their long names.
const SHORT_READ: [(char, &str); 3] = [('D', "chdir"), ('N', "nodes"), ('n', "ntasks")];

/// How many processes srun starts, where its own options say so.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tasks {
    /// In total.
    pub total: Option<i64>,
    /// On a node.
    pub on_node: Option<i64>,
    /// Nodes.
    pub nodes: Option<i64>,
}

impl Tasks {
    /// Processes of a node, where the script has so many nodes and tasks of each.
    pub fn of_node(self, nodes: i64, tasks: i64) -> i64 {
        let nodes = self.nodes.unwrap_or(nodes).max(1);
        let shared = || self.total.map(|total| total / nodes + i64::from(total % nodes > 0));
        self.on_node.or_else(shared).unwrap_or(tasks)
    }
}

/// What srun starts.
#[derive(Debug, PartialEq)]
pub struct Step<'a> {
    /// The program's words.
    pub words: &'a [String],
    /// Its image.
    pub image: Option<String>,
    /// Its variables.
    pub env: Vec<Variable>,
    /// Its processes.
    pub tasks: Tasks,
}

/// The program's words after srun's options, and what these say of it. `None`: there is no program, or an option is not known, so
/// that the next word may be its value.
pub fn program<'a>(words: &'a [String], notes: &mut Notes) -> Option<Step<'a>> {
    let mut step = Step { words, image: None, env: Vec::new(), tasks: Tasks::default() };
    let mut lost = Vec::new();
    while let Some((word, after)) = step.words.split_first().filter(|(word, _)| word.starts_with('-')) {
        step.words = after;
        if word == "--" {
            break;
        }
        let (name, mut value, valued) = match word.strip_prefix("--") {
            Some(long) => {
                let (name, value) =
                    long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
                let valued = VALUED.contains(&name);
                if !valued && value.is_none() && !FLAGS.contains(&name) {
                    return None;
                }
                (name, value, valued)
            }
            None => short(word)?,
        };
        if valued && value.is_none() {
            let (next, after) = step.words.split_first()?;
            (value, step.words) = (Some(next.as_str()), after);
        }
        set(&mut step, name, value.unwrap_or_default(), &mut lost);
    }
    if step.words.is_empty() {
        return None;
    }
    for (name, instead) in lost {
        notes.lost(format!("srun --{name}"), instead);
    }
    Some(step)
}

/// Takes the value of an option. What cannot be kept goes to `lost`.
fn set(step: &mut Step, name: &str, value: &str, lost: &mut Vec<(String, String)>) {
    match name {
        "container-image" => match image::named(value) {
            Ok(image) => step.image = Some(image),
            Err(problem) => lost.push((name.to_owned(), problem)),
        },
        "export" => {
            let (given, names) = variables::exported(value);
            step.env = given;
            lost.extend(names.into_iter().map(|one| (name.to_owned(), variables::without_value(one))));
        }
        "ntasks" => step.tasks.total = units::count(value),
        "ntasks-per-node" => step.tasks.on_node = units::count(value),
        "nodes" => step.tasks.nodes = units::range(value).map(|(min, _)| min),
        _ => {
            let instead = LOST.iter().find(|(lost, _)| *lost == name);
            lost.extend(instead.map(|(name, instead)| ((*name).to_owned(), (*instead).to_owned())));
        }
    }
}

/// The last of short options, such as `-ln4`: its long name if it is read, its value in this word, and whether it has one. `None`
/// where one is not known.
fn short(word: &str) -> Option<(&'static str, Option<&str>, bool)> {
    let mut letters = word.chars();
    letters.next();
    if letters.as_str().is_empty() {
        return None;
    }
    while let Some(letter) = letters.next() {
        if SHORT_VALUED.contains(letter) {
            let name = SHORT_READ.iter().find(|(short, _)| *short == letter).map_or("", |(_, long)| *long);
            let value = Some(letters.as_str()).filter(|value| !value.is_empty());
            return Some((name, value, true));
        }
        if !SHORT_FLAGS.contains(letter) {
            // A number belongs to the flag before it: `-K1`.
            return (letter.is_ascii_digit() && word.len() > 2).then_some(("", None, false));
        }
    }
    Some(("", None, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<(String, Option<String>)> {
        let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        program(&words, &mut Notes::default()).map(|step| (step.words.join(" "), step.image))
    }

    #[test]
    fn values_of_options_are_not_the_program() {
        for options in [
            "--ntasks 4",
            "--ntasks=4 --mpi pmix",
            "-n4 -N 1",
            "-lun 4",
            "-K1 -l",
            "--exclusive --label --",
            "--threads-per-core 1 --unknown=2",
            "--kill-on-bad-exit=1 --cpu-bind cores",
        ] {
            assert_eq!(of(&format!("{options} python t.py -n 2")), Some(("python t.py -n 2".into(), None)));
        }
        for image in ["--container-image a.b#c/d:1", "--container-image=a.b#c/d:1"] {
            assert_eq!(
                of(&format!("{image} python t.py")),
                Some(("python t.py".into(), Some("a.b/c/d:1".into())))
            );
        }
    }

    #[test]
    fn an_unknown_option_or_no_program_is_not_guessed() {
        for words in
            ["--unknown 4 python t.py", "-Y 4 python t.py", "--multi-prog conf", "-n", "--ntasks", "-n 4"]
        {
            assert_eq!(of(words), None, "{words}");
        }
    }

    #[test]
    fn the_programs_surroundings_are_noted() {
        let words = [
            "--container-mounts",
            "/a:/a",
            "-D",
            "/b",
            "--container-image=/a.sqsh",
            "--export=ALL,A=1,B",
            "x",
        ];
        let words = words.map(str::to_owned);
        let mut notes = Notes::default();
        let step = program(&words, &mut notes).unwrap();
        assert_eq!((step.image, step.env), (None, vec![("A".to_owned(), "1".to_owned())]));
        let fields: Vec<String> = notes.into_vec().into_iter().map(|note| note.field).collect();
        let names = ["--container-mounts", "--chdir", "--container-image", "--export"];
        assert_eq!(fields, names.map(|name| format!("srun {name}")));
    }

    #[test]
    fn processes_of_a_node_are_those_of_srun_before_those_of_the_script() {
        for (options, tasks) in [
            ("-l", 8),
            ("-n4", 2),
            ("-ln 3", 2),
            ("--ntasks=4 -N1", 4),
            ("--ntasks-per-node 1 --ntasks 4", 1),
            ("-N 1-2 -n 1", 1),
            ("-n many", 8),
        ] {
            let words: Vec<String> = format!("{options} x").split(' ').map(str::to_owned).collect();
            let step = program(&words, &mut Notes::default()).unwrap();
            assert_eq!(step.tasks.of_node(2, 8), tasks, "{options}");
        }
    }
}
