//! An sbatch script of Slurm: its options become fields, and the script stays as it is.

mod image;
mod options;
mod script;
mod size;
mod units;

use serde_json::{Map, Value, json};

use self::options::Options;
use self::script::Script;
pub use self::script::is_script;
use self::size::Size;
use super::draft::{Draft, duration_text};
use super::error::ConvertError;
use super::fields::Fields;
use super::notes::Notes;
use super::template::Template;
use crate::slurm;

/// Name of the container that trains.
const CONTAINER: &str = "train";

/// The TrainingJob of a script with these arguments, and what the script is called.
///
/// # Errors
/// When the script is for another system or interpreter, or the value of an option cannot be read.
pub fn convert(text: &str, arguments: &[String], notes: &mut Notes) -> Result<(String, Value), ConvertError> {
    // A shell takes the \r for a part of each line's last word.
    let unix = text.replace("\r\n", "\n");
    if unix.len() < text.len() {
        notes.changed(
            "script",
            "its lines end as those of Windows: in the TrainingJob they end with \\n alone",
        );
    }
    let script = Script::read(&unix)?;
    let mut options = options::read(&unix, notes)?;
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
    draft.set("rendezvous", "Slurm");
    if options.hold {
        draft.set("suspend", true);
    }
    script.take_images(&mut options, notes);
    let size = Size::new(&options, &script.steps, &script.counts(), notes);
    script.note(size.workers.max, size.workers.gpus, !arguments.is_empty(), notes);
    let template = Template {
        value: template(&options, &size, script.command(arguments)),
        gpus: size.workers.gpus,
        field: "script".to_owned(),
        ..Template::default()
    };
    let job = draft.finish(size.workers, template, notes);
    let source = format!("sbatch script {}", name.unwrap_or_else(|| "without a name".to_owned()));
    Ok((source, job))
}

fn template(options: &Options, size: &Size, command: Vec<String>) -> Value {
    let mut container = Map::new();
    container.insert("name".into(), CONTAINER.into());
    if let Some(image) = &options.image {
        container.insert("image".into(), image.as_str().into());
    }
    container.insert("command".into(), command.into());
    if let Some(folder) = &options.folder {
        container.insert("workingDir".into(), folder.as_str().into());
    }
    let number = |name: &str, number: Option<i64>| Some((name.to_owned(), number?.to_string()));
    let mut env = options.env.clone();
    env.extend(number(slurm::TASKS_PER_NODE, size.tasks));
    env.extend(number(slurm::GPUS_PER_TASK, options.gpus_per_task));
    env.extend(options.signal.clone().map(|signal| (slurm::SIGNAL.to_owned(), signal)));
    if !env.is_empty() {
        let variable =
            |(name, value): &(String, String)| json!({"name": name, "value": script::in_pod(value)});
        container.insert("env".into(), env.iter().map(variable).collect());
    }
    let mut requests = Map::new();
    requests.extend(size.cpus.map(|cpus| ("cpu".into(), cpus.to_string().into())));
    requests.extend(size.memory.map(|memory| ("memory".into(), format!("{memory}Mi").into())));
    if !requests.is_empty() {
        container.insert("resources".into(), json!({"requests": requests}));
    }
    json!({"spec": {"containers": [container]}})
}

#[cfg(test)]
mod tests;
