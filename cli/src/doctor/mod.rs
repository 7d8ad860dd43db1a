//! `kubectl-andreas doctor`: whether a cluster is fit for ANDREAS.
//!
//! **Flows**: objects in ([`facts`]); one [`Check`] for each question out ([`install`], [`fleet`]). The checks are functions of the
//! facts: what cannot be read is `unknown`, with the missing right. Nothing is changed.

mod facts;
mod fleet;
mod install;

use andreas_runtime::clock;
use anyhow::Result;
use clap::Args;
use jiff::Timestamp;
use serde::Serialize;

use self::facts::Facts;
use crate::cluster::{Cluster, ClusterError, ConnectArgs, block_on};
use crate::exit::NotGood;
use crate::name;
use crate::output::{self, Column, Format, OutputArgs, plain};

/// Doctor: whether the cluster is fit: versions, programs, nodes, certificates, policy and clocks.
///
/// Exit code 5 if a check failed; warnings do not count. What may not be read is unknown, with the missing right. Full answers need
/// the rights of a cluster administrator. Nothing is changed.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Only checks that are not ok
    #[arg(long)]
    problems: bool,
    /// Namespace of the operator
    #[arg(long, value_name = "NAME", default_value = "andreas-system", help_heading = "Operator", value_parser = name::namespace)]
    operator_namespace: String,
    #[command(flatten)]
    cluster: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// What came of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// It works, but needs attention.
    Warning,
    /// Something does not work.
    Failed,
    /// It may not be read.
    Unknown,
}

impl State {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Failed => "FAILED",
            Self::Unknown => "unknown",
        }
    }
}

/// A question and its answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// What was checked.
    pub name: String,
    /// What came of it.
    pub state: State,
    /// What was found.
    pub message: String,
    /// What to do; none where all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Check {
    fn ok(name: impl Into<String>, message: impl Into<String>) -> Self {
        Self { name: name.into(), state: State::Ok, message: message.into(), fix: None }
    }

    fn not(
        state: State,
        name: impl Into<String>,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { name: name.into(), state, message: message.into(), fix: Some(fix.into()) }
    }

    /// What an error means for a check.
    fn unread(name: impl Into<String>, error: &ClusterError) -> Self {
        let text = error.to_string();
        let mut lines = text.lines();
        let message = lines.next().unwrap_or_default().to_owned();
        let state = if error.is_forbidden() { State::Unknown } else { State::Failed };
        let fix = lines.map(str::trim).collect::<Vec<_>>().join("; ");
        Self { name: name.into(), state, message, fix: Some(fix).filter(|fix| !fix.is_empty()) }
    }
}

const COLUMNS: [Column<Check>; 4] = [
    Column::text("CHECK", |check| check.name.clone()),
    Column::text("STATE", |check| check.state.as_str().to_owned()),
    Column::text("FOUND", |check| check.message.clone()),
    Column::text("FIX", |check: &Check| check.fix.clone().unwrap_or_default()).wide(),
];

/// Runs the subcommand.
///
/// # Errors
/// When the API server does not answer, or a check failed.
pub fn run(args: &DoctorArgs) -> Result<()> {
    let facts = block_on(async {
        let cluster = Cluster::connect(&args.cluster).await?;
        Ok(facts::read(&cluster, &args.operator_namespace).await?)
    })?;
    let checks = checks(&facts, clock::now());
    output::print(&text_of(args.output, args.problems, &checks)?)?;
    let failed = checks.iter().filter(|check| check.state == State::Failed).count();
    if failed > 0 { Err(NotGood(format!("{failed} checks failed")).into()) } else { Ok(()) }
}

fn checks(facts: &Facts, now: Timestamp) -> Vec<Check> {
    let mut checks = install::checks(facts, now);
    checks.extend(fleet::checks(facts, now));
    checks
}

/// Those that are shown; the counts are of all.
fn text_of(args: OutputArgs, problems: bool, checks: &[Check]) -> Result<String> {
    let shown = checks.iter().filter(|check| !problems || check.state != State::Ok);
    if args.format != Format::Table {
        let shown: Vec<Check> = shown.cloned().collect();
        return output::list(args, &COLUMNS, &shown, |check| format!("check/{}", check.name));
    }
    let mut text = String::new();
    for check in shown {
        text += &format!("{:8} {}: {}\n", check.state.as_str(), plain(&check.name), plain(&check.message));
        if let Some(fix) = &check.fix {
            text += &format!("{:8}   {}\n", "", plain(fix));
        }
    }
    let count = |state| checks.iter().filter(|check| check.state == state).count();
    let [ok, warnings, failed, unknown] =
        [State::Ok, State::Warning, State::Failed, State::Unknown].map(count);
    Ok(text + &format!("{ok} ok, {warnings} warnings, {failed} failed, {unknown} unknown\n"))
}

#[cfg(test)]
mod tests;
