//! `#SBATCH` lines.

use super::super::error::ConvertError;
use super::super::notes::Notes;
use super::variables::{self, Variable};
use super::{image, interpreter, units};

/// Short options and their long names.
const SHORT: [(char, &str); 32] = [
    ('A', "account"),
    ('a', "array"),
    ('B', "extra-node-info"),
    ('b', "begin"),
    ('C', "constraint"),
    ('c', "cpus-per-task"),
    ('D', "chdir"),
    ('d', "dependency"),
    ('e', "error"),
    ('F', "nodefile"),
    ('G', "gpus"),
    ('H', "hold"),
    ('i', "input"),
    ('J', "job-name"),
    ('k', "no-kill"),
    ('L', "licenses"),
    ('M', "clusters"),
    ('m', "distribution"),
    ('N', "nodes"),
    ('n', "ntasks"),
    ('O', "overcommit"),
    ('o', "output"),
    ('p', "partition"),
    ('Q', "quiet"),
    ('q', "qos"),
    ('S', "core-spec"),
    ('s', "oversubscribe"),
    ('t', "time"),
    ('v', "verbose"),
    ('W', "wait"),
    ('w', "nodelist"),
    ('x', "exclude"),
];
/// Long options without a value.
const FLAGS: [&str; 12] = [
    "hold",
    "no-kill",
    "overcommit",
    "oversubscribe",
    "exclusive",
    "requeue",
    "no-requeue",
    "contiguous",
    "quiet",
    "verbose",
    "wait",
    "parsable",
];
/// Options that mean nothing here. What is lost with a node starts again without a retry: `requeue` is so anyway.
const IGNORED: [&str; 13] = [
    "no-kill",
    "overcommit",
    "exclusive",
    "requeue",
    "quiet",
    "verbose",
    "parsable",
    "open-mode",
    "distribution",
    "propagate",
    "gpu-bind",
    "cpu-bind",
    "hint",
];
/// Options that a person must see to, and what to do.
const LOST: [(&str, &str); 21] = [
    ("array", "submit one TrainingJob for each run, with the same --profile"),
    ("dependency", "a workflow engine can wait for .status.phase"),
    ("account", "the namespace is the account"),
    ("qos", "use weight"),
    ("nice", "use weight"),
    ("priority", "use weight"),
    ("partition", "use nodeSelector in the template, or gpus.types"),
    ("constraint", "use nodeSelector in the template, or gpus.types"),
    ("nodelist", "use nodeSelector in the template"),
    ("exclude", "use affinity in the template"),
    ("begin", "create the job later, or suspend it until then"),
    ("deadline", "Slurm ends a job there: deadline is when it should be done, and ends nothing"),
    ("licenses", "licences are not planned"),
    ("reservation", "there are no reservations: weight and deadline order jobs"),
    ("output", "kubectl andreas logs shows it; write files to a volume"),
    ("error", "kubectl andreas logs shows it; write files to a volume"),
    ("input", "there is no standard input"),
    ("container-mounts", "mount volumes in the template"),
    ("no-requeue", "a run whose node is lost, or that makes way for another, always starts again"),
    ("clusters", "convert writes for the cluster of the context"),
    ("wait", "kubectl andreas wait waits for the end"),
];

/// What the options ask for.
#[derive(Debug, Default, PartialEq)]
pub struct Options {
    /// Name of the job.
    pub name: Option<String>,
    /// Fewest and most nodes.
    pub nodes: Option<(i64, i64)>,
    /// Tasks in total.
    pub tasks: Option<i64>,
    /// Tasks of a node.
    pub tasks_per_node: Option<i64>,
    /// GPUs in total.
    pub gpus: Option<i64>,
    /// GPUs of a node.
    pub gpus_per_node: Option<i64>,
    /// GPUs of a task.
    pub gpus_per_task: Option<i64>,
    /// Limit of time, s.
    pub time: Option<i64>,
    /// CPUs of a task.
    pub cpus_per_task: Option<i64>,
    /// CPUs of a GPU.
    pub cpus_per_gpu: Option<i64>,
    /// Memory of a node, MiB.
    pub memory: Option<i64>,
    /// Memory of a CPU, MiB.
    pub memory_per_cpu: Option<i64>,
    /// Memory of a GPU, MiB.
    pub memory_per_gpu: Option<i64>,
    /// Time between the signal and the end, s.
    pub grace: Option<i64>,
    /// Variables of the program.
    pub env: Vec<Variable>,
    /// Held.
    pub hold: bool,
    /// Working folder.
    pub folder: Option<String>,
    /// Image, by the pyxis plug-in.
    pub image: Option<String>,
}

/// Reads the options of a script: those before its first command, as sbatch does.
///
/// # Errors
/// When a value cannot be read.
pub fn read(text: &str, notes: &mut Notes) -> Result<Options, ConvertError> {
    let mut options = Options::default();
    for (number, line) in text.lines().take(interpreter::header(text)).enumerate() {
        let error = |problem: String| ConvertError::Line { line: number + 1, problem };
        let Some(rest) = line.strip_prefix("#SBATCH").filter(|rest| rest.starts_with([' ', '\t'])) else {
            continue;
        };
        // What follows a second # is a comment.
        let rest = rest.split(" #").next().unwrap_or_default();
        let words = shlex::split(rest).ok_or_else(|| error("a quote has no end".to_owned()))?;
        for (name, value) in pairs(&words).map_err(error)? {
            set(&mut options, &name, value.as_deref(), notes)
                .map_err(|problem| error(format!("--{name}: {problem}")))?;
        }
    }
    Ok(options)
}

/// Options with their values, by long name.
fn pairs(words: &[String]) -> Result<Vec<(String, Option<String>)>, String> {
    let mut found = Vec::new();
    let mut rest = words.iter().peekable();
    while let Some(word) = rest.next() {
        let (name, given) = if let Some(long) = word.strip_prefix("--") {
            match long.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (long.to_owned(), None),
            }
        } else if let Some(short) = word.strip_prefix('-').filter(|short| !short.is_empty()) {
            let mut letters = short.chars();
            let mut long = named(letters.next().unwrap_or_default())?;
            // `-Qv`: a flag has no value, so the next letter is an option.
            while FLAGS.contains(&long) && !letters.as_str().is_empty() {
                found.push((long.to_owned(), None));
                long = named(letters.next().unwrap_or_default())?;
            }
            let value = letters.as_str().trim_start_matches('=');
            (long.to_owned(), Some(value.to_owned()).filter(|value| !value.is_empty()))
        } else {
            return Err(format!("{word:?} is no option"));
        };
        let flag = FLAGS.contains(&name.as_str());
        let next = rest.next_if(|next| given.is_none() && !flag && !next.starts_with('-')).cloned();
        found.push((name, given.or(next)));
    }
    Ok(found)
}

/// The long name of a short option.
fn named(letter: char) -> Result<&'static str, String> {
    let long = SHORT.iter().find(|(short, _)| *short == letter).map(|(_, long)| *long);
    long.ok_or_else(|| format!("-{letter} is no option of sbatch"))
}

fn set(options: &mut Options, name: &str, value: Option<&str>, notes: &mut Notes) -> Result<(), String> {
    let text = value.unwrap_or_default();
    let bad = || format!("{text:?} cannot be read");
    let count = || units::count(text).ok_or_else(bad);
    let memory = || units::memory(text).ok_or_else(|| format!("{text:?} is no amount such as 4000 or 16G"));
    let gpus = |notes: &mut Notes| gpus(name, text.split(','), notes);
    match name {
        "job-name" => options.name = Some(text.to_owned()).filter(|text| !text.is_empty()),
        "nodes" => options.nodes = Some(units::range(text).ok_or_else(bad)?),
        "ntasks" => options.tasks = Some(count()?),
        "ntasks-per-node" => options.tasks_per_node = Some(count()?),
        "gpus" => options.gpus = Some(gpus(notes)?),
        "gpus-per-node" => options.gpus_per_node = Some(gpus(notes)?),
        "gpus-per-task" => options.gpus_per_task = Some(gpus(notes)?),
        "gres" => {
            if let Some(gpus) = gres(text, notes)? {
                options.gpus_per_node = Some(gpus);
            }
        }
        // As many GPUs as tasks.
        "ntasks-per-gpu" if text == "1" => options.gpus_per_task = Some(1),
        "ntasks-per-gpu" => notes.lost("--ntasks-per-gpu", "torchrun starts one process for each GPU"),
        "time" => match units::time(text) {
            Some(seconds) => options.time = Some(seconds),
            None if ["UNLIMITED", "INFINITE"].contains(&text.to_ascii_uppercase().as_str()) => {}
            // No limit.
            None if text.contains('0') && text.chars().all(|c| matches!(c, '0' | ':' | '-')) => {}
            None => {
                return Err(format!(
                    "{text:?} is no time such as 90, 24:00:00 or 1-12 (minutes, hours, days)"
                ));
            }
        },
        "cpus-per-task" => options.cpus_per_task = Some(count()?),
        "cpus-per-gpu" => options.cpus_per_gpu = Some(count()?),
        // 0 is all of the node.
        "mem" if text == "0" => notes.lost("--mem", "all memory of a node: name an amount in the template"),
        "mem" => options.memory = Some(memory()?),
        "mem-per-cpu" => options.memory_per_cpu = Some(memory()?),
        "mem-per-gpu" => options.memory_per_gpu = Some(memory()?),
        "signal" => {
            options.grace = Some(text.split_once('@').and_then(|(_, at)| units::count(at)).unwrap_or(60))
        }
        "hold" => options.hold = true,
        "chdir" => options.folder = Some(text.to_owned()),
        "container-image" => match image::named(text) {
            Ok(image) => options.image = Some(image),
            Err(problem) => notes.lost("--container-image", problem),
        },
        "export" => {
            let (given, names) = variables::exported(text);
            for name in names {
                notes.lost("--export", variables::without_value(name));
            }
            options.env = given;
        }
        _ if IGNORED.contains(&name) || name.starts_with("mail") || name == "comment" => {}
        _ => {
            let instead = LOST.iter().find(|(lost, _)| *lost == name).map(|(_, instead)| *instead);
            notes.lost(format!("--{name}"), instead.unwrap_or("a TrainingJob has no such option"));
        }
    }
    Ok(())
}

/// GPUs by `4`, `a100:4` or `a100`, of several types together.
fn gpus<'a>(name: &str, parts: impl Iterator<Item = &'a str>, notes: &mut Notes) -> Result<i64, String> {
    let (mut total, mut types) = (0, Vec::new());
    for part in parts {
        let (kind, number) =
            units::gpus(part).ok_or_else(|| format!("{part:?} is no number of GPUs, such as 4 or a100:4"))?;
        total += number;
        types.extend(kind.filter(|kind| !types.contains(kind)));
    }
    let option = format!("--{name}");
    for kind in &types {
        notes.lost(
            option.as_str(),
            format!("type {kind}: name the value of the label nvidia.com/gpu.product in gpus.types"),
        );
    }
    if types.len() > 1 {
        let types = types.join(" and ");
        notes.lost(
            option,
            format!("{types}: a run never mixes types, so {total} GPUs of one type are asked for"),
        );
    }
    Ok(total)
}

/// The GPUs of `gpu:a100:4`, `gpu:4`, `gpu`; other resources are noted.
fn gres(text: &str, notes: &mut Notes) -> Result<Option<i64>, String> {
    let mut amounts = Vec::new();
    for part in text.split(',').filter(|part| !part.eq_ignore_ascii_case("none")) {
        let (name, rest) = part.split_once([':', '=']).unwrap_or((part, "1"));
        if name.trim_start_matches("gres/") == "gpu" {
            amounts.push(rest);
        } else {
            notes.lost("--gres", format!("{name} is not planned"));
        }
    }
    // `none` takes back what another option asked for.
    if amounts.is_empty() && !text.eq_ignore_ascii_case("none") {
        return Ok(None);
    }
    gpus("gres", amounts.into_iter(), notes).map(Some)
}
