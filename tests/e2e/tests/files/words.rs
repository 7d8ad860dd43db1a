//! Private words that once named things here, each with the field's word for it: none of them names an item, a field, a
//! parameter or a local variable again.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use syn::visit::{self, Visit};
use syn::{Attribute, Field, Ident, ImplItem, Item, PatIdent, TraitItemFn, Variant};

use crate::imports::only_in_tests;

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

/// Names that a file introduces: of items, fields, variants, parameters, and of all that a pattern binds.
struct Names {
    /// In a test, or in a module of tests.
    test: bool,
    /// Each name, and whether it is one of a test.
    found: Vec<(String, bool)>,
}

impl Names {
    fn add(&mut self, name: &Ident) {
        self.found.push((name.to_string(), self.test));
    }

    /// Goes on within something that has attributes.
    fn within(&mut self, attributes: &[Attribute], visit: impl FnOnce(&mut Self)) {
        let before = self.test;
        self.test |= are_of_tests(attributes);
        visit(self);
        self.test = before;
    }
}

/// Of a test, such as `#[test]` and `#[tokio::test]`, or of a module of tests.
fn are_of_tests(attributes: &[Attribute]) -> bool {
    let is_test = |a: &Attribute| a.path().segments.last().is_some_and(|segment| segment.ident == "test");
    only_in_tests(attributes) || attributes.iter().any(is_test)
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item(&mut self, item: &'ast Item) {
        let (name, attributes): (Option<&Ident>, &[Attribute]) = match item {
            Item::Const(item) => (Some(&item.ident), &item.attrs),
            Item::Enum(item) => (Some(&item.ident), &item.attrs),
            Item::Fn(item) => (Some(&item.sig.ident), &item.attrs),
            Item::Impl(item) => (None, &item.attrs),
            Item::Macro(item) => (item.ident.as_ref(), &item.attrs),
            Item::Mod(item) => (Some(&item.ident), &item.attrs),
            Item::Static(item) => (Some(&item.ident), &item.attrs),
            Item::Struct(item) => (Some(&item.ident), &item.attrs),
            Item::Trait(item) => (Some(&item.ident), &item.attrs),
            Item::Type(item) => (Some(&item.ident), &item.attrs),
            _ => (None, &[]),
        };
        self.within(attributes, |names| {
            name.into_iter().for_each(|name| names.add(name));
            visit::visit_item(names, item);
        });
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let (name, attributes): (Option<&Ident>, &[Attribute]) = match item {
            ImplItem::Const(item) => (Some(&item.ident), &item.attrs),
            ImplItem::Fn(item) => (Some(&item.sig.ident), &item.attrs),
            _ => (None, &[]),
        };
        self.within(attributes, |names| {
            name.into_iter().for_each(|name| names.add(name));
            visit::visit_impl_item(names, item);
        });
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        self.add(&item.sig.ident);
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_field(&mut self, field: &'ast Field) {
        field.ident.iter().for_each(|name| self.add(name));
        visit::visit_field(self, field);
    }

    fn visit_variant(&mut self, variant: &'ast Variant) {
        self.add(&variant.ident);
        visit::visit_variant(self, variant);
    }

    fn visit_pat_ident(&mut self, pattern: &'ast PatIdent) {
        self.add(&pattern.ident);
        visit::visit_pat_ident(self, pattern);
    }
}

/// Names in a file that a private word is part of, as `name: word -> better`.
fn private(text: &str, product: bool) -> Result<Vec<String>> {
    let mut names = Names { test: !product, found: Vec::new() };
    names.visit_file(&syn::parse_file(text)?);
    let mut found = Vec::new();
    for (name, test) in names.found {
        let words = words(&name);
        let all = WORDS.iter().chain(PRODUCT_WORDS.iter().filter(|_| !test));
        for (word, better) in all.filter(|(word, _)| words.iter().any(|w| w == word)) {
            found.push(format!("{name}: {word} -> {better}"));
        }
    }
    Ok(found)
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
        let of_file = private(&text, product).with_context(|| name.clone())?;
        found.extend(of_file.into_iter().map(|what| format!("{name}: {what}")));
    }
    assert!(found.is_empty(), "private words:\n{}", found.join("\n"));
    Ok(())
}

#[test]
fn private_words_are_found_as_whole_words_of_names() -> Result<()> {
    let text = "pub struct PeerVoice;\nfn kind_of() {}\n// fn told()\npub(crate) mod eyes {}\nfn is_allowed() {}\nconst MENU: u8 = 0;";
    assert_eq!(
        private(text, true)?,
        ["PeerVoice: voice -> weight", "eyes: eyes -> monitor", "MENU: menu -> cost table"]
    );
    Ok(())
}

#[test]
fn fields_and_variants_are_names_too() -> Result<()> {
    let text = "struct A {\n    /// Its eyes.\n    pub(super) look: u8,\n    look_ahead: u8,\n}\nenum B {\n    World(u8),\n    Seen { eyes: u8 },\n}\nfn f() {\n    g(look, world);\n}";
    let found = [
        "look: look -> read, observe, snapshot or explore",
        "World: world -> cache, snapshot or cluster",
        "eyes: eyes -> monitor",
    ];
    assert_eq!(private(text, true)?, found);
    Ok(())
}

#[test]
fn parameters_and_local_variables_are_names_too() -> Result<()> {
    let text = "impl A {\n    fn f(&self, said: u8) {\n        let (told, mut other) = g();\n        if let Some(look) = h(world) {}\n        outlet(eyes);\n        h(|saw| 0);\n    }\n}";
    let found = [
        "said: said -> message, claimed, or what it is",
        "told: told -> reported, written or shown",
        "look: look -> read, observe, snapshot or explore",
        "saw: saw -> observed",
    ];
    assert_eq!(private(text, true)?, found);
    Ok(())
}

#[test]
fn tests_may_use_plain_english() -> Result<()> {
    let text = "#[test]\nfn a_job_whose_node_is_silent() {}\nfn whose() {}\n#[cfg(test)]\nmod tests {\n    fn world() {}\n    fn told() {}\n}";
    assert_eq!(
        private(text, true)?,
        ["whose: whose -> ownership", "told: told -> reported, written or shown"]
    );
    assert!(is_test("operator/src/lifecycle/tests/world.rs") && !is_test("operator/src/testing.rs"));
    Ok(())
}
