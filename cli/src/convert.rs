//! `kubectl-andreas convert`: TrainingJobs from the jobs that people have.
//!
//! **Holds** the command line. What becomes of a job is in `andreas_workloads::convert`.
//!
//! **Must never be here**: I/O but for reading the file.

use std::path::PathBuf;

use andreas_workloads::convert::{Converted, Level, convert};
use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;

use crate::exit::NotGood;
use crate::output::{self, Format, OutputArgs, plain};
use crate::{input, name};

/// Convert: write TrainingJobs for Jobs, PyTorchJobs, TrainJobs, JobSets, RayJobs and sbatch scripts.
///
/// The manifests go to standard output, with what was lost or changed as comments; the same goes to standard error. Exit code 5: something
/// was lost that a person must see to. No cluster is asked, and nothing is created. A TrainJob takes what it leaves to its runtime from
/// the TrainingRuntime or ClusterTrainingRuntime in the same file.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// Manifests (YAML or JSON) or an sbatch script; - for standard input
    #[arg(long, short, value_name = "FILE")]
    file: PathBuf,
    /// Image where the file names none, as in sbatch scripts
    #[arg(long, value_name = "IMAGE", value_parser = name::non_empty)]
    image: Option<String>,
    /// Exit with code 0 although something was lost
    #[arg(long)]
    allow_loss: bool,
    #[command(flatten)]
    output: OutputArgs,
    /// Arguments of an sbatch script
    #[arg(last = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
}

/// Runs the subcommand.
///
/// # Errors
/// When the file cannot be read or holds no job, or something was lost.
pub fn run(args: &ConvertArgs) -> Result<()> {
    let name = input::name_of(&args.file);
    let text = input::read(&args.file, input::MANIFESTS).with_context(|| name.clone())?;
    let converted = convert(&text, args.image.as_deref(), &args.arguments).with_context(|| name.clone())?;
    for one in &converted {
        for note in &one.notes {
            output::print_error(&format!(
                "{}: {}: {}: {}",
                note.level.as_str(),
                plain(&one.source),
                plain(&note.field),
                plain(&note.text)
            ));
        }
    }
    output::print(&text_of(args.output, &converted)?)?;
    let lost = converted.iter().flat_map(|one| &one.notes).filter(|note| note.level == Level::Lost).count();
    if lost > 0 && !args.allow_loss {
        return Err(NotGood(format!(
            "{name}: something was lost ({lost}), see the comments in the manifests"
        ))
        .into());
    }
    Ok(())
}

fn text_of(args: OutputArgs, converted: &[Converted]) -> Result<String> {
    let name = |one: &Converted| format!("trainingjob/{}", one.name());
    match args.format {
        Format::Name => Ok(converted.iter().map(|one| plain(&name(one)) + "\n").collect()),
        Format::Json => {
            let jobs: Vec<&Value> = converted.iter().map(|one| &one.job).collect();
            match jobs.as_slice() {
                [job] => output::document(Format::Json, job),
                jobs => output::document(
                    Format::Json,
                    &serde_json::json!({"apiVersion": "v1", "kind": "List", "items": jobs}),
                ),
            }
        }
        _ => {
            let documents: Result<Vec<String>> = converted.iter().map(document).collect();
            Ok(documents?.join("---\n"))
        }
    }
}

/// One manifest, below what was lost or changed.
fn document(one: &Converted) -> Result<String> {
    let mut text = format!("# From {}, by kubectl andreas convert.\n", plain(&one.source));
    for note in &one.notes {
        text += &format!("# {}: {}: {}\n", note.level.as_str(), plain(&note.field), plain(&note.text));
    }
    Ok(text + &output::document(Format::Yaml, &one.job)?)
}

#[cfg(test)]
mod tests;
