//! What continuous integration elsewhere runs is all that there is.

use std::collections::BTreeSet;
use std::path::Path;

use andreas_e2e::api::yaml;
use anyhow::{Context as _, Result};
use serde_json::Value;

/// A workflow's jobs: names, and the commands of each in their order.
fn jobs(file: &str) -> Result<Vec<(String, Vec<String>)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.github/workflows");
    let workflow = yaml(&std::fs::read_to_string(folder.join(file))?)?;
    let runs = |job: &Value| -> Result<Vec<String>> {
        let steps = job["steps"].as_array().context("steps")?;
        Ok(steps.iter().filter_map(|step| step["run"].as_str()).map(str::to_owned).collect())
    };
    let jobs = workflow["jobs"].as_object().context("jobs")?;
    jobs.iter().map(|(name, job)| Ok((name.clone(), runs(job)?))).collect()
}

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

/// The targets of the Makefile.
fn targets(root: &Path) -> Result<BTreeSet<String>> {
    let makefile = std::fs::read_to_string(root.join("Makefile"))?;
    Ok(makefile.lines().filter_map(|line| line.strip_prefix(".PHONY: ")).map(str::to_owned).collect())
}

/// What `make test` leaves out is run every night: each target that CONTRIBUTING names of another class, but those that need what a
/// hosted machine has not.
#[test]
fn every_longer_suite_runs_at_night() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let workflow = yaml(&std::fs::read_to_string(root.join(".github/workflows/nightly.yml"))?)?;
    let mut nightly = BTreeSet::new();
    for job in ["long", "nodes"] {
        let matrix = &workflow["jobs"][job]["strategy"]["matrix"]["target"];
        nightly.extend(
            matrix.as_array().context("a matrix")?.iter().filter_map(|t| t.as_str()).map(str::to_owned),
        );
    }
    let jobs = jobs("nightly.yml")?;
    let release = jobs.iter().filter(|(name, _)| name == "release").flat_map(|(_, runs)| runs);
    nightly.extend(release.filter_map(|run| Some(run.rsplit_once("make ")?.1.to_owned())));
    let targets = targets(&root)?;
    let unknown: Vec<_> = nightly.difference(&targets).collect();
    anyhow::ensure!(unknown.is_empty(), "no targets: {unknown:?}");
    let page = std::fs::read_to_string(root.join("CONTRIBUTING.md"))?;
    let section = page.split("\n## ").find(|section| section.starts_with("Tests\n")).context("Tests")?;
    let rows = section.lines().filter(|line| line.starts_with("| "));
    let words = rows.flat_map(|row| row.split('`')).filter_map(|code| code.strip_prefix("make "));
    let named: BTreeSet<&str> = words.filter_map(|code| code.split(' ').next()).collect();
    // Every change runs these; Debian 12, an idle machine, a browser, a person, a GPU; a part of `make release`.
    let others = [
        "check",
        "e2e",
        "kubelets",
        "check-files",
        "buildah",
        "bench",
        "pictures",
        "transcripts",
        "hardware",
        "images",
    ];
    let missing: Vec<_> =
        named.iter().filter(|name| !nightly.contains(**name) && !others.contains(name)).collect();
    anyhow::ensure!(missing.is_empty(), "never run elsewhere: {missing:?}");
    let unnamed: Vec<_> = nightly.iter().filter(|target| !named.contains(target.as_str())).collect();
    anyhow::ensure!(unnamed.is_empty(), "CONTRIBUTING does not name {unnamed:?}");
    Ok(())
}

#[test]
fn the_python_package_runs_at_night_under_the_oldest_python_that_it_supports() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let workflow = yaml(&std::fs::read_to_string(root.join(".github/workflows/nightly.yml"))?)?;
    let steps = workflow["jobs"]["long"]["steps"].as_array().context("steps")?;
    let text = |of: fn(&Value) -> &Value| steps.iter().find_map(|step| of(step).as_str());
    let installed = text(|step| &step["with"]["python-version"]).context("no Python is installed")?;
    let named = text(|step| &step["env"]["PYTHONS"]).context("no Python is named")?;
    let named: Vec<&str> = named.split_whitespace().collect();
    assert_eq!(installed.split_whitespace().collect::<Vec<_>>(), named);
    assert!(named.len() > 1, "and a newer one: {named:?}");
    let package = std::fs::read_to_string(root.join("python/pyproject.toml"))?;
    let oldest = format!("requires-python = \">={}\"", named[0]);
    assert!(package.contains(&oldest), "no {oldest}");
    Ok(())
}

#[test]
fn the_crates_suite_and_the_one_on_real_nodes_are_run_too() -> Result<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workflow = yaml(&std::fs::read_to_string(here.join("../../.github/workflows/test.yml"))?)?;
    for (job, target) in [("crates", "make test-crates"), ("nodes", "make kubelets")] {
        let steps = workflow["jobs"][job]["steps"].as_array().context("steps")?;
        let runs = |step: &Value| step["run"].as_str().is_some_and(|run| run.ends_with(target));
        assert!(steps.iter().any(runs), "{job}");
    }
    Ok(())
}

/// Otherwise the first tag would show that a hosted machine cannot make a release.
#[test]
fn what_a_tag_makes_is_made_every_night_on_such_a_machine() -> Result<()> {
    let workflows = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.github/workflows");
    let job = |file: &str| -> Result<(String, String)> {
        let workflow = yaml(&std::fs::read_to_string(workflows.join(file))?)?;
        let job = &workflow["jobs"]["release"];
        let runs = job["steps"].as_array().context("steps")?.iter().filter_map(|step| step["run"].as_str());
        Ok((job["runs-on"].to_string(), runs.collect::<Vec<_>>().join("\n")))
    };
    let ((machine, tag), (nightly_machine, nightly)) = (job("release.yml")?, job("nightly.yml")?);
    assert_eq!(machine, nightly_machine);
    for step in
        ["hack/prepare release && rustup target add aarch64-unknown-linux-gnu", "make release", "make arm64"]
    {
        assert!(tag.contains(step) && nightly.contains(step), "{step}");
    }
    // and what it made is installed
    assert!(nightly.contains("make install-release"), "{nightly}");
    Ok(())
}

/// Ubuntu lets an ordinary user make no namespaces, and pretend nodes are some.
#[test]
fn suites_that_an_ordinary_user_runs_on_a_hosted_machine_may_make_namespaces() -> Result<()> {
    let allows = "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0";
    let mut checked = 0;
    for file in ["test.yml", "nightly.yml"] {
        for (job, runs) in jobs(file)? {
            // What builds alone, and what root runs.
            let needs = |run: &String| {
                run.starts_with("make ") && !["make release", "make arm64"].contains(&run.as_str())
            };
            let Some(at) = runs.iter().position(needs) else {
                continue;
            };
            checked += 1;
            anyhow::ensure!(runs[..at].iter().any(|run| run == allows), "{file}: {job}: {runs:?}");
        }
    }
    assert_eq!(checked, 3, "crates, scenarios, long");
    Ok(())
}
