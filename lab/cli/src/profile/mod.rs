//! `profile`: the predictor on tables of measurements.
//!
//! **In**: tables of measurements (CSV). **Out**: predictions with intervals as CSV, fitted curves and their errors, the
//! evaluation's table. Everything that predicts is `andreas-predictor`.

mod csv;
mod evaluate;
mod fit;
mod predict;
mod typical;

use std::io::Write;
use std::path::PathBuf;

use andreas_evaluation::table::{Sample, boards};
use andreas_predictor::{GpuModel, Predictor, Profile};
use anyhow::{Context, Result};
use clap::{Args, Subcommand};

/// Predict times and watts from measurements, fit curves, evaluate the predictor.
#[derive(Debug, Args)]
pub struct ProfileArgs {
    #[command(subcommand)]
    command: ProfileCommand,
}

#[derive(Debug, Subcommand)]
enum ProfileCommand {
    Predict(predict::PredictArgs),
    Fit(fit::FitArgs),
    Evaluate(evaluate::EvaluateArgs),
}

/// Runs the subcommand.
pub fn run(args: &ProfileArgs) -> Result<()> {
    match &args.command {
        ProfileCommand::Predict(args) => predict::run(args),
        ProfileCommand::Fit(args) => fit::run(args),
        ProfileCommand::Evaluate(args) => evaluate::run(args),
    }
}

/// The GPU types of some rows.
fn gpu_models(samples: &[Sample]) -> Vec<GpuModel> {
    boards(samples, andreas_model::board_power)
}

/// A predictor that learned from the rows.
fn learned(
    samples: &[Sample],
    gpus: &[GpuModel],
) -> (Predictor, std::collections::BTreeMap<String, Profile>) {
    let profiles = andreas_evaluation::table::profiles(samples);
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
