//! The committed definitions are those that the types give.

use std::fs;
use std::path::{Path, PathBuf};

/// Where the definitions are committed: for `kubectl apply -f`, and for the chart.
const FOLDERS: [&str; 2] = ["deploy/crds", "charts/andreas/files/crds"];
const REFRESH: &str = "make crds";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_committed_files_are_what_the_types_give() {
    let update = std::env::var_os("UPDATE").is_some();
    for folder in FOLDERS.map(|folder| root().join(folder)) {
        for (name, text) in andreas_api::crd::files() {
            let path = folder.join(name);
            if update {
                fs::create_dir_all(&folder).unwrap();
                fs::write(&path, &text).unwrap();
            }
            let committed = fs::read_to_string(&path).unwrap_or_default();
            assert!(committed == text, "{} is stale; refresh it with: {REFRESH}", path.display());
        }
    }
}
