//! The program as a person calls it.

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

/// A saved snapshot: one node, a job that fits and one that cannot.
const SNAPSHOT: &str = r#"{
  "now": 1000, "tariff": [[0, 7.2e-8]],
  "gpu_types": [{"name": "T4", "idle": 10, "max": 70}],
  "nodes": [{"name": "n1", "gpu_type": "T4", "gpus": 4, "free_gpus": 4, "overhead": 100}],
  "jobs": [
    {"id": "a/fits", "namespace": "a", "submit": 900, "deadline": 9000, "weight": 0.001, "epochs_left": 10,
     "estimates": [{"gpu_type": "T4", "gpus": 2, "epoch": 60, "power": 130}], "state": "Waiting"},
    {"id": "b/large", "namespace": "b", "submit": 900, "weight": 0.001, "epochs_left": 10,
     "estimates": [{"gpu_type": "T4", "gpus": 8, "epoch": 60, "power": 500}], "state": "Waiting"}
  ]
}"#;

fn saved(folder: &Path, text: &str) -> String {
    let file = folder.join("snapshot.json");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn a_snapshot_is_planned_with_a_reason_for_each_job() {
    let folder = tempfile::tempdir().unwrap();
    let file = saved(folder.path(), SNAPSHOT);

    let table = andreas(&["plan", "--snapshot", &file, "--method", "edf"]);
    let shown = text(&table.stdout);
    assert!(table.status.success(), "{}", text(&table.stderr));
    assert!(shown.contains("a/fits") && shown.contains("NoFeasibleGpuType"), "{shown}");
    assert!(shown.contains("edf, seed 0") && shown.contains("1 of 2 jobs run"), "{shown}");

    let json = andreas(&["plan", "--snapshot", &file, "--method", "edf", "--json"]);
    let plan: andreas_planner::Plan = serde_json::from_slice(&json.stdout).unwrap();
    assert!(plan.jobs["a/fits"].decision.placement().is_some());
}

#[test]
fn the_draw_of_a_plan_is_compared_with_a_budget_that_limits_it() {
    let folder = tempfile::tempdir().unwrap();
    let shown = |watts: &str| {
        let budget = format!("\"budget\": {{\"watts\": [[0, {watts}]]}}, \"gpu_types\"");
        let file = saved(folder.path(), &SNAPSHOT.replacen("\"gpu_types\"", &budget, 1));
        let output = andreas(&["plan", "--snapshot", &file, "--method", "edf"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert!(shown("2000").contains(" W of 2000 W"), "{}", shown("2000"));
    // As saved between the windows of a budget that has windows alone.
    let unlimited = shown("1e12");
    assert!(unlimited.contains("1 of 2 jobs run") && !unlimited.contains(" W of "), "{unlimited}");
}

#[test]
fn an_error_names_the_file_and_the_field() {
    let folder = tempfile::tempdir().unwrap();
    for (from, to, field) in [
        ("\"epoch\": 60, \"power\": 130", "\"epoch\": \"x\"", "jobs[0].estimates[0].epoch"),
        ("\"epochs_left\": 10", "\"epochs_left\": -1", "jobs[a/fits].epochs_left"),
        ("\"now\": 1000", "\"now\": 1e999", "now"),
    ] {
        let file = saved(folder.path(), &SNAPSHOT.replacen(from, to, 1));
        let output = andreas(&["plan", "--snapshot", &file]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1));
        assert!(error.starts_with(&format!("error: {file}: {field}: ")), "{error}");
    }
    for gap in ["-1", "1", "much"] {
        let output = andreas(&["plan", "--snapshot", "FILE", "--gap", gap]);
        let stderr = text(&output.stderr);
        assert!(!output.status.success() && stderr.contains("--gap") && stderr.contains(gap), "{stderr}");
    }
    let output = andreas(&["plan", "--snapshot", "/nowhere/at/all"]);
    assert!(text(&output.stderr).contains("/nowhere/at/all"));
}

#[test]
fn the_help_lists_the_methods_and_so_does_the_error_of_another_name() {
    let help = text(&andreas(&["plan", "--help"]).stdout);
    assert!(help.contains("edf-fixed") && help.contains("--stdio") && help.contains("--snapshot"), "{help}");
    let error = text(&andreas(&["plan", "--snapshot", "FILE", "--method", "lottery"]).stderr);
    assert!(
        ["lottery", "randomized-greedy", "gandiva-fair"].iter().all(|name| error.contains(name)),
        "{error}"
    );
}

#[test]
fn a_policy_with_history_goes_on_from_the_memory_of_its_last_plan() {
    let folder = tempfile::tempdir().unwrap();
    let plan = |snapshot: &str| -> serde_json::Value {
        let file = saved(folder.path(), snapshot);
        let output = andreas(&["plan", "--snapshot", &file, "--method", "tiresias", "--json"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    // Given a plan that gives a job two GPUs,
    let first = plan(SNAPSHOT);
    assert_eq!(first["memory"]["jobs"]["a/fits"]["gpus"], 2);
    // when its memory is in the snapshot of 100 s later, then they count.
    let later = format!("{{\"memory\": {},", first["memory"]);
    let next = plan(&SNAPSHOT.replacen('{', &later, 1).replacen("\"now\": 1000", "\"now\": 1100", 1));
    assert_eq!(next["memory"]["jobs"]["a/fits"]["service"], 200.0);
    // Tickets are read as well.
    let tickets = "{\"namespaces\": [{\"name\": \"a\", \"tickets\": 0}],";
    let file = saved(folder.path(), &SNAPSHOT.replacen('{', tickets, 1));
    let error = text(&andreas(&["plan", "--snapshot", &file]).stderr);
    assert!(error.contains("namespaces[a].tickets: 0 is not greater than 0"), "{error}");
}

#[test]
fn a_snapshot_of_an_operator_is_planned_as_the_operator_does_unless_asked_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    let file =
        saved(folder.path(), &SNAPSHOT.replacen('{', r#"{"_options": {"method": "edf", "seed": 5}, "#, 1));
    let shown = |more: &[&str]| text(&andreas(&[&["plan", "--snapshot", &file], more].concat()).stdout);
    assert!(shown(&[]).contains("edf, seed 5"), "{}", shown(&[]));
    assert!(shown(&["--method", "fifo"]).contains("fifo, seed 5"));
}

#[test]
fn arguments_that_make_no_sense_are_refused_before_anything_is_read() {
    for (args, says) in [
        (["plan"].as_slice(), "--snapshot"),
        (&["simulate", "--trace", "itp:none", "--runs", "0"], "--runs: 0"),
        (&["simulate", "--trace", "itp:none", "--pace", "0"], "--pace: 0"),
    ] {
        let output = andreas(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(says), "{args:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn a_trace_is_replayed_under_several_methods_side_by_side() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let rows = "id,submit_s,gpus,duration_s,deadline_s\na,0,1,600,2000\nb,60,2,600,900\nc,120,16,600,5000\n";
    std::fs::write(path("t.csv"), rows).unwrap();
    let cluster = concat!(env!("CARGO_MANIFEST_DIR"), "/../simulator/clusters/mixed.yaml");
    let (trace, json) = (format!("csv:{}", path("t.csv")), path("o.json"));
    let common = ["simulate", "--trace", &trace, "--cluster", cluster];

    let output = andreas(
        &[
            &common[..],
            &["--methods", "fifo-fixed,edf", "--knowledge", "perfect", "--mape", "0,0.16", "--json", &json],
        ]
        .concat(),
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(shown.contains("fifo-fixed") && shown.contains("edf MAPE 16 % corrected"), "{shown}");
    let written: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(written[0]["outcomes"].as_array().unwrap().len(), 4);
    assert!(!shown.contains("Gangs"), "{shown}");
    let output = andreas(&[&common[..], &["--methods", "edf", "--knowledge", "perfect,learning"]].concat());
    let shown = text(&output.stdout);
    assert!(shown.contains("\nGangs (they ask for more GPUs than a node has): 1. They wait "), "{shown}");

    let output = andreas(&["simulate", "--trace", "itp:/nowhere", "--cluster", cluster]);
    assert!(text(&output.stderr).starts_with("error: /nowhere: "), "{}", text(&output.stderr));
    let output = andreas(&["simulate", "--trace", "swf:x", "--cluster", cluster]);
    assert!(text(&output.stderr).contains("no trace format is called"), "{}", text(&output.stderr));
}

#[test]
fn a_replay_without_flags_is_what_the_product_does() {
    let simulator = Path::new(env!("CARGO_MANIFEST_DIR")).join("../simulator");
    let trace = format!("itp:{}/tests/fixtures/elasticflow/cluster02-first400.csv.gz", simulator.display());
    let cluster = format!("{}/clusters/mixed.yaml", simulator.display());
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("o.json");
    let outcome = |options: &[&str]| -> serde_json::Value {
        let common = ["simulate", "--trace", &trace, "--cluster", &cluster, "--jobs", "40", "--trials", "5"];
        let file = ["--json", json.to_str().unwrap()];
        let output = andreas(&[&common[..], options, &file[..]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let all: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        all[0]["outcomes"][0].clone()
    };
    let jobs = |outcome: &serde_json::Value| outcome["jobs"].clone();
    // Given no flag at all, the planner learns and starts and stops take their time.
    let product = outcome(&[]);
    assert_eq!(product["label"], "learning");
    assert_eq!(jobs(&product), jobs(&outcome(&["--knowledge", "learning"])));
    // Who knows all, or meets no delays, says so.
    for explicit in [["--knowledge", "perfect"], ["--without", "delays"], ["--without", "lost-work"]] {
        assert_ne!(jobs(&product), jobs(&outcome(&explicit)), "{explicit:?}");
    }
}

#[test]
fn an_output_file_that_cannot_be_written_is_said_before_the_replays() {
    let simulator = Path::new(env!("CARGO_MANIFEST_DIR")).join("../simulator");
    let trace = format!("itp:{}/tests/fixtures/elasticflow/cluster02-first400.csv.gz", simulator.display());
    let cluster = format!("{}/clusters/mixed.yaml", simulator.display());
    let output = andreas(&["simulate", "--trace", &trace, "--cluster", &cluster, "--json", "/none/x"]);
    assert_eq!((output.status.code(), text(&output.stderr).contains("/none/x: ")), (Some(1), true));
}
