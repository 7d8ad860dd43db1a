//! The program of a job: runs of one program share a TrainingProfile ([`andreas_predictor::estimates::RunDescription`]).

use andreas_api::slim::SlimTrainingJob;
use andreas_predictor::estimates::{Program, RunDescription};
use kube::ResourceExt;

/// The program of the job's training container; `None` without a container.
pub fn program(job: &SlimTrainingJob) -> Option<Program> {
    let spec = job.spec.template.spec.as_ref()?;
    let container = job.spec.training_container()?;
    let container = spec.containers.iter().find(|one| one.name == container)?;
    let owner = job.metadata.owner_references.iter().flatten().find(|o| o.controller == Some(true));
    let command = container.command.iter().flatten().chain(container.args.iter().flatten());
    let environment = container.env.iter().flatten();
    let run = RunDescription {
        name: &job.name_any(),
        owner: owner.map(|owner| (owner.kind.as_str(), owner.name.as_str())),
        image: container.image.as_deref().unwrap_or_default(),
        command: command.map(String::as_str).collect(),
        environment: environment.filter_map(|v| Some((v.name.as_str(), v.value.as_deref()?))).collect(),
    };
    Some(run.program())
}

#[cfg(test)]
mod tests;
