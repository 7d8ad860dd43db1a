//! The text of a script, which stays as it is: images that its words name, and programs that will not be there. A shell is not
//! understood by reading it, so nothing else is read.

use std::collections::BTreeSet;

use super::super::error::ConvertError;
use super::super::launch::{CONTAINER_LAUNCHERS, base, without_comment};
use super::super::notes::Notes;
use super::image;
use super::options::{Options, header};

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

/// A script and its words.
#[derive(Debug)]
pub struct Script<'a> {
    text: &'a str,
    interpreter: Vec<String>,
    /// Lines without comments, continued ones joined.
    lines: Vec<String>,
    words: Vec<String>,
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
        let mark = |c: char| c.is_whitespace() || ";|&()`\"'".contains(c);
        let words = lines.iter().flat_map(|line| line.split(mark)).filter(|word| !word.is_empty());
        let words = words.map(str::to_owned).collect();
        Ok(Self { text, interpreter: interpreter(text)?, lines, words })
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
            let value = if value.is_empty() { next } else { value };
            match name {
                // Only a shell knows a variable's value; that a pod has no image is noted anyway.
                "--container-image" | "--image" if value.contains('$') => {}
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

    /// Notes what of the script will not be there, where it has so many nodes.
    pub fn note(&self, nodes: i64, notes: &mut Notes) {
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
            self.note_nodes(nodes, notes);
        }
    }

    fn note_nodes(&self, nodes: i64, notes: &mut Notes) {
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
