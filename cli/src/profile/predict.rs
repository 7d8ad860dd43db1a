//! `profile predict`: a table of questions, answered from a table of measurements.

use std::collections::BTreeMap;
use std::path::PathBuf;

use andreas_predictor::{Prediction, Query};
use anyhow::Result;
use clap::Args;

use super::csv::{Table, read};
use super::{gpu_models, learned, number, write};

/// Predict seconds per epoch and watts of configurations that were not run.
///
/// Both files are CSV with a header and the columns profile, model_family, params_m, batch, gpu_type, gpus, nodes, power_limit_w,
/// epoch_s, power_w (in any order; empty means not known). The asked table comes back with epoch_s, power_w, their
/// intervals of 90 % and what they rest on filled in; what it says itself of times and watts is not looked at.
#[derive(Debug, Args)]
pub struct PredictArgs {
    /// Measurements
    #[arg(long, value_name = "CSV")]
    data: PathBuf,
    /// Configurations to predict
    #[arg(long = "for", value_name = "CSV")]
    asked: PathBuf,
    /// Write there instead of to standard output
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// What is filled in, each where it is wanted: behind which column it goes where the table has no such column.
const FILLED: [(&str, &str); 7] = [
    ("epoch_s", ""),
    ("epoch_s_low", "epoch_s"),
    ("epoch_s_high", "epoch_s_low"),
    ("power_w", ""),
    ("power_w_low", "power_w"),
    ("power_w_high", "power_w_low"),
    ("source", ""),
];

/// Does it.
pub fn run(args: &PredictArgs) -> Result<()> {
    let seen = read(&args.data)?;
    let asked = read(&args.asked)?;
    let answers = answer(&seen, &asked);
    write(args.out.as_ref(), &filled(asked, &answers)?)
}

fn answer(seen: &Table, asked: &Table) -> Vec<Prediction> {
    // Types that are only asked are known by name at least.
    let mut everything = seen.samples.clone();
    everything.extend(asked.samples.iter().map(|s| andreas_predictor::table::Sample {
        epoch_s: None,
        power_w: None,
        ..s.clone()
    }));
    let (predictor, profiles) = learned(&seen.samples, &gpu_models(&everything));
    let mut by_profile: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, sample) in asked.samples.iter().enumerate() {
        by_profile.entry(&sample.profile).or_default().push(at);
    }
    let mut answers: Vec<Option<Prediction>> = vec![None; asked.samples.len()];
    for (name, rows) in by_profile {
        let profile = profiles.get(name).cloned().unwrap_or_else(|| asked.samples[rows[0]].unseen());
        let queries: Vec<Query> = rows.iter().map(|at| asked.samples[*at].query()).collect();
        for (at, prediction) in rows.into_iter().zip(predictor.answer(&profile, None, &queries)) {
            answers[at] = Some(prediction);
        }
    }
    answers.into_iter().flatten().collect()
}

fn filled(mut table: Table, answers: &[Prediction]) -> Result<Vec<u8>> {
    for (column, behind) in FILLED {
        if table.header.iter().any(|c| c == column) {
            continue;
        }
        let at = table.header.iter().position(|c| c == behind).map_or(table.header.len(), |at| at + 1);
        table.header.insert(at, column.to_owned());
        for row in &mut table.rows {
            row.insert(at, String::new());
        }
    }
    let places: Vec<usize> =
        FILLED.iter().filter_map(|(column, _)| table.header.iter().position(|c| c == column)).collect();
    let mut out = csv::Writer::from_writer(Vec::new());
    out.write_record(&table.header)?;
    for (row, p) in table.rows.iter_mut().zip(answers) {
        let values = [
            number(p.epoch.median),
            number(p.epoch.low()),
            number(p.epoch.high()),
            number(p.power.median),
            number(p.power.low()),
            number(p.power.high()),
            p.epoch.source.as_str().to_owned(),
        ];
        for (at, value) in places.iter().zip(values) {
            row[*at] = value;
        }
        out.write_record(&*row)?;
    }
    Ok(out.into_inner()?)
}
