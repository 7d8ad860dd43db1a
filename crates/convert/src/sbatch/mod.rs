//! An sbatch script of Slurm.

mod options;
mod script;
mod srun;
mod units;

use serde_json::{Map, Value, json};

use self::options::Options;
use super::draft::{Draft, Workers, duration_text};
use super::error::ConvertError;
use super::fields::Fields;
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
    let program = script::read(text, notes);
    let image = options.image.clone().or(program.image.clone());
    let name = options.name.clone();
    let metadata = json!({"name": name.as_deref().unwrap_or("batch")});
    let mut draft = Draft::of(Fields::of("metadata", metadata)?, notes)?;
    if let Some(seconds) = options.time {
        notes.changed(
            "--time",
            "becomes maxRunTime of each attempt; deadlineAfter says when the job should be done",
        );
        draft.set("maxRunTime", duration_text(seconds));
    }
    if options.requeue == Some(false) {
        draft.set("retries", 0);
    }
    if options.hold {
        draft.set("suspend", true);
    }
    if let Some(seconds) = options.grace {
        notes.lost(
            "--signal",
            format!("give the job a checkpoint with graceSeconds: {seconds}; the signal is SIGTERM"),
        );
    }
    let workers = workers(&options, notes);
    let value = template(&options, image, &program);
    let template = Template {
        value,
        gpus: workers.gpus,
        words: program.words,
        field: "script".to_owned(),
        ..Template::default()
    };
    let job = draft.finish(workers, template, notes);
    let source = format!("sbatch script {}", name.unwrap_or_else(|| "without a name".to_owned()));
    Ok((source, job))
}

/// Nodes and GPUs of each.
fn workers(options: &Options, notes: &mut Notes) -> Workers {
    let (min, max) = options.nodes.unwrap_or((1, 1));
    let tasks = options.tasks.unwrap_or(min);
    let per_node = match (options.gpus_per_node, options.gpus, options.gpus_per_task) {
        (Some(gpus), _, _) => gpus,
        (None, Some(total), _) => {
            if total % min != 0 {
                notes.lost("--gpus", format!("{total} GPUs cannot be shared evenly by {min} nodes"));
            }
            (total / min).max(1)
        }
        (None, None, Some(gpus)) => {
            let on_node = options.tasks_per_node.unwrap_or((tasks + min - 1) / min);
            gpus.saturating_mul(on_node.max(1))
        }
        (None, None, None) => 0,
    };
    Workers { min, max, gpus: per_node }
}

fn template(options: &Options, image: Option<String>, program: &script::Program) -> Value {
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
    if let Some(cpus) = options.cpus() {
        requests.insert("cpu".into(), cpus.to_string().into());
    }
    if let Some(memory) = options.memory_mib() {
        requests.insert("memory".into(), format!("{memory}Mi").into());
    }
    if !requests.is_empty() {
        container.insert("resources".into(), json!({"requests": requests}));
    }
    json!({"spec": {"containers": [container]}})
}

#[cfg(test)]
mod tests;
