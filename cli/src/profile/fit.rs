//! `profile fit`: the curves that a table gives, and how well they meet it.

use std::collections::BTreeSet;
use std::path::PathBuf;

use andreas_predictor::evaluation::median;
use andreas_predictor::table::Sample;
use anyhow::Result;
use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};

use super::csv::read;
use super::{gpu_models, learned};

/// Fit the curves of every profile of a table and say how far off they are.
///
/// Errors are of each row as all the others predict it.
#[derive(Debug, Args)]
pub struct FitArgs {
    /// Measurements (CSV, see `profile predict --help`)
    #[arg(long, value_name = "CSV")]
    data: PathBuf,
}

const COUNTS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Does it.
pub fn run(args: &FitArgs) -> Result<()> {
    let samples = read(&args.data)?.samples;
    let (predictor, profiles) = learned(&samples, &gpu_models(&samples));
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    let mut header: Vec<String> =
        ["PROFILE", "TYPE", "ROWS", "BATCH", "W/GPU"].iter().map(ToString::to_string).collect();
    header.extend(COUNTS.iter().map(|g| format!("{g} GPU")));
    header.extend(["TIME OFF".to_owned(), "WATTS OFF".to_owned()]);
    table.set_header(header);
    for (name, profile) in &profiles {
        let own: Vec<&Sample> = samples.iter().filter(|s| s.profile == *name).collect();
        let types: BTreeSet<&str> = own.iter().map(|s| s.gpu_type.as_str()).collect();
        let checks = predictor.check(profile);
        for gpu_type in types {
            let here: Vec<&&Sample> = own.iter().filter(|s| s.gpu_type == gpu_type).collect();
            let mut batches: Vec<f64> = here.iter().filter_map(|s| s.batch).collect();
            batches.sort_by(f64::total_cmp);
            let batch = batches.get(batches.len() / 2).copied();
            // The usual number of GPUs of a node, from where it was used fully.
            let per_node = here.iter().map(|s| s.gpus.div_ceil(s.nodes)).max().unwrap_or(1);
            let query = |gpus: u32| Sample {
                gpu_type: gpu_type.to_owned(),
                gpus,
                nodes: gpus.div_ceil(per_node),
                batch,
                ..Sample::default()
            };
            let queries: Vec<_> = COUNTS.iter().map(|g| query(*g).query()).collect();
            let predicted = predictor.answer(profile, None, &queries);
            let check = checks
                .iter()
                .find(|(t, _)| t.as_str() == gpu_type)
                .map(|(_, c)| c.clone())
                .unwrap_or_default();
            let off = |errors: Vec<f64>| match median(errors) {
                x if x.is_finite() => format!("{:.1} %", 100.0 * x),
                _ => "-".to_owned(),
            };
            let mut row = vec![
                name.clone(),
                gpu_type.to_owned(),
                here.len().to_string(),
                batch.map_or("-".to_owned(), |b| format!("{b:.0}")),
                predicted.first().map_or("-".to_owned(), |p| format!("{:.0}", p.power.median)),
            ];
            row.extend(predicted.iter().map(|p| seconds(p.epoch.median)));
            row.extend([off(check.epoch), off(check.power)]);
            table.add_row(row);
        }
    }
    println!("{table}");
    for (namespace, refused) in predictor.refused() {
        for (reason, count) in refused {
            println!("{namespace}: {count} rows refused: {}", reason.as_str());
        }
    }
    Ok(())
}

/// Three digits are enough for the eye.
pub(super) fn seconds(s: f64) -> String {
    match s {
        s if s >= 86_400.0 => format!("{:.1} d", s / 86_400.0),
        s if s >= 7_200.0 => format!("{:.1} h", s / 3_600.0),
        s if s >= 100.0 => format!("{s:.0} s"),
        s => format!("{s:.3} s"),
    }
}
