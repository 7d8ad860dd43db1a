//! What the nodes run as containers: archives that `tests/kubelets/images` wrote.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

/// Names one archive more.
const ENV_MORE: &str = "ANDREAS_NODE_IMAGE";
/// Of what else a cluster runs, beside the product.
const OF_CLUSTERS: [&str; 4] = ["pause", "coredns", "nvidia", "kube-scheduler"];

/// Where nodes have images from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Images {
    /// All are loaded into every node before its kubelet starts: nothing is pulled.
    #[default]
    Loaded,
    /// The product's are pulled from a [`Registry`](crate::Registry); those of every cluster are loaded.
    Pulled,
}

/// What a node's containerd begins with.
#[derive(Debug)]
pub(crate) struct Disk {
    /// Its files once the product's archives are loaded, if `tests/kubelets/store` has made them from those that are there now.
    pub store: Option<PathBuf>,
    /// The archives that are loaded besides.
    pub archives: Vec<PathBuf>,
}

impl Images {
    /// What every node begins with.
    pub(crate) fn disk(self) -> Result<Disk> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/node-images");
        let missing = || format!("no images in {}: run tests/kubelets/images", folder.display());
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&folder).with_context(missing)? {
            let path = entry?.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let wanted = self == Self::Loaded || OF_CLUSTERS.iter().any(|of| name.starts_with(of));
            if wanted && path.extension().is_some_and(|extension| extension == "tar") {
                found.push(path.canonicalize()?);
            }
        }
        ensure!(!found.is_empty(), missing());
        let store = (self == Self::Loaded)
            .then(|| folder.with_file_name("node-store"))
            .filter(|store| is_newest(store, &found));
        if store.is_some() {
            found.clear();
        }
        if let Some(path) = std::env::var_os(ENV_MORE) {
            found.push(PathBuf::from(path).canonicalize().context(ENV_MORE)?);
        }
        found.sort();
        Ok(Disk { store: store.map(|store| store.canonicalize()).transpose()?, archives: found })
    }
}

/// Whether none of the files is newer.
fn is_newest(path: &Path, files: &[PathBuf]) -> bool {
    let written = |path: &Path| path.metadata().and_then(|known| known.modified()).ok();
    written(path).is_some_and(|at| files.iter().all(|file| written(file).is_some_and(|file| file <= at)))
}
