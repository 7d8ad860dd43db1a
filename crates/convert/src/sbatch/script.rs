//! The commands of a script: one program where that is all it does, else the whole script in a shell.

use super::super::launch;
use super::super::notes::Notes;
use super::srun;

/// Variables of Slurm and what stands for them.
const VARIABLES: [(&str, &str); 10] = [
    ("SLURM_JOB_NODELIST", "PET_MASTER_ADDR, the host of worker 0"),
    ("SLURM_NODELIST", "PET_MASTER_ADDR, the host of worker 0"),
    ("SLURM_JOB_NUM_NODES", "PET_NNODES"),
    ("SLURM_NNODES", "PET_NNODES"),
    ("SLURM_NODEID", "PET_NODE_RANK"),
    ("SLURM_PROCID", "RANK, within torchrun"),
    ("SLURM_LOCALID", "LOCAL_RANK, within torchrun"),
    ("SLURM_NTASKS", "WORLD_SIZE, within torchrun"),
    ("SLURM_GPUS_ON_NODE", "PET_NPROC_PER_NODE"),
    ("SLURM_JOB_ID", "ANDREAS_JOB, the name of the job"),
];

/// What a script runs.
#[derive(Debug, Default, PartialEq)]
pub struct Program {
    /// Command and arguments.
    pub words: Vec<String>,
    /// Variables that it exports.
    pub env: Vec<(String, String)>,
    /// Image that srun names.
    pub image: Option<String>,
}

/// Reads the commands of a script.
pub fn read(text: &str, notes: &mut Notes) -> Program {
    for (variable, instead) in VARIABLES {
        if text.contains(variable) {
            notes.lost(variable, format!("is not set: use {instead}"));
        }
    }
    let (mut env, mut commands, mut plain) = (Vec::new(), Vec::new(), true);
    for line in logical_lines(text) {
        let Some(words) = shlex::split(&line) else {
            plain = false;
            continue;
        };
        match words.first().map(String::as_str) {
            Some("set") if needs_shell(&line) => plain = false,
            None | Some("set") => {}
            Some("module" | "ml") => notes.lost(line.trim(), "there are no modules: the image must have it"),
            Some("source" | "conda" | ".") => {
                notes.lost(line.trim(), "the environment must be in the image or on a volume");
                plain = false;
            }
            Some("export") => match exports(&words[1..], &line) {
                Some(variables) => env.extend(variables),
                None => plain = false,
            },
            Some(_) => commands.push((line, words)),
        }
    }
    if let (true, [(line, words)]) = (plain, commands.as_slice())
        && !needs_shell(line)
        && let Some(mut program) = program(words, notes)
    {
        program.words = launch::without_launcher_flags(&program.words, "script", notes);
        env.append(&mut program.env);
        program.env = last_of_each(env);
        return program;
    }
    if text.contains("srun ") {
        notes.lost("srun", "is not there: every worker runs the whole script by itself");
    }
    notes.changed(
        "script",
        "runs in a shell, which does not pass SIGTERM on: begin the last command with exec",
    );
    let body: String = text
        .lines()
        .filter(|line| !line.starts_with("#SBATCH") && !line.starts_with("#!"))
        .fold(String::new(), |body, line| body + line + "\n");
    Program {
        words: vec!["/bin/bash".to_owned(), "-c".to_owned(), body.trim().to_owned() + "\n"],
        ..Program::default()
    }
}

/// Lines without comments; those that end in a backslash with the next.
fn logical_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut open = String::new();
    for line in text.lines() {
        if open.is_empty() && (line.trim().is_empty() || line.trim_start().starts_with('#')) {
            continue;
        }
        match line.strip_suffix('\\') {
            Some(part) => {
                open.push_str(part);
                open.push(' ');
            }
            None => lines.push(std::mem::take(&mut open) + line),
        }
    }
    if !open.is_empty() {
        lines.push(open);
    }
    lines
}

/// `A=1 B=2`; none where a value needs a shell.
fn exports(words: &[String], line: &str) -> Option<Vec<(String, String)>> {
    if needs_shell(line) {
        return None;
    }
    words
        .iter()
        .map(|word| word.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())))
        .collect()
}

/// Whether a line has something that only a shell can do. Quotes take the meaning of all but variables and commands.
fn needs_shell(line: &str) -> bool {
    let mut quote = None;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (_, '$' | '`') => return true,
            (None | Some('"'), '\\') => drop(letters.next()),
            (Some(open), _) if open == letter => quote = None,
            (None, '\'' | '"') => quote = Some(letter),
            (None, '|' | '>' | '<' | '&' | ';' | '*' | '(' | ')' | '~' | '{') => return true,
            _ => {}
        }
    }
    false
}

/// What a command starts, with the variables before it: `A=1 exec srun -n 1 program`. `None` where that cannot be known.
fn program(words: &[String], notes: &mut Notes) -> Option<Program> {
    let (mut rest, mut env) = (words, Vec::new());
    while let Some((variable, after)) =
        rest.split_first().and_then(|(word, after)| Some((assignment(word)?, after)))
    {
        env.push(variable);
        rest = after;
    }
    if let Some((_, after)) = rest.split_first().filter(|(first, _)| *first == "exec") {
        rest = after;
    }
    let mut image = None;
    if let Some((_, after)) = rest.split_first().filter(|(first, _)| *first == "srun") {
        (rest, image) = srun::program(after, notes)?;
    }
    let first = rest.first().filter(|first| !first.starts_with('-'))?;
    // `srun A=1 program` has no variables: the shell would read them before srun.
    assignment(first).is_none().then(|| Program { words: rest.to_vec(), env, image })
}

/// `NAME=value`.
fn assignment(word: &str) -> Option<(String, String)> {
    let (name, value) = word.split_once('=')?;
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    let is_name = name.starts_with(letter) && name.chars().all(|c| letter(c) || c.is_ascii_digit());
    is_name.then(|| (name.to_owned(), value.to_owned()))
}

/// Each variable once, with its last value, without those that the operator sets.
fn last_of_each(env: Vec<(String, String)>) -> Vec<(String, String)> {
    let mut kept: Vec<(String, String)> = Vec::new();
    for (name, value) in env {
        kept.retain(|(other, _)| *other != name);
        kept.push((name, value));
    }
    kept.retain(|(name, _)| !launch::OWN_VARIABLES.contains(&name.as_str()));
    kept
}
