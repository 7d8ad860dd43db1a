//! `profile predict`: a table of questions, answered from a table of measurements.

use std::collections::BTreeMap;
use std::path::PathBuf;

use andreas_evaluation::table::Sample;
use andreas_predictor::{GpuModel, Prediction, Profile, Query};
use anyhow::Result;
use clap::Args;

use super::csv::{Purpose, Table, read};
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
    #[arg(long, value_name = "FILE")]
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

/// Runs the subcommand.
pub fn run(args: &PredictArgs) -> Result<()> {
    let seen = read(&args.data, Purpose::Measurements)?;
    let asked = read(&args.asked, Purpose::Questions)?;
    let answers = answer(&seen.samples, &asked.samples);
    write(args.out.as_ref(), &filled(asked, &answers)?)
}

/// One prediction for each sample that is asked, whatever the order of both.
pub(super) fn answer(seen: &[Sample], asked: &[Sample]) -> Vec<Prediction> {
    let (predictor, mut profiles) = learned(seen, &asked_models(seen, asked));
    // Features in the questions count where the measurements have none.
    for (name, question) in andreas_evaluation::table::profiles(asked) {
        let features = &mut profiles.entry(name).or_insert_with_key(|name| named(name)).features;
        features.model_family = features.model_family.take().or(question.features.model_family);
        features.parameters = features.parameters.or(question.features.parameters);
    }
    let mut by_profile: BTreeMap<&str, BTreeMap<QuestionKey<'_>, Vec<usize>>> = BTreeMap::new();
    for (at, sample) in asked.iter().enumerate() {
        by_profile.entry(&sample.profile).or_default().entry(question_key(sample)).or_default().push(at);
    }
    let mut answers: Vec<Option<Prediction>> = vec![None; asked.len()];
    for (name, places) in by_profile {
        let Some(profile) = profiles.get(name) else { continue };
        // Without a known batch the first query sets it, so the median batch is queried first.
        let mut places: Vec<(QuestionKey<'_>, Vec<usize>)> = places.into_iter().collect();
        let mut batches: Vec<Option<u64>> = places.iter().map(|(place, _)| place.3).collect();
        batches.sort_unstable();
        let median = batches.get(batches.len() / 2).copied();
        places.sort_by_key(|(place, _)| Some(place.3) != median);
        let queries: Vec<Query> = places.iter().map(|(_, rows)| asked[rows[0]].query()).collect();
        let predicted = predictor.answer(profile, None, &queries);
        for ((_, rows), prediction) in places.into_iter().zip(predicted) {
            rows.into_iter().for_each(|at| answers[at] = Some(prediction.clone()));
        }
    }
    answers.into_iter().flatten().collect()
}

/// What distinguishes two questions about a profile: type, GPUs, nodes, and batch and limit as sorted numbers.
type QuestionKey<'a> = (&'a str, u32, u32, Option<u64>, Option<u64>);

fn question_key(sample: &Sample) -> QuestionKey<'_> {
    // Of positive numbers the bits are in the order of the numbers.
    let bits = |x: Option<f64>| x.map(f64::to_bits);
    (&sample.gpu_type, sample.gpus, sample.nodes, bits(sample.batch), bits(sample.power_limit_w))
}

fn named(name: &str) -> Profile {
    Profile { name: name.to_owned(), ..Profile::default() }
}

/// GPU models of the measured types, then of types that are only queried. A queried power limit
/// never changes the model of a measured type.
fn asked_models(seen: &[Sample], asked: &[Sample]) -> Vec<GpuModel> {
    let mut models = gpu_models(seen);
    let mut others = gpu_models(asked);
    others.retain(|other| models.iter().all(|model| model.gpu_type != other.gpu_type));
    models.append(&mut others);
    models
}

pub(super) fn filled(mut table: Table, answers: &[Prediction]) -> Result<Vec<u8>> {
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
