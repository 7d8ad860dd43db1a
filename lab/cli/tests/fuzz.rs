//! Every parser of the laboratory, fed with bytes that nobody meant.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

use std::path::Path;

#[path = "../../../tests/fuzz/src/bounded.rs"]
mod bounded;
#[path = "../../../tests/fuzz/src/mutate.rs"]
mod mutate;

use andreas_lab::stdio::Session;
use andreas_simulator::readers::{Format, TraceRange, read_trace, scenario};

fn run(name: &str, parse: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(name);
    bounded::run(name, parse, &corpus);
}

/// A folder in memory where there is one: thousands of inputs are written.
fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// Cluster files, with a small trace.
#[test]
fn cluster_files() {
    run("cluster_files", |bytes| {
        let folder = folder();
        let [cluster, trace] = ["cluster.yaml", "trace.csv"].map(|name| folder.path().join(name));
        std::fs::write(&cluster, bytes).unwrap();
        std::fs::write(&trace, include_bytes!("corpus/trace_files/own.csv")).unwrap();
        let _ = scenario(Format::Csv, &trace, &cluster, TraceRange::default());
    });
}

/// Traces, in every format.
#[test]
fn trace_files() {
    run("trace_files", |bytes| {
        let folder = folder();
        let file = folder.path().join("trace");
        std::fs::write(&file, bytes).unwrap();
        for format in Format::ALL {
            let _ = read_trace(format, &file);
        }
    });
}

/// Lines of the planner's protocol: each gets one answer, which is JSON.
#[test]
fn planner_lines() {
    run("planner_lines", |bytes| {
        let options = andreas_baselines::Options { trials: 1, ..andreas_baselines::Options::default() };
        let mut session = Session::new(options, false);
        for line in bytes.split(|b| *b == b'\n').take(4) {
            let answer = session.answer(line);
            serde_json::from_str::<serde::de::IgnoredAny>(&answer).expect("an answer is JSON");
        }
    });
}
