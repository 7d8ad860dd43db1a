//! What the nodes run as containers: archives that `tests/kubelets/images` wrote.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

/// The archives, loaded into every node before its kubelet starts: nothing is pulled.
pub(crate) fn archives() -> Result<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/node-images");
    let missing = || format!("no images in {}: run tests/kubelets/images", folder.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(missing)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "tar") {
            found.push(path.canonicalize()?);
        }
    }
    ensure!(!found.is_empty(), missing());
    found.sort();
    Ok(found)
}
