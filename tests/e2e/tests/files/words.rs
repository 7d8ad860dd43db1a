//! Private words that once named things here, each with the field's word for it: none of them names an item or a local
//! variable again.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The word as part of a name of anything, tests included, and what to say instead.
const WORDS: [(&str, &str); 29] = [
    ("belief", "prediction"),
    ("brain", "agent"),
    ("brains", "agents"),
    ("crowd", "burst"),
    ("desk", "state"),
    ("dice", "rng"),
    ("eye", "monitor"),
    ("eyes", "monitor"),
    ("farewell", "deregister"),
    ("grave", "tombstone"),
    ("graves", "tombstones"),
    ("heard", "received"),
    ("hearing", "policy"),
    ("heart", "heartbeat, or loop"),
    ("kin", "model effect, or what it is"),
    ("lesson", "update, or observation"),
    ("lessons", "updates, or observations"),
    ("menu", "cost table"),
    ("owed", "pending"),
    ("settle", "reconcile, or what it is"),
    ("stakes", "costs"),
    ("stories", "scenarios"),
    ("story", "scenario, or test case"),
    ("stranger", "other tenant"),
    ("strangers", "other tenants"),
    ("taught", "updated"),
    ("told", "reported, written or shown"),
    ("voice", "weight"),
    ("wish", "preference, or request"),
];
/// The same for names in product code. A test may use plain English: a test double of a cluster is a `World`.
const PRODUCT_WORDS: [(&str, &str); 42] = [
    ("avoid", "exclude"),
    ("avoided", "excluded"),
    ("braked", "limited"),
    ("brakes", "rate limits"),
    ("curious", "explores, or lacks a measurement"),
    ("dearer", "extra cost, or costs more"),
    ("door", "state, interface or API"),
    ("doubtful", "unconfirmed"),
    ("firm", "final"),
    ("handed", "delivered"),
    ("hears", "receives"),
    ("lie", "false data"),
    ("lies", "false data"),
    ("look", "read, observe, snapshot or explore"),
    ("looked", "observed"),
    ("looking", "exploring"),
    ("looks", "reads, or observations"),
    ("mattering", "required"),
    ("said", "message, claimed, or what it is"),
    ("saw", "observed"),
    ("say", "set"),
    ("saying", "update"),
    ("says", "reports"),
    ("shelf", "library"),
    ("sight", "first seen"),
    ("sights", "first seen"),
    ("silence", "time-out, or not ready"),
    ("silent", "unavailable, or not ready"),
    ("spent", "totals"),
    ("tell", "report, publish or write"),
    ("tells", "reports"),
    ("thriftier", "power factor"),
    ("touchable", "movable"),
    ("trouble", "failure, or error"),
    ("unfit", "not plannable"),
    ("unmade", "not created"),
    ("unsaid", "default, or absent"),
    ("unsay", "clear"),
    ("vain", "infeasible"),
    ("whose", "ownership"),
    ("withhold", "revoke"),
    ("world", "cache, snapshot or cluster"),
];
/// A word of two in the field: planning looks ahead.
const ONE_WORD: (&str, &str) = ("look_ahead", "lookahead");
/// What introduces the name of an item.
const KEYWORDS: [&str; 9] =
    ["const", "enum", "fn", "macro_rules!", "mod", "static", "struct", "trait", "type"];

/// Words of a name in any case: `GpuMonitor`, `gpu_monitor`, `GPU_MONITOR`.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut previous = '_';
    for c in name.replace(ONE_WORD.0, ONE_WORD.1).chars() {
        if c == '_' || c.is_uppercase() && previous.is_lowercase() {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c != '_') {
            word.extend(c.to_lowercase());
        }
        previous = c;
    }
    words
}

/// The name at the beginning of some code.
fn name_at(code: &str) -> &str {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// A field or variant on a line of a struct or an enum.
fn field(code: &str) -> Option<&str> {
    let code = code.trim_start();
    let public = code.strip_prefix("pub").and_then(|rest| rest.split_once(' '));
    let code = match public {
        Some((scope, rest)) if scope.is_empty() || scope.starts_with('(') => rest,
        _ => code,
    };
    let name = name_at(code);
    let rest = code[name.len()..].trim_start();
    (!name.is_empty() && rest.starts_with([':', ',', '(', '{', '='])).then_some(name)
}

/// Local variables of the patterns on a line that `let` introduces.
fn locals(code: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let begins = code.match_indices("let ").filter(move |(at, _)| !code[..*at].ends_with(is_part));
    let patterns = begins.filter_map(|(at, found)| code[at + found.len()..].split(['=', ';']).next());
    let names = patterns.flat_map(move |pattern| pattern.split(move |c: char| !is_part(c)));
    names.filter(|name| name.starts_with(|c: char| c.is_lowercase() || c == '_'))
}

/// Names in a file that a private word is part of, as `line: name: word -> better`.
fn private(text: &str, product: bool) -> Vec<String> {
    let mut found = Vec::new();
    // Indentation of the struct or enum that the line is in; and whether a test's attribute or module came before.
    let (mut block, mut test, mut tests) = (None, false, !product);
    for (number, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        let start = code.trim_start();
        if start.starts_with("#[") {
            test |= start.trim_end().ends_with("test]") || start.contains("test(");
            continue;
        }
        tests |= line == "mod tests {";
        let tokens: Vec<&str> = code.split_whitespace().collect();
        let pairs = tokens.windows(2).filter(|pair| KEYWORDS.contains(&pair[0]));
        let mut names: Vec<&str> = pairs.map(|pair| name_at(pair[1])).chain(locals(code)).collect();
        let indent = code.len() - start.len();
        if block.is_some_and(|block| indent <= block && start.starts_with('}')) {
            block = None;
        } else if block.is_some() {
            names.extend(field(code));
        } else if code.trim_end().ends_with('{') && tokens.iter().any(|t| ["struct", "enum"].contains(t)) {
            block = Some(indent);
        }
        for name in names {
            let words = words(name);
            let product = PRODUCT_WORDS.iter().filter(|_| !test && !tests);
            for (word, better) in
                WORDS.iter().chain(product).filter(|(word, _)| words.iter().any(|w| w == word))
            {
                found.push(format!("{}: {name}: {word} -> {better}", number + 1));
            }
        }
        test &= start.is_empty();
    }
    found
}

/// Whether a file holds tests alone.
fn is_test(name: &str) -> bool {
    name.starts_with("tests/")
        || name.contains("/tests/")
        || name.ends_with("/tests.rs")
        || name.ends_with("_tests.rs")
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
    for folder in ["operator", "extender", "node-agent", "cli", "crates", "tests"] {
        rust_files(&root.join(folder), &mut files)?;
    }
    assert!(files.len() > 200, "only {} files", files.len());
    let mut found = Vec::new();
    // This file is the list itself.
    for file in files.into_iter().filter(|file| !file.ends_with("files/words.rs")) {
        let text = std::fs::read_to_string(&file)?;
        let name = file.strip_prefix(&root)?.display().to_string();
        let product = !is_test(&name);
        found.extend(private(&text, product).into_iter().map(|what| format!("{name}:{what}")));
    }
    assert!(found.is_empty(), "private words:\n{}", found.join("\n"));
    Ok(())
}

#[test]
fn private_words_are_found_as_whole_words_of_names() {
    let text = "pub struct PeerVoice;\nfn kind_of() {}\n// fn told()\npub(crate) mod eyes;\nfn is_allowed() {}\nconst MENU: u8 = 0;";
    let found = ["1: PeerVoice: voice -> weight", "4: eyes: eyes -> monitor", "6: MENU: menu -> cost table"];
    assert_eq!(private(text, true), found);
}

#[test]
fn fields_and_variants_are_names_too() {
    let text = "struct A {\n    /// Its eyes.\n    pub(super) look: u8,\n    look_ahead: u8,\n}\nenum B {\n    World(u8),\n    Seen { eyes: u8 },\n}\nfn f() {\n    g(look, world);\n}";
    let found = [
        "3: look: look -> read, observe, snapshot or explore",
        "7: World: world -> cache, snapshot or cluster",
    ];
    assert_eq!(private(text, true), found);
}

#[test]
fn local_variables_are_names_too() {
    let text = "fn f() {\n    let (told, mut other) = g();\n    if let Some(look) = h(world) {}\n    outlet(eyes);\n}";
    let found = [
        "2: told: told -> reported, written or shown",
        "3: look: look -> read, observe, snapshot or explore",
    ];
    assert_eq!(private(text, true), found);
}

#[test]
fn tests_may_use_plain_english() {
    let text = "#[test]\nfn a_job_whose_node_is_silent() {}\nfn whose() {}\n#[cfg(test)]\nmod tests {\n    fn world() {}\n    fn told() {}\n}";
    let found = ["3: whose: whose -> ownership", "7: told: told -> reported, written or shown"];
    assert_eq!(private(text, true), found);
    assert!(is_test("operator/src/lifecycle/tests/world.rs") && !is_test("operator/src/testing.rs"));
}
