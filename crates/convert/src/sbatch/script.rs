//! The commands of a script: one program where that is all it does, else the whole script in a shell.

use super::super::launch;
use super::super::notes::Notes;

/// Options of srun with a value in the next word, of those that are common.
const SRUN_VALUED: [&str; 10] = ["-n", "-N", "-c", "-G", "-p", "-t", "-o", "-e", "-w", "-J"];
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
    let shell = |line: &str| line.contains(['|', '>', '<', '&', ';', '$', '`', '*', '(', ')']);
    if let (true, [(line, words)]) = (plain, commands.as_slice())
        && !shell(line)
    {
        let (words, image) = without_srun(words);
        let words = launch::without_launcher_flags(words, "script", notes);
        env.retain(|(name, _)| !launch::OWN_VARIABLES.contains(&name.as_str()));
        return Program { words, env, image };
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
    if line.contains(['$', '`', '(']) {
        return None;
    }
    words
        .iter()
        .map(|word| word.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())))
        .collect()
}

/// The program that srun starts, and the image that it names.
fn without_srun(words: &[String]) -> (Vec<String>, Option<String>) {
    let Some(rest) = words.split_first().filter(|(first, _)| *first == "srun").map(|(_, rest)| rest) else {
        let from = usize::from(words.first().is_some_and(|first| first == "exec"));
        return (words[from..].to_vec(), None);
    };
    let (mut image, mut at) = (None, 0);
    while let Some(word) = rest.get(at).filter(|word| word.starts_with('-')) {
        if let Some(named) = word.strip_prefix("--container-image=") {
            image = Some(named.replace('#', "/"));
        }
        at += if SRUN_VALUED.contains(&word.as_str()) { 2 } else { 1 };
    }
    (rest.get(at..).unwrap_or_default().to_vec(), image)
}
