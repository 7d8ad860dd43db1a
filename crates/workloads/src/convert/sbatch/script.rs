//! The text of a script, which stays as it is: what its words say of GPUs and images, and what of it will not be there.

use std::collections::{BTreeMap, BTreeSet};

use crate::slurm::{INPUTS, VARIABLES};

use super::super::error::ConvertError;
use super::super::launch::{CONTAINER_LAUNCHERS, base, is_among, without_comment};
use super::super::notes::Notes;
use super::options::{self, Options, header};
use super::{image, units};

/// Other batch systems, by what their options begin with.
const OTHERS: [(&str, &str); 6] = [
    ("#PBS", "PBS"),
    ("#BSUB", "LSF"),
    ("#$ -", "Grid Engine"),
    ("#COBALT", "Cobalt"),
    ("#PJM", "Fujitsu TCS"),
    ("#OAR", "OAR"),
];
/// Programs of a cluster that start nothing from a container, where it has other nodes.
const MPI: &str = "mpirun mpiexec horovodrun";
/// Those that it does not have on a single node either.
const ABSENT: &str = "pdsh ssh ibrun jsrun aprun salloc";
/// Ends of names whose numbers are those of GPUs of a node.
const COUNTS: &str = "gpus_per_node nproc_per_node ngpus num_gpus gpus_per_host devices";
/// Parts of names whose numbers a plan may change.
const SIZES: &str = "nnodes num_nodes nproc_per_node num_machines num_processes world_size num_gpus devices";
/// Variables that a shell, a login or an image sets.
const USUAL: &str = "BASHPID BASH_SOURCE BASH_REMATCH BASH_VERSION EPOCHSECONDS EUID FUNCNAME HOME HOSTNAME IFS \
    LANG LD_LIBRARY_PATH LINENO NVIDIA_VISIBLE_DEVICES OLDPWD OPTARG OPTIND PATH PIPESTATUS PPID \
    PWD PYTHONPATH RANDOM REPLY SECONDS SHELL UID USER";

/// Whether a file is a script of a batch system.
pub fn is_script(text: &str) -> bool {
    let option =
        |line: &str| line.starts_with("#SBATCH") || OTHERS.iter().any(|(mark, _)| line.starts_with(mark));
    text.starts_with("#!") || header(text).any(|(_, line)| option(line))
}

/// A text in the command or environment of a pod: there `$$` stands for `$`.
pub fn in_pod(text: &str) -> String {
    text.replace("$$", "$$$$")
}

/// A step of srun.
#[derive(Debug)]
pub struct Step {
    /// What it asks for.
    pub size: Options,
    /// It runs beside others, and does not say on which nodes.
    beside: bool,
}

/// A script and its words.
#[derive(Debug)]
pub struct Script<'a> {
    text: &'a str,
    interpreter: Vec<String>,
    /// Lines without comments and functions, continued ones joined.
    lines: Vec<String>,
    words: Vec<String>,
    /// Steps of srun.
    pub steps: Vec<Step>,
}

impl<'a> Script<'a> {
    /// Reads a script.
    ///
    /// # Errors
    /// When it is for another batch system, or for a program that takes no text as an argument.
    pub fn read(text: &'a str) -> Result<Self, ConvertError> {
        for (line, option) in header(text) {
            if let Some((mark, system)) = OTHERS.iter().find(|(mark, _)| option.starts_with(mark)) {
                let problem = format!("{mark} is an option of {system}: write its options as #SBATCH lines");
                return Err(ConvertError::Line { line, problem });
            }
        }
        let lines: Vec<String> =
            text.replace("\\\n", " ").lines().map(|line| without_comment(line).to_owned()).collect();
        let literal = literals(&lines);
        let mut script = Self {
            text,
            interpreter: interpreter(text)?,
            lines: Vec::new(),
            words: Vec::new(),
            steps: Vec::new(),
        };
        for line in &lines {
            let line = ["&&", "||", "$("]
                .iter()
                .fold(line.replace(">&", ">").replace("&>", ">"), |line, mark| line.replace(mark, ";"));
            for command in line.split([';', '|', '(', '`']) {
                let mut rest = command.split('&').peekable();
                while let Some(command) = rest.next() {
                    script.add(command, rest.peek().is_some(), &literal);
                }
            }
        }
        script.lines = lines;
        Ok(script)
    }

    fn add(&mut self, command: &str, background: bool, literal: &BTreeMap<&str, Option<&str>>) {
        let words: Vec<String> = words(command).into_iter().map(|word| filled_in(word, literal)).collect();
        for (at, _) in words.iter().enumerate().filter(|(_, word)| base(word) == "srun") {
            let pairs = options::pairs(words.get(at + 1..).unwrap_or_default());
            let pairs = pairs.map(|(pairs, _)| pairs).unwrap_or_default();
            let placed = pairs.iter().any(|(name, _)| is_among("nodelist relative", name));
            self.steps.push(Step { size: options::of_step(&pairs), beside: background && !placed });
        }
        self.words.extend(words);
    }

    /// The command that runs the script with these arguments.
    pub fn command(&self, arguments: &[String]) -> Vec<String> {
        let mut command = self.interpreter.clone();
        command.extend(["-c".to_owned(), in_pod(self.text)]);
        if !arguments.is_empty() {
            command.push("sbatch".to_owned());
            command.extend(arguments.iter().map(|argument| in_pod(argument)));
        }
        command
    }

    /// Numbers of GPUs of a node that the script names, each with its words, for example `--nproc_per_node=8`.
    pub fn counts(&self) -> Vec<String> {
        let named = |name: &str| COUNTS.split(' ').any(|end| name.ends_with(end));
        let mut all: Vec<String> =
            self.numbers().filter(|(name, ..)| named(name)).map(|(.., words)| words).collect();
        all.dedup();
        all.truncate(3);
        all
    }

    /// Names, in small letters with `_`, their whole numbers, and both as they are written.
    fn numbers(&self) -> impl Iterator<Item = (String, i64, String)> {
        self.followed().filter_map(|(word, next)| {
            let (name, number, written) = match word.split_once('=') {
                Some((name, number)) => (name, number, word.to_owned()),
                None if word.starts_with("--") => (word, next, format!("{word} {next}")),
                None => return None,
            };
            let name = name.trim_start_matches('-').replace('-', "_").to_ascii_lowercase();
            Some((name, units::count(number)?, written))
        })
    }

    /// Words, each with the next.
    fn followed(&self) -> impl Iterator<Item = (&str, &str)> {
        let words = || self.words.iter().map(String::as_str);
        words().zip(words().skip(1).chain([""]))
    }

    /// Takes the image that the steps name, and notes what of pyxis is lost.
    pub fn take_images(&self, options: &mut Options, notes: &mut Notes) {
        let mut images = BTreeSet::new();
        for (word, next) in self.followed() {
            let (name, value) = word.split_once('=').unwrap_or((word, next));
            match name {
                "--container-image" => _ = images.insert(value),
                "--image" if self.words.iter().any(|word| base(word) == "shifter") => {
                    _ = images.insert(value)
                }
                "--container-mounts" => {
                    notes.lost("srun --container-mounts", "mount volumes in the template")
                }
                _ => {}
            }
        }
        if images.len() > 1 {
            let names: Vec<&str> = images.iter().copied().collect();
            notes
                .lost("srun --container-image", format!("steps have different images: {}", names.join(", ")));
        }
        for name in images.into_iter().take(1) {
            match image::named(name) {
                Ok(name) => _ = options.image.get_or_insert(name),
                Err(problem) => notes.lost("srun --container-image", problem),
            }
        }
    }

    /// Notes what of the script will not be there, where it has so many nodes and GPUs of each.
    pub fn note(&self, nodes: i64, gpus: i64, has_arguments: bool, notes: &mut Notes) {
        if !header(self.text).any(|(_, line)| line.starts_with("#SBATCH")) {
            notes.lost("#SBATCH", "the script has no such lines: GPUs, nodes and time are to be given");
        }
        let image = "give its image with --image, and start the program without it";
        let starts = "starts nothing on other nodes: use srun";
        let lists = [(CONTAINER_LAUNCHERS, image, true), (MPI, starts, nodes > 1), (ABSENT, starts, true)];
        for (list, instead, _) in lists.into_iter().filter(|(.., missed)| *missed) {
            for name in list.split(' ').filter(|name| self.words.iter().any(|word| base(word) == *name)) {
                notes.lost(name, format!("is not in a container: {instead}"));
            }
        }
        for line in self.lines.iter().map(|line| line.trim()) {
            if line.starts_with("module ") || line.starts_with("ml ") {
                notes.changed(line, "there are no modules: the image brings programs and libraries");
            }
        }
        if nodes > 1 && self.interpreter.iter().all(|word| !base(word).starts_with("python")) {
            self.note_nodes(nodes, gpus, notes);
        }
        if !has_arguments && self.uses_arguments() {
            notes.lost(
                "$1",
                "the script takes arguments: give them after --, as in convert -f FILE -- ARGUMENT",
            );
        }
        let unset: Vec<String> = self.unset().into_iter().map(|name| format!("${name}")).take(20).collect();
        if !unset.is_empty() {
            let text =
                "has its value in the shell that submits, or on the cluster: give it in env of the template";
            notes.lost(unset.join(", "), text);
        }
    }

    fn note_nodes(&self, nodes: i64, gpus: i64, notes: &mut Notes) {
        let starter =
            |word: &String| ["srun", "mpirun", "mpiexec", "ibrun", "jsrun", "pdsh"].contains(&base(word));
        if !self.words.iter().any(starter) {
            notes.lost(
                "script",
                format!(
                    "ran once, on the first of {nodes} nodes, and each worker runs it: start the program with srun, or where \
                     SLURM_NODEID is 0"
                ),
            );
        } else {
            notes.changed(
                "script",
                "lines without srun ran on the first node alone, and each worker runs them",
            );
        }
        let fewer = |step: &&Step| step.beside && step.size.nodes.is_some_and(|(count, _)| count < nodes);
        if self.steps.iter().filter(fewer).count() > 1 {
            notes.lost("srun", "steps that run at once for some of the nodes all run on the first: submit one TrainingJob for each");
        }
        let sizes = [nodes, gpus, nodes * gpus];
        let fixed = |name: &str, number: i64| {
            number > 1 && sizes.contains(&number) && SIZES.split(' ').any(|part| name.ends_with(part))
        };
        let mut written: Vec<String> = self
            .numbers()
            .filter(|(name, number, words)| words.starts_with('-') && fixed(name, *number))
            .map(|(.., words)| words)
            .collect();
        written.dedup();
        if !written.is_empty() {
            notes.lost(
                written.join(" "),
                "a plan may give other numbers: use $SLURM_NNODES, $SLURM_GPUS_ON_NODE, $SLURM_NTASKS",
            );
        }
    }

    /// Whether the text outside of functions uses its arguments.
    fn uses_arguments(&self) -> bool {
        let mut inside = false;
        self.lines.iter().any(|line| {
            let start = line.trim_start();
            inside |= start.starts_with("function ")
                || line.split_once("()").is_some_and(|(name, _)| is_name(name.trim()));
            let outside = !inside;
            inside &= !line.contains('}') || line.trim_end().ends_with('{');
            let used = || {
                unquoted_variables(line).any(|(name, _)| {
                    ["@", "*", "#"].contains(&name) || name.starts_with(|c: char| ('1'..='9').contains(&c))
                })
            };
            outside && (used() || start.starts_with("getopts ") || start.contains("while getopts "))
        })
    }

    /// Names that the text uses and nobody sets.
    fn unset(&self) -> BTreeSet<&str> {
        if self.interpreter.iter().any(|word| base(word).starts_with("python")) {
            return BTreeSet::new();
        }
        let mut given: BTreeSet<&str> = BTreeSet::new();
        for line in &self.lines {
            let words: Vec<&str> =
                line.split(|c: char| c.is_whitespace() || ";|&(){}\"'`".contains(c)).collect();
            for (at, word) in words.iter().enumerate() {
                // Also those of `--export=ALL,NAME=value`.
                for (name, _) in word.split(',').filter_map(|part| part.split_once('=')) {
                    given.insert(name.trim_end_matches('+').split('[').next().unwrap_or_default());
                }
                if [
                    "for",
                    "read",
                    "mapfile",
                    "readarray",
                    "select",
                    "local",
                    "declare",
                    "typeset",
                    "getopts",
                    "-v",
                ]
                .contains(word)
                {
                    given.extend(words.iter().skip(at + 1).take_while(|word| **word != "in"));
                }
            }
        }
        let mut unset = BTreeSet::new();
        for (name, fallback) in self.lines.iter().flat_map(|line| unquoted_variables(line)) {
            if fallback {
                given.insert(name);
            } else if is_name(name) {
                unset.insert(name);
            }
        }
        let set = |name: &str| {
            given.contains(name)
                || is_among(USUAL, name)
                || is_among(VARIABLES, name)
                || is_among(INPUTS, name)
                || ["PET_", "ANDREAS_", "MASTER_"].iter().any(|start| name.starts_with(start))
        };
        unset.retain(|name| !set(name));
        unset
    }
}

/// The words that read a text after `-c`.
fn interpreter(text: &str) -> Result<Vec<String>, ConvertError> {
    let first = text.lines().next().and_then(|line| line.strip_prefix("#!")).unwrap_or("/bin/bash");
    let words: Vec<String> = first.split_whitespace().map(str::to_owned).collect();
    let name = words.iter().map(|word| base(word)).find(|word| *word != "env" && !word.starts_with('-'));
    let reads = |name: &str| {
        ["sh", "bash", "dash", "ash", "ksh", "zsh"].contains(&name) || name.starts_with("python")
    };
    if name.is_some_and(reads) {
        return Ok(words);
    }
    let problem = format!("#!{first}: a script of sh, bash, dash, ash, ksh, zsh or python is read");
    Err(ConvertError::Line { line: 1, problem })
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Words of a command without their quotes. A quote behind `--name=` belongs to its word, others part words, so that those of a
/// variable's text are words too.
fn words(command: &str) -> Vec<&str> {
    let mut all = Vec::new();
    for word in command.split(|c: char| c.is_whitespace() || c == ')' || c == '&') {
        let word = word.trim_matches(['"', '\'']);
        match word.split_once(['"', '\'']) {
            Some((name, value)) if !name.starts_with('-') => all.extend([name, value]),
            _ => all.push(word),
        }
    }
    all.retain(|word| !word.is_empty());
    all
}

/// Variables whose only value is a plain text.
fn literals(lines: &[String]) -> BTreeMap<&str, Option<&str>> {
    let mut literals: BTreeMap<&str, Option<&str>> = BTreeMap::new();
    for line in lines {
        let line = line.trim_start();
        let line = line.strip_prefix("export ").unwrap_or(line).trim();
        // `: "${NAME:=value}"`
        let fallback = || line.strip_prefix(":")?.trim_matches([' ', '"', '{', '}', '$']).split_once(":=");
        let assignment = line.split_once('=').filter(|(name, _)| is_name(name));
        let Some((name, value)) = assignment.or_else(fallback) else { continue };
        let value = value.trim_matches(['"', '\'']);
        let value = value.strip_prefix("${").map_or(value, |inner| {
            inner.split_once(":-").and_then(|(_, value)| value.strip_suffix('}')).unwrap_or("$")
        });
        let plain = !value.contains(|c: char| c.is_whitespace() || "$`;&|".contains(c));
        literals.entry(name).and_modify(|other| *other = None).or_insert(plain.then_some(value));
    }
    literals
}

/// A word with the values of such variables, also quoted.
fn filled_in(word: &str, literals: &BTreeMap<&str, Option<&str>>) -> String {
    let Some((before, name)) = word.split_once('$') else { return word.replace(['"', '\''], "") };
    let before = before.replace(['"', '\''], "");
    let name = name.trim_matches(['{', '}', '"', '\'']);
    match literals.get(name) {
        Some(Some(value)) => format!("{before}{value}"),
        _ => format!("{before}${name}"),
    }
}

/// Names after `$` outside of single quotes, and whether the text gives a value for one that is not set.
fn unquoted_variables(line: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut double = false;
    let mut single = false;
    let mut before = ' ';
    line.char_indices().filter_map(move |(at, c)| {
        let escaped = std::mem::replace(&mut before, c) == '\\';
        match c {
            '"' if !single && !escaped => double = !double,
            '\'' if !double && !escaped => single = !single,
            '$' if !single && !escaped => {
                let rest = &line[at + 1..];
                let braces = rest.starts_with('{');
                let rest = rest.strip_prefix('{').unwrap_or(rest);
                let rest = rest
                    .strip_prefix(['!', '#'])
                    .filter(|rest| braces && rest.starts_with(|c: char| c.is_alphabetic()))
                    .unwrap_or(rest);
                let length =
                    if rest.starts_with(['@', '*', '#']) || rest.starts_with(|c: char| c.is_ascii_digit()) {
                        1
                    } else {
                        rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len())
                    };
                let (name, after) = rest.split_at(length);
                let fallback = braces && after.trim_start_matches(':').starts_with(['-', '=', '+', '?']);
                return (length > 0).then_some((name, fallback));
            }
            _ => {}
        }
        None
    })
}
