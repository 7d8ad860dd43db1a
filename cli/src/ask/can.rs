//! `kubectl-andreas can`: whether a job submitted now would be on time.

use std::path::PathBuf;

use andreas_query::{Can, CanRequest, path};
use anyhow::Result;
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::transport::Operator;
use super::{AskArgs, job_file, text};
use crate::cluster::block_on;
use crate::exit::NotGood;
use crate::output;
use crate::when::{self, Deadline};

/// Can: the probability that a job submitted now would meet a deadline. Nothing is created.
///
/// The deadline is that of the manifest unless --deadline gives one. Needs the right to list TrainingJobs in the namespace.
#[derive(Debug, Args)]
pub struct CanArgs {
    /// The job: TrainingJob, Job, PyTorchJob, TrainJob, JobSet, RayJob, or an sbatch script; - for standard input
    #[arg(long, short, value_name = "FILE")]
    file: PathBuf,
    /// Deadline: an instant such as 2027-01-31T18:00:00Z, or a time from now such as 36h
    #[arg(long, value_name = "WHEN", value_parser = when::deadline)]
    deadline: Option<Deadline>,
    /// Exit with code 5 if the probability is lower, percent
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(i32).range(1..=100))]
    at_least: Option<i32>,
    #[command(flatten)]
    ask: AskArgs,
}

/// Runs the subcommand.
///
/// # Errors
/// When the file cannot be read, the cluster or the operator refuses, or the probability is below `--at-least`.
pub fn run(args: &CanArgs) -> Result<()> {
    let mut question = CanRequest { job: job_file::read(&args.file)?, deadline: None, deadline_after: None };
    match args.deadline.clone() {
        Some(Deadline::At(at)) => question.deadline = Some(Time(at)),
        Some(Deadline::After(after)) => question.deadline_after = Some(after),
        None => {}
    }
    let answer: Can = block_on(async {
        let operator = Operator::connect(&args.ask).await?;
        operator.post(&path::can(&operator.namespace), &question).await
    })?;
    let text = |answer: &Can| text_of(answer, Timestamp::now());
    output::print(&output::object(args.ask.output, &answer, text, |answer| {
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
    match &answer.job.expected {
        Some(expected) => text += &text::expected(&answer.job, expected, &answer.currency, now),
        None => text += "Start:     never: no node can run it\n",
    }
    text
}
