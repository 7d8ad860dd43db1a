//! What continuous integration elsewhere runs is all that there is.
#![allow(missing_docs)]

use std::collections::BTreeSet;
use std::path::Path;

use andreas_e2e::api::yaml;
use anyhow::{Context as _, Result};

/// Run by targets of their own.
const APART: [&str; 1] = ["upgrade"];

#[test]
fn every_file_of_scenarios_is_in_the_matrix() -> Result<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = BTreeSet::new();
    for entry in std::fs::read_dir(here.join("tests"))? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).context("a name")?.to_owned();
        if path.extension().is_some_and(|end| end == "rs") || path.join("main.rs").exists() {
            files.insert(name);
        }
    }
    let workflow = yaml(&std::fs::read_to_string(here.join("../../.github/workflows/test.yml"))?)?;
    let matrix =
        workflow["jobs"]["scenarios"]["strategy"]["matrix"]["tests"].as_array().context("a matrix")?;
    let words = matrix.iter().filter_map(|tests| tests.as_str()).flat_map(str::split_whitespace);
    let run: BTreeSet<String> = words.chain(APART).map(str::to_owned).collect();
    assert_eq!(run, files);
    Ok(())
}
