//! The commands of a script: one program where that is all it does, else the whole script in its interpreter.

use super::super::launch;
use super::super::notes::Notes;
use super::interpreter::{self, Interpreter, Language};
use super::shell::{logical_lines, needs_shell, runs};
use super::srun::{self, Tasks};
use super::variables::{self, Variable, assignment};

/// What a script runs.
#[derive(Debug, Default, PartialEq)]
pub struct Program {
    /// Command and arguments.
    pub words: Vec<String>,
    /// Variables that it exports.
    pub env: Vec<Variable>,
    /// Image that srun names.
    pub image: Option<String>,
    /// The processes that srun starts, if it does.
    pub tasks: Option<Tasks>,
}

/// Reads the commands of a script.
pub fn read(text: &str, notes: &mut Notes) -> Program {
    variables::of_slurm(text, notes);
    let interpreter = Interpreter::from_script(text);
    let name = interpreter.words.join(" ");
    let words = match interpreter.language {
        Language::Shell => return commands(text, interpreter, notes),
        Language::Python => {
            notes.changed(
                "script",
                format!("its text is given to {name}: it is better in a file of the image"),
            );
            interpreter.command(&interpreter::body(text))
        }
        Language::Other => {
            notes.lost(
                "script",
                format!("its text for {name}: put it into a file of the image, and name the file"),
            );
            interpreter.words
        }
    };
    Program { words, ..Program::default() }
}

/// The commands of a shell's script.
fn commands(text: &str, interpreter: Interpreter, notes: &mut Notes) -> Program {
    let (mut env, mut commands, mut plain) = (Vec::new(), Vec::new(), true);
    let lines = logical_lines(text);
    for line in &lines {
        let Some(words) = shlex::split(line) else {
            plain = false;
            continue;
        };
        match words.first().map(String::as_str) {
            Some("set") if needs_shell(line) => plain = false,
            None | Some("set") => {}
            Some("module" | "ml") => notes.lost(line.trim(), "there are no modules: the image must have it"),
            Some("source" | "conda" | ".") => {
                notes.lost(line.trim(), "the environment must be in the image or on a volume");
                plain = false;
            }
            Some("export") => match exports(&words[1..], line) {
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
        program.env = env;
        return program;
    }
    let srun = lines.iter().any(|line| runs(line, "srun"));
    if srun {
        notes.lost("srun", "is not there: every worker runs the whole script by itself");
    }
    notes.changed(
        "script",
        "runs in a shell, which does not pass SIGTERM on: begin the last command with exec",
    );
    let words = interpreter.command(&interpreter::body(text));
    Program { words, tasks: srun.then(Tasks::default), ..Program::default() }
}

/// `A=1 B=2`; none where a value needs a shell.
fn exports(words: &[String], line: &str) -> Option<Vec<Variable>> {
    if needs_shell(line) {
        return None;
    }
    words.iter().map(|word| assignment(word)).collect()
}

/// What a command starts, with the variables before it: `A=1 exec srun -n 1 program`. `None` where that cannot be known.
fn program(words: &[String], notes: &mut Notes) -> Option<Program> {
    let mut found = Program::default();
    let (mut rest, mut timed) = prepared(words, true, &mut found.env);
    if let Some((_, after)) = rest.split_first().filter(|(first, _)| *first == "srun") {
        let mut step = srun::program(after, notes)?;
        found.env.append(&mut step.env);
        (found.image, found.tasks) = (step.image, Some(step.tasks));
        let inner;
        (rest, inner) = prepared(step.words, false, &mut found.env);
        timed |= inner;
    }
    // `srun A=1 program` has no variables: the shell would read them before srun.
    rest.first().filter(|first| !first.starts_with('-') && assignment(first).is_none())?;
    if timed {
        notes.changed("script", "time is left out: the status says how long an attempt ran");
    }
    if rest.iter().any(|word| runs(word, "srun")) {
        notes.lost("srun", "is not there: start the program without it");
    }
    found.words = rest.to_vec();
    Some(found)
}

/// The words after those that only prepare a program, and whether it is timed. Variables may stand first in a shell, and after `env`.
fn prepared<'a>(words: &'a [String], in_shell: bool, env: &mut Vec<Variable>) -> (&'a [String], bool) {
    let (mut rest, mut variables, mut timed) = (words, in_shell, false);
    while let Some((word, after)) = rest.split_first() {
        match (assignment(word), word.as_str()) {
            (Some(variable), _) if variables => env.push(variable),
            (None, "env") => variables = true,
            (None, "exec" | "nohup") => variables = false,
            (None, "time") => (variables, timed) = (in_shell, true),
            // Of time, the only option that a shell knows.
            (None, "-p") if timed => {}
            _ => break,
        }
        rest = after;
    }
    (rest, timed)
}
