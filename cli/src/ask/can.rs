//! `kubectl-andreas can`: whether a job submitted now would be on time.

use std::path::PathBuf;

use andreas_api::query::{Can, CanRequest, path};
use anyhow::Result;
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::transport::Operator;
use super::{AskArgs, job_file, text};
use crate::cluster::block_on;
use crate::exit::{NotGood, Usage};
use crate::output::{self, OutputArgs};
use crate::when::{self, Deadline};

/// Can: the probability that a job submitted now would meet a deadline. Nothing is created.
///
/// The deadline is that of the manifest unless --deadline gives one, and so is the namespace. Needs the right to list TrainingJobs in
/// the namespace, and to create them: the API server checks the job.
#[derive(Debug, Args)]
pub struct CanArgs {
    /// The job: TrainingJob, Job, PyTorchJob, TrainJob, JobSet, RayJob, or an sbatch script; - for standard input
    #[arg(long, short, value_name = "FILE")]
    file: PathBuf,
    /// Deadline: an instant such as 2027-01-31T18:00:00Z, or a time from now such as 36h
    #[arg(long, value_name = "WHEN", value_parser = when::deadline)]
    deadline: Option<Deadline>,
    /// Exit with code 5 if the probability is lower, percent. Needs a deadline
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(i32).range(1..=100))]
    at_least: Option<i32>,
    #[command(flatten)]
    ask: AskArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the subcommand.
///
/// # Errors
/// When the file cannot be read or is of another namespace, the cluster or the operator refuses, the probability is below `--at-least`,
/// or there is no deadline for it.
pub fn run(args: &CanArgs) -> Result<()> {
    let (job, namespace) = job_file::read(&args.file)?;
    let ask = args.ask.of_manifest(namespace)?;
    let mut question = CanRequest { job, deadline: None, deadline_after: None };
    match args.deadline.clone() {
        Some(Deadline::At(at)) => question.deadline = Some(Time(at)),
        Some(Deadline::After(after)) => question.deadline_after = Some(after),
        None => {}
    }
    let has_deadline = |field: &str| question.job.spec.get(field).is_some_and(|value| !value.is_null());
    if args.at_least.is_some()
        && args.deadline.is_none()
        && !has_deadline("deadline")
        && !has_deadline("deadlineAfter")
    {
        return Err(
            Usage("--at-least needs a deadline: give --deadline, or one in the manifest".to_owned()).into()
        );
    }
    let answer: Can = block_on(async {
        let operator = Operator::connect(&ask).await?;
        question.job = operator.checked(question.job).await?;
        operator.post(&path::can(&operator.namespace), &question).await
    })?;
    let text = |answer: &Can| text_of(answer, Timestamp::now());
    output::print(&output::object(args.output, &answer, text, |answer| {
        format!("trainingjob/{}", answer.job.name)
    })?)?;
    match args.at_least {
        Some(least) if answer.on_time_percent.unwrap_or(0) < least => {
            let percent = answer.on_time_percent.unwrap_or(0);
            Err(NotGood(format!("on time with {percent} %, less than {least} %")).into())
        }
        _ => Ok(()),
    }
}

fn text_of(answer: &Can, now: Timestamp) -> String {
    let mut text = match (answer.on_time_percent, &answer.deadline) {
        (Some(percent), Some(deadline)) => {
            format!("On time:   with {percent} %, deadline {}\n", text::from_now(deadline, now))
        }
        _ => "On time:   the job has no deadline\n".to_owned(),
    };
    text += &text::expected_or_never(&answer.job, &answer.currency, now);
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::{Value, json};

    use super::*;
    use crate::exit;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        can: CanArgs,
    }

    #[test]
    fn at_least_without_a_deadline_is_an_error_of_usage() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("job.yaml");
        let run = |spec: &str, more: &[&str]| {
            std::fs::write(&file, format!("kind: TrainingJob\nspec: {spec}\n")).unwrap();
            let mut words = vec!["can", "--at-least", "90", "--kubeconfig", "/nowhere", "-f"];
            words.push(file.to_str().unwrap());
            words.extend(more);
            let error = run(&Line::try_parse_from(words).unwrap().can).unwrap_err();
            (exit::code(&error), error.to_string())
        };
        let (code, text) = run("{epochs: 1}", &[]);
        assert_eq!(code, exit::USAGE);
        assert!(text.starts_with("--at-least needs a deadline"), "{text}");
        // With one, the cluster is asked, which is not there.
        assert_eq!(run("{epochs: 1}", &["--deadline", "3h"]).0, exit::FAILED);
        assert_eq!(run("{deadlineAfter: 3h}", &[]).0, exit::FAILED);
    }

    #[test]
    fn a_flag_that_contradicts_the_namespace_of_the_manifest_is_an_error_of_usage() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("job.yaml");
        std::fs::write(&file, "kind: TrainingJob\nmetadata: {namespace: team-b}\nspec: {epochs: 1}\n")
            .unwrap();
        let can = |more: &[&str]| {
            let mut words = vec!["can", "--kubeconfig", "/nowhere", "-f", file.to_str().unwrap()];
            words.extend(more);
            Line::try_parse_from(words).unwrap().can
        };
        let error = run(&can(&["-n", "team-a"])).unwrap_err();
        assert_eq!(exit::code(&error), exit::USAGE);
        assert_eq!(error.to_string(), "-n team-a: the manifest is of namespace team-b");
        // The cluster is asked, which is not there.
        assert_eq!(exit::code(&run(&can(&["-n", "team-b"])).unwrap_err()), exit::FAILED);
        let asked = |more: &[&str]| can(more).ask.of_manifest(Some("team-b".into())).unwrap().namespace;
        assert_eq!((asked(&[]), asked(&["-n", "team-b"])), (Some("team-b".into()), Some("team-b".into())));
        assert_eq!(can(&["-n", "team-a"]).ask.of_manifest(None).unwrap().namespace, Some("team-a".into()));
    }

    #[test]
    fn a_job_that_never_starts_has_its_reason() {
        let text = |more: Value| {
            let at = "2026-01-01T00:00:00Z";
            let mut job = json!({"name": "a", "phase": "Pending", "weight": 10, "gpus": "1", "created": at});
            job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let answer = json!({"namespace": "team", "job": job, "currency": "EUR"});
            text_of(&serde_json::from_value(answer).unwrap(), at.parse().unwrap())
        };
        let quota = text(json!({"reason": "QuotaExceeded", "message": "quota gpus: 8 of 8 are used"}));
        assert!(
            quota.ends_with("Start:     never: QuotaExceeded\n           quota gpus: 8 of 8 are used\n"),
            "{quota}"
        );
        assert!(text(json!({})).ends_with("Start:     never: no node can run it\n"));
    }
}
