//! The commands that the pages tell people to type: they parse, and the files, targets and values that they name exist.

use std::path::{Path, PathBuf};

use andreas_cli::Cli;
use andreas_e2e::fenced;
use clap::Parser as _;
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every page with its commands: the words of each line of a block of the shell, lines that end in `\` joined.
fn commands() -> Vec<(String, Vec<String>)> {
    let listed = std::process::Command::new("git").args(["ls-files", "*.md"]).current_dir(root()).output();
    let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
    let mut found = Vec::new();
    for page in listed.lines() {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        for block in fenced::blocks(&text, "sh") {
            for line in block.replace("\\\n", " ").lines() {
                // What a pipe or a substitution makes of its parts is the shell's to say.
                let words = shlex::split(line).unwrap_or_default();
                if !words.iter().any(|word| word == "|" || word.contains("$(")) {
                    found.push((format!("{page}: {line}"), words));
                }
            }
        }
    }
    found
}

/// The rest of a command that begins so.
fn after<'a>(words: &'a [String], begin: &[&str]) -> Option<&'a [String]> {
    (words.len() >= begin.len() && words.iter().zip(begin).all(|(word, wanted)| word == wanted))
        .then(|| &words[begin.len()..])
}

#[test]
fn every_command_of_the_command_line_parses() {
    let mut parsed = 0;
    for (place, words) in commands() {
        let Some(rest) =
            after(&words, &["kubectl", "andreas"]).or_else(|| after(&words, &["kubectl-andreas"]))
        else {
            continue;
        };
        // Written in capitals or in brackets: for the reader to fill in.
        if rest
            .iter()
            .any(|word| word.starts_with(['[', '(', '$']) || word.chars().all(|c| c.is_ascii_uppercase()))
        {
            continue;
        }
        let words = ["kubectl-andreas"].into_iter().chain(rest.iter().map(String::as_str));
        if let Err(error) = Cli::try_parse_from(words) {
            panic!("{place}: {error}");
        }
        parsed += 1;
    }
    assert!(parsed > 20, "only {parsed} commands");
}

#[test]
fn every_target_of_make_and_every_variable_given_to_it_exist() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let mut checked = 0;
    for (place, words) in commands() {
        let Some(rest) = after(&words, &["make"]) else { continue };
        for word in rest.iter().take_while(|word| !word.starts_with('#')) {
            match word.split_once('=') {
                Some((variable, _)) => {
                    let used = [format!("$({variable})"), format!("{variable} ?=")];
                    assert!(used.iter().any(|used| makefile.contains(used.as_str())), "{place}: {variable}");
                }
                None => assert!(
                    makefile.contains(&format!("\n{word}: ")) || makefile.contains(&format!("\n{word}:\n")),
                    "{place}: {word}"
                ),
            }
            checked += 1;
        }
    }
    assert!(checked > 10, "only {checked} words");
}

#[test]
fn every_value_and_file_given_to_helm_exists() {
    let values = std::fs::read_to_string(root().join("charts/andreas/values.yaml")).unwrap();
    let values: Value = serde_saphyr::from_str(&values).unwrap();
    let mut checked = 0;
    for (place, words) in commands() {
        if words.first().is_none_or(|word| word != "helm")
            || !words.iter().any(|word| word == "charts/andreas")
        {
            continue;
        }
        for pair in words.windows(2) {
            match pair[0].as_str() {
                "--set" => {
                    for setting in settings(&pair[1]) {
                        assert!(is_a_value(&values, setting), "{place}: no value {setting}");
                        checked += 1;
                    }
                }
                // One in the reader's own folder has no path.
                "--values" if pair[1].contains('/') => {
                    assert!(root().join(&pair[1]).is_file(), "{place}: no file {}", pair[1]);
                    checked += 1;
                }
                _ => {}
            }
        }
    }
    assert!(checked > 20, "only {checked} settings");
}

/// The installation's page names Helm 3 beside Helm 4.
#[test]
fn no_command_has_a_flag_that_helm_3_does_not_know() {
    let newer = ["--force-conflicts", "--force-replace", "--rollback-on-failure", "--server-side"];
    let of_helm =
        commands().into_iter().filter(|(_, words)| words.first().is_some_and(|word| word == "helm"));
    let mut checked = 0;
    for (place, words) in of_helm {
        let name = |word: &String| word.split('=').next().unwrap_or_default().to_owned();
        let unknown = words.iter().map(name).find(|flag| newer.contains(&flag.as_str()));
        assert_eq!(unknown, None, "{place}");
        checked += 1;
    }
    assert!(checked > 10, "only {checked} commands");
}

/// The paths of `a.b=1,c={x,y}`.
fn settings(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let comma = |c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    };
    text.split(comma).map(|setting| setting.split('=').next().unwrap()).collect()
}

/// A path of the chart's values; below an empty object (labels, annotations) stands what the reader wants.
fn is_a_value(values: &Value, path: &str) -> bool {
    let mut at = values;
    for name in path.split('.') {
        match at.as_object() {
            Some(fields) if fields.is_empty() => return true,
            Some(fields) => match fields.get(name) {
                Some(inner) => at = inner,
                None => return false,
            },
            None => return false,
        }
    }
    true
}
