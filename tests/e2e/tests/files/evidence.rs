//! The pages that say what the project withstands: each test that they name exists, and each goal has a figure.
//!
//! A test is named by the crate (without one, a module of `tests/e2e/tests/scenarios`), the module of its file, and its function:
//! `operator::lifecycle::tests::cancel::a_pod_...`, or by the modules alone with `::` at the end.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

const PAGES: [&str; 2] = ["docs/security.md", "docs/reliability.md"];
/// Goals of the table in the second page.
const GOALS: usize = 25;
/// Programs of tests that `make test` names.
const RUN_BY_MAKE_TEST: [&str; 2] = ["scenarios", "kubelets"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Files whose names end so, in this folder and below.
fn files(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            found.extend(files(&path, ending)?);
        } else if name.ends_with(ending) {
            found.push(path);
        }
    }
    Ok(found)
}

/// The modules of a file, by its path in the repository: crate, then folders and file.
fn modules(path: &Path) -> String {
    let path = path.with_extension("").to_string_lossy().replace('-', "_");
    let scenarios = path.strip_prefix("tests/e2e/tests/scenarios/").map(str::to_owned);
    let path = scenarios.unwrap_or_else(|| {
        let path = path.strip_prefix("tests/e2e/tests/").unwrap_or(&path);
        let path = path.strip_prefix("crates/").or_else(|| path.strip_prefix("tests/")).unwrap_or(path);
        path.replacen("/src/", "/", 1).replacen("/tests/", "/", usize::from(!path.contains("/src/")))
    });
    let parts = path.split('/').filter(|part| !["mod", "lib", "main"].contains(part));
    parts.collect::<Vec<_>>().join("::")
}

/// Functions of a source that the test runner runs.
fn tests_of(source: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut is_test = false;
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if line.starts_with("#[ignore") {
            is_test = false;
        } else if is_test && !line.starts_with("#[") && !line.starts_with("//") {
            let name = line.trim_start_matches("async ").strip_prefix("fn ");
            found.extend(name.and_then(|rest| rest.split(['(', '<']).next()));
            is_test = false;
        }
    }
    found
}

fn all_tests() -> Result<BTreeSet<String>> {
    let root = root();
    let mut found = BTreeSet::new();
    for file in files(&root, ".rs")? {
        let modules = modules(file.strip_prefix(&root)?);
        let source = std::fs::read_to_string(&file)?;
        found.extend(tests_of(&source).into_iter().map(|name| format!("{modules}::{name}")));
    }
    Ok(found)
}

fn exists(tests: &BTreeSet<String>, name: &str) -> bool {
    match name.ends_with("::") {
        true => tests.iter().any(|test| test.starts_with(name)),
        false => tests.contains(name),
    }
}

/// What stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Cells of a table's rows, without heads.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let rows = page.lines().filter_map(|line| line.strip_prefix('|')?.strip_suffix('|'));
    rows.map(|row| row.split('|').map(str::trim).collect()).collect()
}

#[test]
fn every_test_and_target_that_a_page_names_exists() -> Result<()> {
    let (tests, mut named) = (all_tests()?, 0);
    let makefile = std::fs::read_to_string(root().join("Makefile"))?;
    for page in PAGES {
        let text = std::fs::read_to_string(root().join(page))?;
        for name in quoted(&text) {
            if let Some(target) = name.strip_prefix("make ") {
                let target = target.split_whitespace().next().context("a target")?;
                ensure!(makefile.contains(&format!("\n{target}:")), "{page}: there is no `make {target}`");
            } else if name.contains("::") {
                named += 1;
                ensure!(exists(&tests, name), "{page}: there is no test `{name}`");
            }
        }
    }
    ensure!(named > 100, "only {named} tests are named");
    Ok(())
}

#[test]
fn every_behaviour_and_every_goal_names_a_test_and_every_goal_has_a_figure() -> Result<()> {
    let mut goals = BTreeSet::new();
    for page in PAGES {
        let text = std::fs::read_to_string(root().join(page))?;
        let mut tested = 0;
        let mut test_column = None;
        for row in rows(&text) {
            if let Some(column) = row.iter().position(|cell| *cell == "test") {
                test_column = Some(column);
                continue;
            }
            // A table without that head has no column of its place, or names no test there.
            let Some(cell) = test_column.and_then(|column| row.get(column)) else {
                test_column = None;
                continue;
            };
            if cell.starts_with("--") {
                continue;
            }
            tested += 1;
            let names = quoted(cell).any(|name| name.contains("::") || name.starts_with("make "));
            ensure!(names, "{page}: no test in the row {row:?}");
            if let Ok(goal) = row[0].parse::<usize>() {
                goals.insert(goal);
                let figure = row.last().context("a figure")?;
                ensure!(figure.contains(|c: char| c.is_ascii_digit()), "{page}: goal {goal} has no figure");
            }
        }
        ensure!(tested > 20, "{page}: only {tested} rows with tests");
    }
    ensure!(goals == (1..=GOALS).collect(), "goals in the table: {goals:?}");
    Ok(())
}

#[test]
fn a_test_that_is_left_out_only_measures_or_has_a_target_of_its_own() -> Result<()> {
    let makefile = std::fs::read_to_string(root().join("Makefile"))?;
    for file in files(&root(), ".rs")? {
        let source = std::fs::read_to_string(&file)?;
        for line in source.lines().map(str::trim).filter(|line| line.starts_with("#[ignore")) {
            let measures = line.contains("measures") || line.contains("times");
            let target = line.split_once("make ").map(|(_, rest)| rest.trim_end_matches(['"', ']']));
            let has_target = target.is_some_and(|target| makefile.contains(&format!("\n{target}:")));
            ensure!(measures || has_target, "{}: {line}", file.display());
        }
    }
    Ok(())
}

/// Programs of tests that a manifest keeps from `cargo test` without their names.
fn left_out(manifest: &str) -> impl Iterator<Item = &str> {
    let tables = manifest.split("\n[").filter(|table| table.starts_with("[test]]"));
    let tables = tables.filter(|table| table.contains("\ntest = false"));
    tables.filter_map(|table| Some(table.split_once("\nname = \"")?.1.split_once('"')?.0))
}

/// The target whose recipe runs a program of tests.
fn target_of<'a>(makefile: &'a str, program: &str) -> Option<&'a str> {
    let by_name = format!("--test {program} ");
    let before = makefile.lines().take_while(|line| {
        !(line.starts_with('\t') && line.contains("$(CARGO) test ") && line.contains(&by_name))
    });
    let lines: Vec<&str> = before.collect();
    if lines.len() == makefile.lines().count() {
        return None;
    }
    let head = lines.into_iter().rfind(|line| line.starts_with(|first: char| first.is_ascii_lowercase()))?;
    head.split_once(':').map(|(target, _)| target)
}

#[test]
fn programs_of_tests_that_make_test_does_not_run_are_named() -> Result<()> {
    let makefile = std::fs::read_to_string(root().join("Makefile"))?;
    let page = std::fs::read_to_string(root().join("docs/reliability.md"))?;
    let goals = rows(&page);
    let last = goals.iter().find(|row| row[0] == GOALS.to_string()).context("the last goal")?;
    let named: Vec<&str> = last.iter().flat_map(|cell| quoted(cell)).collect();
    let mut programs = 0;
    for manifest in files(&root(), "Cargo.toml")? {
        for program in left_out(&std::fs::read_to_string(&manifest)?) {
            programs += 1;
            if RUN_BY_MAKE_TEST.contains(&program) {
                continue;
            }
            let target =
                target_of(&makefile, program).with_context(|| format!("no target runs {program}"))?;
            let is_named = named.iter().any(|name| name.trim_start_matches("make ") == target);
            ensure!(is_named, "{}: goal {GOALS} does not name {target}", manifest.display());
        }
    }
    ensure!(programs > RUN_BY_MAKE_TEST.len(), "{programs} programs");
    Ok(())
}

#[test]
fn a_program_of_tests_is_found_with_its_target() {
    let manifest = "[[test]]\nname = \"one\"\ntest = false\n\n[[test]]\nname = \"two\"\n\n[[bin]]\nname = \"three\"\ntest = false\n";
    assert_eq!(left_out(&format!("\n{manifest}")).collect::<Vec<_>>(), ["one"]);
    let makefile = "lint:\n\t$(CARGO) clippy --test one -- -D\nfirst: export A := b\nfirst: build ## Text\n\t$(CARGO) test --test one -- x\n";
    assert_eq!((target_of(makefile, "one"), target_of(makefile, "two")), (Some("first"), None));
}

#[test]
fn names_are_found_by_file_and_function() {
    let of = |path: &str| modules(Path::new(path));
    assert_eq!(of("tests/e2e/tests/scenarios/lifecycle/cancel.rs"), "lifecycle::cancel");
    assert_eq!(of("tests/e2e/tests/scenarios/faults/writes/mod.rs"), "faults::writes");
    assert_eq!(of("tests/e2e/tests/kubelets/policies.rs"), "kubelets::policies");
    assert_eq!(of("operator/src/lifecycle/tests/cancel.rs"), "operator::lifecycle::tests::cancel");
    assert_eq!(of("crates/runtime/tests/tls.rs"), "runtime::tls");
    assert_eq!(of("node-agent/tests/processes/reports.rs"), "node_agent::processes::reports");
    assert_eq!(of("tests/fuzz/tests/bounded.rs"), "fuzz::bounded");
    let source = "#[test]\nfn one() {}\n#[tokio::test(flavor = \"x\")]\nasync fn two() {}\nfn helper() {}\n\
                  #[test]\n#[ignore = \"slow\"]\nfn three() {}";
    assert_eq!(tests_of(source), ["one", "two"]);
    let tests = BTreeSet::from(["a::b::one".to_owned()]);
    assert!(exists(&tests, "a::b::one") && exists(&tests, "a::b::") && exists(&tests, "a::"));
    assert!(!exists(&tests, "a::b::two") && !exists(&tests, "b::") && !exists(&tests, "a::b"));
}
