//! Private words that once named things here, each with the field's word for it: none of them names an item again.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The word as part of a name, and what to say instead.
const WORDS: [(&str, &str); 17] = [
    ("crowd", "burst"),
    ("desk", "state"),
    ("dice", "rng"),
    ("eye", "monitor"),
    ("eyes", "monitor"),
    ("graves", "tombstones"),
    ("heard", "received"),
    ("hearing", "policy"),
    ("kin", "model effect, or what it is"),
    ("lesson", "update, or observation"),
    ("lessons", "updates, or observations"),
    ("menu", "cost table"),
    ("owed", "pending"),
    ("stranger", "other tenant"),
    ("strangers", "other tenants"),
    ("told", "reported, written or shown"),
    ("voice", "weight"),
];
/// What introduces the name of an item.
const KEYWORDS: [&str; 9] =
    ["const", "enum", "fn", "macro_rules!", "mod", "static", "struct", "trait", "type"];

/// Words of a name in any case: `GpuMonitor`, `gpu_monitor`.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for c in name.chars() {
        if c == '_' || c.is_uppercase() && words.last().is_some_and(|w| w.chars().all(char::is_lowercase)) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c != '_') {
            word.extend(c.to_lowercase());
        }
    }
    words
}

/// Items of a file that a private word names, as `line: name: word -> better`.
fn private(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        let tokens: Vec<&str> = code.split_whitespace().collect();
        for pair in tokens.windows(2).filter(|pair| KEYWORDS.contains(&pair[0])) {
            let name = pair[1].split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
            let words = words(name);
            for (word, better) in WORDS.iter().filter(|(word, _)| words.iter().any(|w| w == word)) {
                found.push(format!("{}: {name}: {word} -> {better}", number + 1));
            }
        }
    }
    found
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            rust_files(&path, files)?;
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

#[test]
fn no_item_has_a_private_word_in_its_name() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for folder in ["operator/src", "extender/src", "node-agent/src", "cli/src", "crates"] {
        rust_files(&root.join(folder), &mut files)?;
    }
    assert!(files.len() > 200, "only {} files", files.len());
    let mut found = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file)?;
        let name = file.strip_prefix(&root)?.display().to_string();
        found.extend(private(&text).into_iter().map(|what| format!("{name}:{what}")));
    }
    assert!(found.is_empty(), "private words:\n{}", found.join("\n"));
    Ok(())
}

#[test]
fn private_words_are_found_as_whole_words_of_names() {
    let text =
        "pub struct PeerVoice;\nfn kind_of() {}\n// fn told()\npub(crate) mod eyes;\nfn is_allowed() {}";
    assert_eq!(private(text), ["1: PeerVoice: voice -> weight", "4: eyes: eyes -> monitor"]);
}
