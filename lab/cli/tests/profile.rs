//! `andreas-lab profile`, as a person or a script calls it.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

fn andreas(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_andreas-lab")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn saved(folder: &Path, name: &str, text: &str) -> String {
    let file = folder.join(name);
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

const HEADER: &str =
    "profile,model_family,params_m,batch,gpu_type,gpus,nodes,power_limit_w,epoch_s,power_w\n";

/// Three jobs of a model that no stored table holds, on types that nobody knows.
fn seen() -> String {
    let mut rows = HEADER.to_owned();
    for (job, size) in [("small", 1.0), ("middle", 3.0), ("large", 9.0)] {
        for (gpu_type, speed) in [("Zeta-9", 1.0), ("Omega", 2.5)] {
            for gpus in [1u32, 2, 4, 8] {
                if job == "large" && gpu_type == "Omega" {
                    continue;
                }
                let time = 100.0 * size / speed * (0.1 + 0.9 / f64::from(gpus));
                let watts = 200.0 * f64::from(gpus) * speed.sqrt();
                rows +=
                    &format!("{job},newnet,{},64,{gpu_type},{gpus},1,,{time:.3},{watts:.1}\n", 10.0 * size);
            }
        }
    }
    rows
}

fn predict(data: &str, asked: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let (data, asked) = (saved(folder.path(), "seen.csv", data), saved(folder.path(), "asked.csv", asked));
    andreas(&["profile", "predict", "--data", &data, "--for", &asked])
}

/// Column of a row of the answer.
fn cell(answer: &str, row: usize, column: &str) -> String {
    let mut lines = answer.lines();
    let at = lines.next().unwrap().split(',').position(|c| c == column).unwrap();
    lines.nth(row).unwrap().split(',').nth(at).unwrap().to_owned()
}

fn number(answer: &str, row: usize, column: &str) -> f64 {
    cell(answer, row, column).parse().unwrap()
}

#[test]
fn what_is_asked_comes_back_with_its_intervals_and_sources() {
    let asked = format!(
        "{HEADER}middle,newnet,30,64,Zeta-9,3,1,,,\nlarge,newnet,90,64,Omega,4,1,,,\nunheard,othernet,7,32,Pi,2,1,,,\n"
    );
    let output = predict(&seen(), &asked);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let answer = text(&output.stdout);
    assert!(answer.starts_with(
        "profile,model_family,params_m,batch,gpu_type,gpus,nodes,power_limit_w,\
         epoch_s,epoch_s_low,epoch_s_high,power_w,power_w_low,power_w_high,source\n"
    ));
    assert_eq!(answer.lines().count(), 4);
    for row in 0..3 {
        for quantity in ["epoch_s", "power_w"] {
            let [low, at, high] =
                ["_low", "", "_high"].map(|end| number(&answer, row, &format!("{quantity}{end}")));
            assert!(0.0 < low && low < at && at < high && high.is_finite(), "{answer}");
        }
    }
    // Between what was seen it is near; on a type that the job never ran on the others tell.
    assert!((number(&answer, 0, "epoch_s") / (300.0 * 0.4) - 1.0).abs() < 0.06, "{answer}");
    assert!((number(&answer, 1, "epoch_s") / (360.0 * 0.325) - 1.0).abs() < 0.15, "{answer}");
    assert_eq!(cell(&answer, 0, "source"), "Observed");
    assert_eq!(cell(&answer, 1, "source"), "Regression");
    assert_eq!(cell(&answer, 2, "source"), "Prior");
}

#[test]
fn order_of_columns_and_rows_quotes_and_line_ends_change_nothing() {
    let asked = format!("{HEADER}middle,newnet,30,64,Zeta-9,3,1,,,\n");
    let plain = text(&predict(&seen(), &asked).stdout);
    // given: the same rows backwards, columns turned round, quoted, twice, with CRLF
    let mut lines: Vec<Vec<String>> =
        seen().lines().map(|l| l.split(',').rev().map(|c| format!("\"{c}\"")).collect()).collect();
    lines[1..].reverse();
    let turned = lines.iter().map(|l| l.join(",")).collect::<Vec<_>>().join("\r\n");
    let output = predict(&turned, &asked.replace('\n', "\r\n"));
    assert_eq!(text(&output.stdout), plain, "{}", text(&output.stderr));
    // what the asked table itself says of times is not looked at
    let with_times = asked.replace(",,,\n", ",,777,888\n");
    assert_eq!(text(&predict(&seen(), &with_times).stdout), plain);
}

#[test]
fn bad_rows_are_named_by_file_line_and_column() {
    let good = format!("{HEADER}a,,,,T4,1,1,,10,\n");
    for (row, said) in [
        ("a,,,,T4,1,1,,-5,\n", "line 3, column epoch_s"),
        ("a,,,,T4,1,1,,inf,\n", "line 3, column epoch_s"),
        ("a,,,,T4,0,1,,5,\n", "line 3, column gpus"),
        ("a,,,,T4,1,1,,5,1e99\n", "line 3, column power_w"),
        ("a,,x,,T4,1,1,,5,\n", "line 3, column params_m"),
        ("a,,,\n", "line 3"),
    ] {
        let output = predict(&format!("{good}{row}"), &good);
        let error = text(&output.stderr);
        assert!(!output.status.success() && error.contains(said) && error.contains("seen.csv"), "{error}");
        assert!(output.stdout.is_empty());
    }
    let output = predict(&good, "profile,gpus\na,1\n");
    assert!(
        !output.status.success() && text(&output.stderr).contains("asked.csv"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn curves_are_fitted() {
    let folder = tempfile::tempdir().unwrap();
    let data = saved(folder.path(), "seen.csv", &seen());
    let output = andreas(&["profile", "fit", "--data", &data]);
    let shown = text(&output.stdout);
    assert!(output.status.success() && shown.contains("Zeta-9") && shown.contains("TIME OFF"), "{shown}");
}

#[test]
fn the_evaluation_runs_on_any_table() {
    let folder = tempfile::tempdir().unwrap();
    let data = saved(folder.path(), "seen.csv", &seen());
    let output = andreas(&["profile", "evaluate", "--data", &data, "--setting", "known,first2,new-type1"]);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(shown.contains("| known settings, 5-fold |") && shown.contains("| Amdahl |"), "{shown}");
}
