//! An sbatch script of Slurm.

mod image;
mod interpreter;
mod options;
mod script;
mod shell;
mod size;
mod srun;
mod units;
mod variables;

use serde_json::{Map, Value, json};

use self::options::Options;
use self::script::Program;
use self::size::Size;
use super::draft::{Draft, duration_text};
use super::error::ConvertError;
use super::fields::Fields;
use super::launch;
use super::notes::Notes;
use super::template::Template;

/// Name of the container that trains.
const CONTAINER: &str = "train";

/// Whether a file is a script with options of sbatch.
pub fn is_script(text: &str) -> bool {
    text.starts_with("#!") || text.lines().take(200).any(|line| line.starts_with("#SBATCH"))
}

/// The TrainingJob of a script, and what the script is called.
///
/// # Errors
/// When the value of an option cannot be read.
pub fn convert(text: &str, notes: &mut Notes) -> Result<(String, Value), ConvertError> {
    let options = options::read(text, notes)?;
    let mut program = script::read(text, notes);
    let mut env = options.env.clone();
    env.append(&mut program.env);
    program.env = variables::last_of_each(env, notes);
    let image = options.image.clone().or(program.image.clone());
    let name = options.name.clone();
    let metadata = json!({"name": name.as_deref().unwrap_or("batch")});
    let mut draft = Draft::from_metadata(Fields::new("metadata", metadata)?, notes)?;
    if let Some(seconds) = options.time {
        notes.changed(
            "--time",
            "becomes maxRunTime of each attempt; deadlineAfter says when the job should be done",
        );
        draft.set("maxRunTime", duration_text(seconds));
    }
    // Slurm starts a job again when a node was lost, which is no retry here, but not when its program failed.
    draft.set_no_retries("script", notes);
    if options.hold {
        draft.set("suspend", true);
    }
    if let Some(seconds) = options.grace {
        notes.lost(
            "--signal",
            format!("give the job a checkpoint with graceSeconds: {seconds}; the signal is SIGTERM"),
        );
    }
    let size = Size::from_options(&options, notes);
    note_lost_processes(&program, &size, notes);
    let value = template(&options, &size, image, &program);
    let template = Template {
        value,
        gpus: size.workers.gpus,
        words: program.words,
        field: "script".to_owned(),
        ..Template::default()
    };
    let job = draft.finish(size.workers, template, notes);
    let source = format!("sbatch script {}", name.unwrap_or_else(|| "without a name".to_owned()));
    Ok((source, job))
}

/// Notes that only one process of each node is left: srun starts one for each task, and a worker is one for each node.
fn note_lost_processes(program: &Program, size: &Size, notes: &mut Notes) {
    let processes = program.tasks.map_or(1, |tasks| tasks.of_node(size.workers.min, size.tasks));
    if processes > 1 && !launch::is_torchrun(&program.words) {
        notes.lost(
            "srun",
            format!(
                "starts {processes} processes on each node, and a worker is one: start the program with torchrun, which starts one for \
                 each GPU"
            ),
        );
    }
}

fn template(options: &Options, size: &Size, image: Option<String>, program: &Program) -> Value {
    let mut container = Map::new();
    container.insert("name".into(), CONTAINER.into());
    if let Some(image) = image {
        container.insert("image".into(), image.into());
    }
    container.insert("command".into(), program.words.iter().map(String::as_str).collect());
    if let Some(folder) = &options.folder {
        container.insert("workingDir".into(), folder.as_str().into());
    }
    if !program.env.is_empty() {
        let of = |(name, value): &(String, String)| json!({"name": name, "value": value});
        container.insert("env".into(), program.env.iter().map(of).collect());
    }
    let mut requests = Map::new();
    if let Some(cpus) = size.cpus {
        requests.insert("cpu".into(), cpus.to_string().into());
    }
    if let Some(memory) = size.memory {
        requests.insert("memory".into(), format!("{memory}Mi").into());
    }
    if !requests.is_empty() {
        container.insert("resources".into(), json!({"requests": requests}));
    }
    json!({"spec": {"containers": [container]}})
}

#[cfg(test)]
mod tests;
