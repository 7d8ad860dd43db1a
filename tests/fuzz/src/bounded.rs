//! A bounded run of a target: every input of its corpus and a fixed number of mutations, the same ones in every run.

use std::path::Path;
use std::time::{Duration, Instant};

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::mutate::mutate;

/// Mutations of each target.
const MUTATIONS: usize = 4_000;
/// A run ends here on a slow machine; what was run until then counts.
const MAX_RUN: Duration = Duration::from_secs(20);
/// Longest input, bytes.
const MAX_INPUT: usize = 64 * 1024;

fn inputs(folder: &Path) -> Vec<Vec<u8>> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("a folder of the repository can be read").path())
        .collect();
    files.sort();
    files.into_iter().map(|file| std::fs::read(file).expect("a file of the repository can be read")).collect()
}

/// Runs a target on each input of a folder, and on mutations of them.
///
/// # Panics
/// When the target panics, with the input; when the folder is empty.
pub fn run(name: &str, parse: fn(&[u8]), corpus: &Path) {
    let seeds = inputs(corpus);
    assert!(!seeds.is_empty(), "{name} has no corpus");
    for seed in &seeds {
        parse(seed);
    }
    let began = Instant::now();
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut done = 0;
    while done < MUTATIONS && began.elapsed() < MAX_RUN {
        let [one, other] = [0, 0].map(|_: usize| &seeds[rng.random_range(0..seeds.len())]);
        let input = mutate(&mut rng, one, other, MAX_INPUT);
        if std::panic::catch_unwind(|| parse(&input)).is_err() {
            panic!("{name} panics at mutation {done}: {:?}", String::from_utf8_lossy(&input));
        }
        done += 1;
    }
    assert!(done >= MUTATIONS / 20, "{name}: only {done} mutations within {MAX_RUN:?}");
    println!("{name}: {} inputs, {done} mutations in {:?}", seeds.len(), began.elapsed());
}
