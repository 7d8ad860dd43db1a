//! Options of sbatch and srun: words to names and values, and what becomes of each of sbatch's.

use super::super::error::ConvertError;
use super::super::notes::Notes;
use super::{image, units};

/// Options: letter, name, whether a value follows, and level and text of the note where that is all that becomes of it.
fn table() -> impl Iterator<Item = [&'static str; 5]> {
    include_str!("options.txt").lines().map(|line| {
        let mut columns = line.splitn(5, ' ');
        [(); 5].map(|()| columns.next().unwrap_or_default())
    })
}

fn is_flag(name: &str) -> bool {
    table().any(|[_, other, takes, ..]| takes == "flag" && other == name)
}

/// An option and its value.
pub type Pair = (String, Option<String>);

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
    /// Tasks of a GPU.
    pub tasks_per_gpu: Option<i64>,
    /// GPUs in total.
    pub gpus: Option<i64>,
    /// GPUs of a node.
    pub gpus_per_node: Option<i64>,
    /// GPUs of a task.
    pub gpus_per_task: Option<i64>,
    /// GPUs of a socket, and sockets of a node.
    pub gpus_per_socket: Option<i64>,
    /// Sockets of a node.
    pub sockets: Option<i64>,
    /// The job has its nodes alone.
    pub exclusive: bool,
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
    /// Signal before the end.
    pub signal: Option<String>,
    /// Variables of the program.
    pub env: Vec<(String, String)>,
    /// Held.
    pub hold: bool,
    /// Working folder.
    pub folder: Option<String>,
    /// Image.
    pub image: Option<String>,
}

/// Reads the options of a script: those before its first command, as sbatch does.
///
/// # Errors
/// When a value cannot be read, or the job is an array.
pub fn read(text: &str, notes: &mut Notes) -> Result<Options, ConvertError> {
    let mut options = Options::default();
    let (mut array, mut name_line) = (None, None);
    for (number, line) in header(text) {
        let error = |problem: String| ConvertError::Line { line: number, problem };
        let Some(rest) = line.strip_prefix("#SBATCH").filter(|rest| rest.starts_with([' ', '\t'])) else {
            continue;
        };
        // What follows a second # is a comment.
        let rest = rest.split(" #").next().unwrap_or_default();
        let words = shlex::split(rest).ok_or_else(|| error("a quote has no end".to_owned()))?;
        let (pairs, program) = pairs(&words).map_err(error)?;
        match program.first().map(String::as_str) {
            None => {}
            Some("hetjob" | "packjob") => {
                return Err(error(
                    "hetjob: a job of several parts of different size is one TrainingJob for each".into(),
                ));
            }
            _ if rest.contains('<') && rest.contains('>') => {
                return Err(error(format!("{} holds a placeholder: fill it in", rest.trim())));
            }
            Some(word) => return Err(error(format!("{word:?} is no option"))),
        }
        for (name, value) in pairs {
            let value = value.as_deref().unwrap_or_default();
            match name.as_str() {
                "array" => array = Some((number, rest.trim().to_owned(), value.to_owned())),
                "job-name" => name_line = Some(number),
                _ => {}
            }
            set(&mut options, &name, value, notes)
                .map_err(|problem| error(format!("--{name}: {problem}")))?;
        }
    }
    match array {
        Some((line, rest, value)) => {
            let name = options.name.as_deref().zip(name_line);
            Err(ConvertError::Line { line, problem: array_loop(line, &rest, &value, name) })
        }
        None => Ok(options),
    }
}

/// Why an array is refused, with the loop that makes one job of each run.
fn array_loop(line: usize, rest: &str, value: &str, name: Option<(&str, usize)>) -> String {
    let option = ["--array=", "--array ", "-a ", "-a", "-a="].map(|option| format!("{option}{value}"));
    let option = option.iter().find(|option| rest.contains(option.as_str())).map_or(value, String::as_str);
    let runs = value.split('%').next().unwrap_or_default().split(',').map(|part| {
        let (range, step) = part.split_once(':').unwrap_or((part, "1"));
        range.split_once('-').map_or(part.to_owned(), |(first, last)| format!("$(seq {first} {step} {last})"))
    });
    let runs: Vec<String> = runs.collect();
    let variable = "--export=ALL,SLURM_ARRAY_TASK_ID=$id";
    let (option, rename) = match name {
        Some((name, at)) => {
            (format!("{line}s/{option}/{variable}/"), format!(" -e \"{at}s/{name}/{name}-$id/\""))
        }
        None => (format!("{line}s/{option}/{variable} --job-name=batch-$id/"), String::new()),
    };
    format!(
        "--array: a TrainingJob is one run, so make one for each:\n  for id in {}; do\n    sed -e \"{option}\"{rename} FILE | \
         kubectl andreas convert -f - | kubectl create -f -\n  done",
        runs.join(" ")
    )
}

/// Options with their values by long name, up to the first word that is none, and the words from there on.
///
/// # Errors
/// When an option is not known, so that its value might be the next word.
pub fn pairs(words: &[String]) -> Result<(Vec<Pair>, &[String]), String> {
    let mut pairs: Vec<Pair> = Vec::new();
    let mut rest = words;
    while let [word, after @ ..] = rest {
        let Some(option) = word.strip_prefix('-').filter(|option| !option.is_empty()) else { break };
        rest = after;
        let (name, given) = if option == "-" {
            break;
        } else if let Some(long) = option.strip_prefix('-') {
            let (name, value) =
                long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            (full_name(name), value)
        } else {
            let mut letters = option.chars();
            let mut name = named(letters.next().unwrap_or_default())?;
            // `-Qv`: a flag has no value, so the next letter is an option.
            while is_flag(name) && letters.as_str().starts_with(|c: char| c.is_ascii_alphabetic()) {
                pairs.push((name.to_owned(), None));
                name = named(letters.next().unwrap_or_default())?;
            }
            (
                name.to_owned(),
                Some(letters.as_str().trim_start_matches('=')).filter(|value| !value.is_empty()),
            )
        };
        let mut value = given.map(str::to_owned);
        if value.is_none()
            && !is_flag(&name)
            && let [next, after @ ..] = rest
            && (!next.starts_with('-') || next[1..].starts_with(|c: char| c.is_ascii_digit()))
        {
            (value, rest) = (Some(next.clone()), after);
        }
        pairs.push((name, value));
    }
    Ok((pairs, rest))
}

/// The long name of a short option.
fn named(letter: char) -> Result<&'static str, String> {
    let mut names = table().filter(|[short, ..]| *short != "-" && short.starts_with(letter));
    names.next().map(|[_, name, ..]| name).ok_or_else(|| format!("-{letter} is no option of sbatch"))
}

/// The name of an option that may be given by its beginning, where only one begins so.
fn full_name(name: &str) -> String {
    let name = if name == "tasks-per-node" { "ntasks-per-node" } else { name };
    let mut matches = table().map(|[_, full, ..]| full).filter(|full| full.starts_with(name));
    match (matches.next(), matches.next()) {
        (Some(one), None) => one.to_owned(),
        _ => name.to_owned(),
    }
}

fn set(options: &mut Options, name: &str, text: &str, notes: &mut Notes) -> Result<(), String> {
    let bad = || match text {
        _ if text.contains('$') => format!("{text:?}: Slurm reads no variables here: give the number"),
        _ if text.starts_with('<') => format!("{text:?} is a placeholder: fill it in"),
        _ => format!("{text:?} cannot be read"),
    };
    let count = || units::count(text).ok_or_else(bad);
    let memory = || units::memory(text).ok_or_else(|| format!("{text:?} is no amount such as 4000 or 16G"));
    let mut gpus = || gpus(name, text, notes).map(Some);
    match name {
        "job-name" => options.name = Some(text.to_owned()).filter(|text| !text.is_empty()),
        "nodes" => options.nodes = Some(units::range(text).ok_or_else(bad)?),
        "ntasks" => options.tasks = Some(count()?),
        "ntasks-per-node" => options.tasks_per_node = Some(count()?),
        "ntasks-per-gpu" => options.tasks_per_gpu = Some(count()?),
        "sockets-per-node" => options.sockets = Some(count()?),
        "gpus" => options.gpus = gpus()?,
        "gpus-per-node" => options.gpus_per_node = gpus()?,
        "gpus-per-task" => options.gpus_per_task = gpus()?,
        "gpus-per-socket" => options.gpus_per_socket = gpus()?,
        "gres" => options.gpus_per_node = gres(name, text, notes)?.or(options.gpus_per_node),
        "tres-per-task" => {
            options.gpus_per_task = gres(name, text, notes)?.or(options.gpus_per_task);
            let cpus = text
                .split(',')
                .find_map(|part| units::count(part.strip_prefix("cpu")?.trim_start_matches([':', '='])));
            options.cpus_per_task = cpus.or(options.cpus_per_task);
        }
        "exclusive" => options.exclusive = true,
        "time" => {
            options.time = units::time(text).map_err(|()| {
                format!("{text:?} is no time such as 90, 24:00:00 or 1-12 (minutes, hours, days)")
            })?
        }
        "cpus-per-task" => options.cpus_per_task = Some(count()?),
        "cpus-per-gpu" => options.cpus_per_gpu = Some(count()?),
        // 0 is all of the node.
        "mem" if text == "0" => {
            notes.changed("--mem", "all memory of a node: name an amount in the template")
        }
        "mem" => options.memory = Some(memory()?),
        "mem-per-cpu" => options.memory_per_cpu = Some(memory()?),
        "mem-per-gpu" => options.memory_per_gpu = Some(memory()?),
        "signal" => {
            let (signal, seconds) = text.split_once('@').unwrap_or((text, "60"));
            options.signal = Some(signal.to_owned());
            notes.changed(
                "--signal",
                format!(
                    "is sent when the run is stopped, for whatever reason: give the job a checkpoint with graceSeconds: {seconds} where \
                     the program saves its state"
                ),
            );
        }
        "hold" => options.hold = true,
        "chdir" => {
            options.folder = Some(text.to_owned());
            notes.changed(
                "--chdir",
                "becomes workingDir: a folder of the cluster is empty here, unless a volume is mounted there",
            );
        }
        "container-image" | "image" => match image::named(text) {
            Ok(image) => options.image = Some(image),
            Err(problem) => notes.lost(format!("--{name}"), problem),
        },
        "export" => {
            for part in text
                .split(',')
                .filter(|part| !["", "ALL", "NONE", "NIL"].contains(&part.to_ascii_uppercase().as_str()))
            {
                match part.split_once('=') {
                    Some((name, value)) => options.env.push((name.to_owned(), value.to_owned())),
                    None => notes.lost(
                        "--export",
                        format!(
                            "{part} has its value in the shell that submits: give it in env of the template"
                        ),
                    ),
                }
            }
        }
        _ => match table().find(|[_, other, ..]| *other == name) {
            Some([.., "lost", text]) => notes.lost(format!("--{name}"), text),
            Some([.., "changed", text]) => notes.changed(format!("--{name}"), text),
            Some(_) => {}
            None => notes.changed(format!("--{name}"), "a TrainingJob has no such option"),
        },
    }
    Ok(())
}

/// GPUs by `4`, `a100:4` or `a100`, of several types together.
fn gpus(name: &str, text: &str, notes: &mut Notes) -> Result<i64, String> {
    let (mut total, mut types) = (0, Vec::new());
    for part in text.split(',') {
        let (kind, number) =
            units::gpus(part).ok_or_else(|| format!("{part:?} is no number of GPUs, such as 4 or a100:4"))?;
        total += number;
        types.extend(kind.filter(|kind| !types.contains(kind)));
    }
    let option = format!("--{name}");
    for kind in &types {
        let text = if units::is_part(kind) {
            format!("{kind} is a part of a GPU: parts are not planned, and a whole one is asked for")
        } else {
            format!("type {kind}: name the value of the label nvidia.com/gpu.product in gpus.types")
        };
        notes.lost(option.as_str(), text);
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

/// The GPUs of `gpu:a100:4`, `gpu:4`, `gpu` or `gres/gpu=4`; other resources are noted.
fn gres(option: &str, text: &str, notes: &mut Notes) -> Result<Option<i64>, String> {
    let (mut amounts, mut part_of_gpu, none) = (Vec::new(), false, text.eq_ignore_ascii_case("none"));
    for part in text.split(',').filter(|_| !none) {
        let (name, rest) = part.trim_start_matches("gres/").split_once([':', '=']).unwrap_or((part, "1"));
        match name.trim_start_matches("gres/") {
            "gpu" => amounts.push(rest),
            "cpu" | "mem" => {}
            "shard" | "mps" => {
                notes.lost(
                    format!("--{option}"),
                    format!("{part} is a part of a GPU: parts are not planned, and a whole one is asked for"),
                );
                part_of_gpu = true;
            }
            name => notes.lost(format!("--{option}"), format!("{name} is not planned")),
        }
    }
    if !amounts.is_empty() {
        return gpus(option, &amounts.join(","), notes).map(Some);
    }
    // `none` takes back what another option asked for.
    Ok(part_of_gpu.then_some(1).or(none.then_some(0)))
}

/// The options of a step of srun that say something of its size: without notes, and without values that only a shell knows.
pub fn of_step(pairs: &[Pair]) -> Options {
    let mut options = Options::default();
    for (name, value) in pairs {
        let size = [
            "nodes",
            "ntasks",
            "ntasks-per-node",
            "gpus",
            "gpus-per-node",
            "gpus-per-task",
            "gres",
            "tres-per-task",
        ];
        if size.contains(&name.as_str()) {
            // What cannot be read is not counted.
            let _ = set(&mut options, name, value.as_deref().unwrap_or_default(), &mut Notes::default());
        }
    }
    options
}

/// Lines before the first command, with their numbers from 1: sbatch reads its options there.
pub fn header(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let before = |line: &&str| line.trim_start().is_empty() || line.trim_start().starts_with('#');
    text.lines().take_while(before).enumerate().map(|(number, line)| (number + 1, line))
}
