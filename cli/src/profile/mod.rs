//! `profile`: what is known of the runs of a profile, offline and of a cluster.
//!
//! **In**: tables of measurements (CSV), TrainingProfiles as YAML or JSON, or by name from the cluster. **Out**: predictions with
//! intervals as CSV, fitted curves and their errors, plots, the evaluation's table, profiles for another cluster.
//! Everything that predicts is `andreas-predictor`.

mod csv;
mod evaluate;
mod fit;
mod plot;
mod predict;
mod show;
mod transfer;
mod typical;

pub use transfer::parse;

use std::io::Write;
use std::path::{Path, PathBuf};

use andreas_predictor::table::{Sample, boards};
use andreas_predictor::{GpuModel, Predictor, Profile};
use anyhow::{Context, Result};
use clap::{Args, Subcommand};

use crate::cluster::ConnectArgs;
use crate::{input, name};

/// Look at profiles, fit and predict offline, measure the predictor, move profiles between clusters.
#[derive(Debug, Args)]
pub struct ProfileArgs {
    #[command(subcommand)]
    command: ProfileCommand,
}

#[derive(Debug, Subcommand)]
enum ProfileCommand {
    Predict(predict::PredictArgs),
    Fit(fit::FitArgs),
    Show(show::ShowArgs),
    Evaluate(evaluate::EvaluateArgs),
    Export(transfer::ExportArgs),
    Import(transfer::ImportArgs),
}

/// Which cluster and namespace.
#[derive(Clone, Debug, Args)]
struct Where {
    /// Namespace of the profile; that of the context without
    #[arg(long, short, value_name = "NAME", value_parser = name::namespace)]
    namespace: Option<String>,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Runs the subcommand.
pub fn run(args: &ProfileArgs) -> Result<()> {
    match &args.command {
        ProfileCommand::Predict(args) => predict::run(args),
        ProfileCommand::Fit(args) => fit::run(args),
        ProfileCommand::Show(args) => show::run(args),
        ProfileCommand::Evaluate(args) => evaluate::run(args),
        ProfileCommand::Export(args) => transfer::export(args),
        ProfileCommand::Import(args) => transfer::import(args),
    }
}

/// The GPU types of some rows.
fn gpu_models(samples: &[Sample]) -> Vec<GpuModel> {
    boards(samples, andreas_core::board_power)
}

/// A predictor that learned from the rows.
fn learned(
    samples: &[Sample],
    gpus: &[GpuModel],
) -> (Predictor, std::collections::BTreeMap<String, Profile>) {
    let profiles = andreas_predictor::table::profiles(samples);
    let population: Vec<Profile> = profiles.values().cloned().collect();
    (Predictor::fit(gpus, &population), profiles)
}

/// Writes to a file, or to standard output.
fn write(out: Option<&PathBuf>, bytes: &[u8]) -> Result<()> {
    match out {
        Some(file) => std::fs::write(file, bytes).with_context(|| file.display().to_string()),
        None => {
            let mut stdout = std::io::stdout().lock();
            stdout.write_all(bytes)?;
            Ok(stdout.flush()?)
        }
    }
}

fn read_text(file: &Path) -> Result<String> {
    input::read(file, input::TABLES).with_context(|| input::name_of(file))
}

/// Formats with six significant digits.
fn number(x: f64) -> String {
    if x > 0.0 && x.is_finite() && !(1e-6..1e15).contains(&x) {
        return format!("{x:.5e}");
    }
    let digits = if x > 0.0 && x.is_finite() { 5 - x.log10().floor() as i32 } else { 0 };
    format!("{x:.*}", usize::try_from(digits).unwrap_or(0))
}

/// The same without trailing zeros.
fn number_of(x: f64) -> String {
    let text = number(x);
    if text.contains('.') && !text.contains('e') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests;
