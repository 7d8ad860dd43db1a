//! What the nodes run as containers: archives that `tests/kubelets/images` wrote.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

/// Names one archive more.
const ENV_MORE: &str = "ANDREAS_NODE_IMAGE";

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
    if let Some(path) = std::env::var_os(ENV_MORE) {
        found.push(PathBuf::from(path).canonicalize().context(ENV_MORE)?);
    }
    found.sort();
    Ok(found)
}
