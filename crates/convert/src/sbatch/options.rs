//! `#SBATCH` lines.

use super::super::error::ConvertError;
use super::super::notes::Notes;
use super::units;

/// Short options and their long names.
const SHORT: [(char, &str); 26] = [
    ('A', "account"),
    ('a', "array"),
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
    ('m', "distribution"),
    ('N', "nodes"),
    ('n', "ntasks"),
    ('O', "overcommit"),
    ('o', "output"),
    ('p', "partition"),
    ('q', "qos"),
    ('s', "oversubscribe"),
    ('t', "time"),
    ('w', "nodelist"),
    ('x', "exclude"),
];
/// Long options without a value.
const FLAGS: [&str; 8] =
    ["hold", "no-kill", "overcommit", "oversubscribe", "exclusive", "requeue", "no-requeue", "contiguous"];
/// Options that mean nothing here.
const IGNORED: [&str; 11] = [
    "no-kill",
    "overcommit",
    "ntasks-per-gpu",
    "exclusive",
    "export",
    "open-mode",
    "distribution",
    "propagate",
    "gpu-bind",
    "cpu-bind",
    "hint",
];
/// Options that a person must see to, and what to do.
const LOST: [(&str, &str); 18] = [
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
    /// Whether a lost run is started again.
    pub requeue: Option<bool>,
    /// Held.
    pub hold: bool,
    /// Working folder.
    pub folder: Option<String>,
    /// Image, by the pyxis plug-in.
    pub image: Option<String>,
}

impl Options {
    fn tasks_on_node(&self) -> i64 {
        let nodes = self.nodes.map_or(1, |(min, _)| min);
        self.tasks_per_node.unwrap_or_else(|| self.tasks.map_or(1, |tasks| (tasks / nodes).max(1)))
    }

    fn gpus_on_node(&self) -> Option<i64> {
        let nodes = self.nodes.map_or(1, |(min, _)| min);
        self.gpus_per_node.or(self.gpus.map(|gpus| (gpus / nodes).max(1)))
    }

    /// CPUs of a node.
    pub fn cpus(&self) -> Option<i64> {
        let by_gpu = self.cpus_per_gpu.and_then(|cpus| Some(cpus.saturating_mul(self.gpus_on_node()?)));
        by_gpu.or(self.cpus_per_task.map(|cpus| cpus.saturating_mul(self.tasks_on_node())))
    }

    /// Memory of a node, MiB.
    pub fn memory_mib(&self) -> Option<i64> {
        let by_gpu = self.memory_per_gpu.and_then(|mib| Some(mib.saturating_mul(self.gpus_on_node()?)));
        let by_cpu = self.memory_per_cpu.and_then(|mib| Some(mib.saturating_mul(self.cpus()?)));
        self.memory.or(by_gpu).or(by_cpu)
    }
}

/// Reads the options of a script: those before its first command, as sbatch does.
///
/// # Errors
/// When a value cannot be read.
pub fn read(text: &str, notes: &mut Notes) -> Result<Options, ConvertError> {
    let mut options = Options::default();
    for (number, line) in text.lines().enumerate() {
        let error = |problem: String| ConvertError::Line { line: number + 1, problem };
        if let Some(rest) = line.strip_prefix("#SBATCH") {
            if !rest.starts_with([' ', '\t']) {
                continue;
            }
            // What follows a second # is a comment.
            let rest = rest.split(" #").next().unwrap_or_default();
            let words = shlex::split(rest).ok_or_else(|| error("a quote has no end".to_owned()))?;
            for (name, value) in pairs(&words).map_err(error)? {
                set(&mut options, &name, value.as_deref(), notes)
                    .map_err(|problem| error(format!("--{name}: {problem}")))?;
            }
        } else if !line.trim().is_empty() && !line.starts_with('#') {
            break;
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
            let letter = letters.next().unwrap_or_default();
            let long = SHORT.iter().find(|(short, _)| *short == letter).map(|(_, long)| *long);
            let value = letters.as_str().trim_start_matches('=');
            let long = long.ok_or_else(|| format!("-{letter} is no option of sbatch"))?;
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

fn set(options: &mut Options, name: &str, value: Option<&str>, notes: &mut Notes) -> Result<(), String> {
    let text = value.unwrap_or_default();
    let bad = || format!("{text:?} cannot be read");
    let count = || units::count(text).ok_or_else(bad);
    let memory = || units::memory(text).ok_or_else(bad);
    let typed = |notes: &mut Notes| -> Result<i64, String> {
        let (kind, number) = units::gpus(text).ok_or_else(bad)?;
        if let Some(kind) = kind {
            notes.lost(
                format!("--{name}"),
                format!("type {kind}: name the value of the label nvidia.com/gpu.product in gpus.types"),
            );
        }
        Ok(number)
    };
    match name {
        "job-name" => options.name = Some(text.to_owned()).filter(|text| !text.is_empty()),
        "nodes" => options.nodes = Some(units::range(text).ok_or_else(bad)?),
        "ntasks" => options.tasks = Some(count()?),
        "ntasks-per-node" => options.tasks_per_node = Some(count()?),
        "gpus" => options.gpus = Some(typed(notes)?),
        "gpus-per-node" => options.gpus_per_node = Some(typed(notes)?),
        "gpus-per-task" => options.gpus_per_task = Some(typed(notes)?),
        "gres" => gres(options, text, notes)?,
        "time" => match units::time(text) {
            Some(seconds) => options.time = Some(seconds),
            None if ["0", "UNLIMITED", "INFINITE"].contains(&text.to_ascii_uppercase().as_str()) => {}
            None => return Err(bad()),
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
        "requeue" => options.requeue = Some(true),
        "no-requeue" => options.requeue = Some(false),
        "hold" => options.hold = true,
        "chdir" => options.folder = Some(text.to_owned()),
        "container-image" => options.image = Some(text.replace('#', "/")),
        _ if IGNORED.contains(&name) || name.starts_with("mail") || name == "comment" => {}
        _ => {
            let instead = LOST.iter().find(|(lost, _)| *lost == name).map(|(_, instead)| *instead);
            notes.lost(format!("--{name}"), instead.unwrap_or("a TrainingJob has no such option"));
        }
    }
    Ok(())
}

/// `gpu:a100:4`, `gpu:4`, `gpu`, and other resources.
fn gres(options: &mut Options, text: &str, notes: &mut Notes) -> Result<(), String> {
    for part in text.split(',') {
        let (name, rest) = part.split_once(':').unwrap_or((part, "1"));
        if name.trim_start_matches("gres/") != "gpu" {
            notes.lost("--gres", format!("{name} is not planned"));
            continue;
        }
        let (kind, number) = units::gpus(rest).ok_or_else(|| format!("{part:?} cannot be read"))?;
        if let Some(kind) = kind {
            notes.lost(
                "--gres",
                format!("type {kind}: name the value of the label nvidia.com/gpu.product in gpus.types"),
            );
        }
        options.gpus_per_node = Some(number);
    }
    Ok(())
}
