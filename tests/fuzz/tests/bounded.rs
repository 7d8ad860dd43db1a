//! The bounded run: every input of the corpus, and mutations of them, the same ones in every run.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use andreas_fuzz::mutate::mutate;
use andreas_fuzz::{TARGETS, Target, corpus};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// Mutations of each target.
const MUTATIONS: usize = 4_000;
/// A run ends here on a slow machine; what was run until then counts.
const MAX_RUN: Duration = Duration::from_secs(20);
/// Longest input, bytes.
const MAX_INPUT: usize = 64 * 1024;

fn inputs(target: &Target) -> Vec<Vec<u8>> {
    let folder = corpus(target);
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files.into_iter().map(|file| std::fs::read(file).unwrap()).collect()
}

fn run(name: &str) {
    let target = TARGETS.iter().find(|t| t.name == name).unwrap();
    let seeds = inputs(target);
    assert!(!seeds.is_empty(), "{name} has no corpus");
    for seed in &seeds {
        (target.run)(seed);
    }
    let began = Instant::now();
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut done = 0;
    while done < MUTATIONS && began.elapsed() < MAX_RUN {
        let [one, other] = [0, 0].map(|_: usize| &seeds[rng.random_range(0..seeds.len())]);
        let input = mutate(&mut rng, one, other, MAX_INPUT);
        if std::panic::catch_unwind(|| (target.run)(&input)).is_err() {
            panic!("{name} panics at mutation {done}: {:?}", String::from_utf8_lossy(&input));
        }
        done += 1;
    }
    assert!(done >= MUTATIONS / 20, "{name}: only {done} mutations within {MAX_RUN:?}");
    println!("{name}: {} inputs, {done} mutations in {:?}", seeds.len(), began.elapsed());
}

macro_rules! bounded {
    ($($name:ident)*) => {
        $(#[test] fn $name() { run(stringify!($name)); })*

        #[test]
        fn every_target_has_a_bounded_run() {
            let named = [$(stringify!($name)),*];
            assert_eq!(named.to_vec(), TARGETS.iter().map(|t| t.name).collect::<Vec<_>>());
        }
    };
}

bounded!(
    adopted_workloads api_objects certificates certificate_secrets cluster_files job_manifests
    kubelet_pod_resources list_answers planner_lines pod_logs profiles program_descriptions progress_reports
    quantities queries scheduler_requests setter_lines setter_record trace_files watch_answers
);
