//! `kubectl-andreas whatif`: the effect of a change that is not made.

use std::path::PathBuf;

use andreas_api::query::{AddedNodes, WhatIf, WhatIfRequest, path};
use anyhow::Result;
use clap::Args;
use jiff::Timestamp;

use super::transport::Operator;
use super::{AskArgs, job_file, text};
use crate::cluster::block_on;
use crate::name;
use crate::output::{self, OutputArgs, money, plain};

/// What if: when a job would start and end, and which jobs a change would delay. Nothing is created.
///
/// Several changes together are one. The namespace is that of the manifest, if it names one. Jobs of the namespace are named, others are
/// counted. Needs the right to list TrainingJobs in the namespace, and with a file to create them: the API server checks the job.
#[derive(Debug, Args)]
#[group(id = "change", required = true, multiple = true, args = ["file", "nodes", "budget", "without"])]
pub struct WhatIfArgs {
    /// A job that is submitted now: TrainingJob, Job, PyTorchJob, TrainJob, JobSet, RayJob, or an sbatch script; - for standard input
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Nodes that are added, for example +1xA100x8: one node with eight GPUs of the cluster's type A100
    #[arg(long, value_name = "+NxTYPExGPUS", value_parser = nodes, allow_hyphen_values = true)]
    nodes: Vec<AddedNodes>,
    /// Another power budget, for example 12kW, 800W, 1.5MW
    #[arg(long, value_name = "POWER", value_parser = watts)]
    budget: Option<i64>,
    /// A job of the namespace that is deleted
    #[arg(long, value_name = "JOB", value_parser = name::job)]
    without: Option<String>,
    #[command(flatten)]
    ask: AskArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// `+1xA100x8`.
fn nodes(text: &str) -> Result<AddedNodes, String> {
    let wrong = || format!("{text:?} is not of the form +1xA100x8: nodes, GPU type, GPUs of each node");
    let (count, rest) = text.strip_prefix('+').unwrap_or(text).split_once('x').ok_or_else(wrong)?;
    let (gpu_type, gpus) = rest.rsplit_once('x').ok_or_else(wrong)?;
    let number = |text: &str| text.parse::<u32>().ok().filter(|n| *n > 0);
    let (Some(count), Some(gpus), false) = (number(count), number(gpus), gpu_type.is_empty()) else {
        return Err(wrong());
    };
    Ok(AddedNodes { count, gpu_type: gpu_type.to_owned(), gpus })
}

/// `12kW` as W.
fn watts(text: &str) -> Result<i64, String> {
    let units = [("kW", 1e3), ("MW", 1e6), ("W", 1.0)];
    let read = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?.trim(), factor)));
    let (number, factor) = read.unwrap_or((text, &1.0));
    let watts =
        number.parse::<f64>().ok().map(|number| number * factor).filter(|watts| (1.0..=1e9).contains(watts));
    watts.map(|watts| watts.round() as i64).ok_or_else(|| format!("{text:?} is not a power such as 12kW"))
}

/// Runs the subcommand.
///
/// # Errors
/// When the file cannot be read or is of another namespace, or the cluster or the operator refuses.
pub fn run(args: &WhatIfArgs) -> Result<()> {
    let (job, namespace) = args.file.as_deref().map(job_file::read).transpose()?.unzip();
    let ask = args.ask.of_manifest(namespace.flatten())?;
    let mut question = WhatIfRequest {
        job,
        changed: None,
        nodes: args.nodes.clone(),
        budget_watts: args.budget,
        without: args.without.clone(),
    };
    let answer: WhatIf = block_on(async {
        let operator = Operator::connect(&ask).await?;
        if let Some(job) = question.job.take() {
            question.job = Some(operator.checked(job).await?);
        }
        operator.post(&path::what_if(&operator.namespace), &question).await
    })?;
    let name = |answer: &WhatIf| {
        answer
            .job
            .as_ref()
            .map_or_else(|| answer.namespace.clone(), |job| format!("trainingjob/{}", job.name))
    };
    output::print(&output::object(args.output, &answer, |answer| text_of(answer, Timestamp::now()), name)?)
}

fn text_of(answer: &WhatIf, now: Timestamp) -> String {
    let mut text = String::new();
    if let Some(job) = &answer.job {
        text += &format!("Job:       {}/{}\n", plain(&answer.namespace), plain(&job.name));
        text += &text::expected_or_never(job, &answer.currency, now);
        if let Some(ahead) = &job.ahead {
            text += &format!("Ahead:     {}\n", text::jobs(ahead));
        }
    }
    for affected in &answer.affected {
        text += &format!("Moves:     {} ends {}", plain(&affected.name), text::shift(affected.later_seconds));
        if let (Some(before), Some(then)) = (affected.on_time_before_percent, affected.on_time_percent) {
            text += &format!(", on time with {then} % instead of {before} %");
        }
        text += "\n";
    }
    let unnamed = answer.own.saturating_sub(u32::try_from(answer.affected.len()).unwrap_or(u32::MAX));
    if unnamed > 0 {
        text += &format!("           and {unnamed} more of this namespace\n");
    }
    let others = text::others(&answer.others);
    text += &others;
    if answer.own == 0 && others.is_empty() {
        text += "Moves:     no other job by a minute or more\n";
    }
    let cost = answer.added_cost_micros;
    let sign = if cost < 0 { "saves" } else { "costs" };
    text + &format!("All jobs:  {sign} {} {}\n", money(cost.saturating_abs()), plain(&answer.currency))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nodes_and_powers_are_read_as_people_write_them() {
        let added = |count, gpu_type: &str, gpus| Ok(AddedNodes { count, gpu_type: gpu_type.into(), gpus });
        assert_eq!(nodes("+1xA100x8"), added(1, "A100", 8));
        assert_eq!(nodes("2xRTX-PRO-6000xMaxx4"), added(2, "RTX-PRO-6000xMax", 4));
        for wrong in ["", "A100", "+0xA100x8", "1x8", "1xA100x", "1xx8", "-1xA100x8"] {
            assert!(nodes(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            (watts("12kW"), watts("800"), watts("1.5 MW"), watts("800W")),
            (Ok(12_000), Ok(800), Ok(1_500_000), Ok(800))
        );
        for wrong in ["", "kW", "-1kW", "0", "1e12", "12 horses"] {
            assert!(watts(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_job_that_would_never_start_has_its_reason() {
        let at = "2026-01-01T00:00:00Z";
        let job = json!({"name": "a", "phase": "Pending", "weight": 10, "gpus": "1", "created": at,
            "reason": "QuotaExceeded", "message": "quota gpus: 8 of 8 are used"});
        let others = json!({"later": 0, "sooner": 0, "meanLaterSeconds": 0});
        let answer = json!({"namespace": "team", "at": at, "job": job, "currency": "EUR", "affected": [], "own": 0, "others": others,
            "addedCostMicros": 0});
        let text =
            text_of(&serde_json::from_value(answer).expect("an answer"), at.parse().expect("an instant"));
        let never =
            "Job:       team/a\nStart:     never: QuotaExceeded\n           quota gpus: 8 of 8 are used\n";
        assert!(text.starts_with(never), "{text}");
    }
}
