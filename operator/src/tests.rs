//! Given this crate's sources; when their imports are read; then no module imports a later one of the table in
//! `lib.rs`. Tests may import anything.

use std::fs;
use std::path::{Path, PathBuf};

/// Modules in the order of the table.
fn order() -> Vec<&'static str> {
    let rows = include_str!("lib.rs").lines().filter_map(|line| line.strip_prefix("//! | [`"));
    rows.filter_map(|row| Some(row.split_once("`]")?.0)).collect()
}

/// Source files below a folder, without those of tests only.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let tests = |path: &Path| path.file_stem().is_some_and(|name| name == "tests");
    let all = entries.filter(|path| !tests(path));
    all.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

/// The code of a file without comments and its own tests.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).expect("a source");
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

#[test]
fn no_module_imports_a_later_one() {
    let order = order();
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let place = |module: &str| order.iter().position(|known| *known == module);
    let mut wrong = Vec::new();
    for file in sources(&src) {
        let path = file.strip_prefix(&src).expect("below src").with_extension("");
        let module = path.iter().next().and_then(|name| name.to_str()).expect("a name");
        if matches!(module, "lib" | "main" | "testing") {
            continue;
        }
        let own = place(module).unwrap_or_else(|| panic!("{module} is not in the table of lib.rs"));
        for import in code(&file).split("crate::").skip(1) {
            let other = import.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
            if place(other).is_none_or(|other| other > own) {
                wrong.push(format!("{} imports {other}", path.display()));
            }
        }
    }
    assert!(order.len() > 10 && wrong.is_empty(), "{order:?}: {wrong:#?}");
}
