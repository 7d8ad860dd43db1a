//! What continuous integration elsewhere runs is all that there is.

use std::collections::BTreeSet;
use std::path::Path;

use andreas_e2e::api::yaml;
use anyhow::{Context as _, Result};

#[test]
fn every_module_of_scenarios_is_in_the_matrix() -> Result<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let main = std::fs::read_to_string(here.join("tests/scenarios/main.rs"))?;
    let modules = main.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
    let modules: BTreeSet<String> = modules.map(str::to_owned).collect();
    assert!(modules.len() > 5, "{modules:?}");
    let workflow = yaml(&std::fs::read_to_string(here.join("../../.github/workflows/test.yml"))?)?;
    let matrix =
        workflow["jobs"]["scenarios"]["strategy"]["matrix"]["tests"].as_array().context("a matrix")?;
    let words = matrix.iter().filter_map(|tests| tests.as_str()).flat_map(str::split_whitespace);
    let run: BTreeSet<String> = words.map(str::to_owned).collect();
    assert_eq!(run, modules);
    Ok(())
}

#[test]
fn the_crates_suite_and_the_one_on_real_nodes_are_run_too() -> Result<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workflow = yaml(&std::fs::read_to_string(here.join("../../.github/workflows/test.yml"))?)?;
    for (job, target) in [("crates", "make test-crates"), ("nodes", "make kubelets")] {
        let steps = workflow["jobs"][job]["steps"].as_array().context("steps")?;
        let runs = |step: &serde_json::Value| step["run"].as_str().is_some_and(|run| run.ends_with(target));
        assert!(steps.iter().any(runs), "{job}");
    }
    Ok(())
}
