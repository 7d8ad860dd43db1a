//! The options of srun: which words are theirs, and which are the program's.

use super::super::notes::Notes;

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

/// The program's words after srun's options, and the image that these name. `None`: there is no program, or an option is not known, so
/// that the next word may be its value.
pub fn program<'a>(words: &'a [String], notes: &mut Notes) -> Option<(&'a [String], Option<String>)> {
    let (mut rest, mut image, mut lost) = (words, None, Vec::new());
    while let Some((word, after)) = rest.split_first().filter(|(word, _)| word.starts_with('-')) {
        rest = after;
        if word == "--" {
            break;
        }
        let Some(long) = word.strip_prefix("--") else {
            if short_wants_value(word)? {
                rest = rest.get(1..)?;
            }
            if word.starts_with("-D") {
                lost.extend(lost_of("chdir"));
            }
            continue;
        };
        let (name, mut value) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (long, None),
        };
        if VALUED.contains(&name) {
            if value.is_none() {
                let (next, after) = rest.split_first()?;
                (value, rest) = (Some(next.as_str()), after);
            }
        } else if value.is_none() && !FLAGS.contains(&name) {
            return None;
        }
        if name == "container-image" {
            image = value.map(|image| image.replace('#', "/"));
        }
        lost.extend(lost_of(name));
    }
    if rest.is_empty() {
        return None;
    }
    for (name, instead) in lost {
        notes.lost(format!("srun --{name}"), instead);
    }
    Some((rest, image))
}

fn lost_of(name: &str) -> Option<&'static (&'static str, &'static str)> {
    LOST.iter().find(|(lost, _)| *lost == name)
}

/// Whether the value of short options, such as `-ln`, is the next word; `None` where one is not known.
fn short_wants_value(word: &str) -> Option<bool> {
    let mut letters = word.chars().skip(1).peekable();
    letters.peek()?;
    while let Some(letter) = letters.next() {
        if SHORT_VALUED.contains(letter) {
            return Some(letters.peek().is_none());
        }
        if !SHORT_FLAGS.contains(letter) {
            // A number belongs to the flag before it: `-K1`.
            return (letter.is_ascii_digit() && word.len() > 2).then_some(false);
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<(String, Option<String>)> {
        let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        program(&words, &mut Notes::default()).map(|(words, image)| (words.join(" "), image))
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
        let words = ["--container-mounts", "/a:/a", "-D", "/b", "x"].map(str::to_owned);
        let mut notes = Notes::default();
        assert!(program(&words, &mut notes).is_some());
        let fields: Vec<String> = notes.into_vec().into_iter().map(|note| note.field).collect();
        assert_eq!(fields, ["srun --container-mounts", "srun --chdir"]);
    }
}
