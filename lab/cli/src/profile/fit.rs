//! `profile fit`: the curves that a table gives, and how well they meet it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use andreas_evaluation::median;
use andreas_evaluation::table::Sample;
use andreas_predictor::{Query, Refusal, Refused};
use anyhow::Result;
use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};

use super::csv::{Purpose, read};
use super::typical::TypicalWorkload;
use super::{gpu_models, learned, write};

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

/// Runs the subcommand.
pub fn run(args: &FitArgs) -> Result<()> {
    let samples = read(&args.data, Purpose::Measurements)?.samples;
    let (predictor, profiles) = learned(&samples, &gpu_models(&samples));
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    let mut header: Vec<String> =
        ["PROFILE", "TYPE", "ROWS", "BATCH", "W/GPU"].iter().map(ToString::to_string).collect();
    header.extend(COUNTS.iter().map(|g| format!("{g} GPU")));
    header.extend(["TIME OFF".to_owned(), "WATTS OFF".to_owned()]);
    table.set_header(header);
    let mut by_profile: BTreeMap<&str, BTreeMap<&str, Vec<&Sample>>> = BTreeMap::new();
    for sample in &samples {
        by_profile.entry(&sample.profile).or_default().entry(&sample.gpu_type).or_default().push(sample);
    }
    for (name, types) in by_profile {
        let Some(profile) = profiles.get(name) else { continue };
        let errors = predictor.leave_one_out_errors(profile);
        let queries: Vec<_> = types.iter().flat_map(|(gpu_type, rows)| queries(gpu_type, rows)).collect();
        let predicted = predictor.answer(profile, None, &queries);
        for ((gpu_type, rows), predicted) in types.iter().zip(predicted.chunks(COUNTS.len())) {
            let check = errors
                .iter()
                .find(|(t, _)| t.as_str() == *gpu_type)
                .map(|(_, c)| c.clone())
                .unwrap_or_default();
            let off = |errors: Vec<f64>| match median(errors) {
                x if x.is_finite() => format!("{:.1} %", 100.0 * x),
                _ => "-".to_owned(),
            };
            let mut row = vec![
                name.to_owned(),
                (*gpu_type).to_owned(),
                rows.len().to_string(),
                typical_workload(rows).text().unwrap_or_else(|| "-".to_owned()),
                predicted.first().map_or("-".to_owned(), |p| format!("{:.0}", p.power.median)),
            ];
            row.extend(predicted.iter().map(|p| seconds(p.epoch.median)));
            row.extend([off(check.epoch), off(check.power)]);
            table.add_row(row);
        }
    }
    write(None, format!("{table}\n{}", refusals(predictor.refused())).as_bytes())
}

/// What was left out, by reason, and whose rows these were.
fn refusals(refused: &BTreeMap<String, Refused>) -> String {
    const NAMES: usize = 5;
    let mut by_reason: BTreeMap<Refusal, (u64, Vec<&str>)> = BTreeMap::new();
    for (namespace, reasons) in refused {
        for (reason, rows) in reasons {
            let of = by_reason.entry(*reason).or_default();
            of.0 += rows;
            of.1.push(namespace);
        }
    }
    let line = |(reason, (rows, names)): (Refusal, (u64, Vec<&str>))| {
        let more = names.len().saturating_sub(NAMES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let names = names.iter().take(NAMES).copied().collect::<Vec<_>>().join(", ");
        format!("{rows} rows not pooled: {}, of {names}{more}\n", reason.as_str())
    };
    by_reason.into_iter().map(line).collect()
}

/// The counts of the table's columns, with batch and nodes as the rows mostly have them.
fn queries(gpu_type: &str, rows: &[&Sample]) -> Vec<Query> {
    let typical = typical_workload(rows);
    let sample = |gpus: &u32| Sample {
        gpu_type: gpu_type.to_owned(),
        gpus: *gpus,
        nodes: typical.nodes(*gpus),
        batch: typical.batch(*gpus),
        ..Sample::default()
    };
    COUNTS.iter().map(|gpus| sample(gpus).query()).collect()
}

fn typical_workload(rows: &[&Sample]) -> TypicalWorkload {
    TypicalWorkload::from_rows(rows.iter().map(|s| (s.gpus, s.nodes, s.batch)))
}

/// Three significant digits.
pub(super) fn seconds(s: f64) -> String {
    match s {
        s if s >= 86_400.0 => format!("{:.1} d", s / 86_400.0),
        s if s >= 7_200.0 => format!("{:.1} h", s / 3_600.0),
        s if s >= 100.0 => format!("{s:.0} s"),
        s => format!("{s:.3} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_out_is_a_line_for_each_reason() {
        let many = |n: u64| -> Refused { [(Refusal::TooMany, n)].into() };
        let mut refused: BTreeMap<String, Refused> = (0..7).map(|n| (format!("lab-{n}"), many(10))).collect();
        refused.insert("other".to_owned(), [(Refusal::NotPositive, 2)].into());
        assert_eq!(
            refusals(&refused),
            "2 rows not pooled: NotPositive, of other\n\
             70 rows not pooled: TooMany, of lab-0, lab-1, lab-2, lab-3, lab-4 and 2 more\n"
        );
        assert_eq!(refusals(&BTreeMap::new()), "");
    }
}
