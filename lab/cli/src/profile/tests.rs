//! Given tables of any rows in any shape; when one is predicted from the other; then every question has its answer, whatever the
//! order of rows and columns.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{SizeRange, select};

use super::csv::{Purpose, parse};
use super::number;
use super::predict::{answer, filled};

const COLUMNS: [&str; 11] = [
    "profile",
    "model_family",
    "params_m",
    "batch",
    "gpu_type",
    "gpus",
    "nodes",
    "power_limit_w",
    "epoch_s",
    "power_w",
    "note, \"quoted\"",
];

type Row = [String; 11];

/// A positive number of any size between two.
fn size(low: f64, high: f64) -> impl Strategy<Value = f64> {
    (low.ln()..high.ln()).prop_map(move |log| log.exp().clamp(low, high))
}

fn cell(number: Option<f64>) -> String {
    number.map_or_else(String::new, |number| number.to_string())
}

/// What a row may say; numbers are mostly such as tables have, and sometimes the largest and smallest that make sense.
fn row() -> impl Strategy<Value = Row> {
    let profile = (
        select(vec!["a", "b", "c", "lab/a", "lab/b", "e, \"f\""]),
        option::of(select(vec!["bert", "ncf", "an other"])),
        option::of(prop_oneof![8 => size(0.1, 1e5), 1 => size(1e-12, 1e12)]),
        option::of(prop_oneof![8 => select(vec![16.0, 64.0, 256.0]), 1 => size(1e-12, 1e12)]),
    );
    let gpus = prop_oneof![8 => select(vec![1_u32, 2, 4, 8, 16]), 1 => 1..65_537_u32];
    let place =
        (select(vec!["T4", "A100", "NVIDIA-H100-80GB-HBM3", "Zeta 9"]), gpus, option::of(0.0..1.0f64));
    let limit = prop_oneof![4 => Just(None), 1 => size(30.0, 500.0).prop_map(Some), 1 => size(1.0, 1e4).prop_map(Some)];
    let time = prop_oneof![1 => Just(None), 6 => size(1.0, 1e4).prop_map(Some), 1 => size(1e-6, 31_536_000.0).prop_map(Some)];
    let draw = prop_oneof![2 => Just(None), 4 => size(30.0, 500.0).prop_map(Some), 1 => size(0.2, 1e4).prop_map(Some)];
    (profile, place, limit, time, draw, "[ a-z,\"]{0,6}").prop_map(
        |(profile, place, limit, time, draw, note)| {
            let nodes = place.2.map(|part| (1.0 + part * f64::from(place.1 - 1)).floor());
            [
                profile.0.to_owned(),
                profile.1.unwrap_or_default().to_owned(),
                cell(profile.2),
                cell(profile.3),
                place.0.to_owned(),
                place.1.to_string(),
                cell(nodes),
                cell(limit),
                cell(time),
                cell(draw.map(|watts| watts * f64::from(place.1))),
                note,
            ]
        },
    )
}

fn rows(count: impl Into<SizeRange>) -> impl Strategy<Value = Vec<Row>> {
    vec(row(), count)
}

/// The rows as a file: its columns in this order, its lines ended so.
fn file(rows: &[Row], columns: &[usize], crlf: bool) -> Vec<u8> {
    let terminator = if crlf { csv::Terminator::CRLF } else { csv::Terminator::Any(b'\n') };
    let mut out = csv::WriterBuilder::new().terminator(terminator).from_writer(Vec::new());
    out.write_record(columns.iter().map(|at| COLUMNS[*at])).unwrap();
    for row in rows {
        out.write_record(columns.iter().map(|at| &row[*at])).unwrap();
    }
    let bytes = out.into_inner().unwrap();
    if crlf { [b"\xef\xbb\xbf", &*bytes].concat() } else { bytes }
}

/// The answer, each row as its cells by column.
fn predicted(seen: &[u8], asked: &[u8]) -> Vec<BTreeMap<String, String>> {
    let (seen, asked) =
        (parse(seen, Purpose::Measurements).unwrap(), parse(asked, Purpose::Questions).unwrap());
    let answers = answer(&seen.samples, &asked.samples);
    let out = filled(asked, &answers).unwrap();
    let mut reader = csv::Reader::from_reader(&*out);
    let header: Vec<String> = reader.headers().unwrap().iter().map(ToOwned::to_owned).collect();
    let cells = |record: csv::StringRecord| {
        header.iter().cloned().zip(record.iter().map(ToOwned::to_owned)).collect()
    };
    reader.records().map(|record| cells(record.unwrap())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_number_is_read_back_to_six_digits_whatever_its_size(x in size(1e-300, 1e300)) {
        let again: f64 = number(x).parse().unwrap();
        prop_assert!((again / x - 1.0).abs() < 1e-5, "{} {}", x, again);
    }

    #[test]
    fn every_question_has_its_answer_and_its_row_as_it_was(seen in rows(0..40), asked in rows(0..12)) {
        let columns: Vec<usize> = (0..COLUMNS.len()).collect();
        let answers = predicted(&file(&seen, &columns, false), &file(&asked, &columns, false));
        prop_assert_eq!(answers.len(), asked.len());
        for (row, answer) in asked.iter().zip(&answers) {
            for (at, column) in COLUMNS.iter().enumerate().filter(|(_, column)| !matches!(**column, "epoch_s" | "power_w")) {
                prop_assert_eq!(&answer[*column], &row[at], "{}", column);
            }
            for quantity in ["epoch_s", "power_w"] {
                let [low, at, high] = ["_low", "", "_high"].map(|end| -> f64 { answer[&format!("{quantity}{end}")].parse().unwrap() });
                prop_assert!(0.0 < low && low < at && at < high && high.is_finite(), "{:?}", answer);
            }
            prop_assert!(["UserGiven", "Observed", "Regression", "Prior"].contains(&&*answer["source"]));
        }
    }

    #[test]
    fn the_order_of_rows_and_columns_and_the_ends_of_lines_change_nothing(
        (seen, mixed) in rows(1..40).prop_flat_map(|rows| (Just(rows.clone()), Just(rows).prop_shuffle())),
        (asked, turns) in rows(1..12).prop_flat_map(|rows| {
            let order: Vec<usize> = (0..rows.len()).collect();
            (Just(rows), Just(order).prop_shuffle())
        }),
        columns in Just((0..COLUMNS.len()).collect::<Vec<usize>>()).prop_shuffle(),
    ) {
        let plain: Vec<usize> = (0..COLUMNS.len()).collect();
        let answers = predicted(&file(&seen, &plain, false), &file(&asked, &plain, false));
        let turned: Vec<Row> = turns.iter().map(|at| asked[*at].clone()).collect();
        let again = predicted(&file(&mixed, &columns, true), &file(&turned, &columns, true));
        for (answer, at) in again.iter().zip(turns) {
            prop_assert_eq!(answer, &answers[at]);
        }
    }

    /// Whatever a file holds: it is a table, or it is said which line is none.
    #[test]
    fn no_file_is_too_odd_to_be_read_or_refused_with_its_line(
        mut cells in vec(vec(prop_oneof![
            4 => select(vec!["1", "a", "T4", "", "2.5"]).prop_map(ToOwned::to_owned),
            1 => select(vec!["NaN", "-1", "1e400", "inf", "0", "\"", "\r", "\u{feff}", "1e12", "a\nb", "½"]).prop_map(ToOwned::to_owned),
            1 => any::<String>(),
        ], 8..13), 0..6),
        with_header in any::<bool>(),
        noise in option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        if with_header {
            cells.insert(0, COLUMNS.iter().map(|name| (*name).to_owned()).collect());
        }
        let mut bytes = cells.iter().map(|row| row.join(",")).collect::<Vec<_>>().join("\n").into_bytes();
        if let (Some((at, byte)), false) = (noise, bytes.is_empty()) {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        for wanted in [Purpose::Measurements, Purpose::Questions] {
            if let Err(error) = parse(&bytes, wanted) {
                prop_assert!(error.to_string().starts_with("line "), "{}", error);
            }
        }
    }
}
